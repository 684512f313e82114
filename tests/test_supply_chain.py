"""Every dependency has bounds that hold here, a pinned version, and a licence that is listed."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DECLARED = [
    *PROJECT["dependencies"],
    *(text for extra in PROJECT["optional-dependencies"].values() for text in extra),
]


@pytest.fixture(scope="module")
def pages():
    spec = importlib.util.spec_from_file_location("licence_page", ROOT / "docs/licence_page.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pinned():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


@pytest.mark.parametrize("text", sorted(set(DECLARED)))
def test_every_dependency_has_a_lower_and_an_upper_bound_that_hold(text):
    requirement = Requirement(text)
    kinds = {specifier.operator for specifier in requirement.specifier}
    assert kinds == {">=", "<"}, text
    version = pinned().get(requirement.name)
    if version is None:  # of an extra that the tested environment does not have
        assert text in PROJECT["optional-dependencies"]["bench"]
    else:
        assert requirement.specifier.contains(version)


def test_every_package_that_comes_along_is_pinned_to_what_is_tested(pages):
    needed = pages.needed(pages.DEVELOPING)
    pins = pinned()
    assert pins["torch"] == "2.13.0"
    for name in pages.needed(pages.RUNTIME):
        assert name in pins, f"{name} is not in constraints.txt: run make lock"
    for name in needed.keys() & pins.keys():
        assert importlib.metadata.version(name).split("+")[0] == pins[name], "run make lock"


def test_every_package_is_listed_with_its_licence(pages):
    page = pages.files()["licences.md"]
    for name, package in pages.needed(pages.RUNTIME).items():
        assert f"| {name} | {package.version.split('+')[0]} | {pages.licence(package)} |" in page
        assert pages.licence(package) != "not stated"


def test_the_bill_of_materials_names_every_package(pages, tmp_path):
    pages.main(["--sbom", str(tmp_path / "sbom.json")])
    found = json.loads((tmp_path / "sbom.json").read_text())
    assert found["bomFormat"] == "CycloneDX"
    names = {component["name"]: component for component in found["components"]}
    assert names.keys() == pages.needed(pages.DEVELOPING).keys()
    assert names["torch"]["scope"] == "required"
    assert names["torch"]["licenses"][0]["license"]["name"]
    references = {component["bom-ref"] for component in found["components"]}
    assert all(set(each["dependsOn"]) <= references for each in found["dependencies"])
