"""Epochs: every row once, each by its own coin; and every epoch paid before it begins."""

from __future__ import annotations

import numpy as np
import pytest
from dp_accounting import dp_event

from winsor.core.accounting import account
from winsor.core.contract import (
    ConfigurationError,
    Neighbouring,
    UnsupportedEvent,
    UnsupportedRelation,
)
from winsor.core.events.allocation import AllocationDpEvent
from winsor.core.events.joint import GaussianEvent
from winsor.core.randomness import new_key
from winsor.core.sampling.allocation import Allocation, Loader

KEY = new_key(seed=3)
ADD, REPLACE = Neighbouring.ADD_OR_REMOVE_ONE, Neighbouring.REPLACE_ONE
LOCAL = GaussianEvent(add_remove=1.2, replace=0.6)


def epoch_of(sampler, epoch, key=KEY):
    steps = range(epoch * sampler.block, (epoch + 1) * sampler.block)
    return [sampler.indices(key, step) for step in steps]


@pytest.mark.parametrize(
    "sampler", [Allocation(103, 7), Allocation(5, 5), Loader(103, 10), Loader(103, 10, False)]
)
def test_every_row_is_seen_once_in_every_epoch(sampler):
    for epoch in range(3):
        rows = np.concatenate(epoch_of(sampler, epoch))
        assert np.array_equal(np.sort(rows), np.arange(sampler.n))
        assert rows.dtype == np.int64


def test_each_row_goes_to_a_uniform_step_independently_of_the_others():
    sampler, epochs = Allocation(30, 5), 4000
    where = np.zeros((epochs, 30), dtype=int)
    for epoch in range(epochs):
        for step, rows in enumerate(epoch_of(sampler, epoch)):
            where[epoch, rows] = step
    share = np.stack([(where == step).mean(0) for step in range(5)])
    assert np.abs(share - 0.2).max() < 5 * np.sqrt(0.16 / epochs)
    together = (where[:, 0] == where[:, 1]).mean()
    assert abs(together - 0.2) < 5 * np.sqrt(0.16 / epochs)
    again = (where[:-1, 0] == where[1:, 0]).mean()
    assert abs(again - 0.2) < 5 * np.sqrt(0.16 / epochs)


@pytest.mark.parametrize("sampler", [Allocation(200, 9), Loader(200, 30)])
def test_batches_are_a_function_of_key_and_step(sampler):
    first = [rows.copy() for rows in epoch_of(sampler, 2)]
    epoch_of(sampler, 7), epoch_of(sampler, 2, new_key(seed=4))  # what is remembered must not show
    for epoch in range(10, 16):
        sampler.indices(KEY, epoch * sampler.block)
    assert all(np.array_equal(a, b) for a, b in zip(first, epoch_of(sampler, 2), strict=True))
    other = np.concatenate(epoch_of(sampler, 2, new_key(seed=4)))
    assert not np.array_equal(np.concatenate(first), other)
    assert not np.array_equal(np.concatenate(first), np.concatenate(epoch_of(sampler, 3)))


def test_what_is_remembered_cannot_be_changed():
    with pytest.raises(ValueError, match="read-only"):
        Allocation(50, 5).indices(KEY, 0)[0] = 3


def test_drop_last_leaves_out_the_rest():
    sampler = Loader(103, 10, drop_last=True)
    assert sampler.block == 10
    assert [len(rows) for rows in epoch_of(sampler, 0)] == [10] * 10


def test_sizes():
    assert Allocation.of_batch_size(60_000, 1024) == Allocation(60_000, 59)
    assert Allocation(60_000, 59).rate == 1 / 59
    assert Allocation.of_batch_size(10, 10) == Allocation(10, 1)
    assert Loader(100, 30).expected_size == 30.0
    assert Loader(100, 30).rate == 0.25
    assert Loader(100, 30).config()["shuffle"] is True


# -------------------------------------------------------------------------------------- payment


def test_an_epoch_is_paid_with_its_first_step():
    sampler = Allocation(100, 4)
    epoch, nothing = AllocationDpEvent(4, 1.2), dp_event.NoOpDpEvent()
    events = [sampler.event(LOCAL, ADD, step) for step in range(9)]
    assert events == [epoch, *[nothing] * 3, epoch, *[nothing] * 3, epoch]


@pytest.mark.parametrize("sampler", [Allocation(100, 4), Allocation(100, 1), Loader(100, 30)])
def test_any_number_of_steps_is_paid_as_planned(sampler):
    for steps in range(1, 12):
        recorded = [(sampler.event(LOCAL, ADD, step), 1) for step in range(steps)]
        planned = sampler.history(LOCAL, ADD, steps)
        assert account(recorded, 1e-5).epsilon == account(planned, 1e-5).epsilon
        assert planned[0][1] == -(-steps // sampler.block)


@pytest.mark.parametrize("block", [1, 2, 5])
def test_stretches_of_equal_events(block):
    sampler = Allocation(100, block)
    for step in range(12):
        around = sampler.alike(step)
        assert step in around
        kinds = {repr(sampler.event(LOCAL, ADD, other)) for other in around}
        assert len(kinds) == 1


def test_a_loader_costs_one_release_an_epoch():
    sampler = Loader(100, 25)
    assert sampler.amplify(LOCAL, ADD) == dp_event.GaussianDpEvent(1.2)
    assert sampler.amplify(LOCAL, REPLACE) == dp_event.GaussianDpEvent(0.6)
    assert sampler.history(LOCAL, ADD, 9) == [(dp_event.GaussianDpEvent(1.2), 3)]


def test_allocation_refuses_what_is_not_proven():
    with pytest.raises(UnsupportedRelation, match="add_or_remove_one"):
        Allocation(100, 4).amplify(LOCAL, REPLACE)
    with pytest.raises(UnsupportedRelation):
        Allocation(100, 4).event(LOCAL, REPLACE, step=1)  # though nothing would be recorded
    with pytest.raises(UnsupportedEvent, match="Gaussian"):
        Allocation(100, 4).amplify(object(), ADD)


@pytest.mark.parametrize(
    "build",
    [
        lambda: Allocation(0, 1),
        lambda: Allocation(10, 11),
        lambda: Allocation(10, 2.5),
        lambda: Allocation.of_batch_size(10, 0),
        lambda: Allocation.of_batch_size(10, 11),
        lambda: Loader(10, 0),
        lambda: Loader(10, 11),
    ],
)
def test_bad_sizes_are_refused(build):
    with pytest.raises(ConfigurationError, match="Got"):
        build()
