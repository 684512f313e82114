"""The ways of drawing for one budget, side by side: which needs how much noise, and what for.

    poisson      each row joins each step by its own coin; independent noise: the yardstick
    allocation   each row goes to one step of every epoch, by its own coin
    loader       the rows in some order, cut into batches; nothing is amplified
    cyclic       rows in groups that take turns, with noise correlated over as many steps

A way's *error* is the root mean square, over the steps, of the noise in the weights under SGD with
momentum, over that of Poisson sampling: noise multipliers alone say nothing about correlated noise.

Guarantee
---------
Each noise multiplier spends at most ``epsilon`` at ``delta`` under add/remove, by the calls that
`make_private` calibrates with.

>>> for way in compare(Wanted(n=60_000, batch_size=600, epochs=5, epsilon=8.0, delta=1e-5)):
...     print(f"{way.name:10} {way.noise_multiplier:.3f} {way.error:.2f} {way.bands}")
poisson    0.542 1.00 1
allocation 0.522 0.96 1
loader     1.343 2.48 1
cyclic     1.081 0.51 32
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
from dp_accounting.dp_event import ComposedDpEvent, DpEvent, SelfComposedDpEvent

from winsor.charts import Chart, Series
from winsor.core.checks import as_delta, positive, whole
from winsor.core.contract import ConfigurationError, Neighbouring
from winsor.core.events.joint import joint_event
from winsor.core.sampling.samplers import Sampler
from winsor.planning import calibrate
from winsor.planning.bands import Workload, choose
from winsor.planning.choose import make_sampler, planned_steps
from winsor.planning.plan import PARTS

RELATION = Neighbouring.ADD_OR_REMOVE_ONE
PASSES = (1, 2, 5, 10, 20, 40)
"""Epochs of the picture."""
CALLS = {
    "poisson": 'sampling="poisson"',
    "allocation": 'sampling="allocation"',
    "loader": 'sampling="loader"',
    "cyclic": "mechanism=winsor.Banded()",
}


@dataclass(frozen=True)
class Wanted:
    """A budget, and a run without its way of drawing."""

    n: int
    batch_size: int
    epochs: float
    epsilon: float
    delta: float
    momentum: float = 0.0
    optimised: bool = False
    """Whether the coefficients of correlated noise are fitted to the run."""
    allow_large_delta: bool = False

    def __post_init__(self) -> None:
        whole("n", self.n)
        whole("batch_size", self.batch_size)
        positive("epochs", self.epochs)
        positive("epsilon", self.epsilon)
        as_delta(self.delta, self.n, self.allow_large_delta)
        if not 0 <= self.momentum < 1:
            raise ConfigurationError(
                f"momentum must be at least 0 and below 1. Got {self.momentum!r} instead."
            )


@dataclass(frozen=True)
class Way:
    """One way of drawing at the budget."""

    name: str
    steps: int
    noise_multiplier: float
    error: float
    """Of the noise in the weights, over that of Poisson sampling with independent noise."""
    bands: int
    memory: int
    """Gradients that are kept in float64."""

    @property
    def call(self) -> str:
        """How `make_private` is asked for it."""
        return CALLS[self.name]

    def to_json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "call": self.call}


def compare(wanted: Wanted) -> list[Way]:
    """Every way of drawing, Poisson first."""
    poisson = _independent("poisson", wanted, 1.0)
    unit = poisson.error
    ways = [_independent(name, wanted, unit) for name in ("poisson", "allocation", "loader")]
    return [*ways, _cyclic(wanted, poisson.steps)]


def _independent(name: str, wanted: Wanted, unit: float) -> Way:
    """Fresh noise at each step, on sums that are divided by the expected size."""
    sampler = make_sampler(name, wanted.n, wanted.batch_size)
    steps = planned_steps(wanted.epochs, None, sampler)
    noise = _noise(sampler, steps, wanted)
    spread = Workload(steps, wanted.momentum).error(np.ones(1))
    return Way(name, steps, noise, noise * spread / sampler.expected_size / unit, 1, 0)


def _noise(sampler: Sampler, steps: int, wanted: Wanted) -> float:
    def whole_run(multiplier: float) -> DpEvent:
        found = sampler.history(joint_event(PARTS, multiplier), RELATION, steps)
        return ComposedDpEvent([SelfComposedDpEvent(event, count) for event, count in found])

    return calibrate.noise_multiplier(whole_run, 1, wanted.epsilon, wanted.delta, RELATION)


def _cyclic(wanted: Wanted, steps: int) -> Way:
    workload = Workload(steps, wanted.momentum)
    rate = wanted.batch_size / wanted.n
    best = choose(workload, rate, wanted.epsilon, wanted.delta, optimised=wanted.optimised)
    return Way(
        "cyclic", steps, best.noise_multiplier, best.relative_error, best.bands, best.bands - 1
    )


def advice(ways: list[Way]) -> str:
    """What the numbers say, in a sentence or two."""
    found = {way.name: way for way in ways}
    chosen = min(ways, key=lambda way: way.error)
    gain = 100 * (1 - chosen.error)
    said = f"Least noise in the weights: {chosen.name}, {gain:.0f} % below Poisson."
    if chosen.name == "poisson":
        said = "Least noise in the weights: Poisson."
    if found["cyclic"].bands == 1:
        said += " Correlated noise does not pay here: one band is chosen, which is Poisson."
    elif chosen.name == "cyclic":
        kept = 8 * chosen.memory
        said += f" It keeps {chosen.memory} gradients in float64: {kept} bytes a parameter."
    return said + " What less noise is worth in accuracy depends on the model."


def by_epochs(wanted: Wanted) -> dict[float, list[Way]]:
    """The comparison for several lengths of the run, at the same budget."""
    lengths = sorted({*map(float, PASSES), float(wanted.epochs)})
    return {length: compare(dataclasses.replace(wanted, epochs=length)) for length in lengths}


def chart(wanted: Wanted, found: dict[float, list[Way]]) -> Chart:
    """Error against epochs, a line for each way."""
    lines = []
    for place, name in enumerate(CALLS):
        ways = {length: next(w for w in row if w.name == name) for length, row in found.items()}
        points = tuple((length, way.error) for length, way in ways.items())
        bands = [way.bands for way in ways.values()]
        label = f"cyclic, {min(bands)} to {max(bands)} bands" if name == "cyclic" else name
        lines.append(Series(label, points, colour=place, markers=True))
    momentum = f", momentum {wanted.momentum:g}" if wanted.momentum else ""
    return Chart(
        key="drawing",
        title=f"Noise in the weights at epsilon {wanted.epsilon:g}, delta {wanted.delta:g}",
        x_label="epochs",
        y_label="error, Poisson = 1",
        series=tuple(lines),
        log_x=True,
        log_y=True,
        note=f"n = {wanted.n:,}, batches of {wanted.batch_size:,}{momentum}; below 1 is better",
    )
