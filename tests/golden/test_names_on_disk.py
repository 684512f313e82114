"""Names that stand in files that users keep stay as they are: see `names_on_disk.py`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
STORED = json.loads((HERE / "names_on_disk.json").read_text())


@pytest.fixture(scope="module")
def found():
    """In a process of its own: BLAKE2b is watched, and commands are run."""
    command = [sys.executable, str(HERE / "names_on_disk.py"), "--print"]
    paths = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(HERE.parents[1])]))
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def test_groups_are_those_stored(found):
    assert found.keys() == STORED.keys()


@pytest.mark.parametrize("group", STORED)
def test_names_are_those_stored(group, found):
    """A name that is missing or new: files of users may not be read, or noise may be other noise.

    If it is meant (a rule was added), say so in CHANGELOG and run `names_on_disk.py --write`.
    """
    now, then = set(found[group]), set(STORED[group]["names"])
    assert not then - now, f"gone from {STORED[group]['where']}"
    assert not now - then, f"new in {STORED[group]['where']}"


def test_every_group_says_where_and_has_names():
    for group, told in STORED.items():
        assert told["where"] and told["names"], group


@pytest.mark.parametrize(
    ("group", "name"),
    [
        ("streams", "batch"), ("streams", "score"), ("streams", "poisson block"),
        ("streams", "rows that ranks compare"), ("persons", "winsor-lattice"),
        ("persons", "winsor-bound"), ("persons", "winsor-id"), ("parts", "gaussian: grad"),
        ("parts", "gaussian: prepaid"), ("events", "thresholded gaussian"),
        ("samplers", "Poisson"), ("mechanisms", "ModelMix"), ("run directory", "model.pt"),
        ("checkpoint", "private.key_fingerprint"), ("bound", "another tuning"),
    ],
)  # fmt: skip
def test_the_list_has_the_names_that_it_must(group, name):
    assert name in STORED[group]["names"]
