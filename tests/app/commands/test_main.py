"""The hallway of the command line: help in every form, late imports, one line per mistake."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from winsor_papers import reproduce

from winsor.app.commands.main import COMMANDS, main


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
        "import sys; from winsor.app.commands.main import main\n"
        f"try: main({command.split()!r})\n"
        f"except SystemExit as stop: assert (stop.code or 0) == {code}, stop.code\n"
        "assert 'torch' not in sys.modules, 'torch'\n"
        f"assert {command!r}.startswith('reproduce') or "
        "'winsor_papers.reproductions' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


def test_typer_lives_here_only():
    program = (
        "import sys, winsor.planning.plan, winsor.contrib.modelmix.planning\n"
        "import winsor.tuning.public_rows\n"
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
from winsor.app.commands.main import main
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


WRONG = {  # what is typed, and words of the one line that comes back
    "trian": "Did you mean 'train'? See `winsor -h`",
    "--verison": "--version",
    "train": "give CONFIG.toml",
    "train nowhere.toml": "cannot read the configuration nowhere.toml",
    "train .": "Is a directory",
    "train broken.toml": "not valid TOML",
    "train empty.toml": "name must be given",
    "train misspelt.toml": "Did you mean 'epsilon'?",
    "train table.toml": "Did you mean 'training'?",
    "train --run nowhere": "must be the directory of a run",
    "compare": "Missing argument 'CONFIG.toml'. See `winsor compare -h`",
    "compare digits.toml": "compare must be given",
    "tune digits.toml": "tune must be given",
    "report nowhere": "directory of a run or of a comparison",
    "report .": "without config.json or compare.json",
    "verify broken.toml": "must be the directory of a run",
    "sign nowhere": "Missing option '--key'. See `winsor sign -h`",
    "tails nowhere.npy": "FILE must exist",
    "tails broken.toml": "must end in .npy",
    "tails words.csv": "--key must choose one of several columns",
    "plan": "Leave out exactly the one to compute",
    "plan --n many": "Invalid value for '--n'",
    "plan --n 100 --batchsize 2": "--batch-size",
    "plan --n 100 --batch-size 200 --epochs 1 --epsilon 1 --delta 1e-5": "at most n = 100",
    "plan --n 100 --batch-size 20 --epochs 1 --epsilon -1 --delta 1e-5": "positive finite",
    "plan --n 100 --batch-size 20 --epochs 1 --epsilon 1 --delta 0.1": "delta must be below 1/n",
    "audit mechnisms": "Did you mean 'mechanisms'? See `winsor audit -h`",
    "audit run nowhere": "directory of a run, or module:function",
    "audit replay none.py:f": "must name a file",
    "reproduce": "Missing argument 'paper'",
}


@pytest.mark.parametrize("typed", WRONG)
def test_a_wrong_command_line_ends_in_one_line(typed, capsys, tmp_path, monkeypatch):
    digits = (Path(__file__).parents[3] / "examples" / "digits.toml").read_text()
    files = {
        "digits.toml": digits,
        "broken.toml": "= 3",
        "empty.toml": "",
        "misspelt.toml": digits.replace("epsilon", "epsilom"),
        "table.toml": digits.replace("[training]", "[trainning]"),
        "words.csv": "a,b\nc,d\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, *typed.split())
    assert (code, out) == (2, "")
    assert err.startswith("winsor: error: ") and err.count("\n") == 1
    assert WRONG[typed] in err


def test_an_output_that_is_full_is_one_line_and_no_traceback():
    numbers = {"n": 100, "batch-size": 20, "epochs": 1, "noise-multiplier": 1, "delta": 1e-5}
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "winsor", "plan"]
        command += [f"--{name}={value}" for name, value in numbers.items()]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("winsor: error: cannot read or write the output: No space left")
    assert done.stderr.count("\n") == 1


def test_an_error_without_words_gets_some(capsys, monkeypatch):
    class Wordless(Exception):
        def format_message(self):
            return ""

    def fail(*_, **__):
        raise Wordless

    monkeypatch.setattr("winsor.app.commands.main._app", lambda arguments: fail)
    code, _, err = run(capsys, "audit")
    assert code == 2 and err == "winsor: error: something is missing. See `winsor audit -h`.\n"
