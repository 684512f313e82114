"""Where the microseconds of a private step go: each stage on its own, between real steps.

    .venv/bin/python benchmarks/microseconds.py [--against DIR] [--steps 3000] [--models CNN GPT]

Larger models take a hundredth of the steps, memory kept on both sides (`step_time.py` says why);
they have one stage more, what layers make during the backward pass: rows, or what ghost norms need.
`--value` adds value clipping, for models that it takes: there bounds stand in the place of norms.
Stages are functions of winsor, wrapped in clocks; a stage's figure is its own time without the
stages inside it, averaged over the quickest hundredth of all steps (at least five), so that a busy
machine shows up least. The clocks themselves cost about a microsecond per stage. `--against` gives
the same table for another checkout of winsor, in turns. Writes
benchmarks/results/microseconds.json, where other models stay; docs/performance.md
reads it.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from saving import FOLDER, save
from step_time import KEEP_MEMORY

os.environ.setdefault("OMP_NUM_THREADS", "1")
SMALL = ("linear 784-10", "MLP 784-128-10")
MODELS = (*SMALL, "CNN 28x28", "ResNet-20", "GPT 4x256")
ROUNDS = 3


class Clocks:
    """Adds up what each stage takes in one step, without the stages inside it."""

    def __init__(self) -> None:
        self.now: dict[str, float] = {}
        self._inner: list[float] = []

    def wrap(self, owner: Any, name: str, stage: str) -> None:
        setattr(owner, name, self.timed(getattr(owner, name), stage))

    def timed(self, function: Any, stage: str) -> Any:
        def timed(*args: Any, **kwargs: Any) -> Any:
            self._inner.append(0.0)
            begin = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                taken = time.perf_counter() - begin
                inside = self._inner.pop()
                if self._inner:
                    self._inner[-1] += taken
                self.now[stage] = self.now.get(stage, 0.0) + taken - inside

        return timed


def stages(clocks: Clocks) -> None:
    from models import Task

    from winsor.contrib.value import engine as forward
    from winsor.contrib.value import value
    from winsor.contrib.value import view as forward_view
    from winsor.contrib.value.bounds import network
    from winsor.core import door
    from winsor.core.ledger import ledger
    from winsor.core.noise import source as noise
    from winsor.gradients import ghost, linear_plan, piece_view, streamed
    from winsor.rules import flat
    from winsor.training import loop, update

    for owner, name, stage in (
        (Task, "losses", "forward and loss"),
        (ghost.GhostEngine, "view", "backward"),
        (linear_plan.LinearView, "_check", "norms"),
        (flat.Flat, "weights", "weights"),
        (linear_plan.LinearView, "weighted_sum", "clipped sum"),
        (value.Value, "weights", "weights"),
        (forward.ForwardEngine, "view", "reading the graph"),
        (forward_view.ForwardView, "stream", "backward"),
        (streamed, "kept", "backward: what layers keep"),
        (network, "_given", "bounds"),
        (network, "kind_of", "reading the graph"),
        (forward_view.ForwardView, "weighted_sum", "clipped sum"),
        (piece_view.PieceView, "_check", "norms"),
        (piece_view.PieceView, "_sum", "clipped sum"),
        (door.Door, "_digest", "digest"),
        (ledger.Ledger, "record", "ledger"),
        (noise.NoiseSource, "add_leaves", "noise"),
        (door.Door, "release", "door, the rest"),
        (update.OptimizerUpdate, "apply", "update"),
        (loop.PrivateTraining, "step", "step, the rest (guard, checks)"),
    ):
        clocks.wrap(owner, name, stage)
    receiver = ghost.GhostEngine._receiver
    ghost.GhostEngine._receiver = staticmethod(  # type: ignore[method-assign]
        lambda *args: clocks.timed(receiver(*args), "backward: what layers keep")
    )


def quickest(rows: list[dict[str, float]]) -> dict[str, float]:
    """Means over the quickest hundredth, in microseconds."""
    rows = sorted(rows, key=lambda row: row["whole step"])[: max(5, len(rows) // 100)]
    return {name: 1e6 * sum(row.get(name, 0.0) for row in rows) / len(rows) for name in rows[0]}


def private(model: str, steps: int, rule: str = "winsor flat") -> dict[str, float]:
    import frameworks
    import torch
    from models import TASKS

    torch.set_num_threads(1)
    clocks = Clocks()
    stages(clocks)
    (task,) = (task for task in TASKS if task.name == model)
    prepare, step = frameworks.build(rule, task)
    rows = []
    for _ in range(steps):
        clocks.now = {}
        prepare()
        begin = time.perf_counter()
        step()
        rows.append({"whole step": time.perf_counter() - begin, **clocks.now})
    return quickest(rows)


def plain(model: str, steps: int) -> dict[str, float]:
    import frameworks
    import torch
    from models import TASKS

    torch.set_num_threads(1)
    (task,) = (task for task in TASKS if task.name == model)
    network, batch, optimizer = frameworks.fresh(task)
    loader, rows = frameworks.Loader(batch), []
    for _ in range(steps):
        loader()
        times = [time.perf_counter()]
        loss = task.losses(network, loader.batch).mean()
        times.append(time.perf_counter())
        loss.backward()
        times.append(time.perf_counter())
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter())
        parts = [b - a for a, b in itertools.pairwise(times)]
        names = ("forward and loss", "backward", "update")
        rows.append({"whole step": sum(parts), **dict(zip(names, parts, strict=True))})
    return quickest(rows)


def in_own_process(which: str, model: str, steps: int, checkout: str | None) -> dict[str, float]:
    environment = {**os.environ, **({} if model in SMALL else KEEP_MEMORY)}
    if checkout is not None:
        environment["PYTHONPATH"] = str(Path(checkout).resolve())
    command = [sys.executable, __file__, "--one", which, "--model", model, "--steps", str(steps)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--against", help="another checkout of winsor")
    parser.add_argument("--one", choices=("plain", "private", "value"))
    parser.add_argument("--value", action="store_true", help="value clipping beside flat")
    parser.add_argument("--model", default=MODELS[0])
    parser.add_argument("--models", nargs="+", default=MODELS, help="parts of their names")
    options = parser.parse_args()
    if options.one:
        by_value = functools.partial(private, rule="winsor value")
        measured = {"plain": plain, "private": private, "value": by_value}[options.one]
        print(json.dumps(measured(options.model, options.steps)))
        return
    asked = {"plain": ("plain", None), "winsor flat": ("private", None)}
    if options.against:
        asked["winsor flat (before)"] = ("private", options.against)
    if options.value:
        asked["winsor value"] = ("value", None)
    path = FOLDER / "microseconds.json"
    models: dict[str, Any] = json.loads(path.read_text())["models"] if path.exists() else {}
    for model in (name for name in MODELS if any(part in name for part in options.models)):
        steps = options.steps if model in SMALL else max(7, options.steps // 100)
        found: dict[str, list[dict[str, float]]] = {name: [] for name in asked}
        for _ in range(ROUNDS):
            for name, (which, checkout) in asked.items():
                found[name].append(in_own_process(which, model, steps, checkout))
        best = {name: min(rounds, key=lambda r: r["whole step"]) for name, rounds in found.items()}
        models[model] = {n: {s: round(t, 1) for s, t in row.items()} for n, row in best.items()}
        print(model)
        for stage in dict.fromkeys(stage for row in best.values() for stage in row):
            cells = "".join(f"{best[name].get(stage, 0.0):22.1f}" for name in best)
            print(f"  {stage:32s}{cells}", flush=True)
        save("microseconds", {"unit": "microseconds", "load": os.getloadavg(), "models": models})


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
