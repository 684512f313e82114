"""Paper 1, figure 4: which ratio c1/c2, at which rate? A heat map on CIFAR-10.

The claim: the best accuracy over all rates is reached near c1 = 10 c2; at c1 = 100 c2 it is
noticeably lower; c1 = c2 is DP-SGD. The figure prints no numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from winsor_papers.reproductions.dc_dpsgd import tasks as dc_tasks
from winsor_papers.reproductions.dc_dpsgd.descent import Descent
from winsor_papers.reproductions.dc_dpsgd.methods import DcSetting, certified_runs, published_runs
from winsor_papers.reproductions.dc_dpsgd.verdict import span
from winsor_papers.reproductions.reproduction import Line, Measured, Reproduced, Request
from winsor_papers.reproductions.verdicts import Comparison, sentence

BODY = 0.1  # c2


def figure4(request: Request) -> Reproduced:
    ratios = (1, 10, 100) if request.quick else (1, 3, 10, 30, 100)
    seeds = request.seeds_or(2, 3)
    task = dc_tasks.task("CIFAR-10", request)
    rates = (4.0, 16.0, 64.0) if request.quick else task.tried
    lines = []
    for ratio in ratios:
        for rate in rates:
            request.say(f"c1 = {ratio} c2, rate {rate:g}")
            setting = DcSetting(c1=ratio * BODY, c2=BODY)
            at = replace(task, descent=Descent(rate), rates={}, tried=())
            claimed = published_runs(at, setting, seeds)
            sound = certified_runs(at, setting, seeds)
            lines.append(
                Line(
                    {"c1/c2": str(ratio), "rate": f"{rate:g}"},
                    published=claimed.measured,
                    certified=sound.measured,
                    certified_epsilon=sound.epsilon,
                    published_certifies=claimed.epsilon,
                )
            )
    notes = (
        "Published: one noise for each of the two sums, tail by rank of the exact trace.",
        dc_tasks.cifar_note(request),
        *((dc_tasks.QUICK_NOTE,) if request.quick else ()),
    )
    return Reproduced(
        "Paper 1, figure 4",
        "test accuracy in per cent at epsilon 8, delta 1e-5, c2 = 0.1",
        tuple(lines),
        verdict(lines),
        {"c2": BODY, "seeds": len(seeds), "steps": task.steps, "batch_size": task.batch_size},
        notes,
    )


def verdict(lines: Sequence[Line]) -> str:
    """The ratio whose best rate is best, as published and certified, and whether 10 beats 1."""
    published = best_by_ratio(lines, "published")
    certified = best_by_ratio(lines, "certified")
    top, top_certified = (
        max(best, key=lambda ratio: best[ratio].mean) for best in (published, certified)
    )
    ten = Comparison("c1 = 10 c2", certified["10"], certified["1"])
    epsilons = span(line.published_certifies for line in lines)
    return (
        f"c1 = 10 c2 ahead of DP-SGD (c1 = c2), each at its best rate, certified: "
        f"{sentence([ten], 'comparison', ' points')}. Best ratio over all rates: {top} with the "
        f"published noise (which certifies epsilon {epsilons}), {top_certified} when certified."
    )


def best_by_ratio(lines: Sequence[Line], column: str) -> Mapping[str, Measured]:
    """For each ratio its best cell over the rates."""
    best: dict[str, Measured] = {}
    for line in lines:
        value: Measured = getattr(line, column)
        ratio = line.label["c1/c2"]
        if ratio not in best or value.mean > best[ratio].mean:
            best[ratio] = value
    return best
