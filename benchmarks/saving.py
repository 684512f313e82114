"""Where every benchmark writes its figures: benchmarks/results/NAME.json.

Each file says which commit and version wrote it last, and is laid out compactly: whatever fits on a
line is on one, so that a diff shows what changed and a file of a thousand cells stays short.
"""

from __future__ import annotations

import json
import platform
import subprocess
from pathlib import Path
from typing import Any

import winsor

FOLDER = Path(__file__).parent / "results"
LINE = 100


def save(name: str, result: dict[str, Any], folder: Path = FOLDER) -> Path:
    """Write ``result`` with what made it; another process never sees half a file."""
    path = folder / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".tmp")
    rest = {key: value for key, value in result.items() if key != "made_by"}  # of an earlier write
    fresh.write_text(compact({"made_by": made_by(), **rest}) + "\n")
    fresh.replace(path)
    return path


def made_by() -> dict[str, str]:
    """Version and commit of winsor, and the processor; changes of code that are not committed add a
    "+" to the commit."""
    return {"version": winsor.__version__, "commit": _commit(), "on": processor()}


def processor() -> str:
    """The processor's name: figures of two machines must not be taken for those of one."""
    listed = Path("/proc/cpuinfo")
    lines = listed.read_text().splitlines() if listed.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _commit() -> str:
    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", *words], cwd=FOLDER.parent, capture_output=True, text=True, check=False
        )
        return done.stdout.strip()

    code = ("../winsor", ".", ":(exclude)results")
    changed = git("status", "--porcelain", "--untracked-files=no", "--", *code)
    return (git("rev-parse", "--short=12", "HEAD") or "unknown") + ("+" if changed else "")


def compact(value: Any, indent: int = 0) -> str:
    """JSON in which a row (a container of plain values) and whatever is short has one line."""
    flat = json.dumps(value)
    containers = (dict, list, tuple)
    parts = value.values() if isinstance(value, dict) else value
    nested = isinstance(value, containers) and any(isinstance(part, containers) for part in parts)
    if len(flat) + indent <= LINE or not nested:
        return flat
    inner = " " * (indent + 1)
    if isinstance(value, dict):
        lines = [f"{inner}{json.dumps(str(k))}: {compact(v, indent + 1)}" for k, v in value.items()]
        return "{\n" + ",\n".join(lines) + "\n" + " " * indent + "}"
    lines = [inner + compact(item, indent + 1) for item in value]
    return "[\n" + ",\n".join(lines) + "\n" + " " * indent + "]"
