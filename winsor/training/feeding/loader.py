"""From a user's own `DataLoader` to a `Loader` that draws the same way under the run's key.

The order is drawn anew from the key: torch's own would not be the same after a resume, and a row
could then be seen twice in an epoch that was paid for once.
"""

from __future__ import annotations

from typing import Any

from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

from winsor.core.contract import ConfigurationError
from winsor.core.sampling.allocation import Loader


def loader_like(loader: DataLoader[Any]) -> Loader:
    """Build the sampler that shows the rows as ``loader`` does: each at most once in an epoch.

    Refuses what may show a row twice, or in an order that depends on the rows' contents: samplers
    and batch samplers of other types than torch's plain ones, drawing with replacement, and
    datasets without a length.
    """
    batches, order = loader.batch_sampler, loader.sampler
    if type(batches) is not BatchSampler or type(order) not in (RandomSampler, SequentialSampler):
        raise ConfigurationError(
            "a loader must show each row once, in an order that does not depend on the rows: "
            "DataLoader(dataset, batch_size, shuffle=...) with a map-style dataset. Got sampler "
            f"{type(order).__name__} and batch sampler {type(batches).__name__} instead. Pass the "
            'dataset and use sampling="poisson" or "allocation".'
        )
    n = len(loader.dataset)  # type: ignore[arg-type]
    shuffled = isinstance(order, RandomSampler)
    if shuffled and (order.replacement or order.num_samples != n):  # type: ignore[attr-defined]
        raise ConfigurationError(
            f"a shuffling loader must show each of the {n} rows once. Got replacement="
            f"{order.replacement!r}, num_samples={order.num_samples!r} instead. Leave both out."  # type: ignore[attr-defined]
        )
    return Loader(n, min(n, batches.batch_size), shuffled, batches.drop_last)
