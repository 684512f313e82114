"""Paper 1, figure 3: training accuracy along the way, on CIFAR-10.

The claim: DC-DPSGD learns faster than DP-SGD, Auto-S and DP-PSAC throughout. The figure prints no
numbers. Beside the certified rule runs Algorithm 1 as printed (`winsor_papers.dc_dpsgd`): dense
directions redrawn in every step, noise on the traces, and noise per record or for each of the two
sums. It has a published claim and no certificate.

``--quick`` is a smoke run of `SMOKE_STEPS` steps, and says so; without it the run has the paper's
50 epochs. Accuracies are over all training rows, which a private run would have to pay for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import nn

from winsor.rules.rule import Rule
from winsor_papers.dc_dpsgd import DcDpsgdRun
from winsor_papers.reproductions.cells import Together, Values, Wanted, cell
from winsor_papers.reproductions.dc_dpsgd import tasks as dc_tasks
from winsor_papers.reproductions.dc_dpsgd.descent import DescentTask
from winsor_papers.reproductions.dc_dpsgd.lockstep import Member, run_together
from winsor_papers.reproductions.dc_dpsgd.methods import (
    DC,
    DC_CERTIFIED,
    NON_PRIVATE,
    DcSetting,
    account_of,
    baselines,
    published_multiplier,
    published_runs,
)
from winsor_papers.reproductions.dc_dpsgd.printed_runs import Subspaces, run_printed
from winsor_papers.reproductions.dc_dpsgd.runs import (
    SeedOutcomes,
    identity,
    noise_for,
    plain_runs,
    private_runs,
    tuned,
)
from winsor_papers.reproductions.reproduction import Line, Measured, Reproduced, Request
from winsor_papers.reproductions.training_runs import evaluate
from winsor_papers.reproductions.verdicts import Comparison, sentence

LOOKS = 5
SMOKE_STEPS = 60
PRINTED = {
    reading: f"Algorithm 1 as printed, {reading}" for reading in ("per record", "two noises")
}
DC_PUBLISHED = "DC-DPSGD, published noise"
RIVALS = ("DP-SGD", "Auto-S", "DP-PSAC")
METHODS = (
    *RIVALS,
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

    def values(self, epsilon: float | None) -> Values:
        """What a cell keeps of one run."""
        return {"seen": [[step, *found] for step, found in self.seen.items()], "epsilon": epsilon}

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
    at = _at_its_rate(method, task, setting)
    found = [cell(_trail_cell(method, at, setting, seed)) for seed in seeds]
    trail, epsilon = Trail(at), found[0]["epsilon"]
    for one in found:
        for mark, accuracy in one["seen"]:
            trail.seen.setdefault(mark, []).append(accuracy)
    columns = trail.columns()
    if method in (DC_PUBLISHED, NON_PRIVATE, *PRINTED.values()):
        known = epsilon if method == DC_PUBLISHED else None
        return Line(label, published=trail.end, published_certifies=known, extra=columns)
    return Line(label, certified=trail.end, certified_epsilon=epsilon, extra=columns)


def _at_its_rate(method: str, task: DescentTask, setting: DcSetting) -> DescentTask:
    """The best rate of each method, as Table 2 finds it; printed runs have that of the published
    noise, which is theirs."""
    if method == NON_PRIVATE:
        return task
    if method in (DC_PUBLISHED, *PRINTED.values()):
        return tuned(task, DC, lambda on, some: published_runs(on, setting, some))[0]

    def run(on: DescentTask, some: Sequence[int]) -> SeedOutcomes:
        rule = _rule(method, setting)
        return private_runs(on, rule, noise_for(on, rule, setting.epsilon), some)

    return tuned(task, method, run)[0]


def _rule(method: str, setting: DcSetting) -> Rule:
    return baselines(setting).get(method) or setting.rule()


def _trail_cell(method: str, task: DescentTask, setting: DcSetting, seed: int) -> Wanted:
    """One run with its training accuracies along the way, in the company of its seed."""
    plain = method == NON_PRIVATE

    def alone(on: DescentTask) -> Values:
        if plain:
            trail = Trail(on)
            plain_runs(on, (seed,), trail.look)
            return trail.values(None)
        return _together(on, setting, seed, [(method, on)])[0]

    shared = identity(task, replace(task.plain if plain else task.descent, lr=0.0))
    team = Together(
        repr([shared, seed, "printed" if method in PRINTED.values() else "rules"]),
        (method, task),
        lambda members: _together(task, setting, seed, members),
    )
    return Wanted(
        f"{task.name}, training curve of {method}, {task.steps} steps of {task.batch_size}",
        {
            **identity(task, task.plain if plain else task.descent),
            "setting": repr(setting),
            "seed": seed,
        },
        lambda: alone(task),
        {"seen": [[mark, 50.0] for mark in Trail(task).marks], "epsilon": 1.0},
        task.steps,
        lambda steps: alone(task.for_steps(steps)),
        together=None if plain else team,
        guessed=task.guessed,
    )


def _together(
    task: DescentTask, setting: DcSetting, seed: int, members: Sequence[tuple[str, DescentTask]]
) -> list[Values]:
    """Runs of one seed, of rules or of Algorithm 1 as printed, with what is seen of each."""
    trails = [Trail(on) for _, on in members]

    def look(place: int, step: int, model: nn.Module) -> None:
        trails[place].look(step, model)

    if members[0][0] in PRINTED.values():
        accounts = [_account(method, on, setting) for method, on in members]
        width = sum(p.numel() for p in task.model().parameters())
        subspaces = Subspaces(min(setting.k or 200, width), setting.theta)
        run_printed([on for _, on in members], accounts, subspaces, seed, look)
        return [trail.values(None) for trail in trails]
    found = run_together([_member(method, on, setting) for method, on in members], seed, look)
    return [trail.values(epsilon) for trail, (_, epsilon) in zip(trails, found, strict=True)]


def _account(method: str, task: DescentTask, setting: DcSetting) -> DcDpsgdRun:
    reading = next(name for name, words in PRINTED.items() if words == method)
    return account_of(
        replace(setting, reading=reading),
        task.batch_size, len(task.train[1]), task.steps, task.delta,
    )  # fmt: skip


def _member(method: str, task: DescentTask, setting: DcSetting) -> Member:
    rule = _rule(method, setting)
    if method == DC_PUBLISHED:
        return Member(task, rule, published_multiplier(task, setting), True)
    return Member(task, rule, noise_for(task, rule, setting.epsilon), True)


def verdict(lines: Sequence[Line], smoke: bool) -> str:
    """Where each method ended; a comparison only for the full run."""
    ends = {
        line.label["method"]: found
        for line in lines
        if (found := line.certified or line.published) is not None
    }
    words = "; ".join(f"{name} {end.mean:.1f}" for name, end in ends.items())
    if smoke:
        return f"Smoke run, no comparison: {words}."
    found = [
        f"{reading}: {sentence(_against_rivals(reading, ends), 'rivals', ' points')}"
        for reading in (DC_CERTIFIED, DC_PUBLISHED, *PRINTED.values())
    ]
    return (
        f"Ahead of {', '.join(RIVALS)} at the end of training. {'. '.join(found)}. "
        f"Training accuracy at the end: {words}."
    )


def _against_rivals(reading: str, ends: Mapping[str, Measured]) -> list[Comparison]:
    return [Comparison(rival, ends[reading], ends[rival]) for rival in RIVALS]
