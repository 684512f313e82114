"""`winsor audit`: tables, JSON and exit codes."""

import json
import sys
import types

import pytest

from winsor.app.commands import audit as cli_audit
from winsor.app.commands.main import main
from winsor.audit.suite import Audit, Row, run_or_explain


def call(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["audit", *arguments])
    return stop.value.code, capsys.readouterr()


def row(name, violated=False, error=""):
    return Row(name, "anyone", "add", 4.0, 3.0, "exact", 1e-5, 10, violated, 0.0, 1.0, 0.1, error)


def test_an_honest_mechanism_passes_and_the_json_says_so(capsys):
    code, out = call(["mechanisms", "--quick", "--json", "--only", "clipped mean, "], capsys)
    found = json.loads(out.out)
    assert code == 0 and found["violated"] == 0
    assert [a["verdict"] for a in found["audits"]] == ["not violated"] * 2
    assert {"claimed_epsilon", "lower_bound", "runs", "delta"} <= set(found["audits"][0])


@pytest.mark.parametrize(("bad", "code"), [({}, 0), ({"violated": True}, 1), ({"error": "x"}, 1)])
def test_a_violated_certified_claim_or_a_failed_audit_ends_in_exit_code_1(
    bad, code, capsys, monkeypatch
):
    monkeypatch.setattr(cli_audit, "run_or_explain", lambda audit, quick: row(audit.name, **bad))
    got, out = call(["mechanisms", "--only", "clipped mean"], capsys)
    assert got == code
    assert "clipped mean" in out.out


def test_published_claims_may_fail_without_an_error(capsys, monkeypatch):
    monkeypatch.setattr(cli_audit, "run_or_explain", lambda a, quick: row(a.name, violated=True))
    code, out = call(["published", "--only", "AClip"], capsys)
    assert code == 0 and "VIOLATED" in out.out


def test_a_missed_mutant_is_an_error(capsys, monkeypatch):
    monkeypatch.setattr(cli_audit, "run_or_explain", lambda a, quick: row(a.name))
    code, out = call(["mutants", "--only", "rank"], capsys)
    assert code == 1 and "MISSED" in out.out


def test_an_audit_that_breaks_is_a_row_of_its_own():
    def broken():
        raise RuntimeError("no such luck")

    result = run_or_explain(Audit("broken", broken))
    assert result.verdict == "ERROR: RuntimeError: no such luck" and not result.violated


def test_an_unknown_name_is_one_clear_line(capsys):
    code, out = call(["mechanisms", "--only", "nothing like this"], capsys)
    assert code == 2 and "--only must be part of" in out.err


def test_a_users_run_is_found_by_its_import_path(capsys, monkeypatch):
    from winsor.audit.example import example

    module = types.ModuleType("my_runs")
    module.small = lambda: example(epsilon=8.0, steps=2)
    module.wrong = lambda: 3
    monkeypatch.setitem(sys.modules, "my_runs", module)
    code, out = call(["run", "my_runs:small", "--canaries", "20", "--seed", "0", "--json"], capsys)
    found = json.loads(out.out)
    assert code == 0 and found["canaries"] == 20 and not found["violated"]
    assert call(["run", "my_runs:wrong"], capsys)[0] == 2
    assert call(["run", "my_runs:missing"], capsys)[0] == 2
    assert call(["run", "no_such_module:f"], capsys)[0] == 2


CONFIG = """
name = "tiny"
[data]
source = "digits"
[model]
name = "linear"
[rule]
name = "flat"
max_grad_norm = 1.0
[optimizer]
name = "sgd"
lr = 0.1
[schedule]
name = "cosine"
[budget]
epsilon = 8.0
delta = 1e-4
[training]
steps = 3
batch_size = 100
"""


def test_a_run_directory_is_audited_and_left_as_it_is(capsys, tmp_path):
    (tmp_path / "tiny.toml").write_text(CONFIG)
    with pytest.raises(SystemExit) as stop:
        main(["train", str(tmp_path / "tiny.toml"), "--run", str(tmp_path / "run"), "--quiet"])
    assert stop.value.code == 0
    capsys.readouterr()
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    arguments = ["run", str(tmp_path / "run"), "--canaries", "20", "--seed", "0", "--json"]
    code, out = call(arguments, capsys)
    found = json.loads(out.out)
    assert code == 0 and not found["violated"]
    assert found["claimed_epsilon"] == pytest.approx(8.0, rel=0.01) and found["delta"] == 1e-4
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    assert call(["run", str(tmp_path)], capsys)[0] == 2  # a directory, but not of a run


def test_an_audit_that_breaks_without_a_word_is_named_all_the_same(capsys, monkeypatch):
    def silent():
        raise StopIteration

    assert run_or_explain(Audit("silent", silent)).verdict == "ERROR: StopIteration"


@pytest.mark.parametrize(
    "arguments",
    [[], ["mechnisms"], ["mechanisms", "--only", "nothing"], ["run", "nowhere"], ["replay"]],
)
def test_no_error_is_empty(arguments, capsys):
    code, out = call(arguments, capsys)
    assert out.err == "" if code in (0, None) else len(out.err.split()) > 4


def test_quick_says_what_it_costs_and_the_table_what_it_took(capsys, monkeypatch):
    _, out = call(["mechanisms", "--help"], capsys)
    assert "minutes of processor time, which the cores share" in " ".join(out.out.split())
    assert "under a minute" not in out.out
    monkeypatch.setattr(cli_audit, "run_or_explain", lambda audit, quick: row(audit.name))
    _, out = call(["mechanisms", "--only", "clipped mean"], capsys)
    assert "s of processor time" in " ".join(out.out.split())
