"""Which iterate becomes the released model, and where iterates may go.

    last      w_T
    averaged  the mean of the iterates (paper 4 returns it; paper 2 for its convex rates)
    random    one of them, uniformly (paper 3, Algorithms 1 to 3)

and projection onto a ball (papers 2 and 4), applied after each step.

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
from typing import Any

import torch
from torch import Tensor

from winsor.contract import ConfigurationError, ProtocolError, Tree
from winsor.randomness import new_key, stream

KINDS = ("last", "averaged", "random")


class Iterates:
    """Watches the iterates of a run and gives the one to release.

    Call ``update(0, parameters)`` before the first step if the starting point should count (as it
    does in papers 3 and 4), then ``update(step, parameters)`` after each. ``first`` leaves out
    earlier iterates, for averages over the end of a run. Paper 4's average stops before the
    last iterate; here the last one counts, as in paper 3.

    Memory: nothing for "last", one float64 copy for "averaged", one copy for "random".

    >>> iterates = Iterates("averaged")
    >>> for step in range(3):
    ...     iterates.update(step, {"w": torch.tensor([float(step)])})
    >>> iterates.result()
    {'w': tensor([1.])}
    """

    def __init__(self, kind: str = "last", seed: int | None = None, first: int = 0) -> None:
        if kind not in KINDS:
            raise ConfigurationError(f"kind must be one of {list(KINDS)}. Got {kind!r} instead.")
        if not (isinstance(first, int) and first >= 0):
            raise ConfigurationError(f"first must be a whole number >= 0. Got {first!r} instead.")
        self.kind = kind
        self.first = first
        self._key = new_key(seed)
        self._step = -1
        self._seen = 0
        self._live: Mapping[str, Tensor] = {}
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
        if self.kind == "last" or step < self.first:
            return
        self._seen += 1
        if self.kind == "averaged":
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
        for name, mean in self._kept.items():
            mean += (parameters[name].detach() - mean) / self._seen

    def result(self) -> Tree:
        """A copy of the model to release."""
        source = self._live if self.kind == "last" else self._kept
        if not source:
            raise ProtocolError(
                f"there is no iterate yet: update must be called with a step >= {self.first} first."
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
        """The last iterate again, for a run that goes on. True if anything changed."""
        hidden, self._hidden = self._hidden, {}
        for name, value in hidden.items():
            parameters[name].copy_(value)
        return bool(hidden)

    def state_dict(self) -> dict[str, Any]:
        """Plain values and tensors, for checkpoints."""
        return {
            "kind": self.kind,
            "first": self.first,
            "key": self._key.hex(),
            "step": self._step,
            "seen": self._seen,
            "kept": _copy(self._kept),
            "dtypes": dict(self._dtypes),
            "hidden": _copy(self._hidden),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if (state["kind"], state["first"]) != (self.kind, self.first):
            raise ConfigurationError(
                f"the checkpoint must be of kind {self.kind!r} from step {self.first}. Got "
                f"{state['kind']!r} from step {state['first']} instead."
            )
        self._key = bytes.fromhex(state["key"])
        self._step, self._seen = state["step"], state["seen"]
        self._kept = _copy(state["kept"])
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
