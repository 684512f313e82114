"""Figures 4 and 5 of paper 3 on a small scale."""

from __future__ import annotations

import math

import pytest
import torch
from winsor_papers.reproductions.reproduction import Line, Measured, Request
from winsor_papers.reproductions.training_runs import gaussian_classes
from winsor_papers.reproductions.value import sweep as value_sweep
from winsor_papers.reproductions.value.problems import make
from winsor_papers.reproductions.value.sweep import DELTAS, figure_5, figure_5_of, sweep_verdict
from winsor_papers.reproductions.value.synthetic import (
    figure_4_of,
    of_rows,
    regression,
    simulated,
    synthetic_verdict,
)

from winsor.core.contract import ConfigurationError


def test_figure_4_has_both_readings_as_curves():
    given = regression(400, 8, epochs=3)
    found = figure_4_of(given, (3.0,), Request(seeds=2), "a note")
    keys = [(line.label["gradients"], line.label["method"]) for line in found.lines]
    assert keys == [
        ("simulated", "GC"), ("of rows", "GC"), ("simulated", "VC"), ("of rows", "VC"),
    ]  # fmt: skip
    for line in found.lines:
        curve = [float(value) for value in line.extra["loss by epoch"].split()]
        assert len(curve) == len(line.extra["clipped by epoch"].split()) == 3
        open_run = line.label["gradients"] == "simulated"
        assert (line.published is not None) == open_run == (line.certified is None)
        if open_run:
            assert line.published_certifies == math.inf
            assert curve[-1] < curve[0] < 1
    rows = [line for line in found.lines if line.label["gradients"] == "of rows"]
    assert rows[0].certified_epsilon == rows[1].certified_epsilon
    assert found.notes[-1] == "a note"


def test_value_clipping_of_linear_regression_is_gradient_clipping():
    """|grad f_i|^2 = 2 |x_i|^2 f_i: the bound is the norm, so the same rows are clipped alike."""
    given = regression(400, 8, epochs=2)
    gradient, value = (of_rows(given, method, 3.0, seed=1) for method in ("GC", "VC"))
    assert value.losses == pytest.approx(gradient.losses, rel=1e-3)
    assert value.frequencies == pytest.approx(gradient.frequencies, abs=1.0)


def test_simulated_gradients_are_clipped_less_as_the_loss_falls():
    given = regression(2000, 64, epochs=8)
    curve = simulated(given, "GC", 9.0, seed=1)
    assert curve.frequencies[-1] < curve.frequencies[0]
    assert curve.epsilon is None


def test_the_verdict_of_figure_4():
    def line(kind, method, end, clipped):
        return Line(
            {"gradients": kind, "C": "1", "method": method},
            certified=Measured(end, 0.01, 3),
            extra={"clipped by epoch": clipped},
        )

    good = [line("simulated", "GC", 0.1, "90 20"), line("simulated", "VC", 0.12, "90 20")]
    assert "does not rise on 1 of 1" in synthetic_verdict(good)
    assert "Reproduced in 1 of 1 cases" in synthetic_verdict(good)
    rising = [line("simulated", "GC", 0.1, "20 90"), line("simulated", "VC", 0.12, "20 90")]
    assert "does not rise on 0 of 1" in synthetic_verdict(rising)


@pytest.fixture
def tiny():
    rows = gaussian_classes(n=600, dimension=12, classes=10, seed=1)
    return [task.for_epochs(1) for task in make("MNIST", rows, (0.5,), (0.05,))]


def test_figure_5_has_an_epsilon_for_every_sigma_and_delta(tiny):
    found = figure_5_of(tiny[:1], (1.0, 4.0), Request(seeds=1), "a note")
    assert len(found.lines) == 2 * 2 * len(DELTAS)
    by_key = {tuple(line.label.values()): line for line in found.lines}
    for method in ("GC", "VC"):
        for sigma in ("1", "4"):
            epsilons = [
                by_key["linear", sigma, f"{delta:g}", method].certified_epsilon for delta in DELTAS
            ]
            assert epsilons == sorted(epsilons)  # a smaller delta costs more
        assert by_key["linear", "4", "1e-05", method].certified_epsilon < (
            by_key["linear", "1", "1e-05", method].certified_epsilon
        )
    value = by_key["linear", "1", "0.001", "VC"]
    assert value.published_certifies == math.inf
    assert by_key["linear", "1", "0.001", "GC"].published is None


def test_the_verdict_of_figure_5():
    def line(method, sigma, mean):
        label = {"model": "linear", "sigma": sigma, "delta": "1e-05", "method": method}
        return Line(label, certified=Measured(mean, 1.0, 3))

    grows = [line("GC", "1", 90), line("VC", "1", 88), line("GC", "8", 80), line("VC", "8", 70)]
    assert "linear reproduced, from 2.0 to 10.0 points" in sweep_verdict(grows)
    shrinks = [line("GC", "1", 90), line("VC", "1", 80), line("GC", "8", 80), line("VC", "8", 79)]
    assert "linear not reproduced at our size, from 10.0 to 1.0 points" in sweep_verdict(shrinks)


def test_it_needs_a_folder_and_sweeps_all_sigmas(monkeypatch, tmp_path, tiny):
    with pytest.raises(ConfigurationError, match="Give --data FOLDER"):
        figure_5(Request(quick=True))
    monkeypatch.setattr(value_sweep, "mnist", lambda folder, rows: tiny[:1])
    monkeypatch.setattr(value_sweep, "EPOCHS", 1)
    seen = {line.label["sigma"] for line in figure_5(Request(data=tmp_path, seeds=1)).lines}
    assert seen == {"0.5", "1", "2", "4", "8"}
    quick = figure_5(Request(quick=True, data=tmp_path))
    assert {line.label["sigma"] for line in quick.lines} == {"0.5", "2", "8"}
    assert torch.is_tensor(tiny[0].problem.train[0])
