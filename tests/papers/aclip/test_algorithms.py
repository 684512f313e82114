"""Algorithms 1 and 2 of paper 4 against plain transcriptions in numpy, with injected noise."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from injected_noise import inject
from winsor_papers.aclip.algorithms import PrintedAclip, aclip, algorithm_2_stds, restarted_answers
from winsor_papers.aclip.claim import AclipRun, theorem_2_std
from winsor_papers.theory import AclipProblem, aclip_restarts

from winsor.core.contract import ConfigurationError
from winsor.tables import AveragedDescent, FlatDescent, PrivateLogisticRegression, Restarted
from winsor.tables.linear.batches import BlockPoisson

N, D, M, STEPS, GAMMA = 60, 3, 15, 7, 0.4
KEY = bytes(range(32))


def table():
    rng = np.random.default_rng(5)
    x = rng.standard_t(3, size=(N, D))
    return x, (x[:, 0] + rng.standard_normal(N) > 0).astype(int)


def gradient_of(w, i):
    """Of the logistic loss of row i."""
    x, y = table()
    return (1 / (1 + math.exp(-x[i] @ w)) - y[i]) * x[i]


def total(w, rows):
    return sum((gradient_of(w, i) for i in rows), np.zeros(D))


def algorithm_1(x, batches, noise, clip, radius, centre=0.0):
    """Lines 1-6: AClip of the batch average, noise, projection, and the average of x^0..x^{N-1}."""
    iterates = []
    for batch, z in zip(batches, noise, strict=True):
        iterates.append(x)
        average = sum((gradient_of(x, i) for i in batch), np.zeros(D)) / M
        norm = np.linalg.norm(average)
        clipped = average if norm <= clip else clip / norm * average
        x = x - GAMMA * (clipped + z)
        if radius is not None and np.linalg.norm(x - centre) > radius:
            x = centre + radius * (x - centre) / np.linalg.norm(x - centre)
    return np.mean(iterates, axis=0)


SETTINGS = list(itertools.product([0.2, 50.0], [0.3, None]))


@pytest.mark.parametrize(("clip", "radius"), SETTINGS)
def test_algorithm_1_as_printed(clip, radius):
    rng = np.random.default_rng(0)
    batches = [np.flatnonzero(rng.random(N) < M / N) for _ in range(STEPS)]
    noise = [0.1 * rng.standard_normal(D) for _ in range(STEPS)]
    centre, start = np.array([0.5, -0.2, 0.1]), np.array([0.4, 0.0, 0.1])
    run = PrintedAclip(N, STEPS, M, GAMMA, clip, 0.1, radius, centre)
    found = run.answers(start, total, batches=batches, noise=noise)
    expected = algorithm_1(start, batches, noise, clip, radius, centre)
    np.testing.assert_allclose(found[-1], expected, atol=1e-12)
    assert len(found) == STEPS


def fitted(method):
    return PrivateLogisticRegression(
        method=method, noise_multiplier=0.8, fit_intercept=False, random_state=KEY
    ).fit(*table())


def batches_of(steps):
    """Those of a fit with the key above: `key_for` binds it to the number of earlier steps."""
    from winsor.core.randomness import key_for

    return list(BlockPoisson.of_batch_size(N, M).batches(key_for(KEY, 0), 0, steps))


@pytest.mark.parametrize(("clip", "radius"), SETTINGS)
def test_algorithm_1_certified(monkeypatch, clip, radius):
    """The ball about the origin; the noise that was added is 2 lambda times the multiplier."""
    noise = inject(monkeypatch)
    method = AveragedDescent(
        clip=clip, batch_size=M, learning_rate=GAMMA, steps=STEPS, radius=radius or 1.0,
        constrained=radius is not None,
    )  # fmt: skip
    model = fitted(method)
    expected = algorithm_1(np.zeros(D), batches_of(STEPS), noise.vectors, clip, radius)
    np.testing.assert_allclose(model.coef_[0], expected, atol=1e-9)
    assert noise.stds == pytest.approx([0.8 * 2 * clip] * STEPS, rel=1e-3)


def test_algorithm_2_certified(monkeypatch):
    """tau runs from their own answers; by hand lambda_t = lambda_0 2^(-t/2)."""
    noise = inject(monkeypatch)
    runs, each = 3, 4
    method = Restarted(runs=runs, clip=0.5, batch_size=M, learning_rate=GAMMA, steps=each)
    model = fitted(method)
    batches, x = batches_of(runs * each), np.zeros(D)
    for t in range(runs):
        part = slice(t * each, (t + 1) * each)
        x = algorithm_1(x, batches[part], noise.vectors[part], 0.5 * 2 ** (-t / 2), None)
    np.testing.assert_allclose(model.coef_[0], x, atol=1e-9)


def test_algorithm_2_as_printed():
    problem = AclipProblem(2.0, 1.0, 1.0, N, D, 1.0, 1e-5)
    plan = aclip_restarts(problem, 2.0, runs=2)._replace(
        steps=3, batch_sizes=(M, M), step_size=GAMMA
    )
    rng = np.random.default_rng(0)
    batches = [np.flatnonzero(rng.random(N) < M / N) for _ in range(6)]
    noise = [0.1 * rng.standard_normal(D) for _ in range(6)]
    found = restarted_answers(plan, N, np.zeros(D), total, batches=batches, noise=noise)
    x = np.zeros(D)
    for t in range(2):
        part = slice(3 * t, 3 * t + 3)
        x = algorithm_1(x, batches[part], noise[part], plan.clips[t], None)
        np.testing.assert_allclose(found[t], x, atol=1e-12)


def test_the_published_noise_is_the_printed_one():
    """(9), and line 2 of Algorithm 2 with Theorem 5's budget of a run."""
    run = AclipRun(2.0, 1e-5, 0.01, 15_000, 30.0)
    assert theorem_2_std(run) == pytest.approx(
        30.0 * 0.01 * math.sqrt(15_000 * math.log(1e5)) / 2.0
    )
    problem = AclipProblem(2.0, 1.0, 1.0, 1000, D, 1.0, 1e-5)
    plan = aclip_restarts(problem, 0.5, runs=4)
    epsilon = 1.0 / (2 * math.sqrt(2 * 4 * math.log(2 / 1e-5)))
    delta = 1e-5 / 8
    for std, clip, m in zip(
        algorithm_2_stds(plan, 1000), plan.clips, plan.batch_sizes, strict=True
    ):
        printed = clip * m * math.sqrt(plan.steps * math.log(1 / delta)) / (1000 * epsilon)
        assert std == pytest.approx(printed)


