"""What a row moves, and what low bits tell, in the rules of winsor.contrib: before and after.

    python benchmarks/arithmetic_contrib.py --before ../main

Moves are in multiples of the stated bound. Candidates are mixing weights of ModelMix that a
released iterate leaves possible, of all that there are.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))

from contrib_attacks import candidates, dropout, underflow

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--before", help="a checkout of the code before")

if __name__ == "__main__":
    left = {f"ModelMix, {dtype}": candidates(dtype) for dtype in (torch.float32, torch.float64)}
    now = {
        **{f"{name}: weights left": f"{n:,} of {m:,}" for name, (n, m) in left.items()},
        "Value, squares underflow: move": f"{underflow():.4f}",
        "Value, dropout off the CPU: move": f"{dropout('forward')[0]:.4f}",
    }
    before = parser.parse_args().before
    if before is None:
        print(json.dumps(now))
    else:
        path = {**os.environ, "PYTHONPATH": before}
        old = json.loads(subprocess.check_output([sys.executable, __file__], env=path))
        print("| case | before | after |\n|---|---|---|")
        print("\n".join(f"| {name} | {old[name]} | {found} |" for name, found in now.items()))
