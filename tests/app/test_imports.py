"""What a run loads: its own parts, and no others."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import tomli_w
from tiny_runs import table

BUDGET = 176
"""Files of winsor that a toy run may load: what the rooms below load when their parts are used."""
UNUSED = ("audit", "contrib", "features", "integrations", "metrics", "tables", "tails", "tuning")
"""Rooms that a plain run has no use for."""
CODE = """
import json, sys
from winsor.app.commands.main import main
try:
    main(json.loads(sys.argv[1]))
except SystemExit as stop:
    assert not stop.code, stop.code
print(json.dumps([name for name in sys.modules if name.startswith("winsor")]))
"""


def loaded(*arguments: str) -> list[str]:
    """The modules of winsor that a command has loaded at its end."""
    done = subprocess.run(
        [sys.executable, "-c", CODE, json.dumps(arguments)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return sorted(json.loads(done.stdout.splitlines()[-1]))


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("toy")
    (folder / "toy.toml").write_text(tomli_w.dumps(table()))
    return folder


@pytest.fixture(scope="module")
def modules(toy):
    return loaded("train", str(toy / "toy.toml"), "--run", str(toy / "run"), "--quiet")


def test_a_toy_run_loads_few_files(modules):
    assert len(modules) <= BUDGET, f"{len(modules)} files"


def test_a_run_loads_no_room_that_it_does_not_use(modules):
    assert [name for name in modules if name.startswith(tuple(f"winsor.{u}" for u in UNUSED))] == []
    assert not [name for name in modules if name.startswith("winsor.app.report")]


def test_a_run_loads_its_own_rule_and_no_others(modules):
    """`Quantile` comes with the sums of several processes."""
    classes = {"flat", "quantile", "monitor"}
    shared = {"rule", "sizes", "tracking"}
    found = {name.rpartition(".")[2] for name in modules if name.startswith("winsor.rules.")}
    assert found - shared <= classes
