"""`winsor tails RUN` shows the readings of a run, and says when they are not private."""

from __future__ import annotations

import json

import pytest
from tiny_runs import table

from winsor.app.commands import main as cli
from winsor.app.commands.tails_run import quantile_chart, readings
from winsor.app.runs.config import from_table
from winsor.app.runs.execute import execute
from winsor.app.runs.progress import Quiet
from winsor.core.contract import ConfigurationError

METRICS = [
    {"step": 1, "rule": {}, "monitor": {"noise_to_signal": 2.0}},
    {"step": 2, "rule": {"threshold": 0.5}, "monitor": {"quantiles": {"0.5": 1.0, "0.9": 4.0}}},
    {"step": 3, "rule": {"threshold": 0.7}, "monitor": {"quantiles": {"0.5": 1.5, "0.9": 5.0}}},
]


def shown(capsys, *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        cli.main(["tails", *arguments])
    captured = capsys.readouterr()
    return int(stop.value.code or 0), captured.out, captured.err


@pytest.mark.parametrize(
    ("monitor", "mark"), [("private", "private monitor"), ("debug", "NOT PRIVATE")]
)
def test_a_run_is_shown_with_its_mark(tmp_path, capsys, monitor, mark):
    path = tmp_path / "run"
    execute(from_table(table(record={"monitor": monitor})), path, Quiet())
    code, out, _ = shown(capsys, str(path), "--plots", str(tmp_path / "plots"))
    assert code == 0 and mark in out and "50 %" in out
    assert ("NOT PRIVATE" in out) == (monitor == "debug")
    page = (tmp_path / "plots" / "quantiles.html").read_text()
    assert mark in page and ("NOT PRIVATE" in page) == (monitor == "debug")
    found = json.loads(shown(capsys, str(path), "--json")[1])
    assert found["private"] is (monitor == "private")
    assert found.get("NOT PRIVATE", False) is (monitor == "debug")
    assert found["readings"][-1]["quantiles"]["0.5"] > 0


def test_a_run_without_a_monitor_is_refused_in_one_line(tmp_path, capsys):
    execute(from_table(table()), tmp_path / "run", Quiet())
    code, _, err = shown(capsys, str(tmp_path / "run"))
    assert code == 2 and "record.monitor" in err and err.count("\n") == 1


def test_readings_without_quantiles_are_passed_over():
    section, rows = readings(METRICS, "x")
    assert section == "monitor" and [row["step"] for row in rows] == [2, 3]
    with pytest.raises(ConfigurationError, match="readings of norms"):
        readings(METRICS[:1], "x")


def test_the_chart_has_a_line_per_level_and_one_for_the_threshold():
    chart = quantile_chart(*readings(METRICS, "x"))
    assert [line.label for line in chart.series] == ["90 % quantile", "50 % quantile", "threshold"]
    assert [y for _, y in chart.series[1].points] == [1.0, 1.5] and chart.series[2].dashed
