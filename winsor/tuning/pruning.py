"""Scores on private rows, and bars below which a trial gives up: both are a part of its price.

A trial of a private selection must not know the others: comparing it with the median of earlier
trials would make it depend on them, and the proof (and its price) would be another. So the bars are
fixed beforehand: from experience, or from a pilot on public or synthetic rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from dp_accounting.dp_event import DpEvent

from winsor.core.contract import ConfigurationError, Neighbouring
from winsor.core.events.registry import History
from winsor.metrics import Metric, event_of


@dataclass(frozen=True)
class PrivateScore:
    """A score measured on private rows inside every trial: which metric, with how much noise.

    >>> from winsor.metrics import Accuracy
    >>> PrivateScore(Accuracy(), noise_multiplier=20.0).event(Neighbouring.ADD_OR_REMOVE_ONE)
    GaussianDpEvent(noise_multiplier=20.0)
    """

    metric: Metric
    noise_multiplier: float

    @staticmethod
    def of_std(metric: Metric, std: float, rows: int) -> PrivateScore:
        """Return a score whose noise on the mean over ``rows`` has standard deviation ``std``.

        >>> from winsor.metrics import Accuracy
        >>> PrivateScore.of_std(Accuracy(), std=0.003, rows=10_000).noise_multiplier
        60.0
        """
        return PrivateScore(metric, std * rows / metric.bound)

    def event(self, relation: Neighbouring) -> DpEvent:
        """Return the privacy event of one measurement of the score."""
        return event_of(self.metric, self.noise_multiplier, relation)


@dataclass(frozen=True)
class Pruning:
    """A rule that ends a trial whose score at a step does not reach that step's bar.

    ``bars`` maps steps to the least score to go on (the largest, where `tune` minimises).
    ``score`` None means that trials are looked at on public rows, which is free; a `PrivateScore`
    that they are looked at on private rows, each look measured and paid for by every trial.

    >>> pruning = Pruning({100: 0.5, 200: 0.7})
    >>> pruning.gives_up(200, 0.65), pruning.history(Neighbouring.ADD_OR_REMOVE_ONE)
    (True, [])
    """

    bars: Mapping[int, float]
    score: PrivateScore | None = None
    maximise: bool = True

    def __post_init__(self) -> None:
        if not self.bars or not all(math.isfinite(bar) for bar in self.bars.values()):
            raise ConfigurationError(
                "bars must give a finite score for at least one step, as in {100: 0.5}. Got "
                f"{dict(self.bars)!r} instead."
            )

    def gives_up(self, step: int, value: float) -> bool:
        """Return whether a score ends the trial at ``step``; one that is not a number does."""
        bar = self.bars[step]
        return not (value >= bar if self.maximise else value <= bar)

    def history(self, relation: Neighbouring) -> History:
        """Return what the looks cost each trial, whether it gives up or not."""
        return [] if self.score is None else [(self.score.event(relation), len(self.bars))]

    @property
    def condition(self) -> str:
        """What the guarantee of the tuning says about the bars."""
        if self.score is None:
            return "trials given up by bars fixed beforehand, on public rows"
        return f"trials given up by bars fixed beforehand, after {len(self.bars)} paid looks"
