"""How long a run of somebody else's trainer is, in logical steps. Everything here is public."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch.utils.data import Dataset

from winsor.core.contract import ConfigurationError
from winsor.integrations.privacy import Privacy
from winsor.planning.choose import dataset_size, make_sampler, planned_steps


@dataclass(frozen=True)
class RunLength:
    """Steps in all and in an epoch; rows of a logical batch, on average."""

    batch: int
    steps: int
    per_epoch: int

    @property
    def epochs(self) -> int:
        return -(-self.steps // self.per_epoch)


def run_length(
    dataset: Dataset[Any], batch: int, privacy: Privacy, epochs: float | None, steps: int | None
) -> RunLength:
    """Of ``steps``, or of ``epochs``. An epoch has as many steps as it takes to draw n rows."""
    options = privacy.options
    if "unit" in options:
        if steps is None:
            raise ConfigurationError(
                "max_steps must be given where units are protected: an epoch of rows is not one "
                "of units. Got a number of epochs instead."
            )
        return RunLength(batch, steps, steps)
    n = dataset_size(dataset)
    sampling, rate = options.get("sampling", "poisson"), options.get("sampling_rate")
    sampler = make_sampler(sampling, n, batch, rate)
    per_epoch = planned_steps(1, None, sampler)
    return RunLength(batch, planned_steps(epochs, steps, sampler), per_epoch)
