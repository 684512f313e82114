"""winsor as a person uses it: the installed command, files, Ctrl-C, kills, and mistakes."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import chromium
import numpy as np
import pytest
import tomli_w
import torch
from tiny_runs import table, without_times

from winsor.app.commands import main as cli
from winsor.app.runs.directory import RunDirectory

WINSOR = str(Path(sys.executable).parent / "winsor")
STEPS = 60


def start(folder: Path, *arguments: str, **options) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [WINSOR, *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        **options,
    )


def call(capsys, *arguments: str) -> tuple[int, str, str]:
    """The command in this process: code, standard output, standard error."""
    with pytest.raises(SystemExit) as stop:
        cli.main(list(arguments))
    output = capsys.readouterr()
    return stop.value.code or 0, output.out, output.err


def write(path: Path, **changes) -> str:
    path.write_text(tomli_w.dumps(table(**changes)))
    return str(path)


def slow_config(folder: Path) -> str:
    """Steps that take long enough to be interrupted, from a file of the user's own."""
    (folder / "slow_model.py").write_text(
        "import os, time\n"
        "from torch import nn\n"
        "class Slow(nn.Linear):\n"
        "    def forward(self, x):\n"
        "        time.sleep(float(os.environ.get('SLOW', '0')))\n"
        "        return super().forward(x)\n"
        "def make(shape, outputs):\n"
        "    return Slow(shape[0], outputs)\n"
    )
    generator = np.random.default_rng(0)
    x = generator.normal(size=(300, 4)).round(3)
    lines = [f"{a},{b},{c},{d},{'yes' if a > 0 else 'no'}" for a, b, c, d in x]
    (folder / "rows.csv").write_text("\n".join(["a,b,c,d,ill", *lines]) + "\n")
    return write(
        folder / "config.toml",
        name="interrupted",
        data={"source": "rows.csv", "target": "ill", "classes": ["no", "yes"], "options": {}},
        model={"name": "slow_model:make"},
        training={"steps": STEPS, "batch_size": 32},
        record={"evaluations": 6, "checkpoint_seconds": 0.05},
    )


def interrupt(process: subprocess.Popen[str], ledger: Path, lines: int, number: int) -> None:
    """Send a signal as soon as the ledger has so many lines."""
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        if ledger.exists() and ledger.read_bytes().count(b"\n") >= lines:
            break
        time.sleep(0.01)
    process.send_signal(number)


