"""A newcomer's event is one file in a folder; and what holds for every event that is registered."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from dp_accounting.dp_event import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    MixtureOfGaussiansDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
    ZCDpEvent,
)
from dp_accounting.pld import PLDAccountant

import winsor.core
from winsor.core.accounting import account, event_from_json, event_to_json, registered
from winsor.core.contract import ConfigurationError, Neighbouring
from winsor.core.events.allocation import AllocationDpEvent
from winsor.core.events.alternatives import AlternativesDpEvent
from winsor.core.events.mixed import MixedLaplaceDpEvent
from winsor.core.events.thresholded import OverflowDpEvent, ThresholdedGaussianDpEvent

ADD, REPLACE = Neighbouring.ADD_OR_REMOVE_ONE, Neighbouring.REPLACE_ONE

NEWCOMER = '''
"""Randomised response on one bit: the answer is true with probability e^epsilon/(1 + e^epsilon)."""

import attr
import numpy as np
from dp_accounting.dp_event import DpEvent
from dp_accounting.pld.privacy_loss_distribution import from_privacy_parameters
from dp_accounting.pld.common import DifferentialPrivacyParameters

from winsor.core.events.declared import event, positive


def _pld(one, relation, grid):
    budget = DifferentialPrivacyParameters(one.epsilon, 0.0)
    return from_privacy_parameters(budget, value_discretization_interval=grid.interval)


def _rdp(one, relation, orders):
    p = 1 / (1 + np.exp(-one.epsilon))
    logs = np.logaddexp(
        orders * np.log(p) + (1 - orders) * np.log1p(-p),
        orders * np.log1p(-p) + (1 - orders) * np.log(p),
    )
    return logs / (orders - 1)


@event("one bit", pld=_pld, rdp=_rdp)
@attr.s(frozen=True, auto_attribs=True)
class OneBitDpEvent(DpEvent):
    """One bit of a record, told by randomised response."""

    epsilon: float = positive()
'''

USE = """
import json, sys
from winsor.core.accounting import account, event_from_json, event_to_json
from winsor.core.contract import ConfigurationError, Neighbouring
from winsor.core.ledger import Ledger
from winsor.core.ledger.guarantee import guarantee

event = event_from_json({"event": "one bit", "epsilon": 0.5})
assert event_to_json(event) == {"event": "one bit", "epsilon": 0.5}
assert 0.499 < account([(event, 1)], 1e-9).epsilon < 0.501
one, many = (account([(event, n)], 1e-5).epsilon for n in (10, 100))
assert one < many < 50
ledger = Ledger({"n": 3}, sys.argv[1])
ledger.record_many("run", event, 10)
ledger.close()
again = Ledger.read(sys.argv[1])
assert again.history() == [(event, 10)]
print(guarantee([again], 1e-5, Neighbouring.ADD_OR_REMOVE_ONE).epsilon, one)
try:
    event_from_json({"event": "one bit", "epsilon": -1.0})
except ConfigurationError as error:
    assert "epsilon must be a positive finite number" in str(error)
else:
    raise SystemExit("not refused")
