"""What a hostile row moves, before and after: the table of issue 36, as far as it has networks.

    python benchmarks/arithmetic_table.py --before DIR     # DIR is a checkout of the code before

In multiples of the stated bound; infinite where the row ends the run.
"""

from __future__ import annotations

import json

import torch
from bounded_sums import beside, elsewhere
from hostile_table import TABLE


def main() -> None:
    asked = beside(__doc__).parse_args()
    torch.set_num_threads(1)
    now = [measure() for _, _, measure in TABLE]
    if asked.place:
        print(json.dumps(now))
        return
    before = json.loads(elsewhere(__file__, asked.before)) if asked.before else [None] * len(now)
    print("| case | in the issue | before | now |\n|---|---|---|---|")
    for (name, told, _), old, new in zip(TABLE, before, now, strict=True):
        print(f"| {name} | {told} | {'' if old is None else f'{old:.7g}'} | {new:.7g} |")
    raise SystemExit(max(now) > 1)


if __name__ == "__main__":
    main()
