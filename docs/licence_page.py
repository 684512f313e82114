"""The page licences.md, and the bill of materials: what winsor stands on, under which licences.

    python docs/licence_page.py               writes the page
    python docs/licence_page.py --sbom PATH   writes CycloneDX JSON (`make sbom`)
    python docs/licence_page.py --lock        writes constraints.txt from this environment

All three are read off the installed packages' own metadata.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import sys
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any

from built import write
from packaging.markers import default_environment
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
LOCK = ROOT / "constraints.txt"
RUNTIME, DEVELOPING = frozenset({""}), frozenset({"", "dev", "bench", "parquet", "scattering"})
CLASSIFIER = "License :: "


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def needed(extras: frozenset[str]) -> dict[str, Distribution]:
    """Every installed package that winsor with these extras needs, by plain name, without winsor.

    A package that is declared but not installed (an extra that was not asked for) is left out.
    """
    found: dict[str, Distribution] = {}
    waiting = [("winsor", extras)]
    while waiting:
        name, wanted = waiting.pop()
        for text in importlib.metadata.distribution(name).requires or ():
            requirement = Requirement(text)
            if not _applies(requirement, wanted) or plain(requirement.name) in found:
                continue
            try:
                package = importlib.metadata.distribution(requirement.name)
            except importlib.metadata.PackageNotFoundError:
                continue
            found[plain(requirement.name)] = package
            waiting.append((requirement.name, frozenset({"", *requirement.extras})))
    found.pop("winsor", None)
    return dict(sorted(found.items()))


def _applies(requirement: Requirement, extras: frozenset[str]) -> bool:
    marker = requirement.marker
    environment = {key: str(value) for key, value in default_environment().items()}
    return marker is None or any(marker.evaluate(environment | {"extra": e}) for e in extras)


def licence(package: Distribution) -> str:
    """As the package states it: an expression, else classifiers, else the field's first line."""
    about = package.metadata
    if about.get("License-Expression"):
        return str(about["License-Expression"])
    named = [c for c in about.get_all("Classifier") or [] if c.startswith(CLASSIFIER)]
    if named:
        return ", ".join(dict.fromkeys(c.rsplit(" :: ", 1)[1] for c in named))
    lines = str(about.get("License") or "").strip().splitlines()
    return lines[0].strip()[:60] if lines else "not stated"


def page() -> str:
    """The page as it should be."""
    runtime = needed(RUNTIME)
    others = {name: p for name, p in needed(DEVELOPING).items() if name not in runtime}
    return "\n".join(
        [
            "# Licences",
            "",
            "winsor is licensed under Apache-2.0. It depends on the packages below, in the "
            "versions with which it is tested",
            "(`constraints.txt`). Licences are those that each package states in its metadata. "
            "`make sbom` writes",
            "the same list as CycloneDX JSON.",
            "",
            "## Needed to run",
            "",
            *_table(runtime),
            "",
            "## Needed to develop, to measure, or by an extra",
            "",
            *_table(others),
            "",
        ]
    )


def _table(packages: dict[str, Distribution]) -> list[str]:
    rows = [f"| {name} | {_public(p)} | {licence(p)} |" for name, p in packages.items()]
    return ["| package | version | licence |", "|---|---|---|", *rows]


def _public(package: Distribution) -> str:
    """Without the name of a local build, as in 2.13.0+cpu."""
    return package.version.split("+")[0]


def lock() -> str:
    """The constraints: one version for every package that winsor can bring along."""
    pins = [f"{name}=={_public(package)}" for name, package in needed(DEVELOPING).items()]
    return "\n".join(
        [
            "# One version of everything, the one that is tested. Install with",
            "# `pip install -c constraints.txt ...`, so that neither winsor nor a dependency can "
            "pull a newer",
            "# torch (and with it gigabytes of CUDA), or anything else that nobody has tried.",
            "# Written by `python docs/licence_page.py --lock` from an environment that passed.",
            *pins,
            "",
        ]
    )


def sbom() -> dict[str, Any]:
    """CycloneDX 1.5: components with versions, licences and package URLs, and who needs whom."""
    packages = needed(DEVELOPING)
    runtime = needed(RUNTIME)
    own = importlib.metadata.distribution("winsor")
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": _component("winsor", own)},
        "components": [
            _component(name, package) | {"scope": "required" if name in runtime else "optional"}
            for name, package in packages.items()
        ],
        "dependencies": [
            {"ref": _url(name, package), "dependsOn": _direct(package, packages)}
            for name, package in {"winsor": own, **packages}.items()
        ],
    }


def _component(name: str, package: Distribution) -> dict[str, Any]:
    return {
        "type": "library",
        "bom-ref": _url(name, package),
        "name": name,
        "version": package.version,
        "purl": _url(name, package),
        "licenses": [{"license": {"name": licence(package)}}],
    }


def _url(name: str, package: Distribution) -> str:
    return f"pkg:pypi/{name}@{package.version.replace('+', '%2B')}"


def _direct(package: Distribution, packages: dict[str, Distribution]) -> list[str]:
    own = package.metadata["Name"] == "winsor"
    requirements = [Requirement(text) for text in package.requires or ()]
    extras = DEVELOPING if own else RUNTIME
    names = {plain(r.name) for r in requirements if _applies(r, extras)} & packages.keys()
    return [_url(name, packages[name]) for name in sorted(names)]


def files() -> dict[str, str]:
    return {"licences.md": page()}


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["--sbom"]:
        path = Path(arguments[1])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(sbom(), indent=1) + "\n")
        print(f"Written: {path}")
    elif arguments == ["--lock"]:
        LOCK.write_text(lock())
    else:
        write(files())


if __name__ == "__main__":
    main(sys.argv[1:])
