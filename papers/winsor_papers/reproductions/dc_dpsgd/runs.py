"""One training run of paper 1's reproductions, private or not: a problem, a rule, an outcome.

Every setting is fixed in the code. Finding them took trials on the same data sets, which the
certified epsilon does not cover; with private data of one's own, tune on public data or pay for it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from dp_accounting.dp_event import DpEvent
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from winsor.contrib.modelmix.mechanism import ModelMix
from winsor.core.contract import Neighbouring
from winsor.core.noise.gaussian import Gaussian
from winsor.gradients.view import Need
from winsor.planning import calibrate
from winsor.rules.discriminative import Discriminative
from winsor.rules.rule import Rule
from winsor.training.iterates import Iterates
from winsor.training.make_private import make_private
from winsor_papers.reproductions.cells import Together, Values, Wanted, cell, guesses, model_name
from winsor_papers.reproductions.dc_dpsgd.cnn_lockstep import CnnBackward, is_cnn
from winsor_papers.reproductions.dc_dpsgd.descent import Descent, DescentTask
from winsor_papers.reproductions.dc_dpsgd.lockstep import Member, has_stack, run_together
from winsor_papers.reproductions.reproduction import Measured
from winsor_papers.reproductions.training_runs import evaluate, probed
from winsor_papers.sampled import sampled_noise

Look = Callable[[int, nn.Module], None]
"""Sees the model after so many steps."""


@dataclass(frozen=True)
class SeedOutcomes:
    """Test accuracies in per cent, one per seed, and the certified epsilon of such a run."""

    accuracies: tuple[float, ...]
    epsilon: float
    noise_multiplier: float

    @property
    def measured(self) -> Measured:
        return Measured.of(self.accuracies)


TUNING_SEED = 0
"""Not one of the seeds that are reported."""

Runner = Callable[[DescentTask, Sequence[int]], SeedOutcomes]


def tuned(
    task: DescentTask, name: str, run: Runner, refined: bool = False
) -> tuple[DescentTask, str]:
    """The task at the best of its rates for a method, and the curve of what was tried.

    Every method has the same rates to try, one run each, judged by test accuracy, outside epsilon.
    Where trials are shorter than a run, the best rate and the next lower one are tried on whole
    runs as well, for what is best in a short run is often too much in a long one; and so are lower
    ones as long as that helps, so that no method has its best at the end of the list.

    ``refined``: another whole run, half way between the best rate and the better of its neighbours.
    Rates four times apart may hide more than lies between two methods.
    """
    if not task.tried:
        return task.for_method(name), ""
    before = guesses()

    def trying(on: DescentTask, rates: Sequence[float]) -> dict[float, float]:
        return {rate: run(on.at_rate(rate), (TUNING_SEED,)).accuracies[0] for rate in rates}

    found = trials = trying(task.for_trial(), task.tried)
    rates = sorted(task.tried)
    if task.tried_for < 1:
        last = [rate for rate in rates if rate <= _best(found)][-2:]
        found = {}
        while last:
            found |= trying(replace(task, guessed=guesses() > before), last)
            lowest = min(found)
            last = [lowest * rates[0] / rates[1]] if _best(found) == lowest else []
    if refined:
        between = _between(found, trials, rates[1] / rates[0])
        found = found | trying(replace(task, guessed=guesses() > before), [between])
    told = _curve(found) if task.tried_for == 1 else f"{_curve(trials)}; whole runs {_curve(found)}"
    return replace(task.at_rate(_best(found)), guessed=guesses() > before), told


def _between(found: dict[float, float], trials: dict[float, float], apart: float) -> float:
    """Half way, in logarithms, from the best rate to the better of its neighbours.

    Neighbours are compared by whole runs if both have one, by trials if not.
    """
    best = _best(found)
    above, below = best * apart, best / apart
    known = found if {above, below} <= found.keys() else trials
    higher = known.get(above, -math.inf) > known.get(below, -math.inf)
    return best * math.sqrt(apart) if higher else best / math.sqrt(apart)


def _best(found: dict[float, float]) -> float:
    """The rate of the largest accuracy; among equals the largest rate."""
    return max(found, key=lambda rate: (found[rate], rate))


def _curve(found: dict[float, float]) -> str:
    return ", ".join(f"{rate:g}: {found[rate]:.2f}" for rate in sorted(found))


def private_runs(
    task: DescentTask,
    rule: Rule,
    noise_multiplier: float,
    seeds: Sequence[int],
    look: Look | None = None,
) -> SeedOutcomes:
    """Train once per seed; the ledger says what the noise certifies (the same for every seed).

    ``look`` sees the model after every step.
    """
    accuracies, epsilon = [], math.nan
    for seed in seeds:
        ask = math.isnan(epsilon)
        if look is not None:  # what it sees is not kept, so neither is the run
            accuracy, spent = private_run(task, rule, noise_multiplier, seed, ask, look)
        else:
            accuracy, spent = _private_cell(task, rule, noise_multiplier, seed, ask)
        accuracies.append(accuracy)
        epsilon = spent if ask else epsilon
    return SeedOutcomes(tuple(accuracies), epsilon, noise_multiplier)


def identity(task: DescentTask, descent: Descent) -> dict[str, Any]:
    """What a run is on, for the name of its cell."""
    loss = task.loss
    parameters = {name: str(value) for name, value in sorted(getattr(loss, "__dict__", {}).items())}
    return {
        "data": task.data,
        "model": model_name(task.model),
        "delta": task.delta,
        "descent": asdict(descent),
        "loss": [getattr(loss, "__name__", type(loss).__name__), parameters],
    }


def _private_cell(
    task: DescentTask, rule: Rule, noise_multiplier: float, seed: int, ask: bool
) -> tuple[float, float]:
    """`private_run` as a cell; only the first seed asks what the noise certifies."""

    together = _together(task, rule, noise_multiplier, seed, ask)

    def run() -> Values:
        accuracy, epsilon = private_run(task, rule, noise_multiplier, seed, ask)
        return {"accuracy": accuracy, "epsilon": epsilon}

    def begin(steps: int) -> object:
        short = probed(task.for_steps(steps))
        if together is not None:
            return run_together([Member(short, rule, noise_multiplier, ask)], seed)
        return private_run(short, rule, noise_multiplier, seed, ask)

    found = cell(
        Wanted(
            f"{task.name}, {_kind(rule)}, {_length(task)} steps of {task.batch_size}",
            {
                **identity(task, task.descent),
                "rule": repr(rule),
                "noise": noise_multiplier,
                "seed": seed,
                "asked": ask,
            },
            run,
            {"accuracy": 50.0, "epsilon": 1.0},
            task.taken,
            begin,
            task.batch_size / probed(task).batch_size,
            together,
            task.guessed,
        )
    )
    return found["accuracy"], found["epsilon"]


def _together(
    task: DescentTask, rule: Rule, noise_multiplier: float, seed: int, ask: bool
) -> Together | None:
    """Runs of a small model on the same rows with the same seed, and with the same directions."""
    if task.descent.average_from is not None or not has_stack(task):
        return None
    shared = {**identity(task, replace(task.descent, lr=0.0)), "steps": _length(task)}
    directions = getattr(rule, "subspace", None) if Need.SKETCH in rule.needs else None
    key = repr([shared, task.batch_size, seed, directions])

    def work(members: Sequence[Member]) -> list[Values]:
        found = run_together(members, seed)
        return [{"accuracy": accuracy, "epsilon": epsilon} for accuracy, epsilon in found]

    return Together(key, Member(task, rule, noise_multiplier, ask), work)


def _length(task: DescentTask) -> str:
    return str(task.steps) if task.taken == task.steps else f"{task.taken} of {task.steps}"


def _kind(rule: Rule) -> str:
    """Rules of one kind cost the same."""
    selection = getattr(rule, "selection", None)
    return type(rule).__name__ + (f" by {selection}" if selection else "")


def private_run(
    task: DescentTask,
    rule: Rule,
    noise_multiplier: float,
    seed: int,
    ask: bool,
    look: Look | None = None,
    mix: ModelMix | None = None,
) -> tuple[float, float]:
    """One run by the library itself: test accuracy, and what its ledger certifies if asked."""
    torch.manual_seed(seed)
    model = task.model()
    optimiser, scheduler = task.descent.optimiser(_trained(model), task.taken)
    private = make_private(
        model=model,
        optimizer=optimiser,
        dataset=TensorDataset(*task.train),
        rule=rule,
        batch_size=task.batch_size,
        delta=task.delta,
        noise_multiplier=noise_multiplier,
        steps=task.steps,
        mechanism=mix,
        seed=seed,
        scheduler=scheduler,
        max_physical_batch_size=512,
    )
    average = _average(task.descent, task.taken, model)
    for x, y in private.batches(task.taken):
        private.step(task.loss(model(x), y, private.steps_done / task.taken))
        if average is not None and private.steps_done > average.last:
            average.take(private.steps_done)
        if look is not None:
            look(private.steps_done, model)
    epsilon = private.spent().epsilon if ask else math.nan
    private.detach()
    if average is not None:
        average.put()
    return evaluate(model, *task.test)[0], epsilon


def _trained(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


def plain_runs(task: DescentTask, seeds: Sequence[int], look: Look | None = None) -> SeedOutcomes:
    """The same training without clipping and noise, on shuffled batches: no privacy."""
    run = _plain_cell if look is None else functools.partial(_plain, look=look)
    return SeedOutcomes(tuple(run(task, seed) for seed in seeds), math.inf, 0.0)


def _plain_cell(task: DescentTask, seed: int) -> float:
    found = cell(
        Wanted(
            f"{task.name}, not private, {task.steps} steps of {task.batch_size}",
            {**identity(task, task.plain), "seed": seed},
            lambda: {"accuracy": _plain(task, seed)},
            {"accuracy": 50.0},
            task.steps,
            lambda steps: _plain(probed(task.for_steps(steps)), seed),
            task.batch_size / probed(task).batch_size,
        )
    )
    return float(found["accuracy"])


def _plain(task: DescentTask, seed: int, look: Look | None = None) -> float:
    torch.manual_seed(seed)
    model = task.model()
    backward = CnnBackward(task, model) if is_cnn(task) else _backward(task, model)
    optimiser, scheduler = task.plain.optimiser(_trained(model), task.steps)
    x, y = task.train
    batches: list[Tensor] = []
    for step in range(task.steps):
        if not batches:
            batches = list(torch.randperm(len(y)).split(task.batch_size))
        rows = batches.pop()
        optimiser.zero_grad()
        backward(x[rows], y[rows], step / task.steps)
        optimiser.step()
        if scheduler is not None:
            scheduler.step()
        if look is not None:
            look(step + 1, model)
    return evaluate(model, *task.test)[0]


def _backward(task: DescentTask, model: nn.Module) -> Callable[[Tensor, Tensor, float], None]:
    """Leaves the gradient of the mean loss at the parameters."""

    def run(x: Tensor, y: Tensor, progress: float) -> None:
        task.loss(model(x), y, progress).mean().backward()

    return run


class _Average:
    """The mean of the iterates from some step on, put back into the model at the end."""

    def __init__(self, model: nn.Module, first: int) -> None:
        self.parameters = dict(model.named_parameters())
        self.iterates = Iterates("averaged", first=first)
        self.last = 0
        self.iterates.update(0, self.parameters)

    def take(self, step: int) -> None:
        for missed in range(self.last + 1, step + 1):  # an empty batch steps by itself
            self.iterates.update(missed, self.parameters)
        self.last = step

    @torch.no_grad()
    def put(self) -> None:
        for name, value in self.iterates.result().items():
            self.parameters[name].copy_(value)


def _average(descent: Descent, steps: int, model: nn.Module) -> _Average | None:
    if descent.average_from is None:
        return None
    return _Average(model, min(steps, math.ceil(descent.average_from * steps)))


def noise_for(task: DescentTask, rule: Rule, epsilon: float) -> float:
    """The noise multiplier that ``epsilon`` really needs for ``rule``, calibrated once.

    Every rule here releases one subsampled Gaussian per step, except a tail drawn by coins, which
    is a mixture and needs less.
    """
    rate = task.batch_size / len(task.train[1])
    if not (isinstance(rule, Discriminative) and rule.selection == "random"):
        return sampled_noise(rate, task.steps, epsilon, task.delta)
    return _coin_noise(rule, rate, task.steps, epsilon, task.delta)


@functools.cache
def _coin_noise(
    rule: Discriminative, rate: float, steps: int, epsilon: float, delta: float
) -> float:
    parts = rule.bounded({"grad": {}}, {})

    def history_of(multiplier: float) -> list[tuple[DpEvent, int]]:
        local = Gaussian(multiplier).event(parts)
        return [(local.poisson(rate, Neighbouring.ADD_OR_REMOVE_ONE), steps)]

    return calibrate.noise_multiplier(history_of, calibrate.Budget(epsilon, delta))