def test_interrupted_killed_resumed_and_reported(tmp_path, monkeypatch, capsys):
    slow_config(tmp_path)
    monkeypatch.chdir(tmp_path)
    ledger = tmp_path / "runs" / "interrupted" / "ledger.jsonl"

    monkeypatch.setenv("SLOW", "0.02")
    process = start(tmp_path, "train", "config.toml", "--allow-import")
    interrupt(process, ledger, 8, signal.SIGINT)
    out, err = process.communicate()
    assert process.returncode == 130, err
    assert err.count("\n") == 1
    assert "Resume with: winsor train --run runs/interrupted" in err
    assert "starting: 60 steps on" in out

    lines = ledger.read_bytes().count(b"\n")
    kill_after = lines + int(np.random.default_rng().integers(2, 15))  # any moment will do
    process = start(tmp_path, "train", "--run", "runs/interrupted", "--quiet", "--allow-import")
    interrupt(process, ledger, kill_after, signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not (ledger.parent / "result.json").exists()

    monkeypatch.setenv("SLOW", "0")
    process = start(tmp_path, "train", "config.toml", "--json", "--allow-import")
    out, err = process.communicate()
    assert process.returncode == 0, err
    finish = json.loads(out.splitlines()[-1])
    assert finish["event"] == "finish" and finish["steps"] == STEPS

    code, _, _ = call(
        capsys, "train", "config.toml", "--run", "straight", "--quiet", "--allow-import"
    )
    assert code == 0
    same_end(ledger.parent, tmp_path / "straight")
    report(tmp_path, tmp_path / "profile")


def same_end(one: Path, two: Path) -> None:
    a, b = (torch.load(path / "model.pt", weights_only=True) for path in (one, two))
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert without_times(RunDirectory(one).metrics()) == without_times(RunDirectory(two).metrics())
    results = [RunDirectory(path).result() for path in (one, two)]
    for name in ("epsilon", "held_out", "steps"):
        assert results[0][name] == results[1][name]


def report(folder: Path, profile: Path) -> None:
    process = start(folder, "report", "runs/interrupted", "-o", "page/report.html")
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert "differentially private" in out and "Written: page/report.html" in out
    document, console = chromium.dom(folder / "page" / "report.html", profile)
    assert console == [] and document.count("<polyline") >= 3
    assert json.loads((folder / "page" / "report.json").read_text())["runs"][0]["finished"]


def test_compare_and_its_report(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = tomli_w.dumps(table(training={"steps": 6}))
    variants = 'seeds = [1, 2]\n[[compare.variants]]\nname = "flat"\n'
    variants += '[[compare.variants]]\nname = "auto"\nrule = "automatic"\n'
    Path("both.toml").write_text(f"{text}\n[compare]\n{variants}")
    code, out, err = call(capsys, "compare", "both.toml", "--run", "both")
    assert code == 0, err
    assert "auto, seed 2: finished" in out and "All 4 runs together: epsilon" in out
    code, out, _ = call(capsys, "compare", "both.toml", "--run", "both", "--json")
    assert code == 0 and json.loads(out.splitlines()[-1])["event"] == "summary"
    code, _, err = call(capsys, "report", "both")
    assert code == 0, err
    assert "Comparison" in Path("both/report.html").read_text()


# --------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"optimiser": {}}, "optimiser is not a setting. Did you mean 'optimizer'?"),
        ({"budget": {"epsilon": "8"}}, "budget.epsilon must be a number. Got '8' instead."),
        ({"data": {"source": "rows.npz"}}, "data.source must be a file that exists."),
        ({"model": {"name": "torch.nn:Flatten"}}, "at least one trainable parameter"),
        ({"model": {"name": "no_such_module:Model"}}, "No module named 'no_such_module'"),
        ({"model": {"name": "two_layer_cnn"}}, "data.shape must be [channels, 28, 28]"),
        ({"training": {"batch_size": 10_000}}, "batch_size must be at most n ="),
        ({"budget": {"delta": 0.5}}, "delta must be below 1/n"),
        ({"mechanism": {"name": "modelmix", "tau_over_lr": 0.1}}, "optimizer must be plain SGD"),
    ],
)
def test_a_mistake_is_one_line_and_code_2(tmp_path, monkeypatch, capsys, changes, message):
    monkeypatch.chdir(tmp_path)
    code, out, err = call(
        capsys, "train", write(tmp_path / "c.toml", **changes), "--run", "run", "--allow-import"
    )
    assert (code, out) == (2, "")
    assert err.startswith("winsor: error: ") and err.count("\n") == 1 and message in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "missing.toml"], "cannot read the configuration missing.toml: No such file"),
        (["train"], "give CONFIG.toml, or --run DIR"),
        (["train", "--run", "nowhere"], "nowhere must be the directory of a run"),
        (["train", "c.toml", "--quiet", "--json"], "--quiet and --json exclude each other"),
        (["compare", "c.toml"], "compare must be given"),
        (["report", "nowhere"], "nowhere must be the directory of a run or of a comparison"),
        (["report", "."], "must be the directory of a run"),
    ],
)
def test_wrong_calls(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "c.toml")
    code, out, err = call(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1 and message in err


def test_a_full_disk_is_one_line_and_the_run_goes_on_later(tmp_path, monkeypatch, capsys):
    """The size of files is limited, which fails writes in the middle like a full disk."""
    monkeypatch.chdir(tmp_path)
    config = write(tmp_path / "c.toml", training={"steps": 30})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, hard))
    try:
        code, _, err = call(capsys, "train", config, "--run", "run", "--quiet")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert code == 2 and err.count("\n") == 1
    assert "cannot write" in err and "File too large" in err
    assert call(capsys, "train", config, "--run", "run", "--quiet")[0] == 0
    assert call(capsys, "train", config, "--run", "straight", "--quiet")[0] == 0
    same_end(tmp_path / "run", tmp_path / "straight")


def bound_by_permissions() -> None:
    """Root may write anywhere; without CAP_DAC_OVERRIDE (1) it is bound like everybody."""
    ctypes.CDLL(None).prctl(24, 1, 0, 0, 0)


def test_a_read_only_directory_is_one_line(tmp_path):
    write(tmp_path / "c.toml")
    tmp_path.chmod(0o555)
    process = start(tmp_path, "train", "c.toml", "--run", "run", preexec_fn=bound_by_permissions)
    out, err = process.communicate()
    tmp_path.chmod(0o755)
    assert (process.returncode, out) == (2, "")
    assert err == (
        "winsor: error: cannot write run: Permission denied. Make room or choose a writable "
        "directory with --run; a run that was started can be resumed.\n"
    )


def test_run_directories_have_safe_names(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    config = write(tmp_path / "c.toml", name="../<b>name</b>", training={"steps": 1})
    assert call(capsys, "train", config, "--quiet")[0] == 0
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["b-name-b"]
