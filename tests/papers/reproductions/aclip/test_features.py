"""Table 3 and figure 2 of paper 4 on rows made up here in place of features."""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from pathlib import Path

import pytest
from torch import nn
from torch.nn import functional as F
from winsor_papers.reproductions.aclip.features import (
    QUICK,
    OnFeatures,
    figure_2_features_of,
    table_3_features_of,
    table_3_features_verdict,
)
from winsor_papers.reproductions.cells import read_journal
from winsor_papers.reproductions.dc_dpsgd.descent import DescentTask
from winsor_papers.reproductions.queue import cells_folder, run_table
from winsor_papers.reproductions.reproduction import Line, Measured, Request
from winsor_papers.reproductions.training_runs import gaussian_classes

SETTING = dataclasses.replace(
    QUICK, epsilons=(2.0, 6.0), batch_size=20, epochs=6, points=3, averaged_rates=(0.01, 0.1, 1.0)
)


@pytest.fixture(scope="module")
def task() -> DescentTask:
    (x, y), (x_test, y_test) = gaussian_classes(n=200, dimension=12, classes=3, seed=0)
    return DescentTask(
        "toy", (F.normalize(x), y), (F.normalize(x_test), y_test), lambda: nn.Linear(12, 3),
        batch_size=20, steps=60, delta=1e-4,
    )  # fmt: skip


def test_every_method_is_tuned_alike_and_the_published_noise_leaks(
    task: DescentTask, tmp_path: Path
) -> None:
    request = Request(quick=True, seeds=2)
    run = partial(table_3_features_of, task, SETTING)
    found = run_table(tmp_path, ("aclip", "toy"), run, request, math.inf)
    assert found is not None
    records = read_journal(cells_folder(tmp_path) / "aclip-toy.jsonl")
    # one team tries the steps (three or two for each of four readings), then one for every seed
    assert [record["together"] for record in records] == [11] * 11 + [8] * 16
    methods = [line.label["method"] for line in found.lines]
    assert methods == ["CC", "UC", "DP-SGD"] * 2
    for line in found.lines:
        nominal = float(line.label["nominal"])
        assert line.certified is not None and line.certified.seeds == 2
        assert line.certified_epsilon is not None and line.certified_epsilon <= nominal
        assert (line.label["method"] == "CC") == (line.published is not None)
        if line.published_certifies is not None:
            assert line.published_certifies > 2 * nominal
    at_six = found.lines[3]
    assert at_six.extra["steps tried"].count(":") == 3
    assert at_six.printed == "73.26 ± 0.16"


def test_curves_have_their_points_and_a_baseline(task: DescentTask) -> None:
    found = figure_2_features_of(task, SETTING, Request(quick=True, seeds=1))
    baseline, *lines = found.lines
    assert "not private by epoch" in baseline.extra and baseline.certified is None
    assert [line.label["method"] for line in lines] == ["CC", "UC", "DP-SGD"] * 2
    assert all(line.extra["epochs"] == "2 4 6" for line in found.lines)
    assert all(len(line.extra["certified by epoch"].split()) == 3 for line in lines)
    assert found.verdict.startswith("On features, each with a step of its own, averaged")


def test_nothing_on_features_contradicts_the_paper() -> None:
    def line(method: str, at: float) -> Line:
        label = {"nominal": "6", "method": method}
        if method != "CC":
            return Line(label, "71.0", None, Measured(at, 0.1, 3), 6.0)
        return Line(label, "73.3", Measured(at + 20, 0.1, 3), Measured(at, 0.1, 3), 6.0, 18.0)

    behind = [line("CC", 70.0), line("UC", 69.0), line("DP-SGD", 80.0)]
    told = table_3_features_verdict(behind)
    assert "contradicted" not in told
    assert "certified: Not reproduced at our size in 1 of 1" in told
    assert "as published: Reproduced in 1 of 1" in told
    assert "CC ahead of UC, certified: Reproduced in 1 of 1" in told
    assert "up to 3 times its epsilon" in told


def test_the_length_is_the_paper_s() -> None:
    assert (OnFeatures().batch_size, OnFeatures().epochs) == (500, 150)
    assert len(OnFeatures().averaged_rates) == len(OnFeatures().plain_rates)  # equal tuning