"""


def test_a_newcomers_event_is_one_file_in_a_folder(tmp_path):
    (tmp_path / "one_bit.py").write_text(NEWCOMER)
    root = Path(winsor.core.__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", USE, str(tmp_path / "ledger")],
        env={**os.environ, "WINSOR_EVENTS": str(tmp_path), "PYTHONPATH": str(root)},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told, accounted = map(float, done.stdout.split())
    assert accounted <= told <= accounted * (1 + 1e-6)  # a ledger is charged for its noise too


# --------------------------------------------------------------------------- every event there is

EVERY = {
    "nothing": lambda noise: NoOpDpEvent(),
    "gaussian": GaussianDpEvent,
    "laplace": LaplaceDpEvent,
    "zcdp": lambda noise: ZCDpEvent(1 / (2 * noise**2)),
    "poisson": lambda noise: PoissonSampledDpEvent(0.1, GaussianDpEvent(noise)),
    "subset": lambda noise: SampledWithoutReplacementDpEvent(50, 5, GaussianDpEvent(noise)),
    "mixture_of_gaussians": lambda noise: MixtureOfGaussiansDpEvent(
        noise, (0.0, 0.5, 1.0), (0.8, 0.1, 0.1)
    ),
    "repeated": lambda noise: SelfComposedDpEvent(GaussianDpEvent(noise), 3),
    "composed": lambda noise: ComposedDpEvent([GaussianDpEvent(noise), LaplaceDpEvent(noise)]),
    "allocation": lambda noise: AllocationDpEvent(4, noise),
    "alternatives": lambda noise: AlternativesDpEvent(
        (GaussianDpEvent(noise), GaussianDpEvent(2 * noise))
    ),
    "thresholded gaussian": lambda noise: ThresholdedGaussianDpEvent(noise, 1e-9),
    "overflow": lambda noise: OverflowDpEvent(1e-9 / noise),
    "mixed_laplace": lambda noise: MixedLaplaceDpEvent(0.1, noise, 0.0, 2.0),
}
"""Every kind of the core, as a function of its noise."""

KNOWN_TO_DP_ACCOUNTING = ["gaussian", "laplace", "poisson", "mixture_of_gaussians", "repeated"]
KNOWN_TO_DP_ACCOUNTING += ["composed"]


def of_core() -> set[str]:
    return {
        name
        for name, entry in registered().items()
        if entry.event_type.__module__.startswith(("winsor.core", "dp_accounting"))
    }


def relation_of(name: str) -> Neighbouring:
    return REPLACE if name == "subset" else ADD


def epsilon(event: DpEvent, count: int, relation: Neighbouring) -> float:
    return account([(event, count)], 1e-6, relation).epsilon


def test_no_event_of_the_core_is_left_out():
    assert of_core() == set(EVERY)


@pytest.mark.parametrize("name", EVERY)
def test_json_keeps_every_digit(name):
    for noise in (0.7, 1 / 3, 12.345678901234567):
        event = EVERY[name](noise)
        text = json.dumps(event_to_json(event), allow_nan=False)
        assert event_from_json(json.loads(text)) == event
        assert json.dumps(event_to_json(event_from_json(json.loads(text)))) == text
        assert json.loads(text)["event"] == name


@pytest.mark.parametrize("name", EVERY)
def test_more_noise_costs_less_and_more_releases_cost_more(name):
    relation = relation_of(name)
    by_noise = [epsilon(EVERY[name](noise), 2, relation) for noise in (2.0, 4.0, 8.0)]
    by_count = [epsilon(EVERY[name](4.0), count, relation) for count in (1, 2, 4)]
    assert np.isfinite(by_noise).all() and np.isfinite(by_count).all()
    if name in ("nothing", "overflow"):  # all of a delta above it, or none of a smaller one
        assert max(by_noise + by_count) == 0.0
        return
    assert by_noise[0] > by_noise[1] > by_noise[2] > 0
    assert 0 < by_count[0] < by_count[1] < by_count[2]


@pytest.mark.parametrize("name", KNOWN_TO_DP_ACCOUNTING)
def test_dp_accounting_agrees(name):
    theirs, event = PLDAccountant(), EVERY[name](3.0)
    theirs.compose(event, 3)
    assert epsilon(event, 3, ADD) == pytest.approx(theirs.get_epsilon(1e-6), rel=5e-3)


@pytest.mark.parametrize(
    "data",
    [
        {"event": "gaussian", "noise_multiplier": -1.0},
        {"event": "allocation", "steps": 0, "noise_multiplier": 1.0},
        {"event": "allocation", "steps": 3, "noise_multiplier": 0.0},
        {"event": "poisson", "rate": 1.5, "inner": {"event": "nothing"}},
        {"event": "thresholded gaussian", "noise_multiplier": 1.0, "delta": 1.0},
        {"event": "overflow", "delta": 0.0},
        {"event": "repeated", "inner": {"event": "nothing"}, "count": -1},
    ],
    ids=lambda data: data["event"],
)
def test_values_without_a_price_are_refused(data):
    with pytest.raises(ConfigurationError, match="must be"):
        event_from_json(data)


def test_alternatives_name_one():
    with pytest.raises(ConfigurationError, match="at least 1"):
        event_to_json(AlternativesDpEvent(()))
