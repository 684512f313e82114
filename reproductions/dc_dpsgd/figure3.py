"""Paper 1, figure 3: training accuracy along the way, on CIFAR-10.

The claim: DC-DPSGD learns faster than DP-SGD, Auto-S and DP-PSAC throughout. The figure prints no
numbers. Beside the certified rule runs Algorithm 1 as printed (`winsor.papers.dc_dpsgd`): dense
directions redrawn in every step, noise on the traces, and noise per record or for each of the two
sums. It has a published claim and no certificate.

``--quick`` is a smoke run of `SMOKE_STEPS` steps, and says so; without it the run has the paper's
50 epochs. Accuracies are over all training rows, which a private run would have to pay for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor, nn
from winsor_reproductions.cells import Values, Wanted, cell
from winsor_reproductions.dc_dpsgd import tasks as dc_tasks
from winsor_reproductions.dc_dpsgd.methods import (
    DC,
    DC_CERTIFIED,
    NON_PRIVATE,
    DcSetting,
    account_of,
    baselines,
    published_multiplier,
)
from winsor_reproductions.dc_dpsgd.runs import (
    DescentTask,
    identity,
    noise_for,
    plain_runs,
    private_runs,
)
from winsor_reproductions.reproduction import Line, Measured, Reproduced, Request
from winsor_reproductions.training_runs import evaluate

from winsor.papers.dc_dpsgd import Algorithm1, ModelRows

LOOKS = 5
SMOKE_STEPS = 60
PRINTED = {
    reading: f"Algorithm 1 as printed, {reading}" for reading in ("per record", "two noises")
}
DC_PUBLISHED = "DC-DPSGD, published noise"
METHODS = (
    "DP-SGD",
    "Auto-S",
    "DP-PSAC",
    DC_CERTIFIED,
    DC_PUBLISHED,
    *PRINTED.values(),
    NON_PRIVATE,
)


@dataclass(eq=False)
class Trail:
    """Training accuracies at equal distances along a run, of every seed."""

    task: DescentTask
    seen: dict[int, list[float]] = field(default_factory=dict)

    @property
    def marks(self) -> list[int]:
        return [round(self.task.steps * (i + 1) / LOOKS) for i in range(LOOKS)]

    def look(self, step: int, model: nn.Module) -> None:
        if step in self.marks:
            self.seen.setdefault(step, []).append(evaluate(model, *self.task.train)[0])

    def columns(self) -> dict[str, str]:
        """One column per look; a step that drew an empty batch may have none."""
        return {
            f"at {100 * (i + 1) // LOOKS} %": str(Measured.of(self.seen[mark]))
            for i, mark in enumerate(self.marks)
            if mark in self.seen
        }

    @property
    def end(self) -> Measured:
        return Measured.of(self.seen[max(self.seen)])


def figure3(request: Request) -> Reproduced:
    task = dc_tasks.task("CIFAR-10", request)
    if request.quick:
        task = replace(task, steps=min(task.steps, SMOKE_STEPS))
    return figure3_of(task, DcSetting(), request)


def figure3_of(task: DescentTask, setting: DcSetting, request: Request) -> Reproduced:
    """The same for any task."""
    seeds = request.seeds_or(1, 5)
    lines = []
    for method in METHODS:
        request.say(method)
        lines.append(_line(method, task, setting, seeds))
    smoke = f"Smoke run: {task.steps} steps, where the paper has 50 epochs. It shows that every "
    notes = (
        "The figure of the paper prints no numbers.",
        "Algorithm 1 as printed has a published claim only; its noise per record depends on the "
        "size of the batch, so that nothing is certified for it.",
        dc_tasks.cifar_note(request),
        *((smoke + "method runs and is recorded, not how they compare.",) if request.quick else ()),
    )
    return Reproduced(
        "Paper 1, figure 3" + (" (smoke)" if request.quick else ""),
        f"training accuracy in per cent at epsilon {setting.epsilon:g}, delta {task.delta:g}",
        tuple(lines),
        verdict(lines, smoke=request.quick),
        {"seeds": len(seeds), "steps": task.steps, "batch_size": task.batch_size, "k": setting.k},
        notes,
    )


def _line(method: str, task: DescentTask, setting: DcSetting, seeds: Sequence[int]) -> Line:
    label = {"data": task.name, "method": method}
    published = method == DC_PUBLISHED or method in PRINTED.values()
    at = task.for_method(DC if published else method)
    run = _runner(method, at, setting)
    found = [cell(_trail_cell(method, at, setting, seed, run)) for seed in seeds]
    trail, epsilon = Trail(at), found[0]["epsilon"]
    for one in found:
        for mark, accuracy in one["seen"]:
            trail.seen.setdefault(mark, []).append(accuracy)
    columns = trail.columns()
    if published or method == NON_PRIVATE:
        known = epsilon if method == DC_PUBLISHED else None
        return Line(label, published=trail.end, published_certifies=known, extra=columns)
    return Line(label, certified=trail.end, certified_epsilon=epsilon, extra=columns)


Run = Callable[[DescentTask, int, Trail], float | None]
"""(task, seed, trail to write into) -> certified epsilon, if there is one."""


def _runner(method: str, task: DescentTask, setting: DcSetting) -> Run:
    """How a method is trained; its noise is that of the whole task, however short the run."""
    if method == NON_PRIVATE:
        return _open_run
    if method in PRINTED.values():
        reading = next(name for name, words in PRINTED.items() if words == method)
        return partial(printed_run, replace(setting, reading=reading))
    rule = baselines(setting).get(method) or setting.rule()
    if method == DC_PUBLISHED:
        noise = published_multiplier(task, setting)
    else:
        noise = noise_for(task, rule, setting.epsilon)
    return lambda on, seed, trail: private_runs(on, rule, noise, (seed,), trail.look).epsilon


def _open_run(task: DescentTask, seed: int, trail: Trail) -> None:
    """Training without privacy has no epsilon."""
    plain_runs(task, (seed,), trail.look)


def _trail_cell(method: str, task: DescentTask, setting: DcSetting, seed: int, run: Run) -> Wanted:
    """One run with its training accuracies along the way."""

    def work(on: DescentTask) -> Values:
        trail = Trail(on)
        epsilon = run(on, seed, trail)
        return {"seen": [[step, *found] for step, found in trail.seen.items()], "epsilon": epsilon}

    plain = method == NON_PRIVATE
    return Wanted(
        f"{task.name}, training curve of {method}, {task.steps} steps of {task.batch_size}",
        {
            **identity(task, task.plain if plain else task.descent),
            "setting": repr(setting),
            "seed": seed,
        },
        lambda: work(task),
        {"seen": [[mark, 50.0] for mark in Trail(task).marks], "epsilon": 1.0},
        task.steps,
        lambda steps: work(task.for_steps(steps)),
    )


def printed_run(setting: DcSetting, task: DescentTask, seed: int, trail: Trail) -> None:
    """Algorithm 1 as printed."""
    account = account_of(setting, task.batch_size, len(task.train[1]), task.steps, task.delta)
    torch.manual_seed(seed)
    model = task.model()
    rows = ModelRows(model, _row_loss, *task.train)
    start = rows.start()
    printed = Algorithm1(
        account, task.descent.lr, k=min(setting.k or 200, start.size), theta=setting.theta
    )

    def look(step: int, w: object) -> None:
        if step in trail.marks:
            rows.load(w)  # type: ignore[arg-type]
            trail.look(step, model)

    printed.run(rows, start, seed=seed, look=look)


def _row_loss(logits: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits, labels)


def verdict(lines: Sequence[Line], smoke: bool) -> str:
    """Where each method ended; a comparison only for the full run."""
    ends = {
        line.label["method"]: found.mean
        for line in lines
        if (found := line.certified or line.published) is not None
    }
    base = ends["DP-SGD"]
    words = "; ".join(f"{name} {end:.1f}" for name, end in ends.items())
    if smoke:
        return f"Smoke run, no comparison: {words}."
    ahead = [name for name in (DC_CERTIFIED, DC_PUBLISHED, *PRINTED.values()) if ends[name] > base]
    named = ", ".join(ahead) if ahead else "none"
    return f"Training accuracy at the end: {words}. Above DP-SGD: {named}."
