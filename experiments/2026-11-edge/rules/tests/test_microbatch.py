"""Microbatches: the two ends of the family, and the certified shift of each assignment."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass

import pytest
import rule_battery
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from winsor.rules.members import norms_of_sums
from winsor.rules.microbatch import Microbatch, inserted_permutation

from winsor_papers.neighbouring import NOMINAL, AuditSetting, worst
from winsor.core.contract import ConfigurationError, Neighbouring
from winsor.core.noise.gaussian import Gaussian
from winsor.core.sampling.samplers import FullBatch
from winsor.gradients import trainable_parameters
from winsor.gradients.ghost import GhostEngine
from winsor.gradients.loop import LoopEngine
from winsor.gradients.rows import RowsView
from winsor.rules.averaged import Averaged
from winsor.rules.flat import Flat

WEIGHT = {"w": torch.zeros(2)}


def part_of(rule, rows, expected_size=8.0):
    state = rule.init(WEIGHT, expected_size)
    view = RowsView({"w": torch.as_tensor(rows, dtype=torch.float32).reshape(-1, 2)})
    return rule.bounded(rule.contributions(view, state), state)["grad"]


def moved(rule, rows, others, expected_size=8.0):
    one, other = part_of(rule, rows, expected_size), part_of(rule, others, expected_size)
    return float((one.value["w"] - other.value["w"]).double().norm())


def test_one_row_per_microbatch_is_flat_clipping():
    rows = torch.randn(9, 2, generator=torch.Generator().manual_seed(0)) * 5
    mine, flat = part_of(Microbatch(1.0, size=1), rows), part_of(Flat(1.0), rows)
    torch.testing.assert_close(mine.value["w"], flat.value["w"])
    assert mine.sensitivity.add_remove == flat.sensitivity.add_remove == 1.0


def test_one_microbatch_for_all_is_averaged_clipping():
    rows = torch.randn(9, 2, generator=torch.Generator().manual_seed(0)) * 5
    mine, aclip = part_of(Microbatch(0.3, size=8), rows), part_of(Averaged(0.3), rows)
    torch.testing.assert_close(mine.value["w"], aclip.value["w"])
    assert mine.sensitivity.add_remove == aclip.sensitivity.add_remove == 2 * 0.3 * 8


def test_short_rows_add_up_whatever_their_microbatch():
    rows = torch.randn(9, 2, generator=torch.Generator().manual_seed(0)) * 1e-3
    for assignment in ("bins", "permutation"):
        value = part_of(Microbatch(1.0, size=3, assignment=assignment, seed=4), rows).value["w"]
        torch.testing.assert_close(value, rows.sum(0))


adversarial = st.lists(
    st.tuples(st.sampled_from([-1e6, -10.0, -1.0, 0.0, 1.0, 10.0, 1e6]), st.floats(-5, 5)),
    min_size=1,
    max_size=12,
)


@given(adversarial, st.sampled_from(["bins", "permutation"]), st.integers(2, 5), st.integers(0, 99))
def test_no_last_record_moves_the_sum_by_more_than_is_claimed(rows, assignment, size, seed):
    rule = Microbatch(1.0, size=size, assignment=assignment, seed=seed)
    claimed = part_of(rule, rows).sensitivity
    assert moved(rule, rows, rows[:-1]) <= claimed.add_remove * 1.0001
    replaced = [*rows[:-1], (-3 * rows[-1][0] + 1e7, 1.0)]
    assert moved(rule, rows, replaced) <= claimed.replace * 1.0001


def test_bins_attain_two():
    """One bin: the others pull to -C, the last record to +C."""
    rule = Microbatch(1.0, size=4, seed=0)
    assert moved(rule, [[-9.0, 0.0], [1e6, 0.0]], [[-9.0, 0.0]], expected_size=4.0) == (
        pytest.approx(2 * 4.0, rel=1e-4)
    )


def test_a_permutation_attains_four_where_bins_are_certified_at_two():
    """Slots w z | x y: z's place goes to y, and both microbatches flip the same way."""
    x, y, w, z = 10.0, -100.0, 200.0, -400.0
    shifts = []
    for order in itertools.permutations([x, y, w]):
        for seed in range(40):
            rule = Microbatch(1.0, size=2, assignment="permutation", seed=seed)
            rows = [[value, 0.0] for value in (*order, z)]
            shifts.append(moved(rule, rows, rows[:-1]))
    assert max(shifts) == pytest.approx(4 * 2.0, rel=1e-4)
    assert part_of(rule, rows).sensitivity.add_remove == 4 * 2.0


def test_the_permutation_is_uniform():
    """All slots a row may take, each equally likely, give every permutation exactly once."""
    slots = itertools.product([0.0], [0.1, 0.6], [0.1, 0.4, 0.7], [0.1, 0.3, 0.6, 0.8])
    found = Counter(tuple(inserted_permutation(torch.tensor(u)).tolist()) for u in slots)
    assert set(found) == set(itertools.permutations(range(4)))
    assert set(found.values()) == {1}


