"""The rows of each class, released before the first step for a loss that wants a class profile.

    [[prepare]]
    name = "class_counts"
    noise_multiplier = 10.0        # or epsilon, its own share

    [training]
    loss = { name = "logit_adjusted", profile = "released" }       # or ldam_drw

Guarantee
---------
One histogram of the labels through the door (`winsor.training.losses.released_counts`), with a
ledger of its own like every release of `prepare.py`. The loss of a row then depends on the row and
on released counts, so the steps are bounded as with a public profile.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from winsor.app.runs.config import Config
from winsor.core.contract import ConfigurationError, Neighbouring
from winsor.core.ledger.guarantee import guarantee
from winsor.core.ledger.ledger import Ledger
from winsor.training.losses import ReleasedCounts, released_counts

NAME, RELEASED = "class_counts", "released"
"""Of the release, and what a loss says instead of a profile."""


class ClassCounts:
    """A histogram that is paid for once. ``counts_`` and ``ledger_`` are there after `fit`."""

    found: ReleasedCounts

    def __init__(
        self, noise_multiplier: float | None, epsilon: float | None, *,
        delta: float = 1e-5, relation: str = Neighbouring.ADD_OR_REMOVE_ONE.value,
        allow_large_delta: bool = False, ledger: Path | None = None, seed: int | None = None,
    ) -> None:  # fmt: skip
        if (epsilon is None) == (noise_multiplier is None):
            raise ConfigurationError(
                "give either epsilon or noise_multiplier. Got "
                f"epsilon={epsilon!r}, noise_multiplier={noise_multiplier!r} instead."
            )
        self._delta, self._relation = delta, relation
        self._options: dict[str, Any] = {
            "epsilon": epsilon, "noise_multiplier": noise_multiplier, "delta": delta,
            "relation": relation, "allow_large_delta": allow_large_delta, "ledger": ledger,
            "seed": seed,
        }  # fmt: skip

    @property
    def ledger_(self) -> Ledger:
        return self.found.ledger

    @property
    def counts_(self) -> tuple[float, ...]:
        return self.found.counts

    def fit(self, labels: Tensor, classes: int) -> None:
        """Pay, and release how many of ``labels`` there are of each class, once."""
        self.found = released_counts(labels, classes, **self._options)

    def state_dict(self) -> dict[str, Any]:
        return {"counts": list(self.counts_)}

    def load_state_dict(self, state: dict[str, Any], ledger: Ledger) -> None:
        """What an earlier session has paid for."""
        spent = guarantee([ledger], self._delta, Neighbouring(self._relation))
        self.found = ReleasedCounts(tuple(state["counts"]), spent, ledger)


def class_counts(
    *, noise_multiplier: float | None = None, epsilon: float | None = None
) -> Callable[..., ClassCounts]:
    return lambda **shared: ClassCounts(noise_multiplier, epsilon, **shared)


def wants_counts(config: Config) -> bool:
    """Whether the loss waits for released counts."""
    return config.training.loss.options.get("profile") == RELEASED


def check_counts(config: Config) -> None:
    """Counts are released for a loss that uses them, once, or not at all."""
    released = [part.name for part in config.prepare].count(NAME)
    if wants_counts(config) and released != 1:
        raise ConfigurationError(
            f'training.loss.profile = "{RELEASED}" must come with one [[prepare]] of name '
            f'"{NAME}". Got {released} of them instead. Or give the counts, if they are public.'
        )
    if released and not wants_counts(config):
        raise ConfigurationError(
            f'prepare "{NAME}" must come with training.loss.profile = "{RELEASED}" (loss '
            f"logit_adjusted or ldam_drw): it would be paid for nothing. Got loss "
            f"{config.training.loss.name!r} without it."
        )
