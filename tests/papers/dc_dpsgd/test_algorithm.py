"""Algorithm 1 of DC-DPSGD against a transcription of its lines, noise and directions injected."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.nn import functional as F
from winsor_papers import dc_dpsgd
from winsor_papers.dc_dpsgd import Algorithm1, DcDpsgdRun, ModelRows
from winsor_papers.dc_dpsgd import algorithm as dc_algorithm
from winsor_papers.dc_dpsgd.algorithm import StepDraws, orthonormal
from winsor_papers.published import PublishedClaim
from winsor_papers.sampled import sampled_event

from winsor.core.accounting import account
from winsor.core.contract import ConfigurationError
from winsor.core.randomness import new_key

RUN = DcDpsgdRun(2.0, 2.0, batch=20, records=100, steps=4, delta=1e-4, c1=1.0, c2=0.1)


# ------------------------------------------------------- from the paper's lines alone, numpy only


def gram_schmidt(raw: np.ndarray) -> list[np.ndarray]:
    found: list[np.ndarray] = []
    for v in raw.T:
        for e in found:
            v = v - (v @ e) * e
        found.append(v / math.sqrt(v @ v))
    return found


def algorithm_1_step(
    g, raw, trace_noise, noise, *, size, p, c1, c2, sigma_tr, sigma_dp, per_record
):
    """Lines 6 to 11 for the gradients g_t(z_i)."""
    v = gram_schmidt(raw)
    k = len(v)
    projection = sum(np.outer(e, e) for e in v) / k  # V V'
    traces = []
    for g_i in g:
        unit = g_i / np.linalg.norm(g_i)
        traces.append(np.trace(projection @ np.outer(unit, unit)))  # tr(V' u u' V)
    noisy = [trace + sigma_tr * z for trace, z in zip(traces, trace_noise, strict=True)]
    ranked = sorted(range(len(g)), key=lambda i: -noisy[i])
    tail, body = ranked[: int(p * size)], ranked[int(p * size) :]
    total = np.zeros(g.shape[1])
    for i in tail:
        total += g[i] / max(1, np.linalg.norm(g[i]) / c1)
        total += c1 * sigma_dp * noise[i] if per_record else 0.0
    for i in body:
        total += g[i] / max(1, np.linalg.norm(g[i]) / c2)
        total += c2 * sigma_dp * noise[i] if per_record else 0.0
    if not per_record:
        total += sigma_dp * (c1 * noise[0] + c2 * noise[1])
    return total / size, sorted(tail)


@pytest.mark.parametrize("reading", ["per record", "two noises"])
@pytest.mark.parametrize("theta", [0.5, 2.0])
@pytest.mark.parametrize("m2", [None, 1.0])
def test_every_step_line_by_line(reading, theta, m2):
    run = replace(RUN, reading=reading, m2=m2)
    printed = Algorithm1(run, learning_rate=0.5, k=5, theta=theta)
    rows = np.random.default_rng(0).standard_t(2, size=(100, 12))
    seen: list[tuple[np.ndarray, np.ndarray]] = []

    def gradients(w, batch):
        seen.append((w.copy(), rows[batch] - w))
        return seen[-1][1]

    result = printed.run(gradients, np.zeros(12), seed=3)
    w = np.zeros(12)
    for t, (at, g) in enumerate(seen):
        assert np.allclose(at, w, rtol=0, atol=1e-6)
        draws = printed.draws(new_key(3), t, *g.shape)
        step, tail = algorithm_1_step(
            g, draws.directions, draws.traces, draws.noise, size=20, p=0.1, c1=1.0, c2=0.1,
            sigma_tr=run.sigma_trace, sigma_dp=run.sigma_gradient,
            per_record=reading == "per record",
        )  # fmt: skip
        assert np.flatnonzero(printed.step(g, draws).tail).tolist() == tail
        w = w - 0.5 * step
    assert len(seen) == 4
    assert np.allclose(result.parameters, w, rtol=0, atol=1e-6)


# ------------------------------------------------------------------------------------- randomness


def test_directions_are_dense_heavy_tailed_orthonormal_and_drawn_anew():
    printed = Algorithm1(RUN, learning_rate=1.0, k=40, theta=2.0)
    first, second = (printed.draws(new_key(0), t, 10, 500) for t in (0, 1))
    assert not np.allclose(first.directions, second.directions)
    basis = orthonormal(first.directions)
    assert np.allclose(basis.T @ basis, np.eye(40), atol=1e-10)
    assert np.count_nonzero(basis) == basis.size
    sizes = np.abs(first.directions).ravel()
    # P(|v| > x) = exp(-x^(1/theta)): sub-Weibull with index theta
    assert stats.kstest(np.sqrt(sizes), "expon").pvalue > 1e-3
    assert abs(np.mean(first.directions > 0) - 0.5) < 0.02


def test_the_noise_on_the_traces_is_really_added():
    printed = Algorithm1(RUN, learning_rate=1.0, k=4)
    g = np.random.default_rng(0).standard_normal((30, 8))
    draws = printed.draws(new_key(0), 0, 30, 8)
    silent = StepDraws(draws.directions, np.zeros(30), draws.noise)
    gap = printed.step(g, draws).noisy_traces - printed.step(g, silent).noisy_traces
    assert np.allclose(gap, RUN.sigma_trace * draws.traces)
    # a trace is at most 1/k (line 6) under noise of this size: the ranking is all but random
    assert printed.step(g, silent).noisy_traces.max() <= 1 / 4 < RUN.sigma_trace
    whole = Algorithm1(RUN, learning_rate=1.0, k=4, averaged=False)
    assert np.allclose(whole.step(g, silent).noisy_traces, 4 * printed.step(g, silent).noisy_traces)


@pytest.mark.parametrize("reading", ["per record", "two noises", "public code"])
def test_the_noise_on_the_sum_is_that_of_the_account(reading):
    """At the nominal batch size, where `DcDpsgdRun.noise_std` states it."""
    run = replace(RUN, reading=reading)
    printed = Algorithm1(run, learning_rate=1.0, k=1)
    zero = np.zeros((20, 4000))
    sums = [
        20 * printed.step(zero, printed.draws(new_key(seed), 0, 20, 4000)).gradient
        for seed in range(5)
    ]
    assert np.std(sums) == pytest.approx(run.noise_std, rel=0.03)


# --------------------------------------------------------------------------------------- accounts


def test_the_budget_is_split_by_the_accountant_or_by_m2():
    uneven = DcDpsgdRun(2.0, 6.0, batch=128, records=60_000, steps=1000, delta=1e-5)
    for epsilon, sigma in ((2.0, uneven.sigma_trace), (6.0, uneven.sigma_gradient)):
        event = sampled_event(128 / 60_000, sigma)
        assert account([(event, 1000)], 1e-5).epsilon == pytest.approx(epsilon, rel=2e-3)
    formula = replace(uneven, m2=1.5)
    q = 128 / 60_000
    for epsilon, sigma in ((2.0, formula.sigma_trace), (6.0, formula.sigma_gradient)):
        assert sigma**2 == pytest.approx(1.5 * 1000 * q**2 * math.log(1e5) / epsilon**2)
    assert "m2 = 1.5" in formula.claim().statement
    with pytest.raises(ConfigurationError, match="m2 must be a positive"):
        DcDpsgdRun(m2=0.0)


def test_a_run_ends_with_a_published_claim_and_nothing_certified():
    result = Algorithm1(RUN, learning_rate=0.1, k=2).run(
        lambda w, batch: np.ones((len(batch), 3)), np.zeros(3)
    )
    assert isinstance(result.claim, PublishedClaim)
    assert (result.claim.published_epsilon, result.claim.delta) == (4.0, 2e-4)
    assert set(vars(result)) == {"parameters", "claim"}
    assert {"Algorithm1", "DcDpsgdRun"} <= set(dc_dpsgd.__all__)


def test_models_too_large_for_dense_directions_are_refused(monkeypatch):
    printed = Algorithm1(RUN, learning_rate=0.1, k=200)
    with pytest.raises(ConfigurationError, match="must be at most 20,000,000"):
        printed.run(lambda w, batch: w, np.zeros(100_001))
    with pytest.raises(ConfigurationError, match="no more orthonormal directions"):
        printed.run(lambda w, batch: w, np.zeros(50))
    monkeypatch.setattr(dc_algorithm, "LARGEST", 100)
    with pytest.raises(ConfigurationError, match="Take fewer directions"):
        Algorithm1(RUN, learning_rate=0.1, k=11).run(lambda w, batch: w, np.zeros(10 + 1))
    with pytest.raises(ConfigurationError, match="learning_rate must be a positive"):
        Algorithm1(RUN, learning_rate=0.0)


def test_the_rows_of_a_model_are_its_gradients():
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    x, y = torch.randn(6, 3), torch.tensor([0, 1, 0, 1, 0, 1])
    rows = ModelRows(model, lambda out, label: F.cross_entropy(out, label), x, y)
    w = rows.start()
    found = rows(w, np.array([4, 1]))
    for row, i in zip(found, (4, 1), strict=True):
        model.zero_grad()
        F.cross_entropy(model(x[i : i + 1]), y[i : i + 1]).backward()
        expected = torch.cat([model.weight.grad.reshape(-1), model.bias.grad])
        assert np.allclose(row, expected.numpy(), atol=1e-6)
    assert rows(w, np.array([], dtype=np.int64)).shape == (0, 8)
    rows.load(w + 1)
    assert np.allclose(rows.start(), w + 1)
