"""Each mode says what it should, and none shows private values unmarked."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console
from tiny_runs import table

from winsor.app.runs import progress
from winsor.app.runs.config import from_table
from winsor.app.runs.execute import execute
from winsor.app.runs.progress import Bar, JsonLines, Lines, Quiet, make_observer


def go(tmp_path, observer, **changes):
    with observer:
        return execute(from_table(table(**changes)), tmp_path / "run", observer)


def test_lines(tmp_path, capsys):
    go(tmp_path, Lines("a"))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("a: starting: 12 steps on")
    assert len(lines) == 6 and lines[-1].startswith("a: finished: (epsilon=")
    assert "step 3/12  ε ≤ " in lines[1] and "held-out accuracy" in lines[1]
    assert "rows/s" in lines[1] and "s left" in lines[1]
    assert not any("training" in line for line in lines)


def test_a_log_is_never_silent_for_long(tmp_path, monkeypatch, capsys):
    """Between evaluations, lines at intervals; here every interval is over at once."""
    monkeypatch.setattr(progress, "REFRESH_SECONDS", 0.0)
    monkeypatch.setattr(progress, "LOG_SECONDS", 0.0)
    go(tmp_path, Lines("a"), record={"evaluations": 1})
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[2] for line in lines[1:12]] == [f"{k}/12" for k in range(1, 12)]
    assert all("ε ≤ " in line and "rows/s" in line and "left" in line for line in lines[1:12])
    assert not any("held-out" in line for line in lines[1:12])


def test_a_log_is_quiet_within_the_interval(tmp_path, capsys):
    go(tmp_path, Lines("a"), record={"evaluations": 1})
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_private_values_carry_their_warning(tmp_path, capsys):
    go(tmp_path, Lines(), record={"monitor": "debug", "evaluations": 2})
    lines = [line for line in capsys.readouterr().out.splitlines() if "training loss" in line]
    assert lines and all("NOT PRIVATE: training loss" in line for line in lines)


def test_json(tmp_path, capsys):
    result = go(tmp_path, JsonLines("b"))
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [event["event"] for event in events] == ["start", *["record"] * 12, "finish"]
    assert all(event["run"] == "b" for event in events)
    bounds = [event["epsilon_at_most"] for event in events[1:-1]]
    assert bounds == sorted(bounds) and bounds[-1] >= result["epsilon"] * (1 - 1e-9)
    assert events[-1]["held_out"] == result["held_out"]


def test_quiet(tmp_path, capsys):
    go(tmp_path, Quiet())
    assert capsys.readouterr().out == ""


def test_the_live_line(tmp_path, monkeypatch):
    monkeypatch.setattr(progress, "REFRESH_SECONDS", 1e-9)
    observer = Bar("name [bold]")
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=200)
    observer._console = console
    go(tmp_path, observer)
    text = screen.getvalue()
    assert "name [bold]" in text  # brackets of a name are no markup
    assert "ε ≤ " in text and "held-out accuracy" in text and "12/12" in text
    assert "(epsilon=" in text


@pytest.mark.parametrize(
    ("quiet", "as_json", "tty", "kind"),
    [
        (True, False, True, Quiet),
        (False, True, True, JsonLines),
        (False, False, True, Bar),
        (False, False, False, Lines),
    ],
)
def test_the_mode_fits_the_output(quiet, as_json, tty, kind, monkeypatch):
    monkeypatch.setattr(progress.sys.stdout, "isatty", lambda: tty, raising=False)
    assert type(make_observer(quiet, as_json)) is kind
