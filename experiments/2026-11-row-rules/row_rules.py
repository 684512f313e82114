"""What rules that look at coordinates cost: rows formed only where they are cut, and all formed.

    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/row_rules.py            # under a minute

Processor time of a whole private step over a plain SGD step on the MLP of rule_cost.py: medians of
the ratios of neighbouring steps in one process. "formed" is the rule with every per-sample gradient
formed, as it was before `winsor/grads/lengths.py`. Writes benchmarks/results/row_rules.json.
"""

from __future__ import annotations

import os
import statistics
import time
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
import frameworks
import torch
from models import TASKS
from saving import save

from winsor import rules

REACH = 4.0


class FormedLInf(rules.LInf):
    def contributions(self, view: Any, state: Any) -> Any:
        return {"grad": view.map_sum(self._clip_rows)}


class FormedL1(rules.L1):
    def contributions(self, view: Any, state: Any) -> Any:
        return {"grad": view.map_sum(self._clip_rows)}


RULES = {
    "linf p=25": lambda: rules.LInf(1.0, 25),
    "linf p=25, formed": lambda: FormedLInf(1.0, 25),
    "l1": lambda: rules.L1(1.0),
    "l1, formed": lambda: FormedL1(1.0),
    "l1 p=25": lambda: rules.L1(1.0, p=25),
    "microbatch 4": lambda: rules.Microbatch(1.0, size=4),
}


def seconds(pair: Any) -> float:
    prepare, step = pair
    prepare()
    start = time.process_time()
    step()
    return time.process_time() - start


def main() -> None:
    torch.set_num_threads(1)
    task = next(task for task in TASKS if task.name == "MLP 784-128-10")
    plain, found = frameworks.build("plain", task), {}
    for name, rule in RULES.items():
        frameworks.RULES[name] = rule
        built = frameworks.build(name, task)
        pairs = [(seconds(built), seconds(plain)) for _ in range(11)][2:]
        found[name] = {
            "ratio": statistics.median(a for a, _ in pairs)
            / statistics.median(b for _, b in pairs),
            "ms": 1e3 * statistics.median(a for a, _ in pairs),
        }
        print(name, found[name], flush=True)
    save("row_rules", {"model": task.name, "reach": REACH, "rules": found})


if __name__ == "__main__":
    main()
