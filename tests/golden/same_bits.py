"""Whether two checkouts give the same numbers, bit for bit: before and after a refactor.

    .venv/bin/python tests/golden/same_bits.py --before ../before --after .

Runs every generator of `tests/golden/` (a file that is no test) of each checkout, in a process of
its own that imports that checkout's winsor, on this machine, and compares all values in every
digit. The generators belong to the checkouts, so modules may have moved between them; the names of
values may not have. Entry points (rules, events) are those of the checkout's pyproject.toml,
whichever checkout is installed. Prints a table, then the first differences; exits with 1 if there
are any.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

SHOWN = 40
RUN = """
import importlib.util, json, pathlib, sys
import winsor
path, checkout, out = map(pathlib.Path, sys.argv[1:])
if checkout not in pathlib.Path(winsor.__file__).resolve().parents:
    sys.exit(f"winsor must be that of {checkout}. Got {winsor.__file__} instead.")
spec = importlib.util.spec_from_file_location(path.stem, path)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
values = module.values() if hasattr(module, "values") else module.numbers()
out.write_text(json.dumps(values))  # floats keep every digit
"""


def generators(checkout: Path) -> dict[str, Path]:
    """Generators of a checkout by name."""
    found = sorted((checkout / "tests" / "golden").glob("*.py"))
    others = ("test_", "_", Path(__file__).stem)
    return {path.stem: path for path in found if not path.stem.startswith(others)}


def values_of(checkout: Path, generator: Path, python: Path) -> dict[str, Any]:
    """What a generator gives in its own checkout."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "values.json"
        pretend_installed(checkout, Path(folder))
        paths = os.pathsep.join([folder, str(checkout)])
        command = [str(python), "-c", RUN, str(generator), str(checkout), str(out)]
        done = subprocess.run(
            command,
            cwd=checkout,
            env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{generator} failed:\n{done.stderr[-4000:]}")
        found: dict[str, Any] = json.loads(out.read_text())
    return found


def pretend_installed(checkout: Path, folder: Path) -> None:
    """Write the metadata of an installed checkout into ``folder``.

    Python finds entry points there before those of whatever is installed, which may name modules
    that this checkout does not have.
    """
    project = tomllib.loads((checkout / "pyproject.toml").read_text())["project"]
    groups = dict(project.get("entry-points", {})) | {"console_scripts": project.get("scripts", {})}
    lines = []
    for group, points in groups.items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    made = folder / "winsor-0.dist-info"
    made.mkdir()
    (made / "METADATA").write_text("Metadata-Version: 2.1\nName: winsor\nVersion: 0\n")
    (made / "entry_points.txt").write_text("\n".join(lines) + "\n")


def python_of(checkout: Path) -> Path:
    """The checkout's own interpreter, else this one."""
    own = checkout / ".venv" / "bin" / "python"
    return own if own.exists() else Path(sys.executable)


def group_of(name: str) -> str:
    """The family of a value: what comes before the first slash, else its first word."""
    return name.split("/", 1)[0] if "/" in name else name.split(" ", 1)[0].rstrip(":")


def compare(before: dict[str, Any], after: dict[str, Any]) -> dict[str, str]:
    """Name -> how it differs, for all values that are not the same in every digit."""
    found = {}
    for name in dict.fromkeys([*before, *after]):
        if name not in after:
            found[name] = "is missing after"
        elif name not in before:
            found[name] = "is new"
        else:
            texts = [json.dumps(values[name], sort_keys=True) for values in (before, after)]
            if texts[0] != texts[1]:
                found[name] = first_difference(*texts)
    return found


def first_difference(before: str, after: str) -> str:
    """The neighbourhood of the first character in which two texts differ."""
    pairs = enumerate(zip(before, after, strict=False))
    same = next((place for place, (a, b) in pairs if a != b), min(len(before), len(after)))
    first = max(0, same - 20)
    return f"{before[first : same + 40]!r} became {after[first : same + 40]!r}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, required=True, help="a checkout")
    parser.add_argument("--after", type=Path, required=True, help="another checkout")
    parser.add_argument("--only", action="append", help="a generator; default: all of them")
    options = parser.parse_args()
    before, after = options.before.resolve(), options.after.resolve()
    both = [generators(checkout) for checkout in (before, after)]
    names = options.only or sorted(both[0].keys() | both[1].keys())
    print(f"{'generator':18s} {'group':22s} {'values':>7s} {'differ':>7s}")
    differences: dict[str, str] = {}
    total = 0
    for name in names:
        absent = [
            str(c) for c, found in zip((before, after), both, strict=True) if name not in found
        ]
        if absent:
            differences[name] = f"has no generator in {', '.join(absent)}"
            continue
        old, new = (
            values_of(checkout, found[name], python_of(checkout))
            for checkout, found in zip((before, after), both, strict=True)
        )
        changed = compare(old, new)
        counts = Counter(group_of(value) for value in old | new)
        bad = Counter(group_of(value) for value in changed)
        for group, count in counts.items():
            print(f"{name:18s} {group:22s} {count:7d} {bad[group]:7d}", flush=True)
        total += sum(counts.values())
        differences |= {f"{name}: {value}": how for value, how in changed.items()}
    print(f"{'all':18s} {'':22s} {total:7d} {len(differences):7d}")
    for value, how in [*differences.items()][:SHOWN]:
        print(f"{value}: {how}")
    if len(differences) > SHOWN:
        print(f"... and {len(differences) - SHOWN} more")
    sys.exit(1 if differences else 0)


if __name__ == "__main__":
    main()
