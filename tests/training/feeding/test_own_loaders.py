"""A loader of one's own becomes a sampler, unless it may repeat a row."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

from winsor.core.contract import ConfigurationError
from winsor.core.sampling.allocation import Loader
from winsor.training.feeding.loader import loader_like

DATA = TensorDataset(torch.arange(11))


def test_a_plain_loader_becomes_a_sampler():
    assert loader_like(DataLoader(DATA, 4, shuffle=True)) == Loader(11, 4, True, False)
    assert loader_like(DataLoader(DATA, 4, drop_last=True)) == Loader(11, 4, False, True)
    assert loader_like(DataLoader(DATA, 64)) == Loader(11, 11, False, False)


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(DATA, 4, sampler=WeightedRandomSampler([1.0] * 11, 11)),
        DataLoader(DATA, 4, sampler=torch.utils.data.RandomSampler(DATA, replacement=True)),
        DataLoader(DATA, 4, sampler=torch.utils.data.RandomSampler(DATA, num_samples=22)),
        DataLoader(DATA, batch_size=None),
        DataLoader(DATA, batch_sampler=[[0, 1], [1, 2]]),
    ],
)
def test_a_loader_that_may_repeat_a_row_is_refused(loader):
    with pytest.raises(ConfigurationError, match="Got"):
        loader_like(loader)
