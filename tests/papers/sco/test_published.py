"""Paper 2 as printed: noise levels, claims beside certificates, Algorithm 1 line by line."""

from __future__ import annotations

import math

import numpy as np
import pytest
from winsor_papers import sco
from winsor_papers.published import PublishedClaim
from winsor_papers.sco.claim import theorem_6_rho
from winsor_papers.theory import per_step_budget

from winsor.core.accounting import account
from winsor.core.contract import ConfigurationError, Guarantee, Neighbouring
from winsor.core.ledger.ledger import Ledger
from winsor.core.prepaid import PrepaidDoor, Receipt
from winsor.core.randomness import new_key
from winsor.planning.budget import Target
from winsor.planning.shares import Session
from winsor.tables import Iterative, PrivateLogisticRegression, Simple
from winsor.tables.design import Design
from winsor.tables.linear.task import LinearTask
from winsor.tables.losses import Logistic, Squared
from winsor.tables.means.groups import Groups

REPLACE = Neighbouring.REPLACE_ONE
KEY = new_key(0)


def solved(method, x, y, epsilon=1.0, delta=1e-5):
    design = Design(x, intercept=False)
    door = PrepaidDoor(Ledger({}), REPLACE, KEY)
    task = LinearTask(design, y, Squared(), 0.0, np.zeros(x.shape[1]), 1.0)
    session = Session(door, Target(epsilon, delta, None, REPLACE), KEY)
    return method.solve(task, session), door


@pytest.fixture
def table():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((120, 2))
    return x, x @ [1.0, -0.5] + rng.standard_t(2, size=120)


@pytest.fixture
def injected(monkeypatch):
    """Noise that is known: row t of the list is added to release t."""
    noise: list[np.ndarray] = []
    stds: list[float] = []

    def release(self, value):
        value += noise[len(stds)].reshape(value.shape)
        stds.append(self.std)
        self._left -= 1
        return value

    monkeypatch.setattr(Receipt, "release", release)
    return noise, stds


def clip(g, radius):
    return min(1.0, radius / np.linalg.norm(g)) * g


def algorithm_1(x, y, estimate, eta, steps, diameter):
    """(5) and (6) from w_1 = 0, for l(w, z) = (<x, w> - y)^2 / 2 over a ball."""
    w, total = np.zeros(x.shape[1]), np.zeros(x.shape[1])
    for t in range(steps):
        total += w
        w = w - eta * estimate(t, (x @ w - y)[:, None] * x)
        if np.linalg.norm(w) > diameter / 2:
            w *= diameter / 2 / np.linalg.norm(w)
    return total / steps


def test_algorithms_1_and_2_line_by_line(table, injected):
    x, y = table
    noise, stds = injected
    radius, steps, eta = 1.5, 12, 0.3
    noise += list(20 * np.random.default_rng(1).standard_normal((steps, 2)))
    printed = sco.Theorem3(1.0, 1e-5, steps)
    solution, _ = solved(printed.method(clip=radius, learning_rate=eta, radius=1.0), x, y)

    def estimate(t, gradients):
        return sum(clip(g, radius) for g in gradients) / len(x) + noise[t] / len(x)

    expected = algorithm_1(x, y, estimate, eta, steps, 2.0)
    assert np.allclose(solution.theta, expected, rtol=0, atol=1e-6)
    # the door noises the sum: s n with s^2 = 2 R^2 T / (rho n^2), rho of (12)
    rho = 1 / (1 + 2 * math.sqrt(math.log(1e5))) ** 2
    assert stds == pytest.approx([math.sqrt(2 * radius**2 * steps / rho)] * steps, rel=1e-4)
    assert printed.noise_std(radius, 120) * 120 == pytest.approx(stds[0], rel=1e-4)


