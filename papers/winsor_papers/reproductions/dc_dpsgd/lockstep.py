"""Private runs of a small model, many in one pass over the batches that they share.

Runs of one seed draw the same batches, whatever their rule, noise and rate. So their weights are
stacked, and a step of a linear model is

    Z = X W'                logits of the batch under every run: one product
    E = dl/dZ               residuals of every run
    release, run by run     its own rule on its own residuals, its own door, ledger and noise
    update, run by run      its own optimiser

Everything that makes a run private is the library's: sampler, rule, door, ledger, optimiser step,
mixing (paper 5), projection onto a ball (paper 4). A run here is the one that `make_private` would
have made with the same seed, up to rounding
(`tests/papers/reproductions/dc_dpsgd/test_lockstep.py`). Only the forward and the backward pass are
shared; for small models and batches they and Python around them are most of the time. One rule is
asked for its bounds alone: what `LInf` cuts off coordinates is found here without forming rows
(`Seen.ask_cut`), for on features it would form nearly all. Two small networks have stacks of their
own, with the same questions to answer: that of paper 1 (`cnn_lockstep.py`) and that of paper 5's
Table 1 (`modelmix/scattering_stack.py`).

Rows, their lengths and their sums are float32 here, for speed; the library's are float64, and its
proof about rounding (`winsor/core/arithmetic/slack.py`) is not one for these experiments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from winsor.contrib.modelmix.mechanism import ModelMix
from winsor.core.arithmetic.slack import SLACK, bound_with_slack
from winsor.core.buffers import FlatTree
from winsor.core.contract import Neighbouring
from winsor.core.door import Door
from winsor.core.ledger.guarantee import guarantee
from winsor.core.ledger.ledger import Ledger
from winsor.core.noise.gaussian import Gaussian
from winsor.core.randomness import new_key
from winsor.core.sampling.samplers import Poisson
from winsor.gradients.buffers import Layout
from winsor.gradients.directions import Kronecker, bases
from winsor.gradients.view import Directions
from winsor.rules.coordinates import LInf
from winsor.rules.rule import Rule, Sums, no_rows
from winsor.training.feeding.feed import Feed
from winsor.training.iterates import Ball
from winsor.training.make_private import run_config
from winsor.training.update import OptimizerUpdate
from winsor_papers.reproductions.dc_dpsgd.cnn_lockstep import CnnStack, CnnView, is_cnn
from winsor_papers.reproductions.dc_dpsgd.descent import DescentTask
from winsor_papers.reproductions.modelmix.scattering_stack import (
    ScatteringStack,
    ScatteringView,
    is_scattering_cnn,
)
from winsor_papers.reproductions.training_runs import evaluate

Look = Callable[[int, int, nn.Module], None]
"""(number of the run, steps done, model)."""
RELATION = Neighbouring.ADD_OR_REMOVE_ONE


@dataclass(frozen=True, eq=False)
class Member:
    """One run: the task at its rate, its rule and its noise, and whether its epsilon is wanted.

    ``mix`` takes the place of the optimiser's step; ``radius`` is that of a ball around the start.
    """

    task: DescentTask
    rule: Rule
    noise_multiplier: float
    ask: bool
    mix: ModelMix | None = None
    radius: float | None = None


def run_together(
    members: Sequence[Member], seed: int, look: Look | None = None, every: int = 1
) -> list[tuple[float, float]]:
    """(test accuracy, certified epsilon or NaN) of each; all are on the same rows.

    ``look`` sees every model after every step, or ``every`` so many.
    """
    task = members[0].task
    stack = _stack_for(task)(task, len(members), seed)
    key, rows = new_key(seed), TensorDataset(*task.train, *stack.alongside(task.train[0]))
    sampler = Poisson.of_batch_size(len(rows), task.batch_size)
    runs = [_Run(m, stack.parameters(i), sampler, key) for i, m in enumerate(members)]
    for step, fragments in enumerate(Feed(rows, sampler, key).steps(0, task.taken)):
        batch = next(fragments, None)  # none: nobody was drawn, and only noise is released
        seen = None if batch is None else stack.forward(*batch.batch, step / task.taken)
        with torch.no_grad():
            for place, run in enumerate(runs):
                run.look(None if seen is None else seen.view(place))
            if seen is not None:
                seen.add_up()
            for run in runs:
                run.release(step)
        seeing = look is not None and (step + 1) % every == 0
        for place in range(len(runs) if seeing else 0):
            assert look is not None
            look(place, step + 1, stack.model(place))
    return [
        (evaluate(stack.model(place), *task.test)[0], run.epsilon())
        for place, run in enumerate(runs)
    ]


def has_stack(task: DescentTask) -> bool:
    """Whether runs of a task can go in lockstep."""
    return isinstance(task.model(), nn.Linear) or is_cnn(task) or is_scattering_cnn(task)


def _stack_for(task: DescentTask) -> type[Stack] | type[CnnStack] | type[ScatteringStack]:
    if is_cnn(task):
        return CnnStack
    return ScatteringStack if is_scattering_cnn(task) else Stack


class Stack:
    """The weights of all runs of one linear model in one matrix, (runs * classes, features)."""

    def __init__(self, task: DescentTask, runs: int, seed: int) -> None:
        torch.manual_seed(seed)
        model = task.model()
        assert isinstance(model, nn.Linear) and model.bias is not None
        self._task, self._model, self.runs = task, model, runs
        self.classes = model.out_features
        self.layout = Layout(dict(model.named_parameters()))
        with torch.no_grad():  # the seed is theirs in common, and so is the start
            self.weight = model.weight.repeat(runs, 1)
            self.bias = model.bias.repeat(runs)

    def parameters(self, run: int) -> dict[str, nn.Parameter]:
        """Those of one run: its part of the stack, so that an optimiser moves both."""
        own = slice(run * self.classes, (run + 1) * self.classes)
        return {
            "weight": nn.Parameter(self.weight[own]),
            "bias": nn.Parameter(self.bias[own]),
        }

    def model(self, run: int) -> nn.Linear:
        """The model with the weights of one run; valid until the next call."""
        with torch.no_grad():
            for name, value in self.parameters(run).items():
                getattr(self._model, name).copy_(value)
        return self._model

    def alongside(self, x: Tensor) -> tuple[Tensor, ...]:
        """What `forward` is given of every row beside it: here nothing."""
        del x
        return ()

    def forward(self, x: Tensor, y: Tensor, progress: float) -> Seen:
        """What the runs see of a batch."""
        logits = torch.addmm(self.bias, x, self.weight.T).view(-1, self.classes)
        logits.requires_grad_()
        losses = self._task.loss(logits, y.repeat_interleave(self.runs), progress)
        (residuals,) = torch.autograd.grad(losses.sum(), logits)
        apart = residuals.view(len(y), self.runs, self.classes).transpose(0, 1).contiguous()
        return Seen(x, apart, losses.detach().view(len(y), self.runs).T, self.layout)


class Seen:
    """A batch under all runs: rows (n, features), residuals (runs, n, classes)."""

    def __init__(self, x: Tensor, residuals: Tensor, losses: Tensor, layout: Layout) -> None:
        self.x, self.residuals, self.losses = x, residuals, losses
        squares = x.square().sum(1) + 1  # of the row, with the one that meets the bias
        self.lengths = residuals.square().sum(2).mul_(squares).sqrt_().double()  # (runs, n)
        self._layout = layout
        self._sketches: dict[Directions, Tensor] = {}
        self._tall: dict[float, tuple[Tensor, Tensor, Tensor]] = {}
        self._cut: dict[int, tuple[Tensor, Tensor]] = {}
        self._scaled = torch.zeros_like(residuals)
        self._asked: dict[int, FlatTree] = {}

    def view(self, run: int) -> HeadView:
        return HeadView(self, run)

    def sketch(self, directions: Directions) -> Tensor:
        """(runs, n, k): the product with the rows is the same for all runs."""
        if directions not in self._sketches:
            like = dict(zip(self._layout.names, self._layout.like, strict=True))
            found = bases(directions, like)
            pairs = found["weight"]
            assert isinstance(pairs, Kronecker)
            left, right = self.residuals @ pairs.u, self.x @ pairs.v
            inner = (left[..., None] * right[:, None, :]).flatten(2)[..., : pairs.k].contiguous()
            along = found["bias"].rows(torch.eye(self.residuals.shape[2])).to(inner)  # (classes, k)
            inner.view(-1, pairs.k).addmm_(self.residuals.flatten(0, 1), along)
            self._sketches[directions] = inner.double()
        return self._sketches[directions]

    def ask(self, run: int, weights: Tensor) -> FlatTree:
        """The weighted sum of a run's gradients: its values are there after `add_up`."""
        residuals = self.residuals[run]
        torch.mul(residuals, weights.to(residuals)[:, None], out=self._scaled[run])
        self._asked[run] = self._layout.empty()
        return self._asked[run]

    def ask_cut(self, run: int, weights: Tensor, clip: float, bound: float) -> FlatTree:
        """The same with each coordinate of w_i g_i cut to [-bound, bound], given |w_i g_i| <= clip.

        What is cut off is sparse: a coordinate e_ik x_ij is too large only where |x_ij| is above
        bound / clip times the length of the row, whatever the residuals are.
        """
        tree = self.ask(run, weights)
        scaled = self._scaled[run]
        if bound / clip not in self._tall:
            floor = self.x.square().sum(1).add_(1).sqrt_().mul_(bound / clip * (1 - SLACK))
            row, column = (self.x.abs() > floor[:, None]).nonzero(as_tuple=True)
            self._tall[bound / clip] = row, column, self.x[row, column]
        row, column, height = self._tall[bound / clip]
        tall = scaled[row] * height[:, None]
        tall -= tall.clamp(-bound, bound)
        excess = torch.zeros(self.x.shape[1], scaled.shape[1]).index_add_(0, column, tall)
        self._cut[run] = excess.T, scaled - scaled.clamp(-bound, bound)
        return tree

    def add_up(self) -> None:
        """All sums that were asked for, by one product."""
        stacked = self._scaled.transpose(1, 2).flatten(0, 1) @ self.x  # (runs * classes, features)
        for run, tree in self._asked.items():
            classes = self._scaled.shape[2]
            tree["weight"].copy_(stacked[run * classes : (run + 1) * classes])
            tree["bias"].copy_(self._scaled[run].sum(0))
            if run in self._cut:
                weight, bias = self._cut[run]
                tree["weight"].sub_(weight)
                tree["bias"].sub_(bias.sum(0))


