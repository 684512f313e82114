"""Any clipping rule of `winsor.rules`, by name or as an object, on a linear model.

The rule sees a `GlmView` and releases through the ordinary door, one step at a time, because its
events may depend on what it released before. Slower per step than `flat.py`; the maths is the
rule's own.

Guarantee
---------
That of the rule, accounted for by the events its door records.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from winsor import rules
from winsor.core.contract import Tree
from winsor.core.door import Door
from winsor.core.noise.gaussian import Gaussian
from winsor.planning.choose import planned_steps
from winsor.rules.rule import dry_run
from winsor.tables.glm_losses import GlmView
from winsor.tables.linear.batches import batches_of, sampler_of
from winsor.tables.linear.descent import Schedule, descend
from winsor.tables.linear.flat import WHOLE
from winsor.tables.linear.options import Method
from winsor.tables.linear.task import LinearTask, Session, Solution

Array = NDArray[np.float64]


@dataclass
class Ruled(Method):
    """Options of descent with a rule: its name (``"automatic"``, ``"quantile"``, ...) with
    ``options``, or a rule object."""

    rule: Any = "automatic"
    options: dict[str, Any] = field(default_factory=dict)
    batch_size: float | None = None
    steps: int | None = None
    epochs: float | None = None
    learning_rate: float | None = None
    decay: bool = True
    tail: float = 0.25

    def solve(self, task: LinearTask, session: Session) -> Solution:
        self._check("batch_size", "learning_rate", "tail")
        rule = rules.by_name(self.rule, **self.options) if isinstance(self.rule, str) else self.rule
        sampler = sampler_of(task.n, self.batch_size or min(task.n, WHOLE))
        steps = planned_steps(self.epochs, self.steps, sampler, default=int(100 / sampler.rate))
        shapes = as_tree(task.start, task.design.intercept)
        parameters = {name: torch.nn.Parameter(value) for name, value in shapes.items()}
        parts = dry_run(rule, parameters, sampler.expected_size)
        relation, target = session.target.relation, session.target

        multiplier = session.noise_multiplier
        if multiplier is None:
            assert target.epsilon is not None
            from winsor.planning.run import PlannedRun

            run = PlannedRun(sampler, parts, "gaussian", relation, target.delta, steps)
            multiplier = run.noise_for(target.epsilon)
        door = Door(session.door.ledger, Gaussian(multiplier), sampler, relation, session.key)
        session.door.note(sampler, f"rule {rule!r}")
        first = session.door.ledger.steps(door.run)
        state = rule.init(parameters, sampler.expected_size)
        batches = enumerate(batches_of(sampler, session.key, first, steps), first)

        def gradient(theta: Array) -> Array:
            nonlocal state
            step, picked = next(batches)
            view = GlmView(task.design.rows(picked), task.y[picked], task.loss, theta)
            parts = rule.bounded(rule.contributions(view, state), state)
            gradient, state = rule.after(door.release(step, parts), state)
            return from_tree(gradient.values["grad"], theta.shape) / sampler.expected_size

        rate = self.learning_rate or 2 / task.curvature
        schedule = Schedule(steps, rate, task.alpha, tail=min(1.0, self.tail), decay=self.decay)
        return Solution(descend(task.start, gradient, schedule, task.design.intercept), steps)


def as_tree(theta: Array, intercept: bool) -> Tree:
    """theta as the named parameters of a `GlmView`."""
    table = torch.from_numpy(theta.reshape(len(theta), -1).copy())
    return {"coef": table[:-1], "intercept": table[-1]} if intercept else {"coef": table}


def from_tree(tree: Tree, shape: tuple[int, ...]) -> Array:
    parts = [tree["coef"]] + ([tree["intercept"][None]] if "intercept" in tree else [])
    return torch.cat(parts).to(torch.float64).numpy().reshape(shape)
