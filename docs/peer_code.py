"""Run the code of other libraries that our pages show, each in an environment of its own.

    .venv/bin/python docs/peer_code.py [--only opacus]

A page marks a peer's code by ``python peer NAME`` and its set-up by ``<!-- peer setup NAME``. An
environment is made in build/peers (some are gigabytes; they stay there for the next time). The
versions, what was printed, and a digest of the code are kept in benchmarks/results/peer_code.json;
`tests/test_docs_code.py` refuses a page whose peer code is not the code that was run.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULT = "peer_code"
TORCH = ("-c", str(ROOT / "constraints.txt"), "torch")
HERE = ("winsor",)  # with `make bench-install`, and what the page names beside it
LIBRARIES = "coming-from-another-library.md"
PAGES = {
    "replay": "audit.md",
    "features": "features.md",
    "opacus": LIBRARIES,
    "diffprivlib": LIBRARIES,
    "jax-privacy": LIBRARIES,
    "tf-privacy": LIBRARIES,
}
"""The page that shows a peer's code."""
PEERS = {  # what its code needs, as pip's arguments; torch through the constraints
    "replay": HERE,
    "features": HERE,
    "opacus": (*TORCH, "opacus>=1.6,<1.7"),
    "diffprivlib": ("diffprivlib==0.6.6", "scikit-learn==1.5.2"),
    "jax-privacy": ("jax-privacy==2.0.0",),
    "tf-privacy": ("tensorflow-cpu==2.15.1", "tensorflow-privacy==0.9.0"),
}


def peer_program(name: str) -> str:
    """The code of a peer as its page has it, with its set-up."""
    sys.path.insert(0, str(ROOT / "tests" / "support"))
    import documents

    page = ROOT / "docs" / PAGES[name]
    return documents.program(page, f"{documents.PEER} {name}", f"{documents.PEER_SETUP} {name}")


def digest(program: str) -> str:
    """Of the code alone: text that moves it down the page changes nothing."""
    lines = [line for line in program.splitlines() if line.strip()]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def environment(name: str, needs: tuple[str, ...]) -> Path:
    """The Python of the environment that has what the page needs."""
    if needs is HERE:
        return Path(sys.executable)
    folder = ROOT / "build" / "peers" / name
    python = folder / "bin" / "python"
    if not (folder / ".ready").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *needs], check=True)
        (folder / ".ready").touch()
    return python


def versions(python: Path, needs: tuple[str, ...]) -> dict[str, str]:
    listed = subprocess.run(
        [str(python), "-m", "pip", "list", "--format=json"], capture_output=True, check=True
    )
    wanted = {need.split("=")[0].split(">")[0].replace("_", "-").lower() for need in needs}
    rows = json.loads(listed.stdout)
    found = {row["name"].replace("_", "-").lower(): row["version"] for row in rows}
    return {name: version for name, version in found.items() if name in wanted}


def run(name: str, needs: tuple[str, ...]) -> dict[str, Any]:
    program = peer_program(name)
    python = environment(name, needs)
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "page.py"
        script.write_text(program, encoding="utf-8")
        done = subprocess.run([str(python), script], capture_output=True, text=True, cwd=folder)
    if done.returncode:
        raise SystemExit(f"{name}: {done.stderr[-3000:]}")
    return {
        "digest": digest(program),
        "versions": versions(python, needs),
        "printed": done.stdout.strip().splitlines()[-3:],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="part of a peer's name")
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from saving import FOLDER, save

    kept = FOLDER / f"{RESULT}.json"
    peers = json.loads(kept.read_text())["peers"] if kept.exists() else {}
    for name, needs in PEERS.items():
        if options.only in name:
            peers[name] = run(name, needs)
            print(name, *peers[name]["printed"], sep="\n  ")
    print(f"written to {save(RESULT, {'peers': peers})}")


if __name__ == "__main__":
    main()
