"""NOT PRIVATE: exact per-step numbers about the tails, for debugging on data you may look at.

    rule = winsor.tails.DebugMonitor(winsor.rules.Flat(1.0))      # warns: PrivacyLeakWarning
    private = winsor.make_private(..., rule=rule)
    ...
    print(rule.records[-1])                                       # "NOT PRIVATE | step 12: ..."

The wrapper hands every call on to its rule and keeps what it sees. Events, noise, batches and
updates are those of the rule alone (a test compares the models bit by bit), so the certified
epsilon still holds for the released model; but it says nothing about the records. Whoever sees
them has seen the data. For numbers that are covered, use `winsor.tails.PrivateMonitor`.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from winsor.core.contract import Bounded, PrivacyLeakWarning, Released, Tree
from winsor.gradients.view import Need, View
from winsor.rules.monitor import Clipping, clipping_of, row_sizes, weight_of_size
from winsor.rules.rule import Rule, State, Sums, WrappedRule

LEVELS = (0.05, 0.25, 0.5, 0.75, 0.9, 0.99)
MARK = "NOT PRIVATE"
_PER_SAMPLE = Need.NORMS | Need.GROUP_NORMS | Need.SKETCH | Need.ROWS


@dataclass(frozen=True, repr=False)
class DebugRecord:
    """Exact numbers of one step. NOT PRIVATE.

    Norms, and what follows from them, are missing for rules that never look at single rows. For
    value clipping they are its certified bounds on the norms: no norm is ever computed there.
    """

    step: int
    rows: int
    quantiles: dict[float, float]
    largest: float
    clip_fraction: float | None
    clipping_bias: float | None
    """Mean of (1 - w_i) |g_i|: a bound on the length that clipping removes from the mean."""
    effective_batch: float | None
    noise_to_signal: float
    layer_shares: dict[str, float]
    private: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return plain values, marked as not private."""
        values = asdict(self)
        values["quantiles"] = {str(level): q for level, q in self.quantiles.items()}
        return {MARK: True, **values}

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in asdict(self).items())
        return f"{MARK} | DebugRecord({values})"

    def __str__(self) -> str:
        median = self.quantiles.get(0.5, float("nan"))
        clipped = "" if self.clip_fraction is None else f", clipped {self.clip_fraction:.1%}"
        return (
            f"{MARK} | step {self.step}: {self.rows} rows, median norm {median:.4g}, largest "
            f"{self.largest:.4g}{clipped}, noise/signal {self.noise_to_signal:.3g}"
        )


class DebugMonitor(WrappedRule):
    """Wraps a rule and records exact numbers about every step. NOT PRIVATE."""

    def __init__(self, rule: Rule) -> None:
        warnings.warn(
            f"{MARK}: DebugMonitor records exact per-sample norms. Use it only on rows that you "
            "may look at; for private runs use PrivateMonitor.",
            PrivacyLeakWarning,
            stacklevel=2,
        )
        self.rule = rule
        self.records: list[DebugRecord] = []
        self._norms: list[Tensor] = []
        self._rows = 0
        self._lengths: dict[str, float] = {}

    def __repr__(self) -> str:
        return f"DebugMonitor({self.rule!r}, {MARK})"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.rule, name)  # weight_of_norm, tracker, ...: as the rule has them

    def init(self, parameters: Tree, expected_size: float) -> State:
        """Return the state of the inner rule; forget what was seen."""
        self._norms, self._rows = [], 0
        return self.rule.init(parameters, expected_size)

    def contributions(self, view: View, state: State) -> Sums:
        """Return the inner rule's sums; keep the exact sizes of the rows."""
        self._rows += view.size
        if self.needs & _PER_SAMPLE:
            self._norms.append(row_sizes(self.rule, view, state).detach().double().cpu())
        return self.rule.contributions(view, state)

    def bounded(self, sums: Sums, state: State) -> dict[str, Bounded]:
        """Return the inner rule's parts; keep the exact lengths of their leaves."""
        parts = self.rule.bounded(sums, state)
        trees = [part.value for part in parts.values() if isinstance(part.value, dict)]
        leaves = {name: leaf for tree in trees for name, leaf in tree.items()}
        # before the noise, which is added in place
        lengths = torch._foreach_norm([leaf.detach() for leaf in leaves.values()])
        self._lengths = dict(zip(leaves, (float(x) for x in lengths), strict=True))
        return parts

    def after(self, released: Released, state: State) -> tuple[Released, State]:
        """Record the step, then let the inner rule finish it."""
        self.records.append(self._record(released, state))
        self._norms, self._rows = [], 0
        return self.rule.after(released, state)

    def _record(self, released: Released, state: State) -> DebugRecord:
        norms = torch.cat(self._norms) if self._norms else torch.zeros(0, dtype=torch.float64)
        noise = sum(
            released.std[part] ** 2 * sum(leaf.numel() for leaf in value.values())
            for part, value in released.values.items()
            if isinstance(value, dict)
        )
        energy = {name: length**2 for name, length in self._lengths.items()}
        signal = sum(energy.values())
        fraction, bias, effective = self._clipping(norms, state)
        levels = torch.tensor(LEVELS, dtype=torch.float64)
        quantiles = torch.quantile(norms, levels).tolist() if norms.numel() else []
        return DebugRecord(
            step=released.entry,
            rows=self._rows,
            quantiles=dict(zip(LEVELS, quantiles, strict=False)),
            largest=float(norms.max()) if norms.numel() else 0.0,
            clip_fraction=fraction,
            clipping_bias=bias,
            effective_batch=effective,
            noise_to_signal=math.sqrt(noise / signal) if signal > 0 else math.inf,
            layer_shares={k: v / signal if signal > 0 else 0.0 for k, v in energy.items()},
        )

    def _clipping(self, norms: Tensor, state: State) -> Clipping | tuple[None, None, None]:
        weigh = weight_of_size(self.rule)
        if weigh is None or norms.numel() == 0:
            return None, None, None
        weights = weigh(norms / _growth(self.rule, state))
        return clipping_of(weights, norms, torch.ones_like(norms))


def _growth(rule: Rule, state: State) -> float:
    """Return how far an adaptive threshold has moved from where its rule started."""
    start = getattr(rule, "max_grad_norm", None)
    now = state.get("threshold")
    return float(now) / float(start) if start and now else 1.0
