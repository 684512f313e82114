"""What a run records about gradient norms, and in which drawer of the metrics it goes.

off      nothing
private  `PrivateMonitor`: a noised histogram of norms inside each release and its epsilon;
         goes to "monitor"
debug    `DebugMonitor` and the training loss: exact, NOT PRIVATE; goes to "not_private"
"""

from __future__ import annotations

import math
import warnings
from typing import Any

from torch import Tensor

from winsor.app.runs.config import RecordSettings
from winsor.core.contract import PrivacyLeakWarning
from winsor.rules.debug_monitor import DebugMonitor
from winsor.rules.monitor import PrivateMonitor
from winsor.rules.rule import Rule, State

NUMBERS = ("clip_fraction", "clipping_bias", "effective_batch", "noise_to_signal")
PRIVATE_QUANTILES = (0.1, 0.5, 0.9, 0.99)


class Off:
    """Records nothing."""

    section = ""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        """What to train with."""

    def saw(self, losses: Tensor) -> None:
        """Called with the losses of every physical batch."""

    def values(self, state: State) -> dict[str, Any]:
        """About the latest step."""
        return {}

    def forget(self) -> None:
        """Called after every logical step."""


class Private(Off):
    """Readings of released histograms: part of the guarantee."""

    section = "monitor"

    def __init__(self, rule: Rule, share: float) -> None:
        self._monitor = PrivateMonitor(rule, share=share)
        super().__init__(self._monitor)

    def values(self, state: State) -> dict[str, Any]:
        reading = self._monitor.reading(state)
        found: dict[str, Any] = _finite({name: getattr(reading, name) for name in NUMBERS})
        if sum(reading.counts) > 0:
            found["quantiles"] = {str(q): reading.quantile(q) for q in PRIVATE_QUANTILES}
        return found


class Debug(Off):
    """Exact numbers of the rows of a step."""

    section = "not_private"

    def __init__(self, rule: Rule) -> None:
        self._losses: list[Tensor] = []
        with warnings.catch_warnings():
            # the configuration asked for it, and every output says so
            warnings.simplefilter("ignore", PrivacyLeakWarning)
            self._monitor = DebugMonitor(rule)
        super().__init__(self._monitor)

    def saw(self, losses: Tensor) -> None:
        self._losses.append(losses.detach())

    def values(self, state: State) -> dict[str, Any]:
        if not self._losses:  # an empty batch
            return {}
        rows = sum(len(losses) for losses in self._losses)
        total = sum(float(losses.sum()) for losses in self._losses)
        found: dict[str, Any] = _finite({"training_loss": total / rows})
        record = self._monitor.records[-1]
        found |= _finite({name: getattr(record, name) for name in NUMBERS})
        if record.quantiles:
            found["quantiles"] = {str(q): value for q, value in record.quantiles.items()}
            found["quantiles"]["1.0"] = record.largest
        return found

    def forget(self) -> None:
        self._losses = []
        self._monitor.records.clear()


def make_monitor(rule: Rule, record: RecordSettings) -> Off:
    match record.monitor:
        case "private":
            return Private(rule, record.monitor_share)
        case "debug":
            return Debug(rule)
    return Off(rule)


def _finite(values: dict[str, float | None]) -> dict[str, float]:
    """JSON has no infinity, and a missing value needs no line."""
    return {k: v for k, v in values.items() if v is not None and math.isfinite(v)}
