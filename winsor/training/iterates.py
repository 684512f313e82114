"""Which iterate becomes the released model, and where iterates may go.

    last                  w_T
    averaged              the mean of w_0, ..., w_T
    random                one of w_0, ..., w_T, uniformly
    averaged_before_last  the mean of w_0, ..., w_(T-1)
    random_before_last    one of w_0, ..., w_(T-1), uniformly
    averaged_after_start  the mean of w_1, ..., w_T
    averaged_midpoints    the mean of (w_(k-1) + w_(k-2))/2, k = 1, ..., T: with w_-1, without w_T
    tail                  the mean of the last half, w_(T/2), ..., w_T
    ema                   v_t = v_(t-1) + r_t (w_t - v_(t-1)),  r_t = max(9/(10 + t), 0.0001)

and projection onto a ball (papers 2 and 4), applied after each step. T is the number of steps done;
`iterate_weights` gives the weight of every iterate. Who asks for which:

    paper 1, Theorems 4.1, 5.3, 5.4   random_before_last (its w_1 is the start, our w_0)
    paper 2, eq. (6)                  averaged_after_start (if w_1 is the start: before_last)
    paper 3, Algorithms 1 to 4        random
    paper 4, Algorithm 1              averaged_before_last
    paper 5, Theorem 3.1              averaged_midpoints
    paper 5, Theorem 3.2              random_before_last
    constant learning rates           tail, ema (De et al. 2022: its r_t, from public runs)

A bound on an average of losses or squared gradient norms holds for an iterate drawn with the same
weights, in expectation; for convex losses it also holds for the average of the iterates.

Guarantee
---------
Every iterate is a function of released gradients, so the whole sequence is already paid for by the
ledger. Averages, a choice made by a coin that does not look at the data, and projections are
post-processing: they cost nothing, for every rule and every mechanism. Nor is anything claimed for
showing one iterate only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from winsor.core.checks import choice
from winsor.core.contract import ConfigurationError, ProtocolError, Tree
from winsor.core.randomness import new_key, stream


@dataclass(frozen=True)
class Kind:
    """How iterates are counted: which of them, as they are or as midpoints, drawn or averaged."""

    draws: bool = False
    first: int = 0
    leaves_out_last: bool = False
    midpoints: bool = False
    second_half: bool = False
    forgets: bool = False


KINDS = {
    "last": Kind(),
    "averaged": Kind(),
    "random": Kind(draws=True),
    "averaged_before_last": Kind(leaves_out_last=True),
    "random_before_last": Kind(draws=True, leaves_out_last=True),
    "averaged_after_start": Kind(first=1),
    "averaged_midpoints": Kind(leaves_out_last=True, midpoints=True),
    "tail": Kind(second_half=True),
    "ema": Kind(forgets=True),
}


def first_counted(kind: str, steps: int) -> int:
    """Return the first iterate that counts in a run of ``steps`` steps."""
    chosen = KINDS[choice("iterate", kind, KINDS)]
    return (steps + 1) // 2 if chosen.second_half else chosen.first


def forgetting(step: int) -> float:
    """Return what the average of kind "ema" gives to iterate ``step``: a window that grows with the
    run.

    >>> forgetting(0), forgetting(8), forgetting(10**6)
    (1.0, 0.5, 0.0001)
    """
    return 1.0 if step == 0 else max(9 / (10 + step), 1e-4)


def iterate_weights(kind: str, steps: int) -> dict[int, float]:
    """Return the weight (for a random kind: the probability) of each iterate after ``steps`` steps.

    >>> iterate_weights("averaged_midpoints", 2)
    {-1: 0.25, 0: 0.5, 1: 0.25, 2: 0.0}
    """
    chosen = KINDS[choice("kind", kind, KINDS)]
    weights = dict.fromkeys(range(-1, steps + 1), 0.0)
    if kind == "last":
        return weights | {steps: 1.0}
    if chosen.forgets:
        left = 1.0
        for step in range(steps, -1, -1):
            weights[step] = left * forgetting(step)
            left -= weights[step]
        return weights
    counted = range(first_counted(kind, steps), steps + (0 if chosen.leaves_out_last else 1))
    for k in counted:
        for index in (k, k - 1) if chosen.midpoints else (k,):
            weights[index] += 1 / len(counted) / (2 if chosen.midpoints else 1)
    return weights


class Iterates:
    """Watches the iterates of a run and gives the one to release.

    Call ``update(0, parameters)`` before the first step, then ``update(step, parameters)`` after
    each. ``first`` leaves out earlier iterates, for averages over the end of a run. ``before`` is
    w_-1, for "averaged_midpoints"; it is w_0 unless given.

    Memory: nothing for "last", one copy for "random", one float64 copy for "averaged" (another
    copy for kinds that leave out the last iterate, and one more for midpoints).

    >>> iterates = Iterates("averaged")
    >>> for step in range(3):
    ...     iterates.update(step, {"w": torch.tensor([float(step)])})
    >>> iterates.result()
    {'w': tensor([1.])}
    """

    def __init__(
        self,
        kind: str = "last",
        seed: int | None = None,
        first: int = 0,
        before: Mapping[str, Tensor] | None = None,
    ) -> None:
        self._kind = KINDS[choice("iterate", kind, KINDS)]
        if not (isinstance(first, int) and first >= 0):
            raise ConfigurationError(f"first must be a whole number >= 0. Got {first!r} instead.")
        self.kind = kind
        self.first = max(first, self._kind.first)
        self._key = new_key(seed)
        self._step = -1
        self._seen = 0
        self._live: Mapping[str, Tensor] = {}
        self._before = {} if before is None or not self._kind.midpoints else _copy(before)
        self._waiting: Tree = {}
        self._kept: Tree = {}
        self._hidden: Tree = {}
        self._dtypes: dict[str, torch.dtype] = {}

    @torch.no_grad()
    def update(self, step: int, parameters: Mapping[str, Tensor]) -> None:
        """Take note of the iterate after ``step`` steps. Steps come one after the other."""
        if step != self._step + 1 and not (self._step == -1 and step == 1):
            raise ProtocolError(
                f"update must be called once per step: expected step {self._step + 1}. Got {step} "
                "instead. After resuming a run, load the state_dict of that checkpoint."
            )
        self._step = step
        self._live = parameters
        self._dtypes = {name: tensor.dtype for name, tensor in parameters.items()}
        if self.kind == "last":
            return
        if not self._kind.leaves_out_last:
            if step >= self.first:
                self._count(step, parameters)
            return
        if self._waiting and step > self.first:  # the one before is no longer the last
            self._count(step - 1, self._waiting)
        self._waiting = self._midpoints(parameters) if self._kind.midpoints else _copy(parameters)

    def _midpoints(self, parameters: Mapping[str, Tensor]) -> Tree:
        """Return the middle between this iterate and the one before, in float64."""
        before = self._before or parameters
        middle = {
            name: (tensor.detach().double() + before[name].double()) / 2
            for name, tensor in parameters.items()
        }
        self._before = _copy(parameters)
        return middle

    def _count(self, step: int, parameters: Mapping[str, Tensor]) -> None:
        self._seen += 1
        if not self._kind.draws:
            self._average(parameters)
        elif stream(self._key, "iterate", step).random() * self._seen < 1:
            # Reservoir: the t-th iterate replaces the kept one with probability 1/t, which leaves
            # each of the first t kept with probability 1/t, for every t.
            self._kept = _copy(parameters)

    def _average(self, parameters: Mapping[str, Tensor]) -> None:
        if not self._kept:
            self._kept = {
                name: tensor.detach().to(torch.float64, copy=True)
                for name, tensor in parameters.items()
            }
            return
        share = forgetting(self._seen - 1) if self._kind.forgets else 1 / self._seen
        for name, mean in self._kept.items():
            mean += (parameters[name].detach() - mean) * share

    def result(self) -> Tree:
        """Return a copy of the model to release."""
        source = self._live if self.kind == "last" else self._kept
        if not source:
            needed = self.first + self._kind.leaves_out_last
            raise ProtocolError(
                f"there is no iterate yet: update must be called with a step >= {needed} first."
            )
        return {name: t.detach().to(self._dtypes[name], copy=True) for name, t in source.items()}

    @torch.no_grad()
    def show(self, parameters: Mapping[str, Tensor]) -> None:
        """Put the iterate to release into ``parameters``; `put_back` undoes it."""
        if self.kind != "last" and not self._hidden:
            released = self.result()
            self._hidden = _copy(parameters)
            for name, value in released.items():
                parameters[name].copy_(value)

    @torch.no_grad()
    def put_back(self, parameters: Mapping[str, Tensor]) -> bool:
        """Put back the last iterate, for a run that goes on. True if anything changed."""
        hidden, self._hidden = self._hidden, {}
        for name, value in hidden.items():
            parameters[name].copy_(value)
        return bool(hidden)

    def state_dict(self) -> dict[str, Any]:
        """Return plain values and tensors, for checkpoints."""
        return {
            "kind": self.kind,
            "first": self.first,
            "key": self._key.hex(),
            "step": self._step,
            "seen": self._seen,
            "kept": _copy(self._kept),
            "waiting": _copy(self._waiting),
            "before": _copy(self._before),
            "dtypes": dict(self._dtypes),
            "hidden": _copy(self._hidden),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with iterates that `state_dict` returned."""
        if (state["kind"], state["first"]) != (self.kind, self.first):
            raise ConfigurationError(
                f"the checkpoint must be of kind {self.kind!r} from step {self.first}. Got "
                f"{state['kind']!r} from step {state['first']} instead."
            )
        self._key = bytes.fromhex(state["key"])
        self._step, self._seen = state["step"], state["seen"]
        self._kept = _copy(state["kept"])
        self._waiting = _copy(state["waiting"])
        self._before = _copy(state["before"])
        self._dtypes = dict(state["dtypes"])
        self._hidden = _copy(state["hidden"])


