"""What papers.md says of paper 4, counted from its saved convex tables and from Table 3.

In how many rows (a task, a data set and an epsilon) constrained averaged clipping, certified, is
clearly ahead of DP-SGD or behind it: the 95 per cent interval of the difference leaves out zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from winsor_papers.reproductions.reproduction import Measured
from winsor_papers.reproductions.verdicts import Difference, difference

Record = dict[str, Any]
Duel = tuple[Difference, Difference, Difference, float]
"""How far CC is ahead of DP-SGD at the printed step, of DP-SGD at the better of two steps, and of
UC; what its published noise certifies over the claim."""

REAL, MADE = ("table-2", "table-b1"), ("table-2-synthetic", "table-b1-synthetic")
BY_EPOCH = "certified by epoch"
CURVES = ("figure-3", "figure-b2")
OURS, OPEN, RIVALS = "CC", "UC", ("DP-SGD", "DP-SGD, step x 10")


def facts(records: dict[tuple[str, str], Record]) -> dict[str, str]:
    """For the sentences of `paper_conclusions.py`."""
    found = {name: duels(records.get(("aclip", name))) for name in (*REAL, *MADE)}
    better = {name: counted(found[name], 1) for name in found}
    leaks = [leak for rows in found.values() for *_, leak in rows]
    return {
        "real_sgd": counted([duel for name in REAL for duel in found[name]], 0),
        "made_sgd": counted([duel for name in MADE for duel in found[name]], 0),
        "real_logistic": better["table-2"],
        "real_ridge": better["table-b1"],
        "made_logistic": better["table-2-synthetic"],
        "made_ridge": better["table-b1-synthetic"],
        "open": counted([duel for name in MADE for duel in found[name]], 2),
        "passing": passing([records.get(("aclip", name)) for name in CURVES]),
        "on_features": on_features(records.get(("aclip", "table-3-features"))),
        "leak": f"{max(leaks, default=math.nan):.2g}",
    }


def duels(record: Record | None) -> list[Duel]:
    """One for each row of a table at full strength."""
    if record is None or record["quick"]:
        return []
    rows: dict[tuple[str, str], dict[str, Record]] = {}
    for line in record["lines"]:
        label = line["label"]
        rows.setdefault((label["data"], label["nominal"]), {})[label["method"]] = line
    found = []
    for (_, nominal), row in rows.items():
        ours, free, *rivals = (Measured(**row[n]["certified"]) for n in (OURS, OPEN, *RIVALS))
        best = min(rivals, key=lambda rival: rival.mean)
        first, second, third = (difference(one, ours) for one in (rivals[0], best, free))
        found.append((first, second, third, row[OURS]["published_certifies"] / float(nominal)))
    return found


def counted(rows: list[Duel], rival: Literal[0, 1, 2]) -> str:
    """In how many CC is ahead, and in how many behind."""
    if not rows:
        return "not run yet"
    gains = [row[rival] for row in rows]
    ahead = sum(gain.half_width is not None and gain.mean > gain.half_width for gain in gains)
    behind = sum(gain.half_width is not None and -gain.mean > gain.half_width for gain in gains)
    return f"ahead in {ahead} and behind in {behind} of {len(gains)} rows"


def passing(figures: Sequence[Record | None]) -> str:
    """On how many synthetic curves DP-SGD is below CC's end at some point of its run."""
    found = []
    for figure in figures:
        curves: dict[tuple[str, str], dict[str, list[float]]] = {}
        for line in figure["lines"] if figure is not None and not figure["quick"] else ():
            label = line["label"]
            points = [float(point) for point in line["extra"].get(BY_EPOCH, "").split()]
            curves.setdefault((label["data"], label["nominal"]), {})[label["method"]] = points
        pairs = [(row[OURS], row[RIVALS[0]]) for row in curves.values() if OURS in row]
        found += [min(rival) < ours[-1] for ours, rival in pairs]
    return f"{sum(found)} of {len(found)}"


def on_features(record: Record | None) -> str:
    """Table 3 on public features, each method with a step of its own: accuracies over epsilons."""
    if record is None or record["quick"]:
        return "Table 3, on CIFAR-10, has no run at full strength yet."
    found: dict[tuple[str, str], list[float]] = {}
    for line in record["lines"]:
        for kind in ("certified", "published"):
            if line[kind] is not None:
                key = line["label"]["method"], kind
                found.setdefault(key, []).append(line[kind]["mean"])
    spans = {key: f"{min(means):.1f} to {max(means):.1f}" for key, means in found.items()}
    return (
        "On a linear layer on public features of CIFAR-10 in place of ResNet-18 "
        f"(*table-3-features*), each with a step of its own, CC reached {spans[OURS, 'certified']} "
        f"per cent, certified, and {spans[OURS, 'published']} with the published noise, UC "
        f"{spans[OPEN, 'certified']}, certified, and DP-SGD {spans[RIVALS[0], 'certified']}. "
        "ResNet-18 itself was not run at full strength."
    )
