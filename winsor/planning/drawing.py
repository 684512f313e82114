"""The ways of drawing batches for one budget, side by side, with the noise that each needs.

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

>>> for way in compare(Question(n=60_000, batch_size=600, epochs=5, epsilon=8.0, delta=1e-5)):
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

from winsor.charts import Chart, Series
from winsor.core.contract import Neighbouring, UnsupportedRelation
from winsor.planning.bands import Workload, choose
from winsor.planning.plan import Question

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
        """The argument of `make_private` that asks for it."""
        return CALLS[self.name]

    def to_json(self) -> dict[str, Any]:
        """Return the numbers and the call as plain values."""
        return {**dataclasses.asdict(self), "call": self.call}


def compare(question: Question, momentum: float = 0.0, optimised: bool = False) -> list[Way]:
    """Return every way of drawing for the question's budget and length, Poisson first.

    ``momentum`` is that of the optimiser; ``optimised`` fits the coefficients of correlated noise
    to the run. The question's own ``sampling`` is not used.
    """
    budget = question.asks_for_noise()
    if budget.relation is not RELATION:
        raise UnsupportedRelation(
            f"relation must be add_or_remove_one where ways of drawing are compared. Got "
            f"{budget.relation.value} instead: allocation has no account under another."
        )
    ways: list[Way] = []
    unit = 1.0
    for name in ("poisson", "allocation", "loader"):  # fresh noise at each step
        run = question.run(sampling=name)
        noise = run.noise_for(budget.epsilon)
        spread = Workload(run.steps, momentum).error(np.ones(1))
        error = noise * spread / run.sampler.expected_size
        unit = unit if ways else error
        ways.append(Way(name, run.steps, noise, error / unit, 1, 0))
    steps, rate = ways[0].steps, question.run(sampling="poisson").sampler.rate
    workload = Workload(steps, momentum)
    best = choose(workload, rate, budget.epsilon, budget.delta, optimised=optimised)
    bands = best.bands
    cyclic = Way("cyclic", steps, best.noise_multiplier, best.relative_error, bands, bands - 1)
    return [*ways, cyclic]


def advice(ways: list[Way]) -> str:
    """Say what the numbers mean, in a sentence or two."""
    found = {way.name: way for way in ways}
    chosen = min(ways, key=lambda way: way.error)
    gain = 100 * (1 - chosen.error)
    text = f"Least noise in the weights: {chosen.name}, {gain:.0f} % below Poisson."
    if chosen.name == "poisson":
        text = "Least noise in the weights: Poisson."
    if found["cyclic"].bands == 1:
        text += " Correlated noise does not pay here: one band is chosen, which is Poisson."
    elif chosen.name == "cyclic":
        kept = 8 * chosen.memory
        text += f" It keeps {chosen.memory} gradients in float64: {kept} bytes a parameter."
    return text + " What less noise is worth in accuracy depends on the model."


def by_epochs(
    question: Question, momentum: float = 0.0, optimised: bool = False
) -> dict[float, list[Way]]:
    """Return the comparison for several lengths of the run, at the same budget."""
    own = () if question.epochs is None else (question.epochs,)
    lengths = sorted({*map(float, PASSES), *map(float, own)})
    return {
        length: compare(
            dataclasses.replace(question, epochs=length, steps=None), momentum, optimised
        )
        for length in lengths
    }


def chart(question: Question, found: dict[float, list[Way]], momentum: float = 0.0) -> Chart:
    """Draw error against epochs, a line for each way."""
    lines = []
    for place, name in enumerate(CALLS):
        ways = {length: next(w for w in row if w.name == name) for length, row in found.items()}
        points = tuple((length, way.error) for length, way in ways.items())
        bands = [way.bands for way in ways.values()]
        label = f"cyclic, {min(bands)} to {max(bands)} bands" if name == "cyclic" else name
        lines.append(Series(label, points, colour=place, markers=True))
    with_momentum = f", momentum {momentum:g}" if momentum else ""
    return Chart(
        key="drawing",
        title=f"Noise in the weights at epsilon {question.epsilon:g}, delta {question.delta:g}",
        x_label="epochs",
        y_label="error, Poisson = 1",
        series=tuple(lines),
        log_x=True,
        log_y=True,
        note=f"n = {question.n:,}, batches of {question.batch_size:,}{with_momentum}; below 1 is "
        "better",
    )