def test_algorithms_1_and_3_line_by_line(table, injected):
    """With (23) in the plane solved by trying every direction that can be best."""
    x, y = table
    noise, stds = injected
    radius, steps, eta, k = 1.5, 6, 0.3, 8
    noise += list(0.1 * np.random.default_rng(1).standard_normal((steps, k, 2)))
    printed = sco.Theorem7(1.0, 1e-5, steps, k)
    method = printed.method(clip=radius, learning_rate=eta, radius=1.0, start=[-3.0, -3.0],
                            updates=8)  # fmt: skip
    solution, _ = solved(method, x, y)
    members = Groups(120, k, "partition", REPLACE).members(KEY, 0)

    def estimate(t, gradients):
        q = np.array([sum(clip(gradients[i], radius) for i in who) / 15 for who in members])
        return walked(q + noise[t], np.full(2, -3.0), 8)

    expected = algorithm_1(x, y, estimate, eta, steps, 2.0)
    assert np.allclose(solution.theta, expected, rtol=0, atol=1e-6)
    assert solution.updates == 7 * steps
    # (19) at rho of (20) at (27)
    e0, d0 = 1 / (2 * math.sqrt(2 * steps * math.log(2e5))), 1e-5 / (2 * steps)
    brackets = math.log(8 / d0) * (1 + 2 * math.sqrt(math.log(12 * k / d0))) ** 2
    rho = e0**2 * k / (64 * math.e**4 * brackets)
    assert stds == pytest.approx([math.sqrt(2 * radius**2 / (rho * 15**2))] * steps, rel=1e-4)
    assert printed.noise_std(radius, 120) == pytest.approx(stds[0], rel=1e-4)


def walked(q, c, t_c):
    """Lines 5 to 10 of Algorithm 3. The best u leads to a point or is normal to a side."""
    centres, distances = [], []
    for _ in range(t_c):
        away = q - c
        turned = (away[:, None] - away[None])[..., ::-1] * [1.0, -1.0]
        candidates = np.concatenate([away, turned.reshape(-1, 2)])
        candidates = candidates[np.linalg.norm(candidates, axis=1) > 0]
        candidates = np.concatenate([candidates, -candidates])
        candidates /= np.linalg.norm(candidates, axis=1, keepdims=True)
        values = np.sort(away @ candidates.T, axis=0)[len(q) - math.ceil(0.9 * len(q))]
        centres.append(c)
        distances.append(values.max())
        c = c + 0.25 * values.max() * candidates[values.argmax()]
    return centres[int(np.argmin(distances))]


def test_theorem_6_runs_by_its_name_and_keeps_its_two_accounts_apart():
    x = np.random.default_rng(0).standard_t(3, size=(6000, 2))
    found = sco.theorem_6_mean(x, epsilon=2.0, delta=1e-5, radius=10.0, random_state=0)
    assert isinstance(found.claim, PublishedClaim)
    assert (found.claim.published_epsilon, found.claim.delta) == (pytest.approx(2.0), 1e-5)
    assert isinstance(found.result.guarantee, Guarantee)
    rho, m = theorem_6_rho(2.0, 1e-5, 2397), 6000 / 2397
    assert found.result.noise_std == pytest.approx(math.sqrt(2 * 100 / (rho * m**2)), rel=1e-4)
    assert found.result.guarantee.epsilon < 2.0  # few groups: weaker than no amplification
    assert found.result.updates > 0
    with pytest.raises(ConfigurationError, match=r"epsilon must be at most 1\.3\d* for Theorem 6"):
        sco.theorem_6_mean(x, epsilon=2.0, delta=1e-5, radius=10.0, groups=25_000)
    with pytest.raises(ConfigurationError, match="groups must be at most n = 500"):
        sco.theorem_6_mean(x[:500], epsilon=1.0, delta=1e-5, radius=10.0)


def test_the_steps_of_27_come_back_to_their_claim():
    run = sco.Theorem7(1.0, 1e-5, 548, 20)
    step = per_step_budget(1.0, 1e-5, 548)
    assert run.step_rho == pytest.approx(theorem_6_rho(step.epsilon, step.delta, 20))
    claim = run.claim()
    assert (claim.published_epsilon, claim.delta) == (1.0, 1e-5)
    assert claim.doubts and "published, not certified" in str(claim)
    assert account(run.certified_history(), 1e-5, REPLACE).epsilon < 1.0


