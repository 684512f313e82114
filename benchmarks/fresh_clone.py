"""From nothing to a first private model: `git clone`, `make demo`, timed.

    .venv/bin/python benchmarks/fresh_clone.py            # about two minutes, the machine to itself

A clone of this checkout's last commit in a folder of its own, without a .venv; packages come from
the registry as on any fresh machine, pip's cache switched off. Writes
benchmarks/results/fresh_clone.json: wall and processor seconds of both commands; the aim is three
minutes. `--test` times `bash .ci/run` in the same clone too, as CI does (aim: 25 minutes).
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from saving import save

ROOT = Path(__file__).parent.parent
AIMS = {"clone and demo": 180.0, "ci": 1500.0}


def timed(words: list[str], folder: Path) -> dict[str, float]:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.perf_counter()
    fresh = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    subprocess.run(words, cwd=folder, check=True, env={**fresh, "PIP_NO_CACHE_DIR": "1"})
    wall = time.perf_counter() - begin
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall": round(wall, 1), "processor": round(processor, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--test", action="store_true", help="run CI in the clone as well")
    options = parser.parse_args()
    result: dict[str, Any] = {"aims": AIMS, "load": os.getloadavg()}
    with tempfile.TemporaryDirectory(prefix="winsor-clone-") as folder:
        home = Path(folder) / "winsor"
        result["git clone"] = timed(["git", "clone", "--quiet", str(ROOT), str(home)], ROOT)
        result["make demo"] = timed(["make", "demo"], home)
        result["clone and demo"] = result["git clone"]["wall"] + result["make demo"]["wall"]
        if options.test:
            result["ci"] = timed(["bash", ".ci/run"], home)
    print(f"first private model after {result['clone and demo']:.0f} s")
    print(f"written to {save('fresh_clone', result)}")


if __name__ == "__main__":
    main()
