"""The hallway of the command line: help in every form, late imports, one line per mistake."""

from __future__ import annotations

import subprocess
import sys

import pytest

from winsor.cli import reproduce
from winsor.cli.main import COMMANDS, main


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    out, err = capsys.readouterr()
    return stop.value.code or 0, out, err


@pytest.mark.parametrize("arguments", [(), ("-h",), ("--help",)])
def test_winsor_alone_explains_itself(capsys, arguments):
    code, out, err = run(capsys, *arguments)
    assert (code, err) == (0, "")
    assert "every printed epsilon is certified" in out
    assert all(name in out for name in COMMANDS)


def test_the_module_alone_explains_itself():
    done = subprocess.run([sys.executable, "-m", "winsor"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Commands:" in done.stdout


def test_audit_alone_names_its_parts(capsys):
    code, out, err = run(capsys, "audit")
    assert (code, err) == (0, "")
    assert all(name in out for name in ("mechanisms", "published", "mutants", "run"))


@pytest.mark.parametrize(
    "command",
    [
        *((name,) for name in COMMANDS),
        ("audit", "run"),
        ("plan", "--mechanism", "modelmix"),
        ("plan", "--data", "rows.npz"),
    ],
    ids=" ".join,
)
def test_both_spellings_of_help(capsys, command):
    short, long = run(capsys, *command, "-h"), run(capsys, *command, "--help")
    assert short == long
    assert short[0] == 0 and "-h, --help" in short[1]


def test_names_in_brackets_are_not_markup(capsys):
    assert "CONFIG.toml's [compare] table" in run(capsys, "compare", "--help")[1]
    assert "scaled to [-1, 1]" in run(capsys, "plan", "--data", "x.npz", "--help")[1]


def test_experiments_that_are_not_installed_are_said_to_be_elsewhere(capsys, monkeypatch):
    monkeypatch.setattr(reproduce, "EXPERIMENTS", "winsor_reproductions_nowhere")
    for arguments in (("list",), ("all",), ("sco", "rates")):
        code, out, err = run(capsys, "reproduce", *arguments)
        assert (code, out) == (2, "")
        assert err.startswith("winsor: error: ") and err.count("\n") == 1
        assert "pip install -e reproductions" in err
    assert run(capsys, "reproduce", "--help")[0] == 0


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("--help", 0),
        ("reproduce list", 0),
        ("audit", 0),
        ("train nowhere.toml", 2),
        ("compare nowhere.toml", 2),
        ("report nowhere", 2),
        ("tails nowhere.npy", 2),
        ("audit run nowhere", 2),
        ("plan --data nowhere.npz --n 100 --epsilon 1", 2),
        ("plan --mechanism modelmix --n 1000 --batch-size 10 --delta 1e-5", 2),
    ],
)
def test_what_needs_no_tensor_loads_no_torch(command, code):
    program = (
        "import sys; from winsor.cli.main import main\n"
        f"try: main({command.split()!r})\n"
        f"except SystemExit as stop: assert (stop.code or 0) == {code}, stop.code\n"
        "assert 'torch' not in sys.modules, 'torch'\n"
        f"assert {command!r}.startswith('reproduce') or 'winsor_reproductions' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


def test_typer_lives_here_only():
    program = (
        "import sys, winsor.planning.plan, winsor.contrib.modelmix.planning\n"
        "import winsor.advise.public_rows\n"
        "assert 'typer' not in sys.modules and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_large_delta_is_refused_unless_said(capsys):
    options = {"n": 1000, "batch-size": 10, "steps": 10, "noise-multiplier": 1, "delta": 1e-2}
    numbers = ["plan", *(f"--{name}={value}" for name, value in options.items())]
    code, out, err = run(capsys, *numbers)
    assert (code, out) == (2, "") and "delta must be below 1/n" in err
    code, out, err = run(capsys, *numbers, "--allow-large-delta")
    assert (code, err) == (0, "") and "not below 1/n" in out


REFUSED_EARLY = """
import sys
from winsor.cli.main import main
try:
    main(sys.argv[1:])
except SystemExit as end:
    assert end.code in (0, 2), end.code
assert not {"torch", "scipy"} & sys.modules.keys()
"""


@pytest.mark.parametrize(
    "words", [["train", "none.toml"], ["compare", "none.toml"], ["verify", "none"], ["--help"]]
)
def test_what_is_missing_is_refused_before_scipy_and_torch_load(words, tmp_path):
    command = [sys.executable, "-c", REFUSED_EARLY, *words]
    subprocess.run(command, check=True, cwd=tmp_path, capture_output=True)
