"""ModelMix: the update of Algorithm 1, its event, and what it refuses and hides."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import winsor
from winsor.contrib.modelmix.mechanism import ModelMix
from winsor.contrib.modelmix.mixed_gaussian import MixedGaussianDpEvent
from winsor.contrib.modelmix.update import MixingUpdate
from winsor.core.accounting import account
from winsor.core.contract import (
    ConfigurationError,
    LedgerError,
    UnsoundRelease,
    UnsupportedRelation,
)
from winsor.core.randomness import new_key
from winsor.rules import Flat, LInf, Quantile


def start(mix, optimizer=None, **changes):
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    x = torch.randn(80, 4, generator=torch.Generator().manual_seed(1))
    arguments = {
        "model": model,
        "optimizer": (optimizer or (lambda p: torch.optim.SGD(p, lr=0.5)))(model.parameters()),
        "dataset": TensorDataset(x, (x[:, 0] > 0).long()),
        "rule": Flat(1.0),
        "noise_multiplier": 1.0,
        "delta": 1e-3,
        "steps": 4,
        "batch_size": 16,
        "seed": 0,
        "mechanism": mix,
    }
    return winsor.make_private(**{**arguments, **changes})


def train(private, steps=None):
    for x, y in private.batches(steps):
        private.step(F.cross_entropy(private.model(x), y, reduction="none"))
    return private


def update(mix, w_before, w_now, lr=0.1, size=7.0):
    """One bare update from two given iterates, with a zero gradient."""
    parameter = nn.Parameter(w_before.clone())
    optimizer = torch.optim.SGD([parameter], lr=lr)
    mixing = MixingUpdate({"w": parameter}, optimizer, None, size, mix, new_key(seed=5))
    parameter.data.copy_(w_now)
    return mixing, parameter


def test_equal_iterates_are_pushed_apart_by_tau():
    mixing, w = update(ModelMix(0.3), torch.ones(20_000), torch.ones(20_000))
    mixing.move({"w": torch.zeros(20_000)}, 0, std=1.0)
    moved = w.detach() - 1
    tau = 0.3 * 0.1
    assert moved.abs().max() <= tau / 2 * (1 + 1e-3)
    assert moved.std() == pytest.approx(tau / 12**0.5, rel=0.03)
    assert abs(float(moved.mean())) < 5 * tau / 12**0.5 / 20_000**0.5


def test_wide_gaps_are_mixed_over_their_own_width():
    mixing, w = update(ModelMix(0.3), torch.zeros(20_000), torch.full((20_000,), 2.0))
    mixing.move({"w": torch.zeros(20_000)}, 0, std=1.0)
    assert w.min() >= 0
    assert w.max() <= 2
    assert w.detach().mean() == pytest.approx(1.0, abs=0.02)
    assert w.detach().std() == pytest.approx(2 / 12**0.5, rel=0.03)


def test_the_gradient_is_divided_by_the_expected_size_and_scaled_by_the_rate():
    mixing, w = update(ModelMix(0.0), torch.ones(3), torch.ones(3), lr=0.5, size=4.0)
    mixing.move({"w": torch.full((3,), 8.0)}, 0, std=1.0)
    torch.testing.assert_close(w.detach(), torch.zeros(3))


def test_heavy_ball_and_decay_use_released_iterates():
    mix = ModelMix(0.0, heavy_ball=0.5, weight_decay=0.1)
    mixing, w = update(mix, torch.tensor([1.0]), torch.tensor([1.0]), lr=0.5, size=1.0)
    mixing.move({"w": torch.zeros(1)}, 0, std=1.0)
    torch.testing.assert_close(w.detach(), torch.tensor([1 - 0.5 * 0.1]))
    mixing.move({"w": torch.zeros(1)}, 1, std=1.0)
    low, high = 0.95, 1.0  # mixed between the two iterates, then momentum and decay
    shift = 0.5 * 0.05 + 0.05 * 0.95
    assert low - shift - 1e-6 <= w.detach().item() <= high - shift + 1e-6


def test_the_event_has_the_width_in_units_of_the_clipped_sum():
    private = train(start(ModelMix(0.15)))
    event = MixedGaussianDpEvent(0.2, 1.0, width_ratio=0.15 * 16, coordinates=1.0)
    assert private.ledger.history() == [(event, 4)]
    wide = train(start(ModelMix(0.15), rule=LInf(1.0, p=4)))
    assert wide.ledger.history()[0][0].coordinates == pytest.approx(4)


def test_a_schedule_changes_the_event_and_calibration_covers_it():
    mix = ModelMix(((0, 0.3), (2, 0.1)))
    private = train(start(mix, noise_multiplier=None, epsilon=2.0))
    assert [count for _, count in private.ledger.history()] == [2, 2]
    assert 0.99 * 2 <= private.spent().epsilon <= 2


def test_mixing_never_costs_more_and_without_width_costs_the_same():
    plain = train(start(None)).spent().epsilon
    assert train(start(ModelMix(0.0))).spent().epsilon == plain
    assert train(start(ModelMix(0.5))).spent().epsilon <= plain


def test_width_buys_privacy():
    delta, relation = 1e-5, winsor.Neighbouring.ADD_OR_REMOVE_ONE
    events = [MixedGaussianDpEvent(0.02, 0.4, w, 25) for w in (0.0, 5.0, 20.0)]
    spent = [account([(event, 500)], delta, relation).epsilon for event in events]
    assert spent[0] > spent[1] > spent[2]


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.1),
        lambda p: torch.optim.Adam(p),
    ],
)
def test_optimisers_that_reuse_the_noisy_gradient_are_refused(optimizer):
    with pytest.raises(ConfigurationError, match="plain SGD"):
        start(ModelMix(0.1), optimizer)


def test_rules_that_release_more_than_the_gradient_are_refused():
    with pytest.raises(UnsoundRelease, match="one bounded part"):
        start(ModelMix(0.1), rule=Quantile(1.0))


def test_fixed_size_batches_are_refused():
    with pytest.raises(UnsupportedRelation, match="Poisson"):
        start(ModelMix(0.1), sampling="fixed", relation="replace_one")


@pytest.mark.parametrize("bad", [-0.1, float("nan"), ((1, 0.1),), ((0, 0.1), (0, 0.2), (-1, 1.0))])
def test_bad_widths_are_refused(bad):
    with pytest.raises(ConfigurationError, match="tau_over_lr"):
        ModelMix(bad)


def test_neither_noisy_gradient_nor_key_can_be_seen(tmp_path):
    private = train(start(ModelMix(0.1)))
    assert all(p.grad is None for p in private.model.parameters())
    state = private.state_dict()
    assert state["key"] is None
    assert private._feed.key.hex() not in str(state)
    before = state["update"]["before"]
    assert set(before) == {"weight", "bias"}  # an iterate that was released anyway


def test_resume_needs_the_key_file_or_the_seed(tmp_path):
    whole = train(start(ModelMix(0.1), seed=3))
    half = train(start(ModelMix(0.1), seed=3), 2)
    state, weights = half.state_dict(), half.model.state_dict()
    resumed = start(ModelMix(0.1), seed=3)
    resumed.model.load_state_dict(weights)
    resumed.load_state_dict(state)
    train(resumed)
    for one, two in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one, two)
    with pytest.raises(LedgerError, match="key"):
        start(ModelMix(0.1), seed=4).load_state_dict(state)


def test_the_key_file_is_private_and_found_again(tmp_path):
    path = tmp_path / "ledger.jsonl"
    first = start(ModelMix(0.1), seed=None, ledger=path)
    key_file = tmp_path / "ledger.key"
    assert key_file.stat().st_mode & 0o777 == 0o600
    first.detach()
    again = start(ModelMix(0.1), seed=None, ledger=path)
    assert again._feed.key == first._feed.key
