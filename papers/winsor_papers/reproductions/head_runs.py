"""Runs on features as cells: a linear layer where papers 4 and 5 have a network, or a small one.

A cell is one run of `dc_dpsgd/lockstep.py`: its test accuracies at equal distances, the end
included, and the epsilon of its ledger. Cells of one seed on the same rows are worked for together;
a network that has no stack there is trained by the library, run by run. The rows of linear layers
are those of paper 1's linear tables (`dc_dpsgd/tasks.py`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import nn

from winsor.contrib.modelmix.mechanism import ModelMix
from winsor.rules.rule import Rule
from winsor_papers.reproductions.cells import Together, Values, Wanted, cell, described
from winsor_papers.reproductions.dc_dpsgd import tasks as dc_tasks
from winsor_papers.reproductions.dc_dpsgd.descent import DescentTask, steps_of
from winsor_papers.reproductions.dc_dpsgd.lockstep import Member, has_stack, run_together
from winsor_papers.reproductions.dc_dpsgd.runs import (
    TUNING_SEED,
    SeedOutcomes,
    identity,
    plain_runs,
    private_run,
    tuned,
)
from winsor_papers.reproductions.reproduction import Line, Request
from winsor_papers.reproductions.training_runs import PROBED_ROWS, evaluate, probed


@dataclass(frozen=True)
class HeadRecipe:
    """How a head is trained, but for its rate, which is the task's.

    ``mix`` is paper 5's mixing; ``radius`` that of paper 4's ball around the start.
    """

    rule: Rule
    noise_multiplier: float
    mix: ModelMix | None = None
    radius: float | None = None


@dataclass(frozen=True)
class HeadOutcomes(SeedOutcomes):
    """With the accuracies along the way, one curve per seed."""

    curves: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Looks:
    """How often a run is tested, and over how many of the last tests its accuracy is the mean."""

    count: int = 1
    last: int = 1

    def ends(self, curves: Sequence[Sequence[float]]) -> tuple[float, ...]:
        return tuple(statistics.fmean(curve[-self.last :]) for curve in curves)


def head_task(request: Request, batch_size: int, epochs: float) -> DescentTask:
    """CIFAR-10 on public features in batches of this size."""
    found = dc_tasks.task("CIFAR-10", request)
    steps = steps_of(len(found.train[1]), batch_size, epochs)
    return replace(found, batch_size=batch_size, steps=steps, rates={}, tried=())


def head_runs(
    task: DescentTask, recipe: HeadRecipe, seeds: Sequence[int], looks: Looks
) -> HeadOutcomes:
    """One run per seed; the epsilon is the same for all, so the first is asked for it."""
    curves, epsilon = [], math.nan
    for seed in seeds:
        ask = seed == seeds[0] and seed != TUNING_SEED
        found = cell(_wanted(task, recipe, seed, looks, ask))
        curves.append(tuple(found["curve"]))
        epsilon = found["epsilon"] if ask else epsilon
    return HeadOutcomes(looks.ends(curves), epsilon, recipe.noise_multiplier, tuple(curves))


@dataclass(frozen=True, eq=False)
class Step:
    """A task at a step, and how it was found."""

    task: DescentTask
    tried: str = ""
    inside: bool = True
    """Whether the best of the steps tried has a worse one on either side."""

    @property
    def rate(self) -> float:
        return self.task.descent.lr


@dataclass(frozen=True)
class Found:
    """One method at one epsilon: with the noise that is needed, and with a paper's own."""

    certified: HeadOutcomes
    published: HeadOutcomes | None
    step: Step

    def line(
        self, label: Mapping[str, str], printed: str, more: Mapping[str, str] | None = None
    ) -> Line:
        """With its noise and its step, and ``more`` columns; empty ones are left out."""
        published = self.published
        extra = {
            "noise multiplier": f"{self.certified.noise_multiplier:.3g}",
            "step": f"{self.step.rate:g}",
            "steps tried": self.step.tried,
            **(more or {}),
        }
        return Line(
            label,
            printed,
            None if published is None else published.measured,
            self.certified.measured,
            self.certified.epsilon,
            None if published is None else published.epsilon,
            {name: text for name, text in extra.items() if text},
        )


def best_step(task: DescentTask, recipe: HeadRecipe, rates: Sequence[float], looks: Looks) -> Step:
    """The best of the rates for a recipe, each tried once."""
    at, curve = tuned(
        replace(task, tried=tuple(rates)),
        "",
        lambda on, some: head_runs(on, recipe, some, looks),
    )
    return Step(at, curve, min(rates) < at.descent.lr < max(rates))


