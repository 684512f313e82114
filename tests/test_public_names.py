"""The front door: what is listed is there, nothing is shadowed, and type checkers see it all."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import winsor

ROOT = Path(__file__).parent.parent
CLASSES_AND_FUNCTIONS = {
    "Ball", "Banded", "FixedSize", "FullBatch", "Guarantee", "ModelMix", "Neighbouring", "Poisson",
    "PrivateTraining", "fit", "make_private", "recipe", "recommend", "resume", "total", "tune",
}  # fmt: skip
MODULES = {
    "audit", "core", "features", "gradients", "metrics", "models", "planning", "rules", "tables",
    "tails", "training", "tuning",
}  # fmt: skip


def test_the_front_door_lists_exactly_what_a_user_needs():
    assert set(winsor.__all__) == CLASSES_AND_FUNCTIONS | MODULES
    assert dir(winsor) == sorted(winsor.__all__)
    for name in winsor.__all__:
        assert isinstance(getattr(winsor, name), ModuleType) == (name in MODULES)


def test_what_is_not_there_says_what_is():
    with pytest.raises(
        AttributeError, match="no attribute 'make_pirvate'. Did you mean 'make_private'"
    ):
        _ = winsor.make_pirvate


# ------------------------------------------------------------------------------------- shadowing


def packages() -> list[str]:
    """Every package of winsor, the front door included."""
    found = pkgutil.walk_packages(winsor.__path__, "winsor.")
    return ["winsor", *(module.name for module in found if module.ispkg)]


def submodules(package: ModuleType) -> set[str]:
    return {module.name for module in pkgutil.iter_modules(package.__path__)}


@pytest.mark.parametrize("name", packages())
def test_no_module_has_the_name_of_what_its_package_exports(name):
    """Or `import winsor.a.b` would put the module where a user expects the function."""
    package = importlib.import_module(name)
    exported = set(getattr(package, "__all__", ()))
    clashes = {
        found
        for found in exported & submodules(package)
        if not isinstance(getattr(package, found), ModuleType)
    }
    assert clashes == set(), f"rename the files of {name}: {sorted(clashes)}"


EVERY_ORDER = """
import importlib, pkgutil, sys, types
import winsor
modules = [m.name for m in pkgutil.walk_packages(winsor.__path__, "winsor.")]
modules = [m for m in modules if not m.endswith("__main__")]
for name in (modules if sys.argv[1] == "forward" else reversed(modules)):
    importlib.import_module(name)
for package in map(importlib.import_module, ("winsor", "winsor.tails", "winsor.tuning")):
    for name in package.__all__:
        value = getattr(package, name)
        if isinstance(value, types.ModuleType):
            assert value is sys.modules[f"{package.__name__}.{name}"], name
"""


@pytest.mark.parametrize("order", ["forward", "backward"])
def test_functions_are_functions_after_any_import(order):
    subprocess.run([sys.executable, "-c", EVERY_ORDER, order], check=True, cwd=ROOT)


# ----------------------------------------------------------------------------------------- types


USES = """\
import winsor
from winsor.rules import Flat


def use(private: winsor.PrivateTraining) -> None:
    reveal_type(private.ledger)  # winsor.core.ledger.ledger.Ledger
    reveal_type(private.sampler)  # winsor.core.sampling.samplers.Sampler
    reveal_type(private.relation)  # winsor.core.contract.Neighbouring
    reveal_type(private.spent())  # winsor.core.contract.Guarantee


reveal_type(winsor.rules.Flat(1.0))  # winsor.rules.flat.Flat
reveal_type(winsor.Poisson(10, 0.5))  # winsor.core.sampling.samplers.Poisson
reveal_type(winsor.ModelMix)  # winsor.contrib.modelmix.mechanism.ModelMix
winsor.rules.Flat(bogus=3)  # error: Unexpected keyword argument "bogus"
Flat("1")  # error: incompatible type "str"
winsor.rules.Flatt(1.0)  # error: Module has no attribute "Flatt"
winsor.fit(modle=1)  # error: Unexpected keyword argument "modle"
winsor.make_private(relations="replace_one")  # error: Unexpected keyword argument "relations"
winsor.make_pirvate  # error: Module has no attribute "make_pirvate"
winsor.tails.fti  # error: Module has no attribute "fti"
winsor.tables.PrivateRidge(epsilonn=1.0)  # error: Unexpected keyword argument "epsilonn"
winsor.tables.clipped_mean(epsilonn=1.0)  # error: Unexpected keyword argument "epsilonn"
"""


@pytest.fixture(scope="module")
def checked(tmp_path_factory) -> dict[int, str]:
    """Line -> what mypy says about it."""
    path = tmp_path_factory.mktemp("uses") / "uses.py"
    path.write_text(USES)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", str(path)],
        capture_output=True, text=True, cwd=ROOT, check=False,
        env={"MYPYPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(path.parent)},
    )  # fmt: skip
    said: dict[int, str] = {}
    for line in done.stdout.splitlines():
        match = re.match(r".*uses\.py:(\d+): (.*)", line)
        if match:
            said[int(match[1])] = said.get(int(match[1]), "") + match[2] + "\n"
    assert said, done.stdout + done.stderr
    return said


@pytest.mark.parametrize(
    "number, use", [(i, line) for i, line in enumerate(USES.splitlines(), 1) if "  # " in line]
)
def test_a_type_checker_sees(checked, number, use):
    expected = use.split("  # ")[1]
    said = checked.get(number, "nothing")
    if expected.startswith("error: "):
        assert "error: " in said and expected.removeprefix("error: ") in said
    else:
        assert "Revealed type is" in said and expected in said


def test_the_type_checker_finds_nothing_else(checked):
    uses = USES.splitlines()
    errors = [number for number, said in checked.items() if "error: " in said]
    assert all("# error: " in uses[number - 1] for number in errors), checked


def test_type_checkers_know_every_rule():
    """The stub is written by `make docs`; a new rule is still one file."""
    stub = (ROOT / "winsor" / "rules" / "_names.pyi").read_text()
    named = dict(re.findall(r"^from (\S+) import (\w+) as \2$", stub, re.MULTILINE)[::-1])
    found = {rule.__name__ for rule in winsor.rules.all_rules().values()}
    assert set(re.findall(r" as (\w+)$", stub, re.MULTILINE)) == found, "run: make docs"
    assert set(named) <= {rule.__module__ for rule in winsor.rules.all_rules().values()}
    assert (ROOT / "winsor" / "py.typed").exists()


# -------------------------------------------------------------------------------------- examples


def has_example(value) -> bool:
    finder = doctest.DocTestFinder(exclude_empty=True)
    return any(test.examples for test in finder.find(value, "name", module=False, globs={}))


@pytest.mark.parametrize("name", sorted(CLASSES_AND_FUNCTIONS))
def test_every_public_name_has_an_example_that_runs(name):
    value = getattr(winsor, name)
    assert inspect.getdoc(value), f"{name} has no docstring"
    assert has_example(value), f"{name} needs an example (>>>) in its docstring"


@pytest.mark.parametrize("name", sorted(MODULES))
def test_every_public_module_has_a_docstring(name):
    assert (getattr(winsor, name).__doc__ or "").strip()
