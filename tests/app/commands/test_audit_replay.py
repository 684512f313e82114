"""`winsor audit replay SCRIPT.py:function`."""

import json

import pytest

from winsor.app.commands.main import main

SCRIPT = """
import numpy as np
from winsor.tables import clipped_mean


def honest():
    return lambda x: clipped_mean(x, radius=2.0, epsilon=1.0), np.eye(30)


def leaky():
    return lambda x: (clipped_mean(x, radius=2.0, epsilon=1.0), float(x.sum())), np.eye(30)


def wrong():
    return 3
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "my_training_for_replay.py"
    path.write_text(SCRIPT)
    return path


def call(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["audit", "replay", *arguments])
    return stop.value.code, capsys.readouterr()


def test_an_honest_script_passes(script, capsys):
    code, out = call([f"{script}:honest"], capsys)
    assert code == 0 and "replay passed: 1 releases" in out.out


def test_a_leak_is_reported_and_the_exit_code_says_so(script, capsys):
    code, out = call([f"{script}:leaky", "--json", "--rows", "3,4"], capsys)
    report = json.loads(out.out)
    assert code == 1 and report["verdict"] == "VIOLATED" and report["rows"] == [3, 4]
    assert {finding["part"] for finding in report["findings"]} == {"returned.1"}


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["{}:wrong"], "must return (train, dataset)"),
        (["{}x.py:honest"], "must name a file"),
        (["{}:honest", "--rows", "a"], "--rows must be numbers"),
    ],
)
def test_what_is_wrong_is_said(script, capsys, arguments, message):
    code, out = call([argument.format(script) for argument in arguments], capsys)
    assert code not in (0, 1) and message in " ".join((out.out + out.err).split())