class Ball:
    """The set {w: |w - centre| <= radius}; the centre is public (the origin, or the start).

    >>> w = {"w": torch.tensor([3.0, 4.0])}
    >>> Ball(1.0).project_(w)
    >>> w["w"]
    tensor([0.6000, 0.8000])
    """

    def __init__(self, radius: float, centre: Mapping[str, Tensor] | None = None) -> None:
        if not (isinstance(radius, int | float) and math.isfinite(radius) and radius > 0):
            raise ConfigurationError(
                f"radius must be a positive finite number. Got {radius!r} instead."
            )
        self.radius = float(radius)
        self.centre = None if centre is None else _copy(centre)

    @torch.no_grad()
    def project_(self, parameters: Mapping[str, Tensor]) -> None:
        """Move ``parameters`` in place to the nearest point of the ball."""
        offsets = {
            name: tensor if self.centre is None else tensor - self.centre[name]
            for name, tensor in parameters.items()
        }
        norms = [torch.linalg.vector_norm(t, dtype=torch.float64) for t in offsets.values()]
        distance = float(torch.stack(norms).norm())
        if distance <= self.radius:
            return
        for name, tensor in parameters.items():
            inside = offsets[name] * (self.radius / distance)
            tensor.copy_(inside if self.centre is None else inside + self.centre[name])


def _copy(parameters: Mapping[str, Tensor]) -> Tree:
    return {name: tensor.detach().clone() for name, tensor in parameters.items()}
