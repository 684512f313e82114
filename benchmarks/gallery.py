"""The worked examples of the gallery in full, with what they found and what they cost.

    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/gallery.py [--only images] [--out build/gallery]

Each example is a process of its own, as `make examples FULL=--full` runs them. Its numbers
(results.json) and its processor time are saved under its name in benchmarks/results/gallery.json;
the pages with their figures are in --out.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

from saving import FOLDER, save

ROOT = Path(__file__).parent.parent
EXAMPLES = ("images", "text", "claims", "incomes", "somebody_elses_training")


def run(name: str, out: Path) -> dict[str, Any]:
    """One example: what it promises, what it found, its processor time and that of its children."""
    before = _seconds()
    script = ROOT / "examples" / "gallery" / f"{name}.py"
    subprocess.run([sys.executable, script, "--full", "--out", out], check=True)
    found: dict[str, Any] = json.loads((out / "results.json").read_text(encoding="utf-8"))
    return {**found, "processor_seconds": round(_seconds() - before, 1)}


def _seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=EXAMPLES, default=EXAMPLES)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gallery")
    args = parser.parse_args()
    path = FOLDER / "gallery.json"
    for name in args.only:
        found = run(name, args.out / name)
        kept = json.loads(path.read_text()) if path.is_file() else {}
        save("gallery", {**kept, name: found})


if __name__ == "__main__":
    main()
