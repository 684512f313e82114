"""The hallway of the command line: help in every form, late imports, one line per mistake."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from winsor.app.commands import plugins
from winsor.app.commands.main import COMMANDS, main


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    out, err = capsys.readouterr()
    return stop.value.code or 0, out, err


NUMBERS = ("--n", "1000", "--batch-size", "10", "--steps", "10", "--noise-multiplier", "1")


@pytest.mark.parametrize("arguments", [(), ("-h",), ("--help",)])
def test_winsor_alone_explains_itself(capsys, arguments):
    code, out, err = run(capsys, *arguments)
    assert (code, err) == (0, "")
    assert "every printed epsilon is certified" in out
    assert all(name in out for name in COMMANDS)
    assert all(name in out for name in plugins.plugged(plugins.COMMANDS))


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
        *(("plan", name) for name in ("run", "draw", "mix", "propose")),
    ],
    ids=" ".join,
)
def test_both_spellings_of_help(capsys, command):
    short, long = run(capsys, *command, "-h"), run(capsys, *command, "--help")
    assert short == long
    assert short[0] == 0 and "-h, --help" in short[1]


@pytest.mark.parametrize(
    ("former", "now"),
    [
        ("--sampling full --steps 9 --epsilon 1 --delta 1e-5", "run"),
        ("--draw --n 900 --batch-size 30 --epochs 1 --epsilon 9 --delta 1e-4", "draw"),
        ("--mechanism modelmix --n 900 --batch-size 30 --steps 9 --epsilon 9 --delta 1e-4", "mix"),
        ("--data nowhere.npz --n 900 --epsilon 9", "propose"),
    ],
)
def test_former_options_of_plan_reach_its_subcommands(capsys, former, now):
    words = [*former.split(), "--json"]
    assert run(capsys, "plan", *words) == run(capsys, "plan", now, *words)


def test_names_in_brackets_are_not_markup(capsys):
    assert "CONFIG.toml's [compare] table" in run(capsys, "compare", "--help")[1]
    assert "scaled to [-1, 1]" in run(capsys, "plan", "--data", "x.npz", "--help")[1]


def test_commands_that_are_not_installed_are_said_to_be_elsewhere(capsys, monkeypatch):
    monkeypatch.setattr(plugins, "plugged", lambda group: {})
    commands = ("reproduce list", "reproduce all", "reproduce", "promises --n 3", "audit published")
    for command in commands:
        code, out, err = run(capsys, *command.split())
        assert (code, out) == (2, "")
        assert err.startswith("winsor: error: ") and err.count("\n") == 1
        assert "Install winsor-papers" in err and "pip install -e papers" in err
    code, out, _ = run(capsys, "--help")
    assert code == 0 and "reproduce" not in out
    code, out, _ = run(capsys, "plan", *NUMBERS, "--delta", "1e-5")
    assert code == 0 and "promises" not in out


@pytest.mark.parametrize("name", ["mechanisms", "mutants"])
def test_the_self_test_needs_a_clone_and_finds_it(name, capsys, monkeypatch, tmp_path):
    assert name in plugins.plugged(plugins.AUDITS)
    assert plugins.self_test(name)() != []
    monkeypatch.setattr(plugins, "plugged", lambda group: {})
    monkeypatch.setattr(plugins, "__file__", str(tmp_path / "winsor" / "app" / "commands" / "p.py"))
    code, out, err = run(capsys, "audit", name)
    assert (code, out) == (2, "") and err.count("\n") == 1
    assert "tests/support" in err and "clone" in err


FROM_A_CLONE = """
import sys
sys.path = [folder for folder in sys.path if not folder.endswith("tests/support")]
from winsor.app.commands import plugins
assert "mutants" not in plugins.plugged(plugins.AUDITS)
assert plugins.self_test("mutants").__module__ == "selfaudit"
"""


def test_a_clone_has_the_self_test_though_it_is_not_on_the_path():
    subprocess.run([sys.executable, "-c", FROM_A_CLONE], check=True)


PLUGGED = """
from typing import Annotated
import typer

def hello(name: Annotated[str, typer.Argument()] = 'you') -> None:
    'Greet someone.'
    print(f"hello {name}")
"""


def test_a_command_of_an_installed_package_is_a_command(tmp_path, monkeypatch, capsys):
    (tmp_path / "greeting_of_a_newcomer.py").write_text(PLUGGED)
    metadata = tmp_path / "greeting-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[winsor.commands]\nhello = greeting_of_a_newcomer:hello\nworse = no_such_module:f\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    out = run(capsys, "--help")[1]
    assert "Greet someone." in out and "Cannot be loaded" in out
    assert run(capsys, "hello", "reader") == (0, "hello reader\n", "")
    assert "See `winsor hello -h`" in run(capsys, "hello", "--nam")[2]
    assert "Did you mean 'hello'" in run(capsys, "helo")[2]


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