class HeadView:
    """The `View` of one run: a gradient is residual times row, and the residual for the bias."""

    neutralised = 0

    def __init__(self, seen: Seen, run: int) -> None:
        self._seen, self._run = seen, run
        self.size = len(seen.x)

    def losses(self) -> Tensor:
        return self._seen.losses[self._run]

    def norms(self) -> Tensor:
        return self._seen.lengths[self._run]

    def sketch(self, directions: Directions) -> Tensor:
        return self._seen.sketch(directions)[self._run]

    def weighted_sum(self, weights: Tensor, last: bool = False) -> FlatTree:
        del last
        return self._seen.ask(self._run, weights)

    def total(self) -> FlatTree:
        return self._seen.ask(self._run, torch.ones(self.size))

    def cut(self, rule: LInf) -> Sums:
        """What `LInf` contributes."""
        weights, bound = rule.weight_of_norm(self.norms()), bound_with_slack(rule.coordinate_bound)
        asked = self._seen.ask_cut(self._run, weights, rule.max_grad_norm, bound)
        return {"grad": asked}


class _Run:
    """What belongs to one run alone: rule, door with its ledger, optimiser."""

    def __init__(
        self, member: Member, parameters: dict[str, nn.Parameter], sampler: Poisson, key: bytes
    ) -> None:
        task, self.rule, self._ask = member.task, member.rule, member.ask
        noise, mix, size = member.noise_multiplier, member.mix, sampler.expected_size
        mechanism = Gaussian(noise) if mix is None else mix.with_noise(noise, size)
        config = run_config(self.rule, mechanism, sampler, RELATION, task.delta, parameters)
        self.door = Door(Ledger(config), mechanism, sampler, RELATION, key)
        optimizer, scheduler = task.descent.optimiser(list(parameters.values()), task.taken)
        self.update = (
            OptimizerUpdate(parameters, optimizer, scheduler, size)
            if mix is None
            else mix.update(parameters, optimizer, scheduler, size, key)
        )
        self.update.seal = self.door.seal
        self._ball = None if member.radius is None else Ball(member.radius, parameters)
        first = self.rule.init(dict(parameters), size)
        self.state = self.rule.with_key(first, key)
        self._delta = task.delta

    def look(self, view: HeadView | CnnView | ScatteringView | None) -> None:
        """What the rule makes of a batch; its sums come into being before they are released."""
        if isinstance(view, HeadView) and isinstance(self.rule, LInf):
            self.sums = view.cut(self.rule)
            return
        seen: Any = no_rows(self.update.parameters) if view is None else view
        self.sums = self.rule.contributions(seen, self.state)

    def release(self, step: int) -> None:
        released = self.door.release(step, self.rule.bounded(self.sums, self.state))
        gradient, self.state = self.rule.after(released, self.state)
        self.update.apply(gradient)
        if self._ball is not None:
            self._ball.project_(self.update.parameters)

    def epsilon(self) -> float:
        """What the ledger certifies."""
        if not self._ask:
            return float("nan")
        return guarantee([self.door.ledger], self._delta, RELATION).epsilon
