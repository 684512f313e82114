"""A lockstep takes the estimator's steps: the same batches and noise, the same coefficients."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from winsor_papers.reproductions.aclip import lockstep
from winsor_papers.reproductions.aclip.fits import (
    ConvexRows,
    fitted,
    kept_steps,
    relative_error,
    steps_of,
)
from winsor_papers.reproductions.aclip.lockstep import (
    Draws,
    Lockstep,
    Run,
    answers_at,
    chance,
    poisson_batches,
)
from winsor_papers.reproductions.aclip.settings import SETTINGS, longer, methods_of, published_run
from winsor_papers.reproductions.aclip.together import Member, Together, account, run_of

from winsor.core.prepaid import Receipt
from winsor.tables.linear import FlatDescent, batches
from winsor.tails.datasets import heavy_linear

ROWS = 3000
SETTING = replace(SETTINGS["laplace"], epochs=20, batch_size=60)


def rows_of(task, law="student_t"):
    made = heavy_linear(law, task, n=ROWS + 500, seed=3)
    return ConvexRows(made.x[:ROWS], made.y[:ROWS], made.x[ROWS:], made.y[ROWS:])


@pytest.fixture
def recorded(monkeypatch):
    """The batches and the noise of the estimator that is fitted next."""
    picks, noises = [], []
    draw, release = batches.batches_of, Receipt.release

    def batches_of(*arguments):
        for picked in draw(*arguments):
            picks.append(picked)
            yield picked

    def noted(self, value):
        before = value.copy()
        released = release(self, value)
        noises.append(released - before)
        return released

    monkeypatch.setattr(batches, "batches_of", batches_of)
    monkeypatch.setattr(Receipt, "release", noted)
    return picks, noises


@pytest.fixture(params=["numpy", "C"])
def way(request, monkeypatch):
    """Both ways to take steps; without a compiler there is one."""
    if request.param == "numpy":
        monkeypatch.setattr(lockstep, "library", lambda: None)
    return request.param


@pytest.mark.parametrize("task", ["logistic", "ridge"])
@pytest.mark.parametrize("name", ["CC", "UC", "DP-SGD", "longer"])
def test_coefficients_are_those_of_the_estimator(task, name, recorded, way):
    rows, picks_and_noise = rows_of(task), recorded
    # steps that are long enough for clipping and projection to matter
    setting = replace(SETTING, rates=(0.05, 0.02, 0.04, 0.1))
    method = longer(setting) if name == "longer" else methods_of(setting)[name]
    steps = steps_of(method, ROWS)
    told = replace(method, record=max(1, steps // 6))
    run = published_run(setting, method, 2.0, ROWS)
    model = fitted(rows, task, told, 2.0, None if run is None else run.noise_multiplier, 5)
    picks, noises = picks_and_noise
    std, epsilon = account(ROWS, 10, Member(method, 2.0, run and run.noise_multiplier))
    by_row = isinstance(method, FlatDescent)
    size = setting.batch_size
    noise = np.array(noises)[:, None] / (size if by_row else 1)
    other = Run("rows", 0.3, 0.1, math.inf, 0.0)  # one that runs beside it, and changes nothing
    state = Lockstep(rows.x, rows.y, task, [other, run_of(Member(method, 2.0, None), std)], size)
    draws = Draws(tuple(picks), np.concatenate([np.zeros_like(noise), noise], axis=1))
    found = answers_at(state, [draws], kept_steps(steps))[:, 1]
    assert np.abs(found[-1] - model.coef_.ravel()).max() < 1e-9
    for point, answer in zip(model.trajectory_, found, strict=True):
        assert np.abs(answer - point.coef.ravel()).max() < 1e-9
    # its noise is that of the account, and so is its epsilon
    assert noise.std() == pytest.approx(std, rel=0.05)
    assert epsilon == pytest.approx(model.epsilon_, rel=1e-12)


def test_clipping_and_projection_were_at_work_above():
    """Else agreement would say little."""
    rows = rows_of("ridge")
    setting = replace(SETTING, rates=(0.05, 0.02, 0.04, 0.1))
    runs = [run_of(Member(methods_of(setting)[name], 2.0, None), 0.0) for name in ("CC", "DP-SGD")]
    free = [replace(run, clip=1e9, radius=math.inf) for run in runs]
    unprojected = [replace(runs[0], radius=math.inf)]
    state = Lockstep(rows.x, rows.y, "ridge", runs + free + unprojected, 60)
    draws = chance(np.random.default_rng(0), ROWS, 60, runs + free + unprojected, 10, 1000)
    clipped, by_row, *wide, outside = answers_at(state, draws, [1000])[0]
    assert np.abs(clipped - wide[0]).max() > 1e-3 and np.abs(by_row - wide[1]).max() > 1e-3
    assert np.abs(clipped - outside).max() > 1e-3


def test_both_ways_agree_on_any_number_of_runs_and_steps():
    """Without a compiler there is one way only, which must run all the same."""
    rng = np.random.default_rng(0)
    for count, d, steps in [(1, 1, 3), (3, 7, 5), (4, 10, 300), (9, 2, 40)]:
        x, y = rng.standard_normal((50, d)), rng.integers(0, 2, 50).astype(float)
        runs = [
            Run("rows" if k % 2 else "average", 0.4, 0.3, 0.5 if k % 3 else math.inf, 0.1)
            for k in range(count)
        ]
        states = [Lockstep(x, y, "logistic", runs, 5) for _ in range(2)]
        for block in chance(rng, 50, 5, runs, d, steps):
            states[0].advance(block)
            lockstep.by_numpy(states[1], block)
        assert np.allclose(states[0].w, states[1].w, rtol=1e-11, atol=1e-12)
        assert np.allclose(states[0].total, states[1].total, rtol=1e-11, atol=1e-12)


def test_every_row_joins_every_batch_with_the_same_chance():
    n, q, steps = 40, 0.15, 20_000
    found = poisson_batches(np.random.default_rng(1), n, q, steps)
    table = np.zeros((steps, n))
    for step, picked in enumerate(found):
        assert len(set(picked.tolist())) == len(picked)
        table[step, picked] = 1
    spread = math.sqrt(q * (1 - q) / steps)
    assert np.abs(table.mean(axis=0) - q).max() < 4.5 * spread  # 40 rows
    assert table.sum(axis=1).var() == pytest.approx(n * q * (1 - q), rel=0.05)  # independent rows
    assert abs(np.mean(table[1:] * table[:-1]) - q * q) < 5 * q / math.sqrt(steps * n)  # and steps
    assert [len(batch) for batch in poisson_batches(np.random.default_rng(0), 7, 1.0, 2)] == [7, 7]


def test_noise_is_each_run_s_own():
    runs = [Run("rows", 1, 1, math.inf, 0.5), Run("average", 1, 1, math.inf, 2.0)]
    blocks = list(chance(np.random.default_rng(0), 30, 3, runs, 4, 1000))
    noise = np.concatenate([block.noise for block in blocks])
    assert noise.shape == (1000, 2, 4)
    assert noise.std(axis=(0, 2)) == pytest.approx([0.5, 2.0], rel=0.05)
    assert abs(np.corrcoef(noise[:, 0].ravel(), noise[:, 1].ravel())[0, 1]) < 0.06


def test_a_seed_is_one_cell_with_every_fit_and_the_baseline():
    rows = rows_of("logistic", "laplace")
    setting = replace(SETTING, epochs=3)
    runs = Together(rows, "logistic", setting, (0.5, 2.0), 3)
    assert len(runs.members) == 2 * 6 + 1
    constrained = methods_of(setting)["CC"]
    found = runs.fit(constrained, 2.0, None, 1)
    assert len(found.curve) == len(found.epochs) >= 6 and found.curve[-1] == found.error
    assert found.epochs[-1] == pytest.approx(3)
    assert found.epsilon <= 2.0 and math.isnan(found.seconds)
    assert found.curve == runs.fit(constrained, 2.0, None, 1).curve
    run = published_run(setting, constrained, 2.0, ROWS)
    assert runs.fit(constrained, 2.0, run.noise_multiplier, 1).epsilon > 4.0
    open_run = runs.baseline(1)
    assert math.isinf(open_run.epsilon) and open_run.error < 1
    assert runs.baseline(2).error != open_run.error
    with pytest.raises(ValueError):
        runs.fit(constrained, 1.0, None, 1)  # not one of the epsilons


def test_the_baseline_is_algorithm_1_without_noise():
    from winsor_papers.aclip.algorithms import PrintedAclip

    from winsor.tables.losses import Squared

    rows, setting = rows_of("ridge"), replace(SETTING, rates=(0.05, 0.02, 0.04, 0.1))
    runs = Together(rows, "ridge", setting, (1.0,), 3)
    run = run_of(runs.members[-1], 0.0)
    drawn = list(chance(np.random.default_rng(0), ROWS, 60, [run], 10, 200))
    printed = PrintedAclip(ROWS, 200, 60, run.rate, run.clip, 0.0, radius=run.radius)

    def gradient(w, picked):
        part = rows.x[picked]
        return Squared().residual(part @ w, rows.y[picked]) @ part

    picks = [picked for block in drawn for picked in block.batches]
    want = printed.answers(np.zeros(10), gradient, batches=picks)[-1]
    state = Lockstep(rows.x, rows.y, "ridge", [run], 60)
    found = answers_at(state, drawn, [200])[0, 0]
    assert np.abs(found - want).max() < 1e-9
    assert relative_error(rows, found, "ridge") < 1