def test_rows_in_the_order_of_the_loader_are_refused():
    with pytest.raises(ConfigurationError, match=r'must not be "order".*Use "bins"'):
        Microbatch(1.0, assignment="order")


@dataclass(frozen=True)
class InOrder(Microbatch):
    """The mutant that the refusal is about: chunks in order, certified like a permutation."""

    def _microbatches(self, n, state):
        return torch.split(torch.arange(n), self.size)


def test_in_order_the_shift_grows_with_the_number_of_chunks():
    rule = InOrder(1.0, size=2, assignment="permutation", seed=0)
    shifts = []
    for pairs in (3, 6, 9):
        # Pairs (1, -10), (100, -1000) are negative; without the first row, (-10, 100) is positive.
        rows = [[(-10.0) ** i, 0.0] for i in range(2 * pairs)]
        shifts.append(moved(rule, rows, rows[1:]))
    claimed = part_of(rule, rows).sensitivity.add_remove
    assert shifts[0] < shifts[1] < shifts[2]
    assert shifts[2] > 2 * claimed


def test_the_battery_holds_for_every_seed():
    for seed in range(5):
        for assignment in ("bins", "permutation"):
            rule = Microbatch(1.0, size=2, assignment=assignment, seed=seed)
            rule_battery.check_bound_add_remove(rule)
            rule_battery.check_bound_replace(rule)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"max_mean_norm": 0.0}, "max_mean_norm must be"),
        ({"size": 0}, "size must be"),
        ({"size": 1.5}, "size must be"),
        ({"assignment": "hash"}, "assignment must be one of"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(ConfigurationError, match=message):
        Microbatch(**{"max_mean_norm": 1.0, **options})


class Wide(nn.Module):
    """Linear layers at several places of each row, and a normalisation between them."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x):
        return self.last(torch.relu(self.norm(self.first(x)))).mean(1)


def seen_by_ghost(model, x, y):
    engine = GhostEngine(model, trainable_parameters(model), Microbatch.needs)
    engine.attach()
    engine.recording(True)
    view = engine.view(F.cross_entropy(model(x), y, reduction="none"))
    engine.detach()
    return view


@pytest.mark.parametrize("assignment", ["bins", "permutation"])
@pytest.mark.parametrize("scale", [0.01, 1.0, 100.0])
def test_norms_of_microbatches_without_their_gradients_give_the_same_sum(assignment, scale):
    torch.manual_seed(3)
    model, y = Wide(), torch.arange(13) % 3
    x = scale * torch.randn(13, 5, 6)
    x[4] = float("nan")
    rule = Microbatch(0.2, size=3, assignment=assignment, seed=2)
    state = rule.init(trainable_parameters(model), 13.0)
    rows = LoopEngine(model, trainable_parameters(model))
    rows.attach()
    rows.recording(True)
    oracle = rows.view(F.cross_entropy(model(x), y, reduction="none"))
    rows.detach()
    view = seen_by_ghost(model, x, y)
    assert norms_of_sums(view, [torch.tensor([0, 4]), torch.tensor([1])]) is not None
    found, expected = (rule.contributions(v, state)["grad"] for v in (view, oracle))
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-6)


def test_rows_that_cancel_in_their_microbatch_do_not_drown_the_others():
    """Two rows of 1e12 that add up to nothing: their rounding must not be larger than the ball."""
    model = nn.Linear(4, 2, bias=False)
    x = torch.zeros(4, 4)
    x[0, :2] = torch.tensor([1e12, 1.1e12])
    x[1] = -x[0] * (1 + 1e-7)
    x[2:] = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))
    rule = Microbatch(1.0, size=4, seed=0)
    state = rule.init(trainable_parameters(model), 4.0)
    assert state["bins"] == 1

    def sum_of_rows(rows):
        engine = GhostEngine(model, trainable_parameters(model), Microbatch.needs)
        engine.attach()
        engine.recording(True)
        view = engine.view(model(rows).sum(1))
        engine.detach()
        return rule.contributions(view, state)["grad"]["weight"].double()

    assert sum_of_rows(x).norm() <= 4.0 * 1.0001
    assert (sum_of_rows(x) - sum_of_rows(x[1:])).norm() <= 8.0 * 1.0001


@pytest.mark.parametrize(
    "rule",
    [Microbatch(1.0, size=4, seed=0), Microbatch(0.5, size=2, assignment="permutation", seed=0)],
    ids=["one bin flips", "two chunks flip"],
)
def test_the_worst_pair_attains_the_stated_sensitivity(rule):
    relation = Neighbouring.ADD_OR_REMOVE_ONE
    experiment = worst(rule, AuditSetting(Gaussian(1.0), FullBatch(NOMINAL), relation))
    ((event, _),) = experiment.history
    assert experiment.shift() * event.noise_multiplier == pytest.approx(1.0, abs=0.01)
