"""Tables 2 and B1 of paper 4 as lines."""

from __future__ import annotations

import numpy as np
import pytest
from aclip_problems import shorten
from winsor_papers.reproductions.aclip import convex as aclip_convex
from winsor_papers.reproductions.aclip import tables as aclip_tables
from winsor_papers.reproductions.aclip.convex import (
    LONGER,
    _measured,
    convex_verdict,
    table_2,
    table_2_synthetic,
    table_b1_synthetic,
)
from winsor_papers.reproductions.reproduction import Line, Measured, Request

from winsor.core.contract import ConfigurationError


@pytest.fixture
def small(monkeypatch):
    """The synthetic set only, with 2,000 rows instead of 100,000."""
    shorten(monkeypatch, aclip_tables, aclip_convex)
    monkeypatch.setattr(aclip_convex, "REAL", ())


@pytest.mark.parametrize(
    ("table", "title"), [(table_2_synthetic, "Table 2"), (table_b1_synthetic, "Table B1")]
)
def test_every_method_is_a_line(small, table, title):
    found = table(Request(quick=True, seeds=2))
    assert title in found.title
    methods = [line.label["method"] for line in found.lines]
    assert methods == ["CC", "UC", "DP-SGD", "DP-GD"] * 2 + [LONGER] * 2
    for line in found.lines:
        averaged = line.label["method"] in ("CC", "UC")
        assert (line.published is not None) == averaged
        assert (line.printed is None) == (line.label["method"] == LONGER)
        assert line.certified.seeds == 2
        if averaged:
            assert line.published_certifies > 2 * float(line.label["nominal"])


def test_real_data_need_a_folder():
    with pytest.raises(ConfigurationError, match="Give --data FOLDER"):
        table_2(Request(quick=True))


def test_an_interval_from_a_spread_is_the_interval_of_the_values():
    values = [1.0, 4.0, 2.5, 3.0]
    found = _measured(float(np.mean(values)), float(np.std(values, ddof=1)), 4)
    assert found.half_width == pytest.approx(Measured.of(values).half_width)
    assert _measured(1.0, float("nan"), 1) == Measured(1.0, None, 1)


def row(ours, rival, longer, data="d"):
    label = {"data": data, "nominal": "0.5"}
    measured = Measured(ours, 0.01, 3)
    return [
        Line({**label, "method": "CC"}, published=measured, certified=measured,
             published_certifies=1.5),
        Line({**label, "method": "DP-SGD"}, certified=Measured(rival, 0.01, 3)),
        Line({**label, "method": LONGER}, certified=Measured(longer, 0.01, 3)),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("errors", "words"),
    [((0.7, 0.8, 0.8), ("reproduced", "reproduced")),
     ((0.7, 0.8, 0.6), ("reproduced", "not reproduced at our size")),
     ((0.8, 0.805, 0.6), ("undecided", "not reproduced at our size")),
     ((0.9, 0.8, 0.8), ("contradicted", "not reproduced at our size"))],
)  # fmt: skip
def test_the_verdict_asks_for_a_clear_win_over_a_tuned_rival(errors, words):
    verdict = convex_verdict(row(*errors))
    printed, longer = (word.capitalize() for word in words)
    assert f"certified: {printed} in 1 of 1 rows" in verdict
    assert f"ten times the step: {longer} in 1 of 1 rows" in verdict
    assert "up to 3 times the claimed epsilon" in verdict


def test_nothing_is_contradicted_where_the_setting_was_guessed():
    verdict = convex_verdict(row(0.9, 0.8, 0.8, data="diabetes"))
    assert "certified: Not reproduced at our size in 1 of 1 rows" in verdict
