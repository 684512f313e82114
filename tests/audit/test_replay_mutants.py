"""Replay finds every planted mistake, and says where."""

from __future__ import annotations

import functools

import pytest
from selfaudit.planted import planted

from winsor.audit import replay
from winsor.core.contract import WinsorError

TRIALS = {trial.name: trial for trial in planted()}


@functools.cache
def found(name):
    """The findings; None if winsor refused the training by itself, with a typed error."""
    try:
        report = replay(TRIALS[name].train, TRIALS[name].dataset)
    except WinsorError:
        return None
    assert not report.passed, str(report)
    return report.findings


@pytest.mark.parametrize("name", TRIALS)
def test_a_planted_mistake_is_found(name):
    findings = found(name)
    assert findings is not None or "by hand" not in name


@pytest.mark.parametrize(
    "name, kind",
    [
        ("noise reused between steps, by hand", "noise"),
        ("no noise, by hand", "noise"),
        ("q rounded up, by hand", "sampling"),
        ("divided by the realised size, by hand", "shift"),
        ("released sum divided by the realised size, by hand", "left behind"),
        ("radius from the data", "claim"),
        ("centre from the data", "left behind"),
        ("a score kept by an estimator", "left behind"),
    ],
)
def test_a_finding_has_its_kind(name, kind):
    assert kind in {finding.kind for finding in found(name)}
