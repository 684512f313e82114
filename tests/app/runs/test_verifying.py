"""Files of a run that disagree are found, named, and destroy nothing."""

from __future__ import annotations

import json
import random

import pytest
from tiny_runs import table

from winsor.app.commands.main import main
from winsor.app.runs.config import from_table
from winsor.app.runs.execute import execute
from winsor.app.runs.folder import RunError
from winsor.app.runs.progress import Quiet
from winsor.app.runs.verifying import disagreements


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "run"
    execute(from_table(table()), path, Quiet())
    return path


@pytest.fixture
def run(finished, tmp_path):
    """A copy that may be tampered with."""
    copy = tmp_path / "run"
    copy.mkdir()
    for file in finished.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    return copy


def change_result(run, **changes):
    path = run / "result.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def lines(run):
    return (run / "ledger.jsonl").read_text().splitlines()


def write(run, kept):
    (run / "ledger.jsonl").write_text("".join(f"{line}\n" for line in kept))


TAMPERINGS = {
    "entries removed at the end": lambda run: write(run, lines(run)[:-5]),
    "an entry removed in the middle": lambda run: write(run, lines(run)[:4] + lines(run)[5:]),
    "entries swapped": lambda run: write(run, [*lines(run)[:-2], *reversed(lines(run)[-2:])]),
    "an entry doubled": lambda run: write(run, [*lines(run), lines(run)[-1]]),
    "less noise claimed": lambda run: write(
        run, [line.replace('"noise_multiplier":', '"noise_multiplier":9') for line in lines(run)]
    ),
    "a digit of the chain": lambda run: write(
        run, [lines(run)[0][:-1] + ("0" if lines(run)[0][-1] != "0" else "1"), *lines(run)[1:]]
    ),
    "an empty ledger": lambda run: write(run, []),
    "a smaller epsilon": lambda run: change_result(run, epsilon=0.01),
    "another delta": lambda run: change_result(run, delta=0.5),
    "fewer steps": lambda run: change_result(run, steps=1),
    "another relation": lambda run: change_result(run, relation="replace_one"),
    "another head": lambda run: change_result(run, ledger_head="0" * 16),
    "a result that is no table": lambda run: (run / "result.json").write_text("[]"),
    "a broken result": lambda run: (run / "result.json").write_text('{"epsilon": 1'),
    "a broken configuration": lambda run: (run / "config.json").write_text("{"),
    "a key that is left": lambda run: (run / ".checkpoint.pt.new").write_bytes(b"key"),
}


@pytest.mark.parametrize("name", TAMPERINGS)
def test_tampering_is_found_and_named(run, name, capsys):
    assert disagreements(run) == []
    TAMPERINGS[name](run)
    assert disagreements(run)
    with pytest.raises(SystemExit) as stop:
        main(["verify", str(run)])
    assert stop.value.code == 1
    assert "DISAGREES" in capsys.readouterr().out


def test_a_random_byte_of_the_ledger_is_found(run):
    content = (run / "ledger.jsonl").read_bytes()
    chance = random.Random(0)
    for _ in range(40):
        place = chance.randrange(len(content))
        changed = bytearray(content)
        changed[place] ^= 1 << chance.randrange(7)
        (run / "ledger.jsonl").write_bytes(changed)
        assert disagreements(run), place


def test_honest_runs_agree_and_the_head_can_be_compared(run, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["verify", str(run)])
    assert stop.value.code == 0
    head = capsys.readouterr().out.split()[-1]
    assert disagreements(run, head) == []
    assert "head" in disagreements(run, "f" * 16)[0]


def test_a_planted_result_destroys_nothing(tmp_path):
    path = tmp_path / "run"
    execute(from_table(table()), path, Quiet())
    (path / "checkpoint.pt").write_bytes(b"the key")
    change_result(path, epsilon=0.001)
    with pytest.raises(RunError, match="do not agree"):
        execute(from_table(table()), path, Quiet())
    assert (path / "checkpoint.pt").read_bytes() == b"the key"


def test_a_configuration_runs_no_code_unless_asked(tmp_path, capsys):
    text = from_table(table()).to_toml().replace('source = "synthetic"', 'source = "os:getcwd"')
    assert "os:getcwd" in text
    (tmp_path / "c.toml").write_text(text)
    with pytest.raises(SystemExit) as stop:
        main(["train", str(tmp_path / "c.toml"), "--run", str(tmp_path / "run")])
    assert stop.value.code == 2
    assert "--allow-import" in capsys.readouterr().err
