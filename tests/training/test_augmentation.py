"""Augmentation multiplicity: K views of a row, averaged before the row is clipped."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import winsor
from winsor.audit import replay
from winsor.core.contract import ConfigurationError, LossError, UnsupportedModel
from winsor.rules import Flat

N, K, C = 60, 4, 1.2
SHIFTS = torch.tensor([0.0, 0.4, -0.8, 1.5])


def rows():
    x = torch.randn(N, 5, generator=torch.Generator().manual_seed(0))
    return TensorDataset(x, (x[:, 0] > 0).long())


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 2))


def shifted(batch):
    """View k of a row is moved by the k-th shift."""
    x, y = batch
    return x + SHIFTS[torch.arange(len(x)) % K, None], y


def jittered(batch):
    x, y = batch
    return x + 0.1 * torch.randn_like(x), y


def fit(model, data=None, lr=1.0, **options):
    chosen = {"augment": shifted, "views": K, "sampling": "full", "batch_size": N, "steps": 1}
    chosen["noise_multiplier"] = 1e-6
    return winsor.fit(
        model=model, optimizer=torch.optim.SGD(model.parameters(), lr=lr), dataset=data or rows(),
        rule=Flat(C), delta=1e-4, seed=3, progress=False,
        **(chosen | options),
    )  # fmt: skip


@pytest.mark.parametrize("limit", [None, 7])
def test_a_step_is_the_mean_of_clipped_means_over_views(limit):
    """Against autograd, row by row."""
    model, reference = network(), network()
    fit(model, max_physical_batch_size=limit)
    expected = [torch.zeros_like(p) for p in reference.parameters()]
    clipped = 0
    for x, y in rows():
        values = F.cross_entropy(reference(x + SHIFTS[:, None]), y.expand(K), reduction="none")
        grads = torch.autograd.grad(values.mean(), list(reference.parameters()))
        norm = torch.cat([g.reshape(-1) for g in grads]).norm()
        clipped += float(norm) > C
        for total, grad in zip(expected, grads, strict=True):
            total += grad * min(1.0, C / float(norm)) / N
    assert 0 < clipped < N
    for after, before, grad in zip(
        model.parameters(), reference.parameters(), expected, strict=True
    ):
        assert torch.allclose(before - after, grad, rtol=1e-3, atol=1e-5)


def test_rows_are_checked_with_their_views():
    private = fit(network(), augment=jittered, steps=3)
    assert not any("gradient flow only" in said for said in private.spent().conditions)

    def standardised(batch):
        x, y = batch
        return (x - x.mean(0)) / x.std(0), y

    with pytest.raises(UnsupportedModel, match="rows must not mix"):
        fit(network(), augment=standardised)


def test_steady_views_leave_no_condition_about_rows():
    conditions = fit(network()).spent().conditions
    assert not any("rows assumed independent" in said for said in conditions)


def test_views_cost_no_privacy():
    plain = fit(network(), augment=None, views=1, noise_multiplier=1.0)
    many = fit(network(), noise_multiplier=1.0)
    assert plain.spent().epsilon == many.spent().epsilon


def test_views_of_the_rows_of_a_person_are_averaged_together():
    ids = [i // 3 for i in range(N)]
    model, reference = network(), network()
    fit(model, unit=ids, batch_size=N // 3)
    expected = torch.zeros(6, 5)
    x, y = rows().tensors
    for person in range(N // 3):
        own = slice(3 * person, 3 * person + 3)
        seen = (x[own, None] + SHIFTS[None, :, None]).flatten(0, 1)
        values = F.cross_entropy(reference(seen), y[own].repeat_interleave(K))
        grads = torch.autograd.grad(values, list(reference.parameters()))
        norm = torch.cat([g.reshape(-1) for g in grads]).norm()
        expected += grads[0] * min(1.0, C / float(norm)) / (N // 3)
    assert torch.allclose(reference[0].weight - model[0].weight, expected, rtol=1e-3, atol=1e-5)


def test_replay_finds_nothing():
    def train(data):
        model = network()
        fit(model, data, augment=jittered, sampling="poisson", batch_size=20, steps=6)
        return model

    report = replay(train, rows())
    assert report.passed, str(report)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"augment": None}, ConfigurationError, "with augment"),
        ({"views": 0}, ConfigurationError, "views"),
        ({"group_size": 2}, ConfigurationError, "without group_size"),
        ({"augment": lambda batch: (batch[0][:-1], batch[1][:-1])}, LossError, "number of rows"),
    ],
)
def test_what_makes_no_sense_is_refused(options, error, words):
    with pytest.raises(error, match=words):
        fit(network(), **options)


def test_batches_without_tensors_are_refused():
    def named(samples):
        return [x for x, _ in samples], ["a name"] * len(samples)

    with pytest.raises(ConfigurationError, match="batches of tensors"):
        fit(network(), collate_fn=named)
