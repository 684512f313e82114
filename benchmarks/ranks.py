"""Several ranks against one process: the same weights, the same noise, and what audits find.

    .venv/bin/python benchmarks/ranks.py --sections equality yardstick replay curve

equality     1, 2 and 4 ranks under gloo, plain, in DDP and in FSDP2: ledger, noise and weights
             after 200 steps against one process, for five ways of bounding and three models
yardstick    how far one process is from itself after as many steps: with its batches in two
             fragments, and with its first weights each moved to a number next to it. Where that
             is more than 1e-6, no order of additions could keep several ranks within it
replay       how often `winsor.audit.replay` finds noise that is left out, scaled by 1/world or
             added by every rank, across two ranks; an honest run must pass
curve        the same by the curve test (`winsor.audit.curve`), which looks for too little noise

Sections and their parts can be chosen; what was measured before stays in
benchmarks/results/ranks.json, and comparisons that are in it are not made again.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from saving import FOLDER, save

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

import rank_jobs as jobs

NAME = "ranks"
MODELS = ("mlp", "cnn", "gpt")
RULES = ("flat", "quantile", "per layer", "averaged", "modelmix")
MUTANTS = ("none", "scaled by 1/world", "on every rank", "honest")
TOLERANCE = 1e-6
AT_ONCE = 25
"""Repeats, or settings, between two writes of the result: starting ranks is what takes time."""
HONEST = 25
"""Curve tests of an honest run, whose false alarms have a proved rate of 1 in 10,000."""
PATIENCE = 3600.0
"""Seconds for one group of runs: the machine may have others to serve."""


# ---------------------------------------------------------------------------------- equality


def settings(models: list[str], rules: list[str], steps: int, wrapper: str) -> list[dict[str, Any]]:
    """Every model with every rule; ModelMix moves whole weights, so it has no shards."""
    found = []
    for kind in models:
        for rule in rules:
            mixed = rule == "modelmix"
            if mixed and wrapper == "fsdp":
                continue
            more = {"mechanism": "modelmix"} if mixed else {}
            chosen = "flat" if mixed else rule
            one = {"kind": kind, "rule": chosen, "steps": steps, "wrapper": wrapper, **more}
            found.append(one)
            if (kind, rule) == ("gpt", "averaged"):  # its loud noise makes rounding grow
                found.append({**one, "double": True})
    return found


def compared(alone: dict[str, Any], together: dict[str, Any]) -> dict[str, Any]:
    """How far a rank's run is from that of one process."""
    errors = [
        float((together["weights"][name] - weight).norm() / weight.norm().clamp(min=1e-12))
        for name, weight in alone["weights"].items()
    ]
    ends = [torch.cat([w.flatten() for w in run["weights"].values()]) for run in (alone, together)]
    noise = float((together["noise"] - alone["noise"]).abs().max())
    same = together["history"] == alone["history"] and together["bits"] == alone["bits"]
    return {
        "same_ledger": together["history"] == alone["history"],
        "same_noise_bits": together["bits"] == alone["bits"],
        "releases_differ_by": noise,
        "all_weights_differ_by": float((ends[1] - ends[0]).norm() / ends[0].norm()),
        "worst_tensor_differs_by": max(errors),
        "equal": same and max(errors) < TOLERANCE,
        "in_parts": together["in_parts"],
    }


def equality(options: argparse.Namespace, before: Any) -> Iterator[list[dict[str, Any]]]:
    """What was compared before stays, and is not compared again."""
    rows: list[dict[str, Any]] = list(before or [])
    rows = [row for row in rows if "in_parts" in row]
    known = {(row["world"], *_what(row)) for row in rows}
    alone: dict[Any, Any] = {}
    for world in (w for w in options.worlds if w > 1):
        asked = [
            setting
            for wrapper in options.wrappers
            for setting in settings(options.models, options.rules, options.steps, wrapper)
            if (world, *_what(setting)) not in known
        ]
        for first in range(0, len(asked), AT_ONCE):
            some = asked[first : first + AT_ONCE]
            rows += _compared_on(world, some, alone)
            bad = sum(not row["equal"] for row in rows)
            print(f"{world} ranks: {len(rows)} compared so far, {bad} differ", flush=True)
            yield rows


