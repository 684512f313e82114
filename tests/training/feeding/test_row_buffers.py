"""Large batches share memory only when nobody holds it."""

from __future__ import annotations

import pytest
import torch

from winsor.training.feeding import feed
from winsor.training.feeding.feed import RowBuffers


@pytest.fixture(autouse=True)
def everything_is_large(monkeypatch):
    monkeypatch.setattr(feed, "SHARED_BUFFER_BYTES", 1)


VALUES = torch.arange(60.0).reshape(20, 3)
HOLDERS = {
    "itself": lambda batch: batch,
    "a view": lambda batch: batch[1:].reshape(-1),
    "detached": lambda batch: batch.detach(),
    "an array": lambda batch: batch[:2].numpy(),
    "a graph": lambda batch: (batch * torch.ones(3, requires_grad=True)).sum(),
}


def at(*places):
    return torch.tensor(places)


@pytest.mark.parametrize("hold", HOLDERS.values(), ids=HOLDERS.keys())
def test_what_somebody_holds_is_never_written_to(hold):
    buffers = RowBuffers()
    batches = []
    for start in range(6):
        index = at(*range(start, start + 4))
        batch = buffers.rows_of(0, VALUES, index)
        assert torch.equal(batch, VALUES[index])
        batches.append((hold(batch), batch.clone()))
        del batch
    for start, (held, copy) in enumerate(batches):
        assert torch.equal(copy, VALUES[start : start + 4])
        if isinstance(held, torch.Tensor) and held.shape == copy.shape:
            assert torch.equal(held, copy)
    if hold is HOLDERS["a graph"]:  # what it saved is still there
        for loss, copy in batches:
            (factor,) = (
                f[0].variable for f in loss.grad_fn.next_functions[0][0].next_functions[1:]
            )
            factor.grad = None
            loss.backward()
            assert torch.equal(factor.grad, copy.sum(0))


def test_memory_that_nobody_holds_is_used_again():
    buffers = RowBuffers()
    places = set()
    for start in range(8):
        batch = buffers.rows_of(0, VALUES, at(start, start + 1))
        places.add(batch.data_ptr())
        del batch
    assert len(places) == 1


def test_the_batch_of_the_step_before_does_not_stop_reuse():
    buffers, places = RowBuffers(), []
    for start in range(8):
        batch = buffers.rows_of(0, VALUES, at(start, start + 1))  # the last one is still bound
        places.append(batch.data_ptr())
    assert len(set(places)) == 2


def test_growing_batches_and_other_tensors_have_room(monkeypatch):
    buffers = RowBuffers()
    for count in (1, 5, 20):
        for place, values in enumerate((VALUES, VALUES[:, 0].contiguous())):
            index = torch.arange(count)
            assert torch.equal(buffers.rows_of(place, values, index), values[:count])
    monkeypatch.setattr(feed, "SHARED_BUFFER_BYTES", 1 << 30)
    assert torch.equal(buffers.rows_of(0, VALUES, at(3)), VALUES[3:4])
