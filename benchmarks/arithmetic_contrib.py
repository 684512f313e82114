"""What a row moves, and what low bits tell, in the rules of winsor.contrib: before and after.

    python benchmarks/arithmetic_contrib.py --before ../main

Moves are in multiples of the stated bound. Candidates are mixing weights of ModelMix that a
released iterate leaves possible, of all that there are.
"""

from __future__ import annotations

import json

import torch
from bounded_sums import beside, elsewhere
from contrib_attacks import candidates, dropout, underflow

if __name__ == "__main__":
    left = {f"ModelMix, {dtype}": candidates(dtype) for dtype in (torch.float32, torch.float64)}
    now = {
        **{f"{name}: weights left": f"{n:,} of {m:,}" for name, (n, m) in left.items()},
        "Value, squares underflow: move": f"{underflow():.4f}",
        "Value, dropout off the CPU: move": f"{dropout('forward')[0]:.4f}",
    }
    asked = beside(__doc__).parse_args()
    if asked.place or not asked.before:
        print(json.dumps(now))
    else:
        old = json.loads(elsewhere(__file__, asked.before))
        print("| case | before | after |\n|---|---|---|")
        print("\n".join(f"| {name} | {old[name]} | {found} |" for name, found in now.items()))
