"""Budgets: what winsor may weigh, and how far one batch may walk through it.

All numbers are in one table; lower them when the house gets smaller. A number is raised only with a
reason in the commit that raises it.
"""

from __future__ import annotations

import ast
import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "winsor"

BUDGETS = {
    # one warm batch of a two-layer net under Flat, from `batches()` to the update
    "files walked by a batch": 14,
    "switches between files in a batch": 33,
    "calls into winsor in a batch": 97,
    # modules of winsor that a process has loaded
    "modules of make_private and a step": 134,
    "modules of winsor train": 161,
    "modules of the means": 61,  # one reader of private cells, shared with metrics
    "torch loaded by the means": 0,
    # the wheel
    "lines of the wheel": 62_000,
    "files of the wheel": 380,
    "entries of winsor/": 16,
    # how it reads
    "public definitions without docstring": 0,
    "per mille of public definitions without docstring": 0,
    "lines of the longest function of winsor/core": 50,
}

NO_ENTRIES = {"__pycache__", "py.typed", "__init__.py", "__main__.py"}

STEP = """
import torch, winsor
from torch.utils.data import TensorDataset
model = torch.nn.Linear(3, 2)
data = TensorDataset(torch.randn(60, 3), torch.zeros(60, dtype=torch.long))
private = winsor.make_private(
    model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), dataset=data,
    rule=winsor.rules.Flat(1.0), batch_size=20, steps=5, noise_multiplier=1.0, delta=1e-3, seed=0,
)
for inputs, labels in private.batches(1):
    private.step(torch.nn.functional.cross_entropy(model(inputs), labels, reduction="none"))
"""
TRAIN = """
import os, runpy, sys, tempfile
place = tempfile.mkdtemp()
with open(os.path.join(place, "toy.toml"), "w") as file:
    file.write('''
name = "toy"
data = { source = "synthetic", classes = 3, options = { rows = 240, features = 5 } }
model = { name = "linear" }
rule = { name = "flat", max_grad_norm = 1.0 }
optimizer = { name = "sgd", lr = 0.5 }
budget = { noise_multiplier = 1.5, delta = 1e-3 }
training = { steps = 10, batch_size = 40 }
''')
sys.argv = ["winsor", "train", file.name, "--run", os.path.join(place, "run"), "--quiet"]
try:
    runpy.run_module("winsor", run_name="__main__")
except SystemExit as stop:
    assert not stop.code, stop.code
"""
MEANS = "from winsor.tables.means import clipped_mean"
LOADED = """
import json, sys
known = [name for name in sys.modules if name == "winsor" or name.startswith("winsor.")]
print(json.dumps({"modules": len(known), "torch": int("torch" in sys.modules)}))
"""
WALK = f"""
import json, sys
sys.path.insert(0, {str(ROOT / "benchmarks")!r})
import walk
print(json.dumps(walk.count(walk.walk())))
"""


@functools.cache
def said(code: str) -> dict[str, int]:
    """The last line that a fresh process prints."""
    paths = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(ROOT)]))
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=environment,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@functools.cache
def sources() -> dict[Path, str]:
    return {path: path.read_text() for path in sorted(PACKAGE.rglob("*.py"))}


def definitions(tree: ast.Module):
    """Public functions, classes, and methods of public classes."""
    for node in tree.body:
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        if isinstance(node, kinds) and node.name[0] != "_":
            yield node
            if isinstance(node, ast.ClassDef):
                inner = (one for one in node.body if isinstance(one, kinds[:2]))
                yield from (one for one in inner if one.name[0] != "_")


def private(path: Path) -> bool:
    parts = path.relative_to(PACKAGE).parts
    return any(part.startswith("_") and not part.startswith("__") for part in parts)


@functools.cache
def documented() -> tuple[int, int]:
    """(public definitions, those without docstring), in public modules."""
    found = [
        node
        for path, text in sources().items()
        if not private(path)
        for node in definitions(ast.parse(text))
    ]
    return len(found), sum(ast.get_docstring(node) is None for node in found)


def longest(folder: Path) -> int:
    """Lines of the longest function of a folder; 0 without the folder."""
    lengths = [
        node.end_lineno - node.lineno + 1
        for path, text in sources().items()
        if folder in path.parents
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None
    ]
    return max(lengths, default=0)


MEASURES = {
    "files walked by a batch": lambda: said(WALK)["files"],
    "switches between files in a batch": lambda: said(WALK)["switches"],
    "calls into winsor in a batch": lambda: said(WALK)["calls"],
    "modules of make_private and a step": lambda: said(STEP + LOADED)["modules"],
    "modules of winsor train": lambda: said(TRAIN + LOADED)["modules"],
    "modules of the means": lambda: said(MEANS + LOADED)["modules"],
    "torch loaded by the means": lambda: said(MEANS + LOADED)["torch"],
    "lines of the wheel": lambda: sum(text.count("\n") for text in sources().values()),
    "files of the wheel": lambda: len(sources()),
    "entries of winsor/": lambda: len({p.name for p in PACKAGE.iterdir()} - NO_ENTRIES),
    "public definitions without docstring": lambda: documented()[1],
    "per mille of public definitions without docstring": lambda: (
        1000 * documented()[1] // documented()[0]
    ),
    "lines of the longest function of winsor/core": lambda: longest(PACKAGE / "core"),
}


def test_every_budget_is_measured():
    assert BUDGETS.keys() == MEASURES.keys()


@pytest.mark.parametrize("name", BUDGETS)
def test_a_budget_is_kept(name):
    measured = MEASURES[name]()
    assert measured <= BUDGETS[name], f"{name}: {measured}, budget {BUDGETS[name]}"


def test_measures_measure(tmp_path):
    """What would be counted as nothing would keep every budget."""
    measured = ("files walked by a batch", "modules of the means", "files of the wheel")
    assert all(MEASURES[name]() > 0 for name in measured)
    tree = ast.parse("def a():\n 'x'\n\nclass B:\n def c(self): ...\n def _d(self): ...\n")
    assert [node.name for node in definitions(tree)] == ["a", "B", "c"]
    assert longest(PACKAGE / "core" / "accounting") > 10
    assert longest(tmp_path) == 0
