"""From what a user says about batches to a sampler and a number of steps."""

from __future__ import annotations

import math
from typing import Any

from winsor.core.checks import choice, positive, whole
from winsor.core.contract import ConfigurationError
from winsor.core.sampling.allocation import Allocation, Loader
from winsor.core.sampling.samplers import FixedSize, FullBatch, Poisson, Sampler

MOST_STEPS = 100_000_000
SAMPLINGS = ("poisson", "fixed", "full", "allocation", "loader", "cyclic")


def dataset_size(dataset: Any) -> int:
    """The public number of rows."""
    try:
        n = len(dataset)
    except TypeError as error:
        raise ConfigurationError(
            "dataset must be map-style, with a length and rows by index: the sampling rate must be "
            f"known. Got {type(dataset).__name__} instead, which has no length."
        ) from error
    if n < 1:
        raise ConfigurationError("dataset must have at least one row. Got none.")
    return n


def make_sampler(
    sampling: str | Sampler, n: int, batch_size: float, rate: float | None = None
) -> Sampler:
    """A sampler by name, or the given one if it fits the dataset and the batch size.

    With ``rate``, Poisson batches do not depend on n, which then need not be public;
    ``batch_size`` is what sums are divided by.
    """
    if rate is not None:
        if sampling != "poisson":
            raise ConfigurationError(
                f'sampling_rate must be used with sampling="poisson". Got {sampling!r} instead.'
            )
        return Poisson(n, rate, positive("batch_size", batch_size))
    if isinstance(sampling, Sampler):
        return _fitting(sampling, n, batch_size)
    positive("batch_size", batch_size)
    if batch_size > n:
        raise ConfigurationError(
            f"batch_size must be at most n = {n}, the number of rows. Got {batch_size!r} instead. "
            'Use sampling="full" to take all rows at each step.'
        )
    match choice("sampling", sampling, SAMPLINGS, "Or pass a Sampler."):
        case "poisson":
            return Poisson.of_batch_size(n, batch_size)
        case "fixed":
            return FixedSize(n, batch_size)  # type: ignore[arg-type]  # refuses what is not whole
        case "allocation":
            return Allocation.of_batch_size(n, batch_size)
        case "loader":
            return Loader(n, whole("batch_size", batch_size))
        case "cyclic":
            raise ConfigurationError(
                'sampling="cyclic" must be used with noise that needs it. Got it alone instead: '
                "give mechanism=winsor.Banded(...), or CyclicPoisson(n, bands, q) as the sampler."
            )
        case _:
            return FullBatch(n)


def _fitting(sampler: Sampler, n: int, batch_size: float) -> Sampler:
    if sampler.n != n:
        raise ConfigurationError(
            f"the sampler must be built for this dataset of n = {n} rows. Got n = {sampler.n}."
        )
    if not math.isclose(sampler.expected_size, batch_size, rel_tol=1e-6):
        raise ConfigurationError(
            f"batch_size must equal the sampler's expected size {sampler.expected_size:g}. "
            f"Got {batch_size!r} instead."
        )
    return sampler


def planned_steps(
    epochs: float | None, steps: int | None, sampler: Sampler, default: int | None = None
) -> int:
    """``steps``, or those of ``epochs`` with this sampler, or the default if there is one."""
    if epochs is not None and steps is not None:
        raise _one_of_both(epochs, steps)
    if steps is not None:
        return _affordable(whole("steps", steps))
    if epochs is not None:
        return _affordable(max(1, math.ceil(positive("epochs", epochs) / sampler.rate - 1e-9)))
    if default is None:
        raise _one_of_both(epochs, steps)
    return default


def _affordable(steps: int) -> int:
    if steps > MOST_STEPS:
        raise ConfigurationError(
            f"steps must be at most {MOST_STEPS:,}, the length of a ledger. Got {steps:,} instead."
        )
    return steps


def _one_of_both(epochs: float | None, steps: int | None) -> ConfigurationError:
    return ConfigurationError(
        f"give either epochs or steps. Got epochs={epochs!r}, steps={steps!r} instead."
    )
