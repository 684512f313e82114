"""Several ranks against one process: the same weights, the same noise, and how fast.

    .venv/bin/python benchmarks/ranks.py --sections equality yardstick replay curve throughput

equality     1, 2 and 4 ranks under gloo, plain, in DDP and in FSDP2: ledger, noise and weights
             after 200 steps against one process, for five ways of bounding and three models
yardstick    how far one process is from itself after as many steps: with its batches in two
             fragments, and with its first weights each moved to a number next to it. Where that
             is more than 1e-6, no order of additions could keep several ranks within it
replay       how often `winsor.audit.replay` finds noise that is left out, scaled by 1/world or
             added by every rank, across two ranks; an honest run must pass
curve        the same by the curve test (`winsor.audit.curve`), which looks for too little noise
throughput   rows per second of 1, 2 and 4 ranks with one thread each, by turns: private, plain DDP,
             and processes that exchange nothing (what the machine can give); step times against
             their model; on a quiet machine. By processor time, which needs no quiet machine: the
             work of a row, and what ranks with cores of their own and no waiting would reach

Sections and their parts can be chosen; what was measured before stays in
benchmarks/results/ranks.json, and comparisons that are in it are not made again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from models import TASKS, Task
from saving import FOLDER, save
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

import winsor
from winsor.distributed.ranks import Ranks

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

import rank_jobs as jobs

NAME = "ranks"
MODELS = ("mlp", "cnn", "gpt")
RULES = ("flat", "quantile", "per layer", "averaged", "modelmix")
MUTANTS = ("none", "scaled by 1/world", "on every rank", "honest")
TIMED = ("CNN 28x28", "GPT 4x256")
TOLERANCE = 1e-6
AT_ONCE = 25
"""Repeats between two writes of the result."""
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
        for wrapper in options.wrappers:
            asked = settings(options.models, options.rules, options.steps, wrapper)
            asked = [setting for setting in asked if (world, *_what(setting)) not in known]
            if not asked:
                continue
            for setting in asked:
                plain = setting | {"wrapper": "none"}
                if _what(plain) not in alone:
                    alone[_what(plain)] = jobs.trained(0, **plain)
            found = jobs.on_ranks(world, jobs.many, asked, patience=PATIENCE)
            for place, setting in enumerate(asked):
                one = alone[_what(setting | {"wrapper": "none"})]
                for rank, answers in enumerate(found):
                    row = {"world": world, "rank": rank, **setting}
                    failed = isinstance(answers, str)
                    told = {"equal": False, "error": answers} if failed else {}
                    rows.append(row | (told or compared(one, answers[place])))
            bad = sum(not row["equal"] for row in rows)
            print(
                f"{world} ranks, {wrapper}: {len(rows)} compared so far, {bad} differ", flush=True
            )
            yield rows


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
    yield from alarms(jobs.curve_tested, mutants, options, before)


def alarms(
    job: Callable[..., dict[str, int]], mutants: Sequence[str], options: Any, before: Any
) -> Iterator[dict[str, Any]]:
    """Alarms for each mutant, so many repeats at a time; what is known is not asked again."""
    found: dict[str, Any] = dict(before or {"of": {}, "alarms": {}, "ranks_agree": True})
    for mutant in mutants:
        while (done := found["of"].get(mutant, 0)) < options.repeats:
            count = min(AT_ONCE, options.repeats - done)
            ranks = jobs.on_ranks(2, job, [mutant], count, done, patience=PATIENCE)
            if any(isinstance(rank, str) for rank in ranks):
                raise RuntimeError(f"{mutant}: {ranks}")
            found["of"][mutant] = done + count
            found["alarms"][mutant] = found["alarms"].get(mutant, 0) + ranks[0][mutant]
            found["ranks_agree"] &= ranks[0] == ranks[1]
            print(f"{mutant}: {found['alarms'][mutant]} of {done + count}", flush=True)
            yield found


# -------------------------------------------------------------------------------- throughput


def data_of(task: Task, batches: int) -> TensorDataset:
    torch.manual_seed(0)
    return TensorDataset(*task.batch(batches * task.batch_size))


def private_steps(task: Task, steps: int) -> Callable[[], int]:
    """Does ``steps`` private steps and says how many rows this rank had."""
    torch.manual_seed(1)
    model = task.model()
    private = winsor.make_private(
        model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
        dataset=data_of(task, 20), rule=winsor.rules.Flat(1.0), batch_size=task.batch_size,
        steps=10_000, noise_multiplier=1.0, delta=1e-5, seed=3, allow_large_delta=True,
    )  # fmt: skip

    def run() -> int:
        rows = 0
        for batch in private.batches(steps):
            rows += len(batch[0])
            private.step(task.losses(model, batch))
        return rows

    return run


def plain_steps(task: Task, steps: int, apart: bool = False) -> Callable[[], int]:
    """The same without privacy: DDP on as many rows. ``apart``, nothing is exchanged: what the
    machine gives to processes that have nothing to do with each other."""
    torch.manual_seed(1)
    several = torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1
    world = torch.distributed.get_world_size() if several else 1
    model = task.model()
    shown = DistributedDataParallel(model) if several and not apart else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    size = task.batch_size // world
    tensors = data_of(task, 20).tensors

    def run() -> int:
        for _ in range(steps):
            rows = torch.randint(len(tensors[0]), (size,))
            optimizer.zero_grad()
            task.losses(shown, tuple(tensor[rows] for tensor in tensors)).mean().backward()
            optimizer.step()
        return steps * size

    return run


def timed(rank: int, name: str, steps: int, turns: int) -> dict[str, list[float]]:
    """Seconds per row of this rank, private and plain by turns; and of what ranks exchange."""
    task = next(task for task in TASKS if task.name == name)
    runs = {
        "private": private_steps(task, steps),
        "plain": plain_steps(task, steps),
        "apart": plain_steps(task, steps, apart=True),
    }
    found: dict[str, list[float]] = {name: [] for way in runs for name in (way, f"{way} work")}
    for turn in range(turns + 1):
        for way, run in runs.items():
            begun, worked = time.perf_counter(), time.process_time()
            rows = run()
            if turn:  # the first turn warms up
                found[way].append((time.perf_counter() - begun) / max(1, rows))
                found[f"{way} work"].append((time.process_time() - worked) / max(1, rows))
    return found | exchanges(sum(p.numel() for p in task.model().parameters()))


def exchanges(size: int) -> dict[str, list[float]]:
    """Seconds of one all-reduce of ``size`` values, and of the words that go with a release."""
    ranks = Ranks.here()
    found: dict[str, list[float]] = {"all_reduce": [0.0], "words": [0.0]}
    if ranks is None:
        return found
    held = torch.zeros(size)

    def words() -> None:
        ranks.same_release("run", 0, "00" * 16)
        ranks.all_well(True)

    acts = {"all_reduce": lambda: torch.distributed.all_reduce(held), "words": words}
    for name, act in acts.items():
        for _ in range(20):
            torch.distributed.barrier()
            begun = time.perf_counter()
            act()
            found[name].append(time.perf_counter() - begun)
    return found


def throughput(options: argparse.Namespace, before: Any) -> Iterator[list[dict[str, Any]]]:
    """Rates of every world, and the step time that the model of docs/several-processes.md says."""
    rows = [row for row in before or [] if row["task"] not in options.tasks]
    for name in options.tasks:
        size = next(task.batch_size for task in TASKS if task.name == name)
        first: dict[str, float] = {}
        one_work: dict[str, float] = {}
        for world in options.worlds:
            found = jobs.on_ranks(
                world, timed, name, options.timed_steps, options.turns, patience=PATIENCE
            )
            if any(isinstance(rank, str) for rank in found):
                raise RuntimeError(f"{name} on {world} ranks: {found}")
            rate = {
                way: sum(1 / statistics.median(rank[way]) for rank in found)
                for way in ("private", "plain", "apart")
            }
            sent = {
                what: statistics.median(statistics.median(rank[what]) for rank in found)
                for what in ("all_reduce", "words")
            }
            first = first or rate
            work = {
                way: statistics.mean(statistics.median(rank[f"{way} work"]) for rank in found)
                for way in ("private", "plain")
            }
            one_work = one_work or work
            ceiling = rate["apart"] / first["apart"]  # what this machine gives to so many processes
            modelled = size / first["private"] / ceiling + sum(sent.values())
            rows.append({
                "task": name, "world": world,
                "rows_per_second": round(rate["private"], 1),
                "plain_rows_per_second": round(rate["plain"], 1),
                "overhead": round(rate["plain"] / rate["private"], 3),
                "against_one": round(rate["private"] / first["private"], 3),
                "plain_against_one": round(rate["plain"] / first["plain"], 3),
                "apart_against_one": round(ceiling, 3),
                "work_ms_per_row": round(1e3 * work["private"], 3),
                "overhead_of_work": round(work["private"] / work["plain"], 3),
                "against_one_by_work": round(world * one_work["private"] / work["private"], 3),
                "all_reduce_ms": round(1e3 * sent["all_reduce"], 2),
                "words_ms": round(1e3 * sent["words"], 2),
                "step_ms": round(1e3 * size / rate["private"], 1),
                "modelled_step_ms": round(1e3 * modelled, 1),
            })  # fmt: skip
            print(rows[-1], flush=True)
            yield rows


SECTIONS = {
    "equality": equality,
    "yardstick": yardstick,
    "replay": replay,
    "curve": curve,
    "throughput": throughput,
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
    parser.add_argument("--tasks", nargs="*", choices=TIMED, default=list(TIMED))
    parser.add_argument("--timed-steps", type=int, default=10)
    parser.add_argument("--turns", type=int, default=5)
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
