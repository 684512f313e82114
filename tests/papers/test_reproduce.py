"""`winsor reproduce` as a person or a machine uses it, on a catalogue of its own."""

from __future__ import annotations

import json
import math

import pytest
from winsor_papers.reproductions import catalogue
from winsor_papers.reproductions.catalogue import PAPERS, Paper, find
from winsor_papers.reproductions.reproduction import Line, Measured, Reproduced

from winsor.app.commands import main as cli
from winsor.core.contract import ConfigurationError


def good(request):
    request.say("working [hard]")
    lines = (
        Line(
            {"data": "toy [small]", "method": "A"},
            printed="1.0",
            published=Measured.of([1.0, 2.0]),
            published_certifies=math.inf,
            certified=Measured.of([3.0]),
            certified_epsilon=0.5,
        ),
        Line({"data": "toy [small]", "method": "B"}, extra={"step": "7"}),
    )
    seeds = len(request.seeds_or(2, 20))
    return Reproduced("Toy", "loss", lines, "Holds.", {"seeds": seeds}, ("cut [short]",))


def needs_data(request):
    return Reproduced("Data", "rows", (), "Holds.", {"folder": str(request.folder())})


@pytest.fixture
def toys(monkeypatch):
    module = "tests_reproduce_toys"
    made = {
        "one": Paper("1. One", {"a": f"{module}:good", "b": f"{module}:needs_data"}),
        "two": Paper("2. Two", {"a": f"{module}:good"}),
    }
    monkeypatch.setattr(catalogue, "PAPERS", made)
    monkeypatch.setattr(catalogue, "_load", lambda home: globals()[home.split(":")[1]])


def run(*arguments):
    with pytest.raises(SystemExit) as ended:
        cli.main(["reproduce", *map(str, arguments)])
    return ended.value.code


def complaint(capsys):
    """The one line on stderr that starts with the program's name."""
    error = capsys.readouterr().err
    assert "Traceback" not in error
    (line,) = [line for line in error.splitlines() if line.startswith("winsor: error:")]
    return line


def test_a_table_for_a_person(toys, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "150")
    assert run("one", "a", "--quick") == 0
    shown = capsys.readouterr()
    assert "working [hard]" in shown.err
    for text in ("toy [small]", "1.5 ± 6.4", "inf", "Note: cut [short]", "Smoke run: it shows"):
        assert text in shown.out
    assert "Verdict" not in shown.out  # no verdict from a smoke run
    assert run("one", "a", "--full") == 0
    assert "Verdict: Holds." in capsys.readouterr().out


def test_a_smoke_run_is_written_without_a_verdict(toys, capsys, tmp_path):
    assert run("two", "--quick", "--out", tmp_path) == 0
    assert "Holds" not in (tmp_path / "two-a.json").read_text()


def test_the_queue_works_through_every_table_and_can_go_on(toys, capsys, tmp_path):
    out = tmp_path / "results"
    assert run("all", "--full", "--resume", "--out", out) == 0
    shown = capsys.readouterr()
    assert "left out: data must name the folder" in shown.err  # the queue goes on without it
    assert "2 of 3 tables are done" in " ".join(shown.out.split())
    before = (out / "two-a.json").read_text()
    assert run("all", "--full", "--resume", "--out", out, "--data", tmp_path) == 0
    assert (out / "two-a.json").read_text() == before  # finished tables are not made again
    assert (out / "one-b.json").is_file()
    capsys.readouterr()
    assert run("status", "--out", out, "--json") == 0
    assert [one["finished"] for one in json.loads(capsys.readouterr().out)] == [True] * 3
    assert run("all", "--quick", "--resume") == 2
    assert "smoke runs have no cells" in complaint(capsys)


def test_json_for_a_machine_is_strict_and_alone(toys, capsys):
    assert run("two", "--json", "--seeds", 3) == 0
    shown = capsys.readouterr()
    assert shown.err == ""

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    (record,) = json.loads(shown.out, parse_constant=refuse)
    assert (record["paper"], record["table"], record["quick"]) == ("two", "a", False)
    assert record["settings"] == {"seeds": 3}
    assert record["lines"][0]["published_certifies"] == "inf"
    assert record["seconds"] >= 0 and record["processor_seconds"] >= 0


def test_every_table_is_written_when_it_is_finished(toys, capsys, tmp_path):
    out = tmp_path / "new" / "folder"
    assert run("one", "--out", out) == 2  # table b has no data; table a is kept all the same
    assert "data must name the folder" in complaint(capsys)
    assert [path.name for path in out.iterdir()] == ["one-a.json"]
    assert json.loads((out / "one-a.json").read_text())["verdict"] == "Holds."


def test_all_papers(toys, capsys, tmp_path):
    assert run("all", "--quick", "--data", tmp_path, "--json") == 0
    found = [(r["paper"], r["table"]) for r in json.loads(capsys.readouterr().out)]
    assert found == [("one", "a"), ("one", "b"), ("two", "a")]


def test_list(toys, capsys):
    assert run("list") == 0
    assert "1. One" in capsys.readouterr().out
    assert run("list", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"one": ["a", "b"], "two": ["a"]}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["three"], "paper must be one of one, two. Got 'three' instead."),
        (["one", "c"], "table must be one of a, b for one. Got 'c' instead."),
        (["all", "a"], "table must be left out with all papers. Got 'a' instead."),
        (["one", "b"], "Give --data FOLDER."),
        (["one", "b", "--data", "/nowhere"], "data must name a folder with the datasets."),
        (["one", "--seeds", "0"], "--seeds"),
        (["one", "--fast"], "--fast"),
        ([], "PAPER"),
    ],
)
def test_mistakes_end_in_one_line_and_code_2(toys, capsys, arguments, message):
    assert run(*arguments) == 2
    assert message.lower() in complaint(capsys).lower()


def test_a_folder_that_cannot_be_written_costs_no_work(toys, capsys, tmp_path):
    (tmp_path / "file").write_text("")
    assert run("two", "--out", tmp_path / "file") == 2
    shown = capsys.readouterr()
    assert "out must be a folder that can be written to" in shown.err
    assert "working" not in shown.err


def test_every_line_of_the_real_catalogue_leads_to_a_function():
    for paper in PAPERS:
        for name, function in find(paper).items():
            assert callable(function), name


def test_the_real_catalogue_has_what_the_issue_asks_for():
    asked = {
        "sco": {"rates-10", "rates-100", "rates-1000", "theorem-6"},
        "value": {"figure-1", "figures-2-3", "table-2"},
        "aclip": {"table-2", "table-3", "table-b1"},
        "modelmix": {"section-4.3", "table-1", "table-2", "table-3"},
    }
    for paper, tables in asked.items():
        assert tables <= set(PAPERS[paper].tables)
    with pytest.raises(ConfigurationError, match="paper must be one of"):
        find("nothing")


def test_an_interval_needs_two_finite_runs():
    assert Measured.of([2.0]) == Measured(2.0, None, 1)
    assert Measured.of([1.0, math.inf]) == Measured(math.inf, None, 2)
    assert Measured.of([1.0, 3.0]).half_width == pytest.approx(12.706, abs=1e-3)
    with pytest.raises(ConfigurationError, match="values must hold"):
        Measured.of([])
