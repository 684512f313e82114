"""Section 4.3, figure 2 and section 5.3 of ModelMix as lines."""

from __future__ import annotations

import dataclasses

import pytest
from winsor_papers.modelmix.claim import composed_claim, modelmix_claim
from winsor_papers.reproductions.modelmix import figure2 as modelmix_figure2
from winsor_papers.reproductions.modelmix import lines as modelmix_lines
from winsor_papers.reproductions.modelmix.claimed import claimed_noise
from winsor_papers.reproductions.modelmix.lines import (
    figure_2,
    figure_2_verdict,
    section_43_of,
    section_43_verdict,
    section_53,
    section_53_verdict,
)
from winsor_papers.reproductions.modelmix.section43 import Section43
from winsor_papers.reproductions.reproduction import Line, Measured, Request


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