def _compared_on(
    world: int, asked: list[dict[str, Any]], alone: dict[Any, Any]
) -> list[dict[str, Any]]:
    """Every rank of every setting against one process: ``alone``, which is kept for later."""
    for setting in asked:
        plain = setting | {"wrapper": "none"}
        if _what(plain) not in alone:
            alone[_what(plain)] = jobs.trained(0, **plain)
    found = jobs.on_ranks(world, jobs.many, asked, patience=PATIENCE)
    rows = []
    for place, setting in enumerate(asked):
        one = alone[_what(setting | {"wrapper": "none"})]
        for rank, answers in enumerate(found):
            failed = isinstance(answers, str)
            told = {"equal": False, "error": answers} if failed else compared(one, answers[place])
            rows.append({"world": world, "rank": rank, **setting} | told)
    return rows


def _what(setting: dict[str, Any]) -> tuple[Any, ...]:
    names = ("wrapper", "kind", "rule", "mechanism", "steps", "double")
    return tuple(setting.get(name) for name in names)


def yardstick(options: argparse.Namespace, before: Any) -> Iterator[list[dict[str, Any]]]:
    """What rounding alone does to a run, whoever rounds otherwise."""
    kept = list(before or [])
    known = {(row["changed"], *_what(row)) for row in kept}
    for setting in settings(options.models, options.rules, options.steps, "none"):
        one: dict[str, Any] | None = None
        for changed, more in {"fragments": {"max_physical_batch_size": 8}, "nudged": {}}.items():
            if (changed, *_what(setting)) in known:
                continue
            one = one or jobs.trained(0, **setting)
            other = jobs.trained(0, **setting, **more, nudged=changed == "nudged")
            told = compared(one, other)
            del told["in_parts"], told["equal"]
            kept.append({"changed": changed, **setting, **told})
            print(changed, setting, f"{told['worst_tensor_differs_by']:.2g}", flush=True)
        yield kept


# ------------------------------------------------------------------------------------ replay


def replay(options: argparse.Namespace, before: Any) -> Iterator[dict[str, Any]]:
    yield from alarms(jobs.replayed, MUTANTS, options, before)


def curve(options: argparse.Namespace, before: Any) -> Iterator[dict[str, Any]]:
    """Noise on every rank is more noise than the curve claims, which this test cannot refute."""
    mutants = [mutant for mutant in MUTANTS if mutant != "on every rank"]
    yield from alarms(jobs.curve_tested, mutants, options, before, honest=HONEST)


def alarms(
    job: Callable[..., dict[str, int]],
    mutants: Sequence[str],
    options: argparse.Namespace,
    before: Any,
    honest: int | None = None,
) -> Iterator[dict[str, Any]]:
    """Alarms of each mutant, so many repeats of all at a time; what is known is not asked again."""
    found: dict[str, Any] = dict(before or {"of": {}, "alarms": {}, "ranks_agree": True})
    wanted = dict.fromkeys(mutants, options.repeats)
    wanted["honest"] = min(options.repeats, honest or options.repeats)
    while left := [mutant for mutant in mutants if found["of"].get(mutant, 0) < wanted[mutant]]:
        done = min(found["of"].get(mutant, 0) for mutant in left)
        left = [mutant for mutant in left if found["of"].get(mutant, 0) == done]
        count = min(AT_ONCE, options.repeats - done)
        ranks = jobs.on_ranks(2, job, left, count, done, patience=PATIENCE)
        if any(isinstance(rank, str) for rank in ranks):
            raise RuntimeError(f"{left}: {ranks}")
        for mutant in left:
            found["of"][mutant] = done + count
            found["alarms"][mutant] = found["alarms"].get(mutant, 0) + ranks[0][mutant]
        found["ranks_agree"] &= ranks[0] == ranks[1]
        print(f"after {done + count}: {found['alarms']}", flush=True)
        yield found


SECTIONS = {
    "equality": equality,
    "yardstick": yardstick,
    "replay": replay,
    "curve": curve,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sections", nargs="*", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--worlds", nargs="*", type=int, default=[1, 2, 4])
    parser.add_argument("--wrappers", nargs="*", default=["none", "ddp", "fsdp"])
    parser.add_argument("--models", nargs="*", choices=MODELS, default=list(MODELS))
    parser.add_argument("--rules", nargs="*", choices=RULES, default=list(RULES))
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--output", type=Path, default=FOLDER)
    options = parser.parse_args()
    torch.set_num_threads(1)
    path = options.output / f"{NAME}.json"
    result: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    for section in options.sections:
        for found in SECTIONS[section](options, result.get(section)):
            result[section] = found
            save(NAME, result, options.output)


if __name__ == "__main__":
    main()
