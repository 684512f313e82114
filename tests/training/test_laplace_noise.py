"""Training with Laplace noise, and ModelMix on top of it."""

from __future__ import annotations

import pytest
import torch
from dp_accounting.dp_event import LaplaceDpEvent, PoissonSampledDpEvent
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import winsor
from winsor.contrib.modelmix.mechanism import MixedLaplace, ModelMix
from winsor.core.contract import (
    Bounded,
    ConfigurationError,
    Neighbouring,
    Sensitivity,
    UnsoundRelease,
    UnsupportedRelation,
)
from winsor.core.events.mixed import MixedLaplaceDpEvent
from winsor.core.sampling.samplers import FullBatch, Poisson
from winsor.rules import L1, Flat, Quantile

ADD, REPLACE = Neighbouring.ADD_OR_REMOVE_ONE, Neighbouring.REPLACE_ONE


def part(c, share=1.0, bound=None):
    """Bounded by c in L1; its L2 bound is of no concern here."""
    sensitivity = Sensitivity.per_sample(c / 10, "test", l1=c)
    return Bounded(torch.zeros(3), sensitivity, share, coordinate_bound=bound)


def start(mechanism, rule=None, **changes):
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    x = torch.randn(80, 4, generator=torch.Generator().manual_seed(1))
    arguments = {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.5),
        "dataset": TensorDataset(x, (x[:, 0] > 0).long()),
        "rule": rule or L1(1.0, p=4),
        "noise_multiplier": 1.0,
        "delta": 1e-3,
        "steps": 4,
        "batch_size": 16,
        "seed": 0,
        "mechanism": mechanism,
    }
    return winsor.make_private(**{**arguments, **changes})


def train(private):
    for x, y in private.batches():
        private.step(F.cross_entropy(private.model(x), y, reduction="none"))
    return private


def test_a_run_with_laplace_noise_records_its_event():
    private = train(start("laplace"))
    assert private.ledger.history() == [(MixedLaplaceDpEvent(0.2, 1.0, 0.0, 4.0), 4)]
    plain = train(start("laplace", L1(1.0)))
    assert plain.ledger.history() == [(PoissonSampledDpEvent(0.2, LaplaceDpEvent(1.0)), 4)]
    assert private.spent().epsilon <= plain.spent().epsilon


def test_laplace_noise_is_calibrated():
    private = train(start("laplace", noise_multiplier=None, epsilon=1.0))
    assert 0.99 <= private.spent().epsilon <= 1.0


def test_mixing_records_its_event_and_never_costs():
    mixed = train(start(ModelMix(0.5, noise="laplace")))
    event = MixedLaplaceDpEvent(0.2, 1.0, width_ratio=0.5 * 16, coordinates=4.0)
    assert mixed.ledger.history() == [(event, 4)]
    still = train(start(ModelMix(0.0, noise="laplace")))
    plain = train(start("laplace"))
    assert mixed.spent().epsilon < plain.spent().epsilon
    assert still.ledger.history() == plain.ledger.history()
    assert mixed.state_dict()["key"] is None


def test_mixing_on_the_full_batch():
    parts = {"grad": part(2.0, bound=0.5)}
    mechanism = MixedLaplace(1.0, ModelMix(0.25, noise="laplace"), expected_size=8.0)
    whole = FullBatch(8).amplify(mechanism.event(parts), ADD)
    assert whole == MixedLaplaceDpEvent(1.0, 1.0, 0.25 * 8 / 2, 4.0)
    assert Poisson(8, 1.0).amplify(mechanism.event(parts), ADD) == whole
    with pytest.raises(UnsupportedRelation, match="Poisson"):
        mechanism.event(parts).fixed_size(8, 2, REPLACE)
    still = MixedLaplace(1.0, ModelMix(0.0, noise="laplace"), expected_size=8.0)
    assert still.event(parts).whole(ADD) == MixedLaplaceDpEvent(1.0, 1.0, 0.0, 4.0)


def test_what_does_not_fit_is_refused():
    with pytest.raises(UnsoundRelease, match="bounded in L1"):
        start("laplace", Flat(1.0))
    with pytest.raises(UnsoundRelease, match="bounded in L1"):
        start(ModelMix(0.1, noise="laplace"), Flat(1.0))
    with pytest.raises(UnsoundRelease, match="one bounded part"):
        start(ModelMix(0.1, noise="laplace"), Quantile(1.0))
    with pytest.raises(UnsupportedRelation, match="fixed size"):
        start("laplace", sampling="fixed", relation="replace_one")
    with pytest.raises(ConfigurationError, match="mechanism must be"):
        start("cauchy")
    with pytest.raises(ConfigurationError, match="noise must be"):
        ModelMix(0.1, noise="cauchy")


def test_gaussian_noise_accepts_the_rule_with_its_bound_in_l2():
    """L1 bound c with coordinates below c/p: L2 bound c/sqrt(p), spread over p coordinates."""
    private = train(start(ModelMix(0.5)))
    event, _ = private.ledger.history()[0]
    assert event.coordinates == pytest.approx(4)
    assert event.width_ratio == pytest.approx(0.5 * 16 / 0.5)
