"""The checks of one training run: which rows are tried, and at which steps.

At the start, and then at one step of 1, one of 2..3, one of 4..7 and so on, about log2(T) in all.
The run's key chooses rows and steps, so code that mixes rows only now and then cannot know when it
is watched; a resumed run checks at the same steps.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset, default_collate

from winsor.core.contract import ConfigurationError
from winsor.core.randomness import stream
from winsor.gradients.view import Engine
from winsor.training.checks.row_independence import BASE, SPARE, check_rows
from winsor.training.checks.trial_pass import Collate, Loss, same_randomness
from winsor.training.feeding.feed import Feed

UNCHECKED = "rows assumed independent: checked by gradient flow only"
ASSUMED = "rows assumed independent: checked by nothing, for private.check was not called"
LARGEST_TRIAL_BATCH = 16
"""Largest batch tried. Some code mixes rows from a certain number on."""


class RowChecks:
    """The checks of one training run: which rows and when, is the key's business."""

    def __init__(self, model: nn.Module, engine: Engine, feed: Feed) -> None:
        self._model = model
        self._engine = engine
        self._feed = feed
        self.loss: Loss | None = None
        looks = getattr(engine, "_weighs_rows", False) or getattr(engine, "_per_sample", True)
        looks &= engine.name != "loop"  # which takes each row's gradient for what it is
        self.conditions: tuple[str, ...] = (UNCHECKED if looks else ASSUMED,)
        """What a guarantee must say about rows."""

    def check(self, loss: Loss, step: int, recording: bool = False) -> None:
        """Check now, and keep ``loss`` for later steps. Then the engine is set to ``recording``."""
        self._engine.recording(False)
        try:
            rows = rows_to_check(self._feed, step)
            refuse_unbatched(rows, self._feed)
            found = check_rows(self._model, loss, rows, collate_of(self._feed), begun=step > 0)
        finally:
            self._engine.recording(recording)
        earlier = () if self.loss is None else self.conditions
        self.loss = loss
        self.conditions = tuple(dict.fromkeys((*earlier, *found)))

    def check_if_due(self, step: int) -> None:
        """Check at the start of a step, inside the loop: once a loss is known, at steps that nobody
        foresees, so that code which mixes rows only later is met."""
        if self.loss is not None and due(self._feed.key, step):
            self.check(self.loss, step, recording=True)


def due(key: bytes, step: int) -> bool:
    """Tell whether rows are checked at ``step``: at one step of 1, one of 2..3, one of 4..7, ..."""
    return step > 0 and step == _drawn_step(key, step.bit_length() - 1)


@functools.lru_cache(maxsize=256)  # asked for at every step
def _drawn_step(key: bytes, octave: int) -> int:
    first = 1 << octave
    return first + int(stream(key, "check steps", octave).integers(first))


def rows_to_check(feed: Feed, step: int) -> list[Any]:
    """Draw a few rows by the run's key. They are private."""
    typical = feed.limit or round(feed.sampler.expected_size)
    n = feed.sampler.n if feed.units is None else feed.units.n_rows
    count = min(n, max(BASE + SPARE, min(typical, LARGEST_TRIAL_BATCH)))
    coins = stream(feed.key, "check", step)
    chosen = coins.choice(n, count, replace=False)
    with same_randomness(int(coins.integers(1 << 31))):
        try:
            return [feed.dataset[int(i)] for i in chosen]
        except (IndexError, KeyError) as error:
            raise ConfigurationError(
                f"dataset must have a row at every place below its length, {n}. Got "
                f"{type(error).__name__} at one of them instead. Correct its __len__ or "
                "__getitem__."
            ) from error


def refuse_unbatched(rows: list[Any], feed: Feed) -> None:
    """Refuse rows of several shapes, or of a kind that torch makes no batches of."""
    if feed.collate_fn is not None or isinstance(feed.dataset, TensorDataset):
        return
    try:
        default_collate(rows)
    except (RuntimeError, TypeError) as error:
        what = "of several shapes" if isinstance(error, RuntimeError) else "of another kind"
        raise ConfigurationError(
            "rows must be tensors, arrays or numbers of one shape, so that they make a batch. Got "
            f"some {what} instead. Pad or crop them in the dataset, or pass collate_fn=, a "
            "function from a list of rows to a batch."
        ) from error


def collate_of(feed: Feed) -> Collate:
    """Return the function by which the feed makes a batch of rows."""
    if feed.collate_fn is not None:
        return feed.collate_fn
    return _stacked if isinstance(feed.dataset, TensorDataset) else default_collate


def _stacked(samples: list[Any]) -> Any:
    return tuple(torch.stack(column) for column in zip(*samples, strict=True))
