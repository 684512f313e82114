"""Algorithm 1 as printed, taken cheaply: the same tails and sums as the reference."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from winsor_papers.dc_dpsgd import Algorithm1, DcDpsgdRun, ModelRows
from winsor_papers.dc_dpsgd.algorithm import StepDraws, weibull_directions
from winsor_papers.reproductions.dc_dpsgd.descent import Descent, DescentTask
from winsor_papers.reproductions.dc_dpsgd.printed_runs import (
    Subspaces,
    noise_std,
    run_printed,
    tail_of,
)
from winsor_papers.reproductions.training_runs import gaussian_classes

from winsor.core.randomness import new_key, stream
from winsor.core.sampling.samplers import Poisson

K, THETA, SEED = 5, 2.0, 4


@given(
    st.integers(0, 2**32),
    st.integers(1, 40),
    st.integers(0, 12),
    st.sampled_from([1e-3, 0.05, 0.5, 5.0]),
)
@settings(max_examples=150, deadline=None)
def test_the_tail_is_that_of_all_traces(seed: int, rows: int, size: int, largest: float) -> None:
    rng = np.random.default_rng(seed)
    noise, traces = rng.standard_normal(rows), largest * rng.random(rows)
    found = tail_of(noise, size, largest, lambda doubtful: traces[doubtful])
    expected = np.zeros(rows, dtype=bool)
    expected[np.argsort(-(noise + traces), kind="stable")[:size]] = True
    assert np.array_equal(found, expected)


def test_traces_are_asked_for_only_in_doubt() -> None:
    noise = np.array([3.0, 2.0, 1.0, 0.0])

    def refuse(_: object) -> np.ndarray:
        raise AssertionError("the noise alone decides")

    assert tail_of(noise, 2, 0.9, refuse).tolist() == [True, True, False, False]
    asked: list[list[int]] = []

    def some(rows: np.ndarray) -> np.ndarray:
        asked.append(rows.tolist())
        return np.array([0.0, 1.2])

    assert tail_of(noise, 2, 1.2, some).tolist() == [True, False, True, False]
    assert asked == [[1, 2]]


def test_traces_are_those_of_an_orthonormal_basis() -> None:
    rng = np.random.default_rng(0)
    gradients = rng.standard_t(2, size=(7, 30))
    gradients[3] = 0
    directions = weibull_directions(rng, (30, K), THETA)
    account = DcDpsgdRun(batch=5, records=50, steps=3)
    norms = np.linalg.norm(gradients, axis=1)
    expected = Algorithm1(account, 0.1, k=K).traces(gradients, norms, directions)
    found = Subspaces(K, THETA).traces(gradients, directions)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-15)
    assert found.max() <= Subspaces(K, THETA).largest


@pytest.fixture(scope="module")
def task() -> DescentTask:
    train, test = gaussian_classes(n=120, dimension=8, classes=3, seed=0)
    return DescentTask(
        "toy", train, test, lambda: nn.Linear(8, 3), batch_size=30, steps=6, delta=1e-4,
        descent=Descent(0.5),
    )  # fmt: skip


@pytest.mark.parametrize("quiet", [True, False])
def test_runs_are_those_of_the_reference(task: DescentTask, quiet: bool) -> None:
    """With the draws of the cheap run, the reference goes the same way.

    Quiet: noise on traces so small that traces decide; else so large that noise does.
    """
    trace = 1e4 if quiet else 4.0
    account = DcDpsgdRun(
        published_trace_epsilon=trace, batch=30, records=120, steps=6, delta=1e-4,
        reading="two noises", tail_fraction=0.3,
    )  # fmt: skip
    seen: list[np.ndarray] = []

    def look(place: int, step: int, model: nn.Module) -> None:
        assert (place, step) == (0, len(seen) + 1)
        parts = [p.detach().flatten() for p in model.parameters()]
        seen.append(torch.cat(parts).double().numpy().copy())

    run_printed([task], [account], Subspaces(K, THETA), SEED, look)
    expected = _by_the_reference(task, account)
    np.testing.assert_allclose(np.array(seen), expected, rtol=1e-5, atol=1e-6)


def _by_the_reference(task: DescentTask, account: DcDpsgdRun) -> np.ndarray:
    torch.manual_seed(SEED)
    rows = ModelRows(task.model(), lambda z, y: nn.functional.cross_entropy(z, y), *task.train)
    w, key = rows.start(), new_key(SEED)
    printed = Algorithm1(account, task.descent.lr, k=K, theta=THETA)
    sampler = Poisson(account.records, account.sampling_probability)
    found = []
    for t in range(task.steps):
        gradients = rows(w, sampler.indices(key, t))
        directions = weibull_directions(stream(key, "printed directions", t), (w.size, K), THETA)
        # the two draws of the reference have the sum of one draw here
        normals = stream(key, "printed noise 0", t).standard_normal(w.size)
        both = np.stack([normals, normals]) * math.hypot(*account.sum_spreads)
        both /= sum(account.sum_spreads)
        traces = stream(key, "printed traces", t).standard_normal(len(gradients))
        w = (
            w
            - task.descent.lr
            * printed.step(gradients, StepDraws(directions, traces, both)).gradient
        )
        found.append(w)
    return np.array(found)


def test_noise_per_record_adds_up_to_one_draw() -> None:
    account = DcDpsgdRun(batch=4, records=40, steps=3, reading="per record")
    bounds = np.array([1.0, 0.1, 0.1, 0.1])
    expected = account.sigma_gradient * math.sqrt(1 + 3 * 0.01)
    assert noise_std(account, bounds) == pytest.approx(expected)
    two = DcDpsgdRun(batch=4, records=40, steps=3)
    assert noise_std(two, bounds) == pytest.approx(two.sigma_gradient * math.hypot(1.0, 0.1))
