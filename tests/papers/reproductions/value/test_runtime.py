"""Table 2 of paper 3: every contender steps, and the verdict reads the ratios."""

from __future__ import annotations

import importlib.util

import pytest
from winsor_papers.reproductions.reproduction import Line, Measured, Request
from winsor_papers.reproductions.value import runtime as value_runtime
from winsor_papers.reproductions.value.runtime import (
    PRINTED,
    Timing,
    contenders,
    runtime_verdict,
    table_2_of,
    take_turns,
)

ALWAYS = {"SGD", "micro-batching", "GC", "VC", "VC, tight bound"}


def test_every_method_steps():
    steps = contenders([6, 4, 3], batch_size=4)
    assert set(steps) >= ALWAYS
    found = take_turns(steps, Timing(rounds=2, block=1))
    assert all(len(times) == 2 and min(times) >= 0 for times in found.values())


def test_opacus_is_said_to_be_missing(monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "opacus" else found(name)
    )
    monkeypatch.setattr(value_runtime, "PRINTED", {("MNIST", "linear"): PRINTED["MNIST", "linear"]})
    table = table_2_of(Timing(rounds=2, block=1, batch_size=8), Request())
    (line,) = [line for line in table.lines if line.label["method"] == "Opacus"]
    assert (line.certified, line.printed) == (None, "1.87 (12.8 s)")
    assert line.extra == {"epoch": "not installed"}
    assert any("Opacus is not installed" in note for note in table.notes)
    (plain,) = [line for line in table.lines if line.label["method"] == "SGD"]
    assert plain.certified.mean == 1.0


def lines(**ratios):
    return [
        Line({"data": "d", "model": "m", "method": name}, certified=Measured(value, 0.1, 5))
        for name, value in ratios.items()
    ]


@pytest.mark.parametrize(
    ("value", "word"),
    [(1.5, "SGD: Reproduced in 1"), (9.0, "SGD: Not reproduced at our size in 1")],
)
def test_the_verdict_is_computed(value, word):
    found = lines(SGD=1.0, Opacus=4.0, GC=2.0, VC=value)
    found += [
        Line({"data": "d", "model": "m", "method": name}, certified=Measured(x, 0.1, 5))
        for name, x in (("micro-batching", 30.0), ("VC, tight bound", 1.8))
    ]
    verdict = runtime_verdict(found)
    assert word in verdict
    assert "gradient clipping: Reproduced in 1 of 1" in verdict
