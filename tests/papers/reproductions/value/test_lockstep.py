"""A lockstep takes the steps of private trainings: the same batches and noise, the same weights."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torch.utils.data import TensorDataset
from winsor_papers.reproductions.training_runs import gaussian_classes
from winsor_papers.reproductions.value import together
from winsor_papers.reproductions.value.lockstep import AsPrinted, Lockstep, Run
from winsor_papers.reproductions.value.problems import make
from winsor_papers.reproductions.value.together import account, advanced, curves
from winsor_papers.value.claim import printed_scale

from winsor.contrib.value.value import Value
from winsor.contrib.value.wgc import NetworkGrowth, relu_network
from winsor.core.buffers import leaves_of
from winsor.core.noise.gaussian import Gaussian
from winsor.gradients.loop import LoopEngine
from winsor.rules.flat import Flat
from winsor.training.make_private import make_private

CLIP, NOISE, LR = 3.0, 0.7, 0.2
RULES = {
    "GC": Flat(CLIP),
    "VC": Value(CLIP, form="value"),
    "VC by growth": Value(CLIP, growth=NetworkGrowth()),
    "VC, tight bound": Value(CLIP),
}
OTHERS = [Run(Flat(0.1), 1.0, 0.3), Run(AsPrinted(1.0), 1.0, 0.1), Run(None, 0.0, 0.1)]
"""Runs beside the one that is looked at, which they must not change."""


def problems(hostile=False):
    train, test = gaussian_classes(n=600, dimension=12, classes=10, seed=1)
    if hostile:  # rows that are zero, huge, tiny, and all the same
        train[0][::7] = 0.0
        train[0][1::7] *= 1e5
        train[0][2::7] *= 1e-6
        train[0][3::7] = train[0][3]
    tasks = make("toy", (train, test), (0.5, 4.0), (0.05, 0.5))
    return [replace(task.problem, steps=12) for task in tasks]


@pytest.fixture
def noises(monkeypatch):
    """What was added to the sums of the next private training, step by step."""
    found, add = [], Gaussian.add_noise

    def noted(parts, std, noise):
        before = [leaf.clone() for leaf in leaves_of(parts["grad"].value)]
        values = add(parts, std, noise)
        after = leaves_of(values["grad"])
        added = [(b - a).reshape(-1) for a, b in zip(before, after, strict=True)]
        found.append((std["grad"], torch.cat(added)))
        return values

    monkeypatch.setattr(Gaussian, "add_noise", staticmethod(noted))
    return found


def trained_privately(problem, rule):
    """A private training, its start, and the batches that it saw."""
    torch.manual_seed(3)
    model = problem.model()
    start = copy.deepcopy(model)
    private = make_private(
        model=model, optimizer=torch.optim.SGD(model.parameters(), lr=LR),
        dataset=TensorDataset(*problem.train), rule=rule, batch_size=problem.batch_size,
        delta=problem.delta, noise_multiplier=NOISE, steps=problem.steps, seed=5,
    )  # fmt: skip
    batches = []
    for x, y in private.batches():
        batches.append((x.clone(), y.clone()))
        private.step(F.cross_entropy(model(x), y, reduction="none"))
    return private, start, model, batches


@pytest.mark.parametrize("hostile", [False, True])
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("name", RULES)
def test_weights_are_those_of_a_private_training(name, depth, hostile, noises):
    problem = problems(hostile)[depth - 1]
    private, start, model, batches = trained_privately(problem, RULES[name])
    std, history = account(problem, Run(RULES[name], NOISE, LR))
    state = Lockstep(start, [*OTHERS, Run(RULES[name], NOISE, LR, std)], problem.batch_size)
    sizes = [parameter.numel() for parameter in model.parameters()]
    parts = iter([part / std for _, step in noises for part in step.split(sizes)])
    for x, y in batches:
        state.advance(x, y, lambda like: next(parts).view_as(like))
    for layer, parameter in zip(state.layers, model.parameters(), strict=True):
        torch.testing.assert_close(layer[-1], parameter.detach(), rtol=2e-4, atol=2e-5)
    # its noise and its events are those of the door and the ledger
    assert {told for told, _ in noises} == {std}
    assert list(history) == private.ledger.history()
    assert advanced_epsilon(problem, RULES[name]) == private.spent().epsilon


def advanced_epsilon(problem, rule):
    (found,) = advanced(problem, [Run(rule, NOISE, LR)], seed=1, looks=1)
    return found.epsilon(problem.delta)


def test_clipping_was_at_work_above():
    """Else agreement would say little."""
    problem = problems()[1]
    torch.manual_seed(3)
    runs = [Run(rule, 0.0, LR) for rule in (*RULES.values(), None)]
    state = Lockstep(problem.model(), runs, problem.batch_size)
    state.advance(problem.train[0][:128], problem.train[1][:128], None)
    first = state.layers[0]
    gaps = [float((first[place] - first[-1]).abs().max()) for place in range(len(RULES))]
    assert min(gaps) > 1e-4
    assert torch.equal(first[0], first[3])  # the tight bound of a perceptron is the norm
    assert 0 < state.frequencies()[0] <= 100 and state.frequencies()[0] == 0


@pytest.mark.parametrize("depth", [1, 2])
def test_norms_are_those_of_single_gradients(depth):
    problem = problems()[depth - 1]
    model, (x, y) = problem.model(), problem.train
    state = Lockstep(model, [Run(None, 0.0, LR)] * 2, 128)
    with torch.no_grad():
        seen = state._backward(x[:40], y[:40])[2]
    losses = F.cross_entropy(model(x[:40]), y[:40], reduction="none")
    exact = LoopEngine(model, dict(model.named_parameters())).view(losses).norms()
    for row in seen.norms:
        torch.testing.assert_close(row.double(), exact, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("depth", [1, 2])
def test_algorithm_3_as_printed_and_plain_sgd(depth):
    problem = problems()[depth - 1]
    torch.manual_seed(1)
    model = problem.model()
    plain = copy.deepcopy(model)
    state = Lockstep(model, [Run(None, 0.0, LR), Run(AsPrinted(2.0), NOISE, LR, 1.4)], 128)
    optimizers = [torch.optim.SGD(one.parameters(), lr=LR) for one in (plain, model)]
    generator = torch.Generator().manual_seed(0)
    for step in range(6):
        x, y = (part[step * 90 : step * 90 + 90] for part in problem.train)
        drawn = [torch.randn(p.shape, generator=generator) for p in model.parameters()]
        parts = iter(drawn)
        state.advance(x, y, lambda like: next(parts))  # noqa: B023
        for one, optimizer in zip((plain, model), optimizers, strict=True):
            optimizer.zero_grad()
            losses = F.cross_entropy(one(x), y, reduction="none")
            norms = [float(torch.linalg.matrix_norm(p.detach(), 2)) for p in one.parameters()]
            scale = printed_scale(losses.detach(), relu_network(x, norms), 2.0)
            ((scale if one is model else 1.0) * losses).sum().div(128).backward()
            for parameter, z in zip(one.parameters(), drawn, strict=True):
                parameter.grad += (1.4 / 128 * z) if one is model else 0.0
            optimizer.step()
    for place, one in enumerate((plain, model)):
        for layer, parameter in zip(state.layers, one.parameters(), strict=True):
            torch.testing.assert_close(layer[place], parameter.detach(), rtol=2e-4, atol=2e-5)


def test_accuracies_are_shares_of_rows():
    problem = problems()[1]
    model, (x, y) = problem.model(), problem.test
    state = Lockstep(model, [Run(None, 0.0, LR)] * 3, 128)
    right = 100 * float((model(x).argmax(1) == y).double().mean())
    assert state.accuracies(x, y) == pytest.approx([right] * 3)


def test_runs_of_a_cell_share_batches_but_not_noise():
    problem = problems()[0]
    same = Run(Flat(CLIP), NOISE, LR, std=30.0)
    found = curves(problem, [same, same, replace(same, std=0.0), replace(same, std=0.0)], 1, 3)
    assert found["test"][0] != found["test"][1]
    assert found["test"][2] == found["test"][3]
    assert all(len(curve) == 3 for kind in found.values() for curve in kind)


def test_noise_of_two_cells_differs_and_is_normal():
    first, second = (together._own_noise(name)(torch.empty(200, 100)) for name in "ab")
    assert not torch.equal(first, second)
    assert float(first.mean()) == pytest.approx(0.0, abs=0.03)
    assert float(first.std()) == pytest.approx(1.0, abs=0.03)
    assert np.corrcoef(first.flatten(), second.flatten())[0, 1] == pytest.approx(0.0, abs=0.03)


def test_a_run_that_diverges_is_an_error():
    problem = problems()[1]
    with pytest.raises(FloatingPointError, match="diverged"):
        curves(problem, [Run(None, 0.0, 1e30)], 1, 1)
