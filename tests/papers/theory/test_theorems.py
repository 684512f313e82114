"""The papers' formulas: printed numbers, units, and the conditions in the proofs behind them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from winsor_papers import theory as th

from winsor.core.contract import ConfigurationError

SCALES = st.floats(1e-3, 1e3)
DELTAS = st.floats(1e-8, 0.2)


# ------------------------------------------------------------------------------------- paper 1


def test_freedman_constant_matches_lemma_a3_at_three_indices():
    assert th.freedman_constant(0.5) == 2
    assert th.freedman_constant(1.0) == pytest.approx(16 * math.e**2)
    assert th.freedman_constant(2.0) == pytest.approx(34 * 24 + 64 * 720 / 3)


def test_theorem_4_1_at_a_worked_point():
    # T = e^4 so log sqrt(T) = 2; delta = 2/e so log(2/delta) = 1
    delta = 2 / math.e
    assert th.heavy_tailed_dpsgd_threshold(1.0, 3.0, math.e**4, delta) == pytest.approx(39 * 3)
    assert th.heavy_tailed_dpsgd_threshold(4.0, 3.0, math.e**4, delta) == pytest.approx(4 * 3 * 16)
    appendix = th.heavy_tailed_dpsgd_threshold(1.0, 3.0, math.e**4, delta, appendix=True)
    assert appendix == pytest.approx(20 * 3)
    assert th.heavy_tailed_dpsgd_threshold(0.5, 3.0, 1.0, delta, appendix=True) == pytest.approx(
        39 * 3
    )


def test_theorem_5_3_at_a_worked_point():
    tail, body = th.dc_dpsgd_thresholds(2.0, 1.0, math.e**4, 2 / math.e)
    assert tail == pytest.approx(16 * 33)  # 33 log^2(e) beats 2 * 2^2
    assert body == pytest.approx(33 * math.sqrt(2 * 16176))
    tail, _ = th.dc_dpsgd_thresholds(2.0, 1.0, math.e**4, 2 / math.e, appendix=True)
    assert tail == pytest.approx(16 * 2 * 4)  # Theorem E.1: 17 against 4^theta 2 log^theta


def test_body_above_tail_exactly_where_the_docstring_says():
    def reversed_order(theta: float) -> bool:
        tail, body = th.dc_dpsgd_thresholds(theta, 1.0, 5000, 1e-5)
        return body > tail

    assert [theta for theta in (0.6, 0.8, 1.0, 1.05, 2.0, 3.0) if reversed_order(theta)] == [
        0.6,
        0.8,
        1.0,
    ]
    assert th.dc_dpsgd_thresholds(0.5, 1.0, 5000, 1e-5).tail == pytest.approx(
        th.dc_dpsgd_thresholds(0.5, 1.0, 5000, 1e-5).body
    )


@given(theta=st.floats(0.5, 4), scale=SCALES, delta=DELTAS)
def test_thresholds_are_proportional_to_k_and_grow_with_theta(theta, scale, delta):
    unit = th.dc_dpsgd_thresholds(theta, 1.0, 1000, delta)
    scaled = th.dc_dpsgd_thresholds(theta, scale, 1000, delta)
    assert scaled.tail == pytest.approx(scale * unit.tail)
    assert scaled.body == pytest.approx(scale * unit.body)
    flat = [th.heavy_tailed_dpsgd_threshold(t, 1.0, 1000, delta) for t in (theta, theta + 0.5)]
    assert flat[1] > flat[0]


def test_section_6_3_ratio_is_eleven_only_with_base_ten():
    assert th.dc_dpsgd_ratio(2.0, 1e-5) == pytest.approx(39.06, abs=0.01)
    assert math.log10(1e5) ** 1.5 == pytest.approx(math.sqrt(125))


def test_lighter_than_sub_gaussian_is_refused_with_the_remedy():
    with pytest.raises(ConfigurationError, match=r"theta = 0\.5"):
        th.dc_dpsgd_thresholds(0.3, 1.0, 100, 0.01)


# ------------------------------------------------------------------------------------- paper 2


def test_radius_16_and_schedule_of_theorem_4():
    n, d, rho, p = 1e4, 4.0, 0.01, 2.0
    # n sqrt(rho)/sqrt(d) = 500, n/d = 2500: the noise term decides
    assert th.simple_clipping_radius(p, 1.0, n, d, rho) == pytest.approx(2 * math.sqrt(500))
    found = th.simple_clipping(p, 1.0, n, d, rho, smoothness=3.0)
    assert found.steps == pytest.approx(rho * n**2 / (d * found.radius**2))
    assert found.step_size == pytest.approx(1 / math.sqrt(2 * found.steps * 9))


@given(p=st.floats(2, 8), moment=SCALES, rho=st.floats(1e-4, 1))
def test_rescaling_the_gradients_rescales_the_radius_only(p, moment, rho):
    unit = th.simple_clipping(p, 1.0, 1e5, 20, rho)
    scaled = th.simple_clipping(p, moment, 1e5, 20, rho)
    assert scaled.radius == pytest.approx(moment * unit.radius)
    assert scaled.steps == pytest.approx(unit.steps)


@given(p=st.floats(2, 6), rho=st.floats(1e-3, 0.5), d=st.floats(1, 100))
def test_the_radius_balances_bias_and_noise_up_to_a_constant(p, rho, d):
    n = 1e6
    radius = th.simple_clipping_radius(p, 1.0, n, d, rho)
    terms = {"p": p, "moment": 1.0, "n": n, "d": d, "rho": rho, "beta": 0.05}
    best = min(
        th.simple_clipping_error(radius * factor, **terms).total
        for factor in [10 ** (e / 10) for e in range(-20, 21)]
    )
    assert th.simple_clipping_error(radius, **terms).total < 12 * best


def test_error_bound_11_term_by_term():
    error = th.simple_clipping_error(10.0, p=3.0, moment=2.0, n=1000.0, d=4.0, rho=0.25, beta=0.1)
    log = math.log(2 * 6**4 / 0.1)
    assert error.sampling == pytest.approx(max(math.sqrt(0.048 * log), 0.08 * log))
    assert error.bias == pytest.approx(8 * 8 / 2 / 100)
    assert error.noise == pytest.approx(4 * 10 / (1000 * 0.5) * math.sqrt(log))


def test_budget_12_is_weaker_than_the_exact_conversion():
    assert th.zcdp_budget(1.0, 1e-5) == pytest.approx((1 / (1 + 2 * math.sqrt(math.log(1e5)))) ** 2)
    exact = th.zcdp_budget_exact(1.0, 1e-5)
    assert exact + 2 * math.sqrt(exact * math.log(1e5)) == pytest.approx(1.0)
    assert exact > th.zcdp_budget(1.0, 1e-5)
    with pytest.raises(ConfigurationError, match="zcdp_budget_exact"):
        th.zcdp_budget(2.0, 1e-5)


def test_iterative_method_of_theorem_7_and_lemmas_6_and_8():
    found = th.iterative_updating(2.0, 1.0, 1e4, 4.0, 1.0)
    assert found.radius == pytest.approx(2 * math.sqrt(5000))
    assert found.steps == pytest.approx(1e8 / (4 * found.radius**2))
    assert th.iterative_groups(1 / math.e) == 800
    assert th.iterative_inner_steps(3.9, 1.0) == 1
    steps = th.iterative_inner_steps(4000.0, 1.0)
    assert (233 / 256) ** (steps / 2) * 1000 <= 1 < (233 / 256) ** ((steps - 1) / 2) * 1000


def test_fewer_than_two_moments_are_refused():
    with pytest.raises(ConfigurationError, match="at least 2"):
        th.simple_clipping_radius(1.5, 1.0, 100, 2, 0.1)


# ------------------------------------------------------------------------------------- paper 3


@given(scale=SCALES)
def test_no_clipping_threshold_is_a_gradient_norm(scale):
    """f -> s f (L, gap and rho in units of s): C scales by s, so both unit slips are repaired."""

    def threshold(s: float) -> float:
        return th.no_clipping_threshold(
            smoothness=s, gap=2 * s, noise=3 * s, n=1e4, steps=1e3, failure=0.01
        )

    assert threshold(scale) == pytest.approx(scale * threshold(1.0))


def test_no_clipping_threshold_has_the_shape_of_eq_2():
    """C^2 grows linearly in log(nT/delta') for large nT/delta'."""
    values = [
        th.no_clipping_threshold(
            smoothness=1e-6, gap=1e-6, noise=1.0, n=1e6, steps=1e6, failure=10.0**-e
        )
        ** 2
        for e in (10, 20, 30)
    ]
    assert values[2] - values[1] == pytest.approx(values[1] - values[0], rel=1e-3)


def test_no_clipping_step_size_takes_the_smaller_branch():
    arguments = {"noise": 1.0, "threshold": 1.0, "d": 1e4, "batch_size": 100.0, "steps": 100.0}
    small = th.no_clipping_step_size(smoothness=1.0, noise_multiplier=1.0, **arguments)
    assert small == pytest.approx(1 / math.sqrt((0.01 + 1.0) * 100))
    assert th.no_clipping_step_size(
        smoothness=1e3, noise_multiplier=1.0, **arguments
    ) == pytest.approx(5e-4)


# ------------------------------------------------------------------------------------- paper 4

PROBLEM = th.AclipProblem(
    smoothness=2.0, radius=3.0, deviation=5.0, n=1e6, d=50.0, epsilon=1.0, delta=1e-6, beta=0.1
)


def test_theorem_3_is_theorem_1_with_lambda_2lr():
    found = th.aclip_constrained(PROBLEM, steps=40)
    assert found.clip == 12
    # batch size of Theorem 1, written with lambda
    assert found.batch_size == pytest.approx(162 * 40**2 * 25 / (12**2 * math.log(40) ** 2))
    assert found.step_size == pytest.approx(1 / (4 * math.log(40)))
    assert 1 - found.step_size * PROBLEM.smoothness >= 0.5  # used before (A3)


def test_theorem_3_steps_balance_the_two_terms_of_the_risk():
    steps = th.aclip_steps(PROBLEM)
    noise = math.sqrt(50 * math.log(1e6)) / 1e6

    def first(n: float) -> float:
        return 2 * 9 * math.log(40) / n

    def second(n: float) -> float:
        return n**2.5 * 25 * noise / 2

    assert first(steps) <= second(steps)
    assert first(steps - 1) > second(steps - 1)


def test_theorem_4_satisfies_the_condition_before_a8():
    """lambda^2/4 - L R lambda - D >= 0, and lambda/2 dominates the gradient along the way."""
    steps = 30
    found = th.aclip_unconstrained(PROBLEM, steps)
    log = math.log(4 * steps / PROBLEM.beta)
    root = math.sqrt(
        PROBLEM.d * steps * math.log(4 * steps**2 / PROBLEM.beta) * math.log(1 / PROBLEM.delta)
    )
    noise = found.clip * found.batch_size * math.sqrt(steps * math.log(1 / PROBLEM.delta))
    noise /= PROBLEM.n * PROBLEM.epsilon  # sigma-hat of (9) with c = 1
    assert found.batch_size > 1
    spread = 648 * found.step_size * 2 * steps**3 * 25 * root / (PROBLEM.n * log**2)
    assert found.clip**2 / 4 - 6 * found.clip - spread >= 0
    # the noise term of (8), which D was defined to bound
    accumulated = steps * noise * math.sqrt(16 * PROBLEM.d * math.log(4 * steps**2 / PROBLEM.beta))
    assert accumulated == pytest.approx(spread / (2 * found.clip * found.step_size))


def test_theorem_6_schedule_meets_its_conditions():
    schedule = th.aclip_restarts(PROBLEM, strong_convexity=0.5)
    assert schedule.steps / math.log(4 * schedule.steps / 0.1) >= 768 * 4 * (1 - 1e-9)
    fewer = schedule.steps - 2
    assert fewer / math.log(4 * fewer / 0.1) < 768 * 4
    assert schedule.runs == 20 and len(schedule.clips) == 20
    assert 2.0**-schedule.runs <= 1 / PROBLEM.n
    assert list(schedule.clips) == sorted(schedule.clips, reverse=True)
    tau = schedule.runs
    composed = math.sqrt(2 * tau * math.log(2 / 1e-6)) * schedule.epsilon_per_run
    composed += tau * schedule.epsilon_per_run * math.expm1(schedule.epsilon_per_run)
    assert composed <= 1.0
    with pytest.raises(ConfigurationError, match="at most L"):
        th.aclip_restarts(PROBLEM, strong_convexity=3.0)


@pytest.mark.parametrize("nu", [0.0, 0.5, 1.0])
def test_theorem_7_keeps_the_iterates_in_the_ball(nu):
    """The terms of (A18) with the returned gamma, m and lambda stay below C^2 R^2."""
    problem = PROBLEM._replace(deviation=60.0)
    steps, alpha, log = 200, 0.1, math.log(80)
    found = th.aclip_holder(problem, nu, accuracy=alpha, steps=steps)
    lam, gamma, radius = found.clip, found.step_size, problem.radius
    assert lam == pytest.approx(4 * (7 * radius) ** nu)
    assert found.batch_size == pytest.approx(max(1.0, 27 * steps * 3600 / (lam**2 * log)))
    root = math.sqrt(50 * math.log(8 * steps / 0.1) * math.log(1e6))
    spread = 108 * steps**1.5 * 3600 * root / (1e6 * log)
    total = 2 * radius**2
    total += 64 * gamma**2 * lam**2 * log + 16 / 3 * gamma**2 * lam**2 * log
    total += 128 / (729 * steps) * gamma**2 * lam**2 * log**2
    total += 4 * gamma * lam * 7 * radius * log + 8 / 27 * gamma * lam * 7 * radius * log
    total += 2 * gamma * 7 * radius * spread * steps / lam
    total += 2 * (gamma * spread) ** 2 * steps / lam**2
    total += radius**2  # sqrt(2N) instead of 2 sqrt(N): one more R^2 than (A16) counts
    assert total <= 49 * radius**2


def test_lemma_1_bias_falls_with_the_batch():
    assert th.aclip_bias(2.0, 10.0, 3.0) == pytest.approx(2 * 9 / 20)


# ------------------------------------------------------------------------------------- paper 5

BUDGET = {"n": 1e6, "epsilon": 2.0, "d": 100.0, "delta": 1e-5}


@given(kappa=SCALES, n=st.floats(1e3, 1e9))
def test_sampling_noise_threshold_is_the_smallest_that_the_proof_accepts(kappa, n):
    budget = {**BUDGET, "n": n}
    c = th.sampling_noise_threshold(kappa, **budget)
    unit = math.sqrt(100 * math.log(1e5)) / (n * 2)

    def accepted(value: float) -> bool:
        left = value / (2 * kappa) - math.log((value / 4 + kappa) ** 2 / value)
        enough = value >= 4 * kappa * math.log(10) * (1 - 1e-12)
        return enough and left >= 0.4 - math.log(unit) - 1e-9

    assert accepted(c) and not accepted(0.999 * c)
    # what the condition is for: a_2 of Lemma B.1 is no larger than c times the unit
    decay = math.exp(-c / (4 * kappa))
    assert ((c / 4 + kappa) * decay / (1 - decay)) ** 2 <= c * unit


def test_schedule_and_mixing_width_balance_the_bound_13():
    q, risk, beta = 0.02, 3.0, 4.0
    extra = {"sampling_rate": q, "risk_range": risk, "smoothness": beta}
    schedule = th.clipped_sgd_schedule(5.0, **BUDGET, **extra)
    log = math.log(1e5)
    assert schedule.steps == pytest.approx(4e12 / (100 * log))
    plain = th.clipped_sgd_schedule(5.0, **BUDGET, **extra, mixing=False)
    assert plain.step_size / schedule.step_size == pytest.approx(math.sqrt(101 / 12))
    tau = th.mixing_width(**BUDGET, **extra)
    first = 2.5 * 5.0 * math.sqrt(risk * 101 / 12 * beta * 100 * log) / 2e6
    last = 5.0 * 100 * log * math.sqrt(101 / 12) * beta**1.5 / (q * 2e6 * math.sqrt(risk))
    assert last * schedule.steps * 100 * tau**2 / 12 == pytest.approx(first)


# ---------------------------------------------------------------------------------- validation


@pytest.mark.parametrize(
    "call",
    [
        lambda: th.sub_weibull_bound(1.0, -1.0, 0.1),
        lambda: th.dc_dpsgd_steps(0, 1.0, 10, 1e-5),
        lambda: th.zcdp_budget_exact(1.0, 1.0),
        lambda: th.aclip_steps(PROBLEM._replace(deviation=math.nan)),
        lambda: th.sampling_noise_threshold(math.inf, **BUDGET),
        lambda: th.aclip_holder(PROBLEM, 1.5, accuracy=0.1),
    ],
)
def test_nonsense_is_refused(call):
    with pytest.raises(ConfigurationError, match="must"):
        call()
