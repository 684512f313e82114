"""Trajectories of paper 4 on small problems."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from aclip_problems import shorten
from winsor_papers.reproductions.aclip import figures as aclip_figures
from winsor_papers.reproductions.aclip import tables as aclip_tables
from winsor_papers.reproductions.aclip.figures import (
    BASELINE,
    POINTS,
    Curves,
    figure_1,
    figure_3,
    figure_b2,
    figure_b4,
    trajectory_verdict,
)
from winsor_papers.reproductions.aclip.fits import ConvexRows
from winsor_papers.reproductions.aclip.runs import LOCKSTEP, Apart
from winsor_papers.reproductions.aclip.settings import NOTES, SETTINGS, methods_of
from winsor_papers.reproductions.datasets import Table
from winsor_papers.reproductions.reproduction import Line, Measured, Request

from winsor.core.contract import ConfigurationError


@pytest.fixture
def small(monkeypatch):
    """The synthetic sets only, with 2,000 rows instead of 100,000."""
    shorten(monkeypatch, aclip_figures)
    monkeypatch.setattr(aclip_figures, "REAL", ())


@pytest.mark.parametrize("figure", [figure_3, figure_b2])
def test_every_method_is_a_curve_beside_the_baseline(small, figure):
    found = figure(Request(quick=True, seeds=2))
    methods = [line.label["method"] for line in found.lines]
    assert methods == [BASELINE, "CC", "UC", "DP-SGD", "DP-GD"]
    baseline, averaged, *_ = found.lines
    assert baseline.certified is None and "not private" in baseline.extra
    for line in found.lines:
        key = "not private by epoch" if line is baseline else "certified by epoch"
        curve = [float(value) for value in line.extra[key].split()]
        epochs = [float(value) for value in line.extra["epochs"].split()]
        assert len(curve) == len(epochs) >= POINTS
        assert epochs[-1] == pytest.approx(6, abs=0.1)
        if line.certified is not None:
            assert curve[-1] == pytest.approx(line.certified.mean, rel=1e-3)
            assert line.certified_epsilon <= 2.0
    assert averaged.published_certifies > 2 * 2.0  # half the noise that epsilon needs
    assert "published by epoch" in averaged.extra
    task = "ridge" if figure is figure_b2 else "logistic"
    assert NOTES[task] in found.notes and LOCKSTEP in found.notes


def test_deviations_are_drawn_in_b3_and_b4(small, monkeypatch):
    monkeypatch.setattr(aclip_figures, "DATA", ("laplace",))
    found = figure_b4(Request(quick=True, seeds=2))
    line = found.lines[1]
    assert len(line.extra["certified, deviation by epoch"].split()) >= POINTS
    one = figure_b4(Request(quick=True, seeds=1))
    assert one.lines[1].extra["certified, deviation by epoch"] == "one seed"


def toy():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((600, 4)) / 2
    y = (x[:, 0] > 0).astype(float)
    return ConvexRows(x[:400], y[:400], x[400:], y[400:])


def test_the_last_point_is_the_error_of_the_table():
    setting = dataclasses.replace(SETTINGS["diabetes"], epochs=3)
    runs = Apart(toy(), "logistic", setting)
    for name, method in methods_of(setting).items():
        found = runs.fit(method, 2.0, None, 1)
        curves = Curves.of([found])
        assert len(curves.epochs) == curves.losses.shape[1] >= 3
        assert curves.epochs[-1] == pytest.approx(3, abs=0.1)
        assert curves.losses[0, -1] == pytest.approx(found.error, rel=1e-12), name


def test_the_baseline_falls():
    setting = dataclasses.replace(SETTINGS["diabetes"], epochs=30, rates=(0.5, 1, 1, 1))
    runs = Apart(toy(), "logistic", setting)
    losses = Curves.of([runs.baseline(seed) for seed in (1, 2)]).losses.mean(axis=0)
    assert losses[-1] < losses[0] < 1.0


def test_real_data_need_a_folder():
    with pytest.raises(ConfigurationError, match="Give --data FOLDER"):
        figure_1(Request(quick=True))


def test_adult_has_the_papers_rows(monkeypatch):
    x, y = np.zeros((32_561, 3)), np.arange(32_561.0)
    table = Table("a9a", x, y, x[:16_281], y[:16_281], ("a", "b", "c"))
    monkeypatch.setattr(aclip_tables, "load", lambda name, directory: table)
    rows = aclip_tables.problem("adult", "logistic", "folder", 0)
    assert (len(rows.x), len(rows.x_test)) == (21_000, 11_561)
    assert rows.y_test[0] == 21_000


def ended(method, published, certified):
    return Line(
        {"data": "d", "nominal": "1", "method": method},
        published=None if published is None else Measured(published, 0.01, 3),
        certified=Measured(certified, 0.01, 3),
    )


def test_the_verdict():
    rivals = [ended("DP-SGD", None, 0.6), ended("DP-GD", None, 0.7)]
    lines = [Line({"data": "d", "nominal": "", "method": BASELINE}), *rivals]
    assert "certified: Reproduced" in trajectory_verdict([*lines, ended("CC", 0.5, 0.5)])
    lost = trajectory_verdict([*lines, ended("CC", 0.5, 0.9)])
    assert "as published: Reproduced" in lost and "certified: Not reproduced at our size" in lost
