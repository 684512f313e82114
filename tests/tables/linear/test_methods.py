"""Every method: one record's influence, what is paid against what is released, theorem and hand."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from dp_accounting import dp_event
from winsor_papers.theory import AclipProblem, aclip_constrained, aclip_unconstrained

from winsor.core.contract import ConfigurationError, Neighbouring
from winsor.core.ledger.ledger import Ledger
from winsor.core.prepaid import PrepaidDoor, Receipt
from winsor.core.randomness import new_key
from winsor.planning.budget import Target
from winsor.planning.shares import Session
from winsor.rules.flat import Flat as FlatRule
from winsor.tables import (
    AveragedDescent,
    FlatDescent,
    Iterative,
    Restarted,
    RobustGD,
    Ruled,
    Simple,
)
from winsor.tables.descent import Schedule, descend
from winsor.tables.design import Design
from winsor.tables.linear.averaged import into_ball
from winsor.tables.linear.base import method_of
from winsor.tables.linear.task import LinearTask
from winsor.tables.losses import Huber, Logistic, Squared
from winsor.tails.datasets import gaussian_design

ADD, REPLACE = Neighbouring.ADD_OR_REMOVE_ONE, Neighbouring.REPLACE_ONE
KEY = new_key(0)
N = 60

PREPAID = [
    FlatDescent(steps=4),
    FlatDescent(steps=4, batch_size=20, max_grad_norm=0.3),
    AveragedDescent(clip=0.5, batch_size=20, learning_rate=0.1, steps=4),
    AveragedDescent(clip=0.5, batch_size=N, learning_rate=0.1, steps=4),
    Restarted(runs=2, clip=0.5, batch_size=20, learning_rate=0.1, steps=2),
    Simple(clip=0.7, steps=4, learning_rate=0.1),
    Iterative(clip=0.7, steps=2, learning_rate=0.1, groups=3),
    Iterative(clip=0.7, steps=4, learning_rate=0.1, groups=3, grouping="partition"),
    RobustGD(scale=0.5, steps=4, learning_rate=0.1),
]
NAMES = [
    "flat-whole", "flat-sampled", "averaged-sampled", "averaged-whole", "restarted", "simple",
    "iterative-poisson", "iterative-partition", "robust_gd",
]  # fmt: skip


def table(last: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    data = gaussian_design(N, 3, task="logistic", seed=1)
    x, y = data.x.copy(), data.y.copy()
    x[-1] = last
    y[-1] = 1 - y[-1] if last < 0 else y[-1]
    return x, y


def solve(
    method, x, y, *, loss=None, relation=ADD, multiplier=None, alpha=0.0, bound=None, intercept=True
):
    design = Design(x, intercept)
    door = PrepaidDoor(Ledger({}), relation, KEY)
    start = np.zeros(design.size)
    task = LinearTask(design, y, loss or Logistic(), alpha, start, bound)
    session = Session(door, Target(1.0, 1e-5, None, relation), KEY, multiplier)
    return method.solve(task, session), door


@pytest.fixture
def releases(monkeypatch):
    """(receipt, value before noise) of every release; no noise is added, so that two runs on
    neighbouring data reach their second step at different parameters only through the data."""
    seen: list[tuple[Receipt, np.ndarray]] = []

    def release(self, value):
        seen.append((self, value.copy()))
        self._left -= 1
        value[...] = 0.0  # a release that tells nothing: all later steps see the same parameters
        return value

    monkeypatch.setattr(Receipt, "release", release)
    return seen


@pytest.mark.parametrize("method", PREPAID, ids=NAMES)
@pytest.mark.parametrize("loss", [Logistic(), Squared(), Huber(0.5)], ids=["log", "sq", "huber"])
@pytest.mark.parametrize("odd", [0.0, 1e30, -1e200])
def test_one_record_moves_a_release_by_no_more_than_was_paid_for(releases, method, loss, odd):
    multiplier = 1.0
    solve(method, *table(1.0), loss=loss, multiplier=multiplier, relation=REPLACE)
    count = len(releases)
    solve(method, *table(odd), loss=loss, multiplier=multiplier, relation=REPLACE)
    for (receipt, one), (_, two) in zip(releases[:count], releases[count:], strict=True):
        # std = multiplier * add/remove sensitivity; the replace sensitivity is at most twice it
        assert np.linalg.norm(one - two) <= 2 * receipt.std / multiplier * (1 + 1e-12)


@pytest.mark.parametrize("method", PREPAID, ids=NAMES)
def test_what_is_paid_is_what_is_released(releases, method):
    solution, door = solve(method, *table(), multiplier=1.0)
    assert len(door.ledger) == len(releases)
    assert all(receipt.left == 0 for receipt, _ in releases)
    assert solution.steps == (2 if "poisson" in str(method) else 4)


@pytest.mark.parametrize("method", PREPAID, ids=NAMES)
@pytest.mark.parametrize("relation", [ADD, REPLACE])
def test_calibrated_runs_spend_the_target(method, relation):
    _, door = solve(method, *table(), relation=relation)
    assert 0.99 < door.guarantee(1e-5).epsilon <= 1.0


@pytest.mark.parametrize("method", PREPAID, ids=NAMES)
def test_events_do_not_depend_on_the_data(method):
    _, one = solve(method, *table(), multiplier=2.0)
    _, two = solve(method, *table(1e9), multiplier=2.0)
    assert one.ledger.history() == two.ledger.history()


def test_averaged_pays_for_the_diameter_of_its_ball():
    method = AveragedDescent(clip=0.5, batch_size=20, learning_rate=0.1, steps=4)
    _, door = solve(method, *table(), multiplier=2.0)
    ((event, count),) = door.ledger.history()
    assert event == dp_event.PoissonSampledDpEvent(20 / N, dp_event.GaussianDpEvent(2.0))
    assert count == 4


def test_the_flip_of_the_privacy_notes_attains_the_diameter(releases):
    """All push to -lambda, one huge record flips the average to +lambda: 2 lambda, not lambda."""
    method = AveragedDescent(clip=0.5, batch_size=N, learning_rate=0.1, steps=1)
    x = np.ones((N, 1))
    for last in (1.0, -1e9):
        x[-1] = last
        solve(method, x, np.ones(N), multiplier=1.0, intercept=False)
    (receipt, one), (_, two) = releases
    assert np.linalg.norm(one - two) == pytest.approx(2 * 0.5, rel=1e-3)
    assert receipt.std == pytest.approx(2 * 0.5)


@pytest.mark.parametrize(
    "total", [np.zeros(3), np.full(3, np.nan), np.full(3, np.inf), np.full(3, 1e200)]
)
def test_into_ball_is_total(total):
    inside = into_ball(total.copy(), 10.0, 0.5)
    assert np.linalg.norm(inside) <= 0.5


# ---------------------------------------------------------------------------------- parameters


def test_theorem_parameters_are_used_and_overridden_one_by_one():
    x, y = table()
    task_of = {"bound": 2.0}
    problem = AclipProblem(0.25 * 4, 1.0, 2.0, N, 4, 1.0, 1e-5)
    for constrained, theorem in ((True, aclip_constrained), (False, aclip_unconstrained)):
        advice = theorem(problem)
        _, door = solve(AveragedDescent(constrained=constrained), x, y, multiplier=1.0, **task_of)
        ((event, count),) = door.ledger.history()
        assert count == advice.steps
        if advice.batch_size < N:
            assert event.sampling_probability == pytest.approx(advice.batch_size / N)
    _, door = solve(AveragedDescent(batch_size=6), x, y, multiplier=1.0, **task_of)
    assert door.ledger.history()[0][0].sampling_probability == pytest.approx(0.1)
    _, door = solve(AveragedDescent(steps=3), x, y, multiplier=1.0, **task_of)
    assert len(door.ledger) == 3
    solution, _ = solve(AveragedDescent(exponent=0.5), x, y, multiplier=1.0, **task_of)
    assert np.isfinite(solution.theta).all()


@pytest.mark.parametrize("method", [AveragedDescent(), Simple(), Iterative(groups=4), RobustGD()])
def test_theorems_without_a_public_bound_are_refused(method):
    with pytest.raises(ConfigurationError, match="feature_bound must be given"):
        solve(method, *table(), multiplier=5.0)


@pytest.mark.parametrize("method", PREPAID, ids=NAMES)
def test_parameters_by_hand_never_look(method):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        solve(method, *table(), multiplier=1.0)


def test_theorems_need_a_deviation_for_squared_losses():
    with pytest.raises(ConfigurationError, match="deviation must be given"):
        solve(AveragedDescent(), *table(), loss=Squared(), multiplier=1.0, bound=2.0)
    solve(AveragedDescent(deviation=1.0), *table(), loss=Squared(), multiplier=1.0, bound=2.0)


def test_restarts_from_theorem_6():
    _, door = solve(Restarted(runs=2), *table(), multiplier=50.0, alpha=10.0, bound=2.0)
    assert len(door.ledger) % 2 == 0
    with pytest.raises(ConfigurationError, match="alpha must be positive"):
        solve(Restarted(), *table(), multiplier=1.0, bound=2.0)
    with pytest.raises(ConfigurationError, match="alpha must be large"):
        solve(Restarted(), *table(), multiplier=1.0, alpha=1e-6, bound=2.0)
    with pytest.raises(ConfigurationError, match="given together"):
        solve(Restarted(clip=1.0), *table(), multiplier=1.0)


def test_restarts_compose_in_one_account():
    method = Restarted(runs=3, clip=0.5, batch_size=20, learning_rate=0.1, steps=2)
    _, door = solve(method, *table())
    ((_, count),) = door.ledger.history()
    assert count == 6


@pytest.mark.parametrize(
    "method",
    [
        FlatDescent(max_grad_norm=0.0),
        FlatDescent(batch_size=-1),
        FlatDescent(steps=0),
        FlatDescent(steps=2.5),
        FlatDescent(steps=2, epochs=1),
        FlatDescent(epochs=0),
        FlatDescent(learning_rate=float("nan")),
        FlatDescent(tail=0.0),
        AveragedDescent(clip=-1.0),
        Simple(clip=0.0),
        Simple(p=1.0, moment=1.0),
        Simple(steps=0),
        Iterative(groups=N + 1),
        Iterative(grouping="odd"),
        Iterative(combine="odd"),
        RobustGD(scale=-1.0),
        RobustGD(smoothing=0.0),
        Restarted(runs=0, clip=1.0, batch_size=5, learning_rate=1.0, steps=1),
        Ruled("no such rule"),
        Ruled("flat", options={"odd": 1}),
    ],
)
def test_bad_options_are_refused(method):
    with pytest.raises(ConfigurationError):
        solve(method, *table(), multiplier=1.0, bound=2.0)


def test_method_of():
    assert method_of("flat") == FlatDescent()
    assert method_of("automatic") == Ruled("automatic")
    assert method_of(FlatRule(1.0)) == Ruled(FlatRule(1.0))
    with pytest.raises(ConfigurationError, match="method must be"):
        method_of(3)


# --------------------------------------------------------------------------------- convergence


@pytest.mark.parametrize(
    "method",
    [
        FlatDescent(max_grad_norm=50.0, steps=400, learning_rate=2.0),
        AveragedDescent(clip=50.0, batch_size=500, learning_rate=0.5, steps=2000, radius=50.0),
        Restarted(runs=3, clip=50.0, batch_size=500, learning_rate=0.5, steps=700),
        Simple(clip=50.0, steps=3000, learning_rate=2.0),
        Iterative(clip=50.0, steps=300, learning_rate=2.0, groups=4, grouping="partition"),
        RobustGD(scale=100.0, steps=400, learning_rate=2.0),
    ],
    ids=["flat", "averaged", "restarted", "simple", "iterative", "robust_gd"],
)
def test_with_hardly_any_noise_every_method_finds_the_ridge_minimiser(method):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((500, 3))
    y = x @ [0.5, -1.0, 0.25] + 0.3 + 0.1 * rng.standard_normal(500)
    extended = np.c_[x, np.ones(500)]
    penalty = np.diag([0.1, 0.1, 0.1, 0.0]) * 500
    best = np.linalg.solve(extended.T @ extended + penalty, extended.T @ y)
    with_step = 1.0 if isinstance(method, Restarted | AveragedDescent) else 0.5
    method.set_params(learning_rate=method.learning_rate * with_step)
    solution, _ = solve(method, x, y, loss=Squared(), multiplier=1e-6, alpha=0.1)
    tolerance = 0.05 if isinstance(method, Simple | AveragedDescent | Restarted) else 0.02
    assert np.abs(solution.theta - best).max() < tolerance


def test_ruled_flat_equals_flat_without_noise():
    x, y = table()
    options = {"batch_size": 30, "steps": 20, "learning_rate": 1.0}
    fast, _ = solve(FlatDescent(max_grad_norm=0.5, **options), x, y, multiplier=1e-5)
    rule = Ruled("flat", {"max_grad_norm": 0.5}, **options)
    slow, door = solve(rule, x, y, multiplier=1e-5)
    assert np.allclose(fast.theta, slow.theta, atol=1e-4)
    assert door.guarantee(1e-5).sampler.startswith("BlockPoisson")


@pytest.mark.parametrize("name", ["automatic", "psac", "quantile", "per_layer", "linf"])
def test_other_rules_run_and_are_accounted_for(name):
    from winsor import rules

    rule = next(
        e for e in rules.all_examples() if type(e).__name__.lower() == name.replace("_", "")
    )
    solution, door = solve(Ruled(rule, steps=5, batch_size=30), *table())
    assert solution.steps == len(door.ledger) == 5
    assert 0.9 < door.guarantee(1e-5).epsilon <= 1.0


# ------------------------------------------------------------------------------------- descent


def test_descend_follows_its_schedule():
    steps: list[np.ndarray] = []

    def gradient(theta):
        steps.append(theta.copy())
        return np.ones(2)

    start = np.zeros(2)
    last = descend(start, gradient, Schedule(4, 1.0, tail=0.25), intercept=True)
    assert last.tolist() == [-4.0, -4.0]
    assert start.tolist() == [0.0, 0.0]
    before = descend(start, gradient, Schedule(4, 1.0, before=True), intercept=True)
    assert before.tolist() == [-1.5, -1.5]
    decayed = descend(start, gradient, Schedule(4, 1.0, tail=0.25, decay=True), intercept=True)
    assert decayed.tolist() == [-2.5, -2.5]
    shrunk = descend(start, gradient, Schedule(1, 1.0, alpha=1.0), intercept=True)
    assert shrunk.tolist() == [-0.5, -1.0]
    inside = descend(start, gradient, Schedule(9, 1.0, radius=0.5), intercept=False)
    assert np.linalg.norm(inside) == pytest.approx(0.5)


def test_steps_that_are_too_long_are_halved_until_they_settle():
    """On z^2/2 a step of 3 diverges; the swings are seen in the gradients themselves."""
    reckless = descend(np.ones(1), lambda theta: theta.copy(), Schedule(30, 3.0, tail=0.1), False)
    careful = Schedule(30, 3.0, tail=0.1, noise=1e-6)
    assert abs(reckless[0]) > 1e6
    assert abs(descend(np.ones(1), lambda theta: theta.copy(), careful, False)[0]) < 1e-3


def test_swings_within_the_noise_are_left_alone():
    rng = np.random.default_rng(0)
    noise = [rng.standard_normal(3) for _ in range(200)]
    gradients = iter(noise)
    schedule = Schedule(200, 1.0, tail=1e-9, noise=3**0.5)
    end = descend(np.zeros(3), lambda theta: next(gradients), schedule, False)
    assert np.allclose(end, -np.sum(noise, axis=0))


def test_flat_with_default_steps_survives_features_far_from_zero():
    """One-hot features coded -1/+1 make the curvature forty times what the step size expects."""
    rng = np.random.default_rng(0)
    x = np.where(rng.random((4000, 40)) < 0.05, 1.0, -1.0)
    y = 0.3 * x[:, 0] + 0.1 * rng.standard_normal(4000)
    errors = []
    for cautious in (True, False):
        solution, _ = solve(FlatDescent(cautious=cautious), x, y, loss=Squared())
        errors.append(np.mean((y - np.c_[x, np.ones(4000)] @ solution.theta) ** 2))
    assert errors[0] < np.var(y) < errors[1]