def edge_note(named: Sequence[str]) -> str:
    """Whose best step is the first or the last that was tried: a longer search might help it."""
    if not named:
        return "No method's best step is the first or the last that it tried."
    return f"Best at the first or last step tried, so perhaps not at its best: {', '.join(named)}."


def _wanted(task: DescentTask, recipe: HeadRecipe, seed: int, looks: Looks, ask: bool) -> Wanted:
    shared = {
        **identity(task, replace(task.descent, lr=0.0)),
        "steps": task.steps,
        "batch size": task.batch_size,
        "looks": looks.count,
        "seed": seed,
    }
    own = {
        "lr": task.descent.lr,
        "rule": described(recipe.rule),
        "noise": recipe.noise_multiplier,
        "mix": described(recipe.mix),
        "radius": recipe.radius,
        "asked": ask,
    }

    def work(members: Sequence[Member]) -> list[Values]:
        return _curves(members, seed, looks.count)

    def member(at: DescentTask) -> Member:
        return Member(at, recipe.rule, recipe.noise_multiplier, ask, recipe.mix, recipe.radius)

    linear = isinstance(task.model(), nn.Linear)
    most, rows = (1000, PROBED_ROWS) if linear else (5, 1024)
    mixed = "" if recipe.mix is None else ", mixed"
    rule = type(recipe.rule).__name__
    return Wanted(
        f"{task.name}, {_kind(task)}, {rule}{mixed}, {task.steps} steps of {task.batch_size}",
        {**shared, **own},
        lambda: work([member(task)])[0],
        {"curve": [50.0] * looks.count, "epsilon": 1.0},
        task.steps,
        lambda steps: _curves([member(probed(task.for_steps(steps), rows))], seed, 1),
        task.batch_size / probed(task, rows).batch_size,
        Together(repr(shared), member(task), work, most) if has_stack(task) else None,
        task.guessed,
    )


def _kind(task: DescentTask) -> str:
    return "linear" if isinstance(task.model(), nn.Linear) else "CNN"


def _curves(members: Sequence[Member], seed: int, looks: int) -> list[Values]:
    task = members[0].task
    if not has_stack(task):
        return [_alone(member, seed, max(1, task.steps // looks)) for member in members]
    curves: list[list[float]] = [[] for _ in members]

    def look(place: int, step: int, model: nn.Module) -> None:
        curves[place].append(evaluate(model, *task.test)[0])

    found = run_together(members, seed, look, every=max(1, task.steps // looks))
    return [
        {"curve": curve, "epsilon": epsilon}
        for curve, (_, epsilon) in zip(curves, found, strict=True)
    ]


def _alone(member: Member, seed: int, every: int) -> Values:
    """A run of the library, tested ``every`` so many steps."""
    task, curve = member.task, list[float]()
    assert member.radius is None

    def look(step: int, model: nn.Module) -> None:
        if step % every == 0:
            curve.append(evaluate(model, *task.test)[0])

    _, epsilon = private_run(
        task, member.rule, member.noise_multiplier, seed, member.ask, look, member.mix
    )
    return {"curve": curve, "epsilon": epsilon}


def plain_curves(task: DescentTask, seeds: Sequence[int], looks: Looks) -> HeadOutcomes:
    """The same head without clipping and noise: no privacy."""
    curves = [tuple(cell(_plain_wanted(task, seed, looks.count))["curve"]) for seed in seeds]
    return HeadOutcomes(looks.ends(curves), math.inf, 0.0, tuple(curves))


def _plain_wanted(task: DescentTask, seed: int, looks: int) -> Wanted:
    def run(at: DescentTask, count: int) -> Values:
        curve: list[float] = []
        every = max(1, at.steps // count)

        def look(step: int, model: nn.Module) -> None:
            if step % every == 0:
                curve.append(evaluate(model, *at.test)[0])

        plain_runs(at, (seed,), look)
        return {"curve": curve}

    return Wanted(
        f"{task.name}, linear, not private, {task.steps} steps of {task.batch_size}",
        {**identity(task, task.plain), "looks": looks, "seed": seed},
        lambda: run(task, looks),
        {"curve": [50.0] * looks},
        task.steps,
        lambda steps: run(probed(task.for_steps(steps)), 1),
        task.batch_size / probed(task).batch_size,
    )
