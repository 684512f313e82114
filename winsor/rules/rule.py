"""What a clipping rule is: how a batch becomes a bounded quantity.

A rule has two halves because a logical batch may arrive in physical fragments:

* `contributions` looks at one fragment and returns sums over its rows; sums add up over fragments;
* `bounded` sees the sums of the whole logical batch and states, with proof, how far one record
  can have moved them.

The mechanism then adds noise, and `after` turns what was released into the gradient and the next
public state. A rule never draws noise and never learns the noise scale before it is used.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from winsor.core.arithmetic.slack import SHORTEST_ROW, bound_with_slack
from winsor.core.contract import Bounded, Released, Sensitivity, Tree
from winsor.gradients.rows import RowsView
from winsor.gradients.view import Need, View

State = dict[str, Any]
"""Public rule state: plain numbers and tensors, safe for `torch.load(weights_only=True)`."""

Sums = dict[str, Any]
"""Named sums over rows: a Tensor or a Tree each. The gradient is always called "grad"."""


class Rule(ABC):
    """One clipping idea. "grad" is a sum over rows; training divides by the expected size."""

    needs: Need = Need.ROWS
    """What `contributions` will ask of the view. Engines skip everything else."""

    couples_rows: bool = False
    """True if a row's contribution depends on other rows; then fragments are joined first."""

    randomised: bool = False
    """True if contributions depend on coins of the rule's own (bins, ties, selections)."""

    bound_reads_sum: bool = True
    """False if `bounded` and `after` treat a part of the sum as they would treat all of it; then
    ranks that shard a model never form the whole sum. A subclass that overrides either of them
    reads the sum, unless it says otherwise itself."""

    needs_network: bool = False
    """True if bounds on single rows come from the forward pass of a network: the audit of such a
    rule trains a real one."""

    releases_state: str = ""
    """What else leaves with the gradient, in the words of the privacy statement; "" for nothing."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        own = vars(cls)
        if ("bounded" in own or "after" in own) and "bound_reads_sum" not in own:
            cls.bound_reads_sum = True

    def init(self, parameters: Tree, expected_size: float) -> State:
        """Return the public state before the first step."""
        return {}

    def with_key(self, state: State, key: bytes) -> State:
        """Return ``state`` with the rule's own coins, if it has any, drawn from the run's key."""
        return state

    @abstractmethod
    def contributions(self, view: View, state: State) -> Sums:
        """Return sums over the rows of one fragment."""

    @abstractmethod
    def bounded(self, sums: Sums, state: State) -> dict[str, Bounded]:
        """Return what is released for the whole batch, with how far one record can move it."""

    def after(self, released: Released, state: State) -> tuple[Released, State]:
        """Return the gradient, as post-processing of ``released``, and the next public state."""
        return released, state


class RowwiseRule(Rule):
    """Base for rules of the form sum_i h(g_i), where h depends on row i and public state only.

    Subclasses give `needs`, `contributions` and `clipped_norm`.
    """

    proof: str = ""
    bound_reads_sum = False

    @abstractmethod
    def clipped_norm(self, state: State) -> float:
        """Return the bound on |h(g_i)|."""

    def bounded(self, sums: Sums, state: State) -> dict[str, Bounded]:
        """Return the sum, which one record moves by at most `clipped_norm`."""
        sensitivity = Sensitivity.per_sample(self.clipped_norm(state), self.proof)
        return {"grad": Bounded(sums["grad"], sensitivity)}


class PerSampleRule(RowwiseRule):
    """h(g_i) = w_i g_i. Subclasses give `weights` and `clipped_norm`: see `flat.py` for one."""

    needs: Need = Need.NORMS | Need.WEIGHTED_SUM

    @abstractmethod
    def weights(self, view: View, state: State) -> Any:
        """Return (n,) weights, detached, each a function of its own row."""

    def contributions(self, view: View, state: State) -> Sums:
        """Return sum_i w_i g_i."""
        return {"grad": view.weighted_sum(self.weights(view, state), last=True)}


class NormRule(PerSampleRule):
    """h(g_i) = w(|g_i|) g_i, at most ``max_grad_norm`` long. Subclasses give `weight_of_norm`."""

    max_grad_norm: float

    @abstractmethod
    def weight_of_norm(self, norms: Tensor) -> Tensor:
        """Return the weight of a row of each of these norms."""

    def weights(self, view: View, state: State) -> Tensor:
        """Return (n,) weights, each a function of its own row's norm."""
        return self.weight_of_norm(view.norms())

    def clipped_norm(self, state: State) -> float:
        """Return the bound on |h(g_i)|."""
        return self.max_grad_norm


def _inner(name: str) -> Any:
    """Return a property: the attribute ``name`` of the inner rule."""
    return property(lambda self: getattr(self.rule, name))


class WrappedRule(Rule):
    """Another rule with something added: whatever is not overridden is the inner ``rule``'s."""

    rule: Rule

    needs = _inner("needs")
    couples_rows = _inner("couples_rows")
    randomised = _inner("randomised")
    needs_network = _inner("needs_network")
    releases_state = _inner("releases_state")

    def init(self, parameters: Tree, expected_size: float) -> State:
        """Return the inner rule's state."""
        return self.rule.init(parameters, expected_size)

    def with_key(self, state: State, key: bytes) -> State:
        """Return the inner rule's state with coins from the run's key."""
        return self.rule.with_key(state, key)

    def contributions(self, view: View, state: State) -> Sums:
        """Return the inner rule's sums."""
        return self.rule.contributions(view, state)

    def bounded(self, sums: Sums, state: State) -> dict[str, Bounded]:
        """Return the inner rule's parts."""
        return self.rule.bounded(sums, state)

    def after(self, released: Released, state: State) -> tuple[Released, State]:
        """Let the inner rule finish the step."""
        return self.rule.after(released, state)


def clip_weights(norms: Tensor, threshold: float) -> Tensor:
    """Return min(1, C/|g|) for each row, as C/max(C, |g|): safe at |g| = 0 and any C > 0."""
    clip = bound_with_slack(float(threshold))
    return norms.double().clamp_min(clip).reciprocal_().mul_(clip)


def weights_of_quotient(threshold: float, lengths: Tensor) -> Tensor:
    """Return C/length for each row; a row whose length reads zero is zero, its weight finite."""
    return bound_with_slack(float(threshold)) / lengths.double().clamp_min(SHORTEST_ROW)


def no_rows(parameters: Mapping[str, Tensor]) -> RowsView:
    """Return the view of a batch without rows, in the shapes of a real one."""
    rows = {name: p.detach().new_zeros((0, *p.shape)) for name, p in parameters.items()}
    return RowsView(rows, torch.zeros(0))


def dry_run(rule: Rule, parameters: Mapping[str, Tensor], size: float) -> dict[str, Bounded]:
    """Return the bounded parts of a step without data, for calibration and planning."""
    state = rule.init(dict(parameters), size)
    return rule.bounded(rule.contributions(no_rows(parameters), state), state)
