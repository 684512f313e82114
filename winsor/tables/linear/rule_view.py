"""A clipping rule on a linear model: what the rule sees, and the descent. Needs torch.

The rule sees a `GlmView` and releases through the ordinary door, one step at a time, because its
events may depend on what it released before.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from winsor import rules
from winsor.core.arithmetic import rows as arithmetic
from winsor.core.contract import Tree
from winsor.core.door import Door
from winsor.core.events.registry import History
from winsor.core.noise.gaussian import Gaussian
from winsor.gradients.rows import RowsView
from winsor.gradients.view import Directions, View
from winsor.planning import calibrate
from winsor.planning.choose import planned_steps
from winsor.planning.shares import Session
from winsor.rules.rule import Rule, dry_run
from winsor.tables.descent import Schedule, descend
from winsor.tables.design import DesignRows, row_norms
from winsor.tables.linear.batches import batches_of, sampler_of
from winsor.tables.linear.flat import WHOLE
from winsor.tables.linear.task import LinearTask, Solution
from winsor.tables.losses import Loss

Array = NDArray[np.float64]


def solve_with_rule(options: Any, task: LinearTask, session: Session) -> Solution:
    """Descend with the rule of ``options``, a `winsor.tables.Ruled`."""
    rule: Rule = options.rule
    if isinstance(rule, str):
        rule = rules.by_name(rule, **options.options)
    sampler = sampler_of(task.n, options.batch_size or min(task.n, WHOLE))
    steps = planned_steps(options.epochs, options.steps, sampler, default=int(100 / sampler.rate))
    shapes = as_tree(task.start, task.design.intercept)
    parameters: Tree = {name: torch.nn.Parameter(value) for name, value in shapes.items()}
    parts = dry_run(rule, parameters, sampler.expected_size)
    relation, target = session.target.relation, session.target

    def history_of(multiplier: float) -> History:
        return [(sampler.amplify(Gaussian(multiplier).event(parts), relation), steps)]

    multiplier = session.noise_multiplier
    if multiplier is None:
        assert target.epsilon is not None
        budget = calibrate.Budget(target.epsilon, target.delta, relation)
        multiplier = calibrate.noise_multiplier(history_of, budget)
    if session.admit is not None:
        session.admit(history_of(multiplier))
    door = Door(session.ledger, Gaussian(multiplier), sampler, relation, session.key)
    session.door.note(sampler, f"rule {rule!r}")
    first = session.ledger.steps(door.run)
    state = rule.init(parameters, sampler.expected_size)
    batches = enumerate(batches_of(sampler, session.key, first, steps), first)

    def gradient(theta: Array) -> Array:
        nonlocal state
        step, picked = next(batches)
        view = GlmView(task.design.rows(picked), task.y[picked], task.loss, theta)
        parts = rule.bounded(rule.contributions(view, state), state)
        gradient, state = rule.after(door.release(step, parts), state)
        return from_tree(gradient.values["grad"], theta.shape) / sampler.expected_size

    rate = options.learning_rate or 2 / task.curvature
    schedule = Schedule(steps, rate, task.alpha, tail=min(1.0, options.tail), decay=options.decay)
    return Solution(descend(task.start, gradient, schedule, task.design.intercept), steps)


def as_tree(theta: Array, intercept: bool) -> Tree:
    """Return theta as the named parameters of a `GlmView`."""
    table = torch.from_numpy(theta.reshape(len(theta), -1).copy())
    return {"coef": table[:-1], "intercept": table[-1]} if intercept else {"coef": table}


def from_tree(tree: Tree, shape: tuple[int, ...]) -> Array:
    """Return the named parameters of a `GlmView` as one array."""
    parts = [tree["coef"]] + ([tree["intercept"][None]] if "intercept" in tree else [])
    return torch.cat(parts).to(torch.float64).numpy().reshape(shape)


class GlmView(View):
    """The `View` of some rows of a GLM, for rules written against the protocol.

    Parameters are "coef" (d, K) and, with an intercept, "intercept" (K,); everything is float64.
    Only `sketch` and `map_sum` form per-sample gradients, a chunk at a time.
    """

    def __init__(
        self, rows: DesignRows, y: Array, loss: Loss, theta: Array, chunk: int = 256
    ) -> None:
        self._rows = rows
        self._chunk = chunk
        with np.errstate(over="ignore", invalid="ignore"):  # such rows are neutralised below
            scores = rows.scores(theta)
            residual = loss.residual(scores, y).reshape(len(y), loss.outputs)
            self._losses = torch.from_numpy(loss.value(scores, y))
        self._residual = torch.from_numpy(residual)
        feature_norms = torch.from_numpy(rows.unit * row_norms(rows.x))
        length = torch.from_numpy(arithmetic.row_norms(residual))
        longest = torch.maximum(length, feature_norms)
        self._kept = self._losses.isfinite() & (longest <= arithmetic.FARTHEST)
        self._feature_norms = torch.where(self._kept, feature_norms, 0.0)
        self._length = torch.where(self._kept, length, 0.0)

    @property
    def size(self) -> int:
        """The number of rows."""
        return len(self._losses)

    @property
    def neutralised(self) -> int:
        """How many rows count as zero, since something in them is not finite."""
        return self.size - int(self._kept.sum())

    def losses(self) -> Tensor:
        """Return the losses of the rows."""
        return torch.where(self._losses.isfinite(), self._losses, 0.0)

    def norms(self) -> Tensor:
        """Return the norms of per-sample gradients."""
        one = torch.tensor(float(self._rows.intercept), dtype=torch.float64)
        return self._length * torch.hypot(self._feature_norms, one)

    def group_norms(self, groups: Sequence[Sequence[str]]) -> Tensor:
        """Return the norms of groups of parameters, (rows, groups)."""
        norms = {"coef": self._feature_norms, "intercept": torch.ones_like(self._length)}
        zero = torch.zeros_like(self._length)
        table = [
            functools.reduce(torch.hypot, (norms[name] for name in group), zero) for group in groups
        ]
        return self._length[:, None] * torch.stack(table, dim=1)

    def sketch(self, directions: Directions) -> Tensor:
        """Return inner products of per-sample gradients with directions."""
        parts = [view.sketch(directions) for view in self._materialised()]
        return torch.cat(parts) if parts else torch.zeros(0, directions.k, dtype=torch.float64)

    def total(self) -> Tree:
        """Return the sum of per-sample gradients."""
        return self._tree(self._residual, self._residual)

    def weighted_sum(self, weights: Tensor | Mapping[str, Tensor], last: bool = False) -> Tree:
        """Return the sum of per-sample gradients times weights of rows (and parameters)."""
        if isinstance(weights, Tensor):
            scaled = self._weighted(weights)
            return self._tree(scaled, scaled)
        intercept = weights["intercept"] if self._rows.intercept else weights["coef"]
        return self._tree(self._weighted(weights["coef"]), self._weighted(intercept))

    def map_sum(self, f: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> Tree:
        """Return the sum of a function of per-sample gradients."""
        nothing = torch.zeros_like(self._residual)
        total = self._tree(nothing, nothing)
        for view in self._materialised():
            for name, value in view.map_sum(f).items():
                total[name] += value
        return total

    def _weighted(self, weights: Tensor) -> Tensor:
        # The weight of a neutralised row is irrelevant: it may be infinite, and inf * 0 is NaN.
        usable = torch.where(self._kept, weights.to(torch.float64), 0.0)
        return usable[:, None] * torch.where(self._kept[:, None], self._residual, 0.0)

    def _tree(self, for_coef: Tensor, for_intercept: Tensor) -> Tree:
        features = DesignRows(self._rows.x, False, self._rows.unit)
        tree = {"coef": torch.from_numpy(features.pull(for_coef.numpy()))}
        if self._rows.intercept:
            tree["intercept"] = torch.from_numpy(arithmetic.sum_rows(for_intercept.numpy()))
        return tree

    def _materialised(self) -> Iterator[RowsView]:
        """Explicit per-sample gradients of a chunk of rows at a time."""
        for start in range(0, self.size, self._chunk):
            piece = slice(start, start + self._chunk)
            residual = self._residual[piece]
            chunk = DesignRows(self._rows.x[piece], self._rows.intercept, self._rows.unit)
            explicit = torch.from_numpy(chunk.gradients(residual.numpy()))
            rows = {"coef": explicit[:, : self._rows.x.shape[1]]}
            if self._rows.intercept:
                rows["intercept"] = explicit[:, -1]
            yield RowsView(rows, self._losses[piece], self._chunk)
