"""DC-DPSGD: who is in the tail, what that costs, and that a rank cut costs more than c1."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import rule_battery
import torch
from hypothesis import given
from hypothesis import strategies as st

from winsor.core.contract import ConfigurationError, Neighbouring, Released, Sensitivity
from winsor.core.noise.gaussian import Gaussian
from winsor.gradients.rows import RowsView
from winsor.gradients.view import Need
from winsor.rules.discriminative import Discriminative, Subspace, normalised_trace, top
from winsor.rules.quantile import QuantileTracker

WEIGHT = {"w": torch.zeros(4, 3)}


def rows_view(rows, losses=None):
    return RowsView({"w": rows.reshape(-1, 4, 3)}, losses)


def some_rows(n=8, scale=10.0):
    return scale * torch.randn(n, 12, generator=torch.Generator().manual_seed(2))


def part_of(rule, rows, losses=None, expected_size=8.0):
    state = rule.init(WEIGHT, expected_size)
    return rule.bounded(rule.contributions(rows_view(rows, losses), state), state)["grad"]


def assert_sum(part, rows, tail):
    """The sum of rows clipped to 2 in the tail and to 0.5 in the body."""
    lengths = torch.where(tail, 2.0, 0.5)
    expected = (rows * (lengths / rows.norm(dim=1)).clamp(max=1)[:, None]).sum(0)
    torch.testing.assert_close(part.value["w"].flatten(), expected.double(), rtol=1.2e-4, atol=1e-5)


# ------------------------------------------------------------------------- membership


def test_norm_and_loss_thresholds():
    rows, losses = some_rows(), torch.arange(8.0)
    norms = rows.norm(dim=1)
    cut = float(norms.median())
    by_norm = part_of(Discriminative(2.0, 0.5, threshold=cut), rows)
    assert_sum(by_norm, rows, norms > cut)
    by_loss = part_of(Discriminative(2.0, 0.5, selection="loss", threshold=3.0), rows, losses)
    assert_sum(by_loss, rows, losses > 3)


def test_the_default_norm_threshold_is_c1():
    rule = Discriminative(2.0, 0.5)
    assert rule.init(WEIGHT, 8.0)["threshold"] == 2.0
    torch.testing.assert_close(
        rule.weight_of_norm(torch.tensor([0.25, 1.0, 4.0])),
        torch.tensor([1.0, 0.5, 0.5]).double(),
        rtol=1.2e-4,
        atol=0,
    )


def test_the_trace_is_the_squared_length_in_the_subspace():
    subspace, rows = Subspace(k=5, seed=3), some_rows()
    basis = rows_view(torch.eye(12)).sketch(subspace.directions(0))  # (12, k): V itself
    torch.testing.assert_close(basis.T @ basis, torch.eye(5).double(), rtol=1e-4, atol=1e-5)
    expected = (rows.double() @ basis).square().sum(1) / rows.square().sum(1)
    view = rows_view(rows)
    trace = normalised_trace(view.sketch(subspace.directions(0)), view.norms())
    torch.testing.assert_close(trace, expected, rtol=1e-4, atol=1e-6)
    assert float(trace.max()) <= 1 + 1e-5
    rule = Discriminative(2.0, 0.5, selection="trace", subspace=subspace)
    assert rule.init(WEIGHT, 8.0)["threshold"] == 5 / 12
    assert_sum(part_of(rule, rows), rows, expected > 5 / 12)


def test_a_row_of_length_zero_has_trace_zero():
    trace = normalised_trace(torch.tensor([[0.0, 0.0], [3.0, 0.0]]), torch.tensor([0.0, 3.0]))
    assert trace.tolist() == [0.0, 1.0]


def test_directions_are_redrawn_after_refresh_steps():
    subspace = Subspace(k=5, refresh=3)
    seeds = [subspace.directions(step).seed for step in range(7)]
    assert seeds == [0, 0, 0, 1, 1, 1, 2]
    assert subspace.directions(0).distribution == "weibull"


def test_ties_are_broken_by_key_not_by_position():
    scores, chosen = torch.zeros(6), torch.zeros(6)
    for seed in range(600):
        keys = torch.rand(6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        tail = top(scores, 2, keys)
        assert int(tail.sum()) == 2
        chosen += tail
    # Each row is in the tail with probability 1/3: 200 +- 11.5, five deviations.
    assert ((chosen - 200).abs() < 58).all()
    assert top(torch.tensor([1.0, 3.0, 2.0]), 2, torch.rand(3)).tolist() == [False, True, True]


@pytest.mark.parametrize("size, expected", [(0, 0), (3, 3), (9, 4)])
def test_the_tail_has_the_nominal_size(size, expected):
    assert int(top(torch.rand(4), size, torch.rand(4)).sum()) == expected


# ------------------------------------------------------------------------------ bounds


@dataclass(frozen=True)
class RankAccountedAtC1(Discriminative):
    """The mutant: a rank cut that claims what only a per-record rule may claim."""

    def _sensitivity(self):
        return Sensitivity.per_sample(self.c1, "wrong: forgets the row that is pushed out")


RANK = {"selection": "rank", "rank_by": "norm", "tail_fraction": 0.5, "seed": 0}


def test_the_battery_passes_rank_and_catches_it_when_accounted_at_c1():
    rule_battery.check_bound_add_remove(Discriminative(1.0, 0.1, **RANK))
    with pytest.raises(AssertionError, match=r"claimed 1\.0"):
        rule_battery.check_bound_add_remove(RankAccountedAtC1(1.0, 0.1, **RANK))


def test_rank_attains_two_c1_minus_c2():
    """Three records at -L e, one at +L e, all of one norm: docs/privacy.md, "Rules, one by one"."""
    rows = torch.zeros(4, 12)
    rows[:, 0] = torch.tensor([-1e3, -1e3, -1e3, 1e3])
    shifts = []
    for seed in range(60):
        rule = Discriminative(
            1.0, 0.1, selection="rank", rank_by="norm", tail_fraction=0.25, seed=seed
        )
        one, other = (part_of(rule, r, expected_size=4.0) for r in (rows, rows[:-1]))
        shifts.append(float((one.value["w"] - other.value["w"]).norm()))
    claimed = one.sensitivity
    assert (claimed.add_remove, claimed.replace) == (pytest.approx(1.9), 2.0)
    assert max(shifts) == pytest.approx(1.9, rel=1e-4)


scales = st.lists(st.sampled_from([0.0, 1e-3, 0.3, 1.0, 5.0, 1e6]), min_size=1, max_size=9)


@given(scales, st.sampled_from(["norm", "loss", "trace", "rank", "random"]), st.integers(0, 200))
def test_no_last_record_moves_the_sum_by_more_than_is_claimed(lengths, selection, seed):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(len(lengths), 12, generator=generator) * torch.tensor(lengths)[:, None]
    losses = torch.rand(len(lengths), generator=generator)
    rule = Discriminative(
        1.0,
        0.2,
        selection=selection,
        threshold=0.5 if selection in ("norm", "loss") else None,
        tail_fraction=0.3,
        subspace=Subspace(k=3, seed=seed),
        rank_by=("norm", "loss", "trace")[seed % 3],
        seed=seed,
    )
    with_record, without = part_of(rule, rows, losses), part_of(rule, rows[:-1], losses[:-1])
    moved = float((with_record.value["w"] - without.value["w"]).double().norm())
    assert moved <= with_record.sensitivity.add_remove * 1.0001


def test_only_rank_and_random_join_fragments_and_sketches_are_asked_for_when_used():
    for selection in ("norm", "trace", "rank", "random"):
        rule = Discriminative(1.0, 0.1, selection=selection, rank_by="loss")
        assert rule.couples_rows is rule.randomised is (selection in ("rank", "random"))
        assert bool(rule.needs & Need.SKETCH) is (selection == "trace")
        assert bool(rule.needs & Need.LOSSES) is (selection == "rank")


# ------------------------------------------------------------------------------ events


def test_a_tracked_threshold_is_one_joint_event():
    tracker = QuantileTracker(target=0.9, share=0.2)
    rule = Discriminative(1.0, 0.1, threshold=5.0, tracker=tracker)
    state = rule.init(WEIGHT, 8.0)
    parts = rule.bounded(rule.contributions(rows_view(some_rows()), state), state)
    std = Gaussian(0.7).std(parts)
    joint = (1.0 / std["grad"]) ** 2 + 1 / (4 * std["count"] ** 2)
    assert joint == pytest.approx(0.7**-2)
    released = Released({"grad": parts["grad"].value, "count": torch.tensor(4.0)}, std, 0)
    _, after = rule.after(released, state)
    assert after["threshold"] == pytest.approx(5.0 * math.exp(-0.2 * (1.0 - 0.9)))
    assert after["step"] == 1


def test_coins_give_a_mixture_event():
    rule = Discriminative(2.0, 0.5, selection="random", tail_fraction=0.25, seed=1)
    part = part_of(rule, some_rows())
    event = Gaussian(1.1).event({"grad": part})
    sampled = event.poisson(0.1, Neighbouring.ADD_OR_REMOVE_ONE)
    found = dict(zip(sampled.sensitivities, sampled.sampling_probs, strict=True))
    assert found == pytest.approx({0.0: 0.9, 1.0: 0.025, 0.25: 0.075})
    assert sampled.standard_deviation == pytest.approx(1.1)


def test_coins_have_the_probability_they_claim():
    rule = Discriminative(1.0, 0.01, selection="random", tail_fraction=0.25, seed=1)
    rows = torch.zeros(4000, 12)
    rows[:, 0] = 1e3
    in_tail = (float(part_of(rule, rows).value["w"][0, 0]) - 40) / 0.99
    assert abs(in_tail - 1000) < 5 * math.sqrt(4000 * 0.25 * 0.75)


# ------------------------------------------------------------------------- construction


def test_thresholds_from_the_theorem():
    rule = Discriminative.from_theorem(2.0, 0.1, 1000, 1e-5, selection="trace")
    assert rule.c1 == pytest.approx(16 * 0.1 * 33 * math.log(2e5) ** 2)
    assert rule.c1 > rule.c2
    assert rule.selection == "trace"
    # At theta = 1 the theorem puts the body above the tail; then both are clipped alike.
    capped = Discriminative.from_theorem(1.0, 0.1, 1000, 1e-5)
    assert capped.c1 == capped.c2


@pytest.mark.parametrize(
    "options, message",
    [
        ({"c1": 0.0}, "c1 must be"),
        ({"c2": -1.0}, "c2 must be"),
        ({"c2": 3.0}, "c2 must be at most c1"),
        ({"selection": "topk"}, "selection must be one of"),
        ({"selection": "rank", "rank_by": "coin"}, "rank_by must be one of"),
        ({"tail_fraction": 1.0}, "tail_fraction must be strictly between"),
        ({"selection": "loss"}, "threshold must be given"),
        ({"threshold": float("nan")}, "threshold must be finite"),
        ({"selection": "rank", "threshold": 1.0}, "must be None for selection"),
        ({"selection": "random", "tracker": QuantileTracker()}, "must be None for selection"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(ConfigurationError, match=message):
        Discriminative(**{"c1": 1.0, "c2": 0.1, **options})


def test_subspace_options_are_checked():
    for options in ({"k": 0}, {"refresh": 0}, {"theta": 0.0}):
        with pytest.raises(ConfigurationError, match=f"{next(iter(options))} must be"):
            Subspace(**options)
    with pytest.raises(ConfigurationError, match="no more orthonormal directions"):
        Discriminative(1.0, 0.1, selection="trace", subspace=Subspace(k=13)).init(WEIGHT, 8.0)