@pytest.mark.parametrize("clip", [0.2, 50.0])
def test_the_rival_is_equation_4(monkeypatch, clip):
    """Clip each row, average, add noise; the answer is the average of x^1 .. x^N."""
    noise = inject(monkeypatch)
    model = fitted(FlatDescent.plain(clip, batch_size=M, learning_rate=GAMMA, steps=STEPS))
    x, iterates = np.zeros(D), []
    for batch, z in zip(batches_of(STEPS), noise.vectors, strict=True):
        rows = [gradient_of(x, i) for i in batch]
        rows = [g * min(1.0, clip / np.linalg.norm(g)) for g in rows]
        x = x - GAMMA * (sum(rows, np.zeros(D)) + z) / M
        iterates.append(x)
    np.testing.assert_allclose(model.coef_[0], np.mean(iterates, axis=0), atol=1e-8)


def test_without_noise_it_is_the_baseline_and_learns():
    run = PrintedAclip(N, 300, M, GAMMA, 5.0, 0.0)
    x, y = table()
    w = run.answers(np.zeros(D), total)[-1]
    assert np.mean((x @ w > 0) == y) > 0.65
    np.testing.assert_allclose(w, run.answers(np.zeros(D), total)[-1])
    assert np.linalg.norm(aclip(np.array([3.0, 4.0]), 1.0)) == pytest.approx(1.0)
    with pytest.raises(ConfigurationError, match="clip must be"):
        PrintedAclip(N, 1, M, GAMMA, 0.0, 0.0)
