"""What `make_private` accepts: every argument checked before any row is read."""

from __future__ import annotations

import math
from typing import Any

from torch.utils.data import Dataset

from winsor.contract import ConfigurationError, Neighbouring
from winsor.sampling.samplers import FixedSize, FullBatch, Poisson, Sampler


def dataset_size(dataset: Dataset[Any]) -> int:
    try:
        n = len(dataset)  # type: ignore[arg-type]
    except TypeError as error:
        raise ConfigurationError(
            "dataset must be map-style, with a length and rows by index: the sampling rate must be "
            f"known. Got {type(dataset).__name__} instead, which has no length."
        ) from error
    if n < 1:
        raise ConfigurationError("dataset must have at least one row. Got none.")
    return n


def check_delta(delta: float, n: int, allow_large: bool) -> None:
    if not (isinstance(delta, float | int) and 0 < delta < 1):
        raise ConfigurationError(
            f"delta must be strictly between 0 and 1. Got {delta!r} instead. A common choice is "
            f"1/(10 n) = {1 / (10 * n):.3g}."
        )
    if delta >= 1 / n and not allow_large:
        raise ConfigurationError(
            f"delta must be below 1/n = {1 / n:.3g}: otherwise publishing one record at random "
            f"would pass as private. Got {delta!r} instead. Choose a smaller delta, or say "
            "allow_large_delta=True."
        )


def make_sampler(sampling: str | Sampler, n: int, batch_size: int) -> Sampler:
    if isinstance(sampling, Sampler):
        if sampling.n != n:
            raise ConfigurationError(
                f"the sampler must be built for this dataset of n = {n} rows. Got n = {sampling.n}."
            )
        if not math.isclose(sampling.expected_size, batch_size, rel_tol=1e-6):
            raise ConfigurationError(
                f"batch_size must equal the sampler's expected size {sampling.expected_size:g}. "
                f"Got {batch_size!r} instead."
            )
        return sampling
    if not isinstance(batch_size, int | float) or isinstance(batch_size, bool):
        raise ConfigurationError(f"batch_size must be a number. Got {batch_size!r} instead.")
    if batch_size > n:
        raise ConfigurationError(
            f"batch_size must be at most n = {n}, the number of rows. Got {batch_size!r} instead. "
            'Use sampling="full" to take all rows at each step.'
        )
    match sampling:
        case "poisson":
            return Poisson.of_batch_size(n, batch_size)
        case "fixed":
            return FixedSize(n, batch_size)
        case "full":
            return FullBatch(n)
    raise ConfigurationError(
        f'sampling must be "poisson", "fixed", "full" or a Sampler. Got {sampling!r} instead.'
    )


def as_relation(relation: str | Neighbouring) -> Neighbouring:
    try:
        return Neighbouring(relation)
    except ValueError as error:
        names = ", ".join(r.value for r in Neighbouring)
        raise ConfigurationError(
            f"relation must be one of {names}. Got {relation!r} instead."
        ) from error


def planned_steps(epochs: float | None, steps: int | None, sampler: Sampler) -> int:
    if (epochs is None) == (steps is None):
        raise ConfigurationError(
            f"give either epochs or steps. Got epochs={epochs!r}, steps={steps!r} instead."
        )
    if steps is not None:
        if not (isinstance(steps, int) and steps > 0):
            raise ConfigurationError(
                f"steps must be a positive whole number. Got {steps!r} instead."
            )
        return steps
    assert epochs is not None
    if not (math.isfinite(epochs) and epochs > 0):
        raise ConfigurationError(f"epochs must be positive. Got {epochs!r} instead.")
    return max(1, math.ceil(epochs / sampler.rate - 1e-9))
