"""Why a table of a paper has no run at full strength here: what it would cost, and what is instead.

The costs are computed from measured or begun cells (`papers/winsor_papers/reproductions/queue.py`);
the words say why they are what they are. `tests/test_docs.py` holds them to the tables that are
really unfinished.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from winsor_papers.reproductions.queue import HOUR, Progress, costs, read_plan

REASONS: Mapping[tuple[str, str], str] = {
    ("dc-dpsgd", "e2e"): (
        "ten passes of a small transformer over 42,061 texts (all layers of SmolLM2-135M would "
        "take 220 hours a run); in its place *e2e-smollm2*"
    ),
    ("aclip", "table-3"): (
        "ResNet-18 for 150 epochs; in its place *table-3-features*, a linear layer on public "
        "features for as many steps"
    ),
    ("aclip", "figure-2"): "the trainings of Table 3; in its place *figure-2-features*",
    ("modelmix", "figure-2ab"): "ResNet-20 without noise, 2,000 steps of 2,500 images",
    ("modelmix", "table-1-cifar"): (
        "three times the coefficients and four times the channels of *table-1*, 8,192 rows in each "
        "of 700 steps"
    ),
    ("modelmix", "table-2"): (
        "ResNet-20, 3,500 steps of 1,500 images; in its place *table-2-features*"
    ),
    ("modelmix", "table-3"): "the trainings of Table 2; in its place *table-3-features*",
}


def left_out(found: Sequence[Progress], folder: Path) -> str:
    """A line for each unfinished table of ``found``; empty where there is none."""
    prices, plan = costs(folder), read_plan(folder)
    lines = []
    for one in found:
        if one.finished:
            continue
        kinds = plan.get(f"{one.paper}-{one.table}", {}).get("kinds", {})
        known = [prices[kind] / 60 for kind in kinds if kind in prices]
        cost = _cost(one, known)
        why = REASONS.get((one.paper, one.table), "not run yet")
        lines.append(f"* **{one.table}** has no run at full strength: {cost}: {why}.")
    return "\n".join(lines) + "\n" if lines else ""


def _cost(one: Progress, minutes: Sequence[float]) -> str:
    if one.left is None or one.planned is None or not minutes:
        return "its cost was not measured"
    each, most = rounded(min(minutes)), rounded(max(minutes))
    span = each if each == most else f"{each} to {most}"
    return (
        f"{one.planned - one.done} of {one.planned} trainings are left, {span} minutes each, "
        f"{rounded(one.left / HOUR)} hours of one core"
    )


def rounded(value: float) -> str:
    """Two digits are all that an estimate has."""
    return f"{value:.2g}" if value < 100 else f"{float(f'{value:.2g}'):,.0f}"
