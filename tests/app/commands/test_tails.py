from __future__ import annotations

import json

import numpy as np
import pytest

from winsor.app.commands import main as cli
from winsor.app.commands.tails import read_norms
from winsor.core.contract import ConfigurationError


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        cli.main(["tails", *arguments])
    captured = capsys.readouterr()
    return int(stop.value.code or 0), captured.out, captured.err


@pytest.fixture
def norms(tmp_path):
    values = np.random.default_rng(0).exponential(size=800)
    np.savez(tmp_path / "norms.npz", norms=values, other=np.zeros(3))
    return values


def test_shows_fit_and_advice(norms, tmp_path, capsys):
    code, out, _ = run(capsys, str(tmp_path / "norms.npz"), "--n", "1000", "--d", "10")
    assert code == 0
    assert "sub-exponential" in out and "800 norms" in out
    for source in ("paper 1", "paper 2", "paper 3", "paper 4", "paper 5", "Andrew"):
        assert source in out


def test_without_a_setting_it_says_what_is_missing(norms, tmp_path, capsys):
    code, out, _ = run(capsys, str(tmp_path / "norms.npz"))
    assert code == 0 and "--n and --d" in out and "paper 1" not in out


def test_json_is_complete(norms, tmp_path, capsys):
    code, out, _ = run(
        capsys, str(tmp_path / "norms.npz"), "--n", "1000", "--d", "10", "--delta", "1e-5", "--json"
    )
    found = json.loads(out)
    assert code == 0
    assert found["theta"]["low"] < 1 < found["theta"]["high"]
    assert found["verdict"] == "sub-exponential"
    assert set(found["indices"]) == {"hill", "moments", "pickands"}
    assert len(found["advice"]) == 7 and found["advice"][0]["values"]["target"] >= 0.7


def test_plots_are_written(norms, tmp_path, capsys):
    folder = tmp_path / "plots"
    code, _, _ = run(capsys, str(tmp_path / "norms.npz"), "--plots", str(folder))
    assert code == 0
    assert {path.name for path in folder.glob("*.html")} == {
        "norms.html",
        "tail.html",
        "stability.html",
    }


def test_reads_every_format(norms, tmp_path):
    np.save(tmp_path / "a.npy", norms)
    np.savetxt(tmp_path / "a.txt", norms)
    np.savetxt(tmp_path / "plain.csv", norms)
    table = np.column_stack([np.arange(norms.size), norms])
    np.savetxt(tmp_path / "named.csv", table, delimiter=",", header="row,norm", comments="")
    for name, key in (
        ("a.npy", None),
        ("a.txt", None),
        ("norms.npz", None),
        ("norms.npz", "norms"),
        ("plain.csv", None),
        ("named.csv", None),
        ("named.csv", "norm"),
    ):
        assert read_norms(tmp_path / name, key) == pytest.approx(norms)


@pytest.mark.parametrize(
    ("name", "content", "key", "message"),
    [
        ("missing.npy", None, None, "must exist"),
        ("a.parquet", "x", None, "must end in"),
        ("a.csv", "1,2\n3,4\n", None, "must name them"),
        ("b.csv", "u,v\n3,4\n", None, "--key must choose"),
        ("c.csv", "u,v\n3,4\n", "w", "--key must be one of"),
        ("a.npy", "no array", None, "plain numbers"),
        ("a.npz", "no archive", None, "plain numbers"),
        ("a.txt", "one\ntwo\n", None, "plain numbers"),
    ],
)
def test_wrong_files_are_refused_in_one_line(tmp_path, name, content, key, message):
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(ConfigurationError, match=message):
        read_norms(tmp_path / name, key)


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="folder of a run"):
        read_norms(tmp_path)


def test_the_trade_is_drawn_when_the_run_is_known(norms, tmp_path, capsys):
    folder = tmp_path / "plots"
    options = ("--n", "1000", "--d", "10", "--plots", str(folder))
    assert run(capsys, str(tmp_path / "norms.npz"), *options)[0] == 0
    assert (folder / "trade.html").exists()


@pytest.mark.parametrize("wrong", [("--n", "0", "--d", "3"), ("--n", "9", "--d", "-1")])
def test_wrong_settings_end_in_code_2(norms, tmp_path, capsys, wrong):
    code, _, err = run(capsys, str(tmp_path / "norms.npz"), *wrong)
    assert code == 2 and "must be a positive finite number" in err and err.count("\n") == 1


def test_errors_end_in_code_2(tmp_path, capsys):
    code, _, err = run(capsys, str(tmp_path / "nowhere.npy"))
    assert code == 2 and err.startswith("winsor: error: FILE must exist")