def test_what_the_noise_of_theorem_3_certifies():
    run = sco.Theorem3(1.0, 1e-5, 100)
    certified = account(run.certified_history(), 1e-5, REPLACE).epsilon
    assert 0.5 < certified < 1.0  # sound, and more noise than epsilon needs
    assert run.claim().published_epsilon == 1.0
    with pytest.raises(ConfigurationError, match="at most 1"):
        _ = sco.Theorem3(2.0, 1e-5, 100).rho


@pytest.mark.parametrize("run", [sco.Theorem3(1.0, 1e-5, 5), sco.Theorem7(1.0, 1e-5, 5, 4)])
def test_an_estimator_reports_what_the_printed_noise_certifies(run):
    rng = np.random.default_rng(len(str(run)))
    x = rng.standard_normal((200, 2))
    model = PrivateLogisticRegression(
        delta=1e-5, relation="replace_one", feature_bound=3.0, random_state=0,
        method=run.method(clip=1.0, learning_rate=0.5),
    ).fit(x, x[:, 0] > 0)  # fmt: skip
    certified = account(run.certified_history(), 1e-5, REPLACE).epsilon
    assert model.epsilon_ == pytest.approx(certified, rel=2e-3, abs=1e-5)
    assert not isinstance(model.epsilon_, PublishedClaim)


# ----------------------------------------------------------------------------- rho, Theorem 7


def test_rho_is_a_budget_of_both_estimators(table):
    x, y = table
    for method in (
        Simple(clip=1.0, steps=7, learning_rate=0.1, rho=0.05),
        Iterative(clip=1.0, steps=7, learning_rate=0.1, rho=0.05, groups=4, grouping="partition"),
    ):
        _, door = solved(method, x, y)
        ((event, count),) = door.ledger.history()
        assert count / (2 * event.noise_multiplier**2) == pytest.approx(0.05, rel=2e-3)
    with pytest.raises(ConfigurationError, match="unsampled groups only"):
        solved(Iterative(clip=1.0, steps=7, learning_rate=0.1, rho=0.05, groups=4), x, y)
    with pytest.raises(ConfigurationError, match="rho must be a positive"):
        solved(Simple(clip=1.0, steps=7, learning_rate=0.1, rho=-1.0), x, y)
    model = PrivateLogisticRegression(noise_multiplier=2.0, method=Simple(clip=1.0, rho=0.1))
    with pytest.raises(ConfigurationError, match="rho must be None where noise_multiplier"):
        model.fit(x, y > 0)


@pytest.mark.parametrize(("method", "radius", "steps"), [("simple", 200, 261),
                                                         ("iterative", 364, 548)])  # fmt: skip
def test_r_and_t_at_twenty_thousand_rows(monkeypatch, method, radius, steps):
    """Theorem 4 for the simple method, Theorem 7 for the iterative one: the issue's numbers."""
    seen = {}

    def stop(task, *arguments, **named):
        seen["radius"] = arguments[1]
        raise KeyboardInterrupt

    home = "simple.clipped_gradients" if method == "simple" else "simple.group_gradients"
    monkeypatch.setattr(f"winsor.tables.linear.{home}", stop)
    rng = np.random.default_rng(radius)
    x = rng.standard_normal((20_000, 10))
    model = PrivateLogisticRegression(epsilon=1.0, delta=1e-5, method=method, feature_bound=5.0)
    with pytest.raises(KeyboardInterrupt):
        model.fit(x, x[:, 0] > 0)
    assert round(seen["radius"]) == radius
    advice = _advice(method, x)
    assert (round(advice.radius), round(advice.steps)) == (radius, steps)


def _advice(method, x):
    design = Design(x, intercept=True, unit=0.2)
    task = LinearTask(design, np.zeros(len(x)), Logistic(), 0.0, np.zeros(11), math.sqrt(2))
    relation = Neighbouring.ADD_OR_REMOVE_ONE
    door = PrepaidDoor(Ledger({}), relation, KEY)
    session = Session(door, Target(1.0, 1e-5, None, relation), KEY)
    return {"simple": Simple(), "iterative": Iterative()}[method]._settled(task, session)
