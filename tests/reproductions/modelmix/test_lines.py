"""Section 4.3, table 1, figure 2 and section 5.3 of ModelMix as lines."""

from __future__ import annotations

import dataclasses

import pytest
from torch import nn
from winsor_reproductions.modelmix import figure2 as modelmix_figure2
from winsor_reproductions.modelmix import lines as modelmix_lines
from winsor_reproductions.modelmix.claimed import claimed_noise
from winsor_reproductions.modelmix.lines import (
    figure_2,
    figure_2_verdict,
    mixed_parts,
    section_43_of,
    section_43_verdict,
    section_53,
    section_53_verdict,
    table_1_of,
    table_1_verdict,
)
from winsor_reproductions.modelmix.section43 import Section43
from winsor_reproductions.modelmix.table1 import Table1
from winsor_reproductions.reproduction import Line, Measured, Request
from winsor_reproductions.training_runs import Problem, gaussian_classes

from winsor.contrib.modelmix.mechanism import ModelMix
from winsor.papers.modelmix.claim import composed_claim, modelmix_claim


def tiny(steps=4):
    training, test = gaussian_classes(n=200, dimension=6, classes=3, seed=1)
    return Problem("tiny", training, test, lambda: nn.Linear(6, 3), 20, steps, 1e-3)


def test_section_43():
    found = section_43_of(Section43(widths=(0.3,), coordinates=(25,)))
    (line,) = found.lines
    assert line.printed == "5.4"
    assert line.certified.mean == pytest.approx(4.95, rel=0.03)
    assert line.published.mean > line.certified.mean
    assert found.verdict.startswith("Holds: certified epsilons are 0.92")
    assert "in 1 of 1 cells" in found.verdict
    worse = dataclasses.replace(line, certified=Measured(9.0, None, 1))
    assert section_43_verdict([worse], 0).startswith("Does not hold")


def test_table_1_at_equal_nominal_epsilon():
    narrow_enough = (5e-4, 2.5e-4)  # wide uniforms make long quadratures
    setting = Table1(epsilons=(1.0,), batch_size=20, tau_over_eta=narrow_enough, seeds=(1, 2))
    found = table_1_of(tiny(steps=1), setting, Request())
    plain, mixing, narrow = found.lines
    assert (plain.printed, mixing.printed, narrow.printed) == ("85.6", "88.8", None)
    assert plain.published is None
    for line in (mixing, narrow):
        assert line.published.seeds == 2
        assert line.published_certifies > 0
    assert all(line.certified_epsilon <= 1.0 for line in found.lines)
    assert "+" in found.verdict or "-" in found.verdict


def test_parts_follow_the_schedule():
    parts = mixed_parts(tiny(10), ModelMix(((0, 0.2), (6, 0.1))), 1.5, 1)
    assert [count for _, count in parts] == [6, 4]
    assert [event.width_in_noise * 1.5 for event, _ in parts] == pytest.approx([4.0, 2.0])
    assert parts[0][0].sampling_probability == 0.1
    assert [count for _, count in mixed_parts(tiny(10), ModelMix(0.2), 1.5, 1)] == [10]


def test_a_claim_composes_and_its_noise_is_its_inverse():
    event = Section43().event(0.3, 25, 0.5)
    whole = modelmix_claim(event, 500, 1e-5).published_epsilon
    halves = composed_claim([(event, 200), (event, 300)], 1e-5).published_epsilon
    assert halves == pytest.approx(whole, rel=1e-9)
    noise = claimed_noise(lambda value: [(Section43().event(0.3, 25, value), 500)], whole, 1e-5)
    assert noise == pytest.approx(0.5, rel=0.02)
    content = claimed_noise(lambda value: [(Section43().event(0.3, 25, value), 1)], 1e6, 1e-5)
    assert content == pytest.approx(0.05)


def loss(line, value):
    return Line({"data": "d", "line": line}, certified=Measured(value, 0.01, 3))


def test_figure_2(monkeypatch):
    short = dataclasses.replace(modelmix_figure2.synthetic_problem(), steps=20)
    monkeypatch.setattr(modelmix_figure2, "synthetic_problem", lambda: short)
    found = figure_2(Request(quick=True, seeds=2))
    assert len(found.lines) == 4
    assert all(line.certified.seeds == 2 for line in found.lines)
    assert all(line.certified_epsilon <= 8.0 for line in found.lines)
    names = ("plain, small step", "plain, large step", "mixed, large step",
             "plain, 2/3 of the large step")  # fmt: skip
    steady = figure_2_verdict([loss(n, v) for n, v in zip(names, (1, 3, 2, 1.9), strict=True)])
    assert "than plain, large step: Reproduced in 1" in steady
    assert "plain, 2/3 of the large step: Not reproduced at our size in 1" in steady
    shaky = figure_2_verdict([loss(n, v) for n, v in zip(names, (1, 3, 4, 2), strict=True)])
    assert "than plain, large step: Not reproduced at our size in 1" in shaky


def test_table_1_verdict():
    def lines(mixing):
        values = {"DP-SGD": 50.0, "mixing": mixing, "mixing, narrow": 49.0}
        return [
            Line({"nominal": "1", "method": name}, certified=Measured(value, 0.5, 3))
            for name, value in values.items()
        ]

    assert "epsilon: Reproduced in 1" in table_1_verdict(lines(60.0))
    assert "epsilon: Not reproduced at our size in 1" in table_1_verdict(lines(40.0))
    assert "epsilon: Contradicted in 1" in table_1_verdict(lines(40.0), own_setting=True)
    assert "which is ours: Not reproduced at our size in 1" in table_1_verdict(lines(40.0))


def test_section_53(monkeypatch):
    problem, public = modelmix_lines.embedding.synthetic_problem()
    short = dataclasses.replace(problem, steps=3)
    monkeypatch.setattr(modelmix_lines.embedding, "synthetic_problem", lambda: (short, public))
    found = section_53(Request(quick=True, seeds=1))
    assert [line.label["method"] for line in found.lines] == ["flat", "embedding", "mixed"]
    assert found.lines[2].printed == "74.2 at epsilon 2.9"
    values = {"flat": 70.0, "embedding": 72.0, "mixed": 71.0}
    lines = [Line({"method": m}, certified=Measured(v, 0.2, 3)) for m, v in values.items()]
    verdict = section_53_verdict(lines)
    assert (
        "embedding alone: Not reproduced at our size in 1 of 1 comparison (measured -1" in verdict
    )
    assert "of flat clipping: Reproduced in 1 of 1 comparison (measured +1 points" in verdict
