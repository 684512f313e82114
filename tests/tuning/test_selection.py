"""Private selection: never below the exact divergence, the reference numbers, composition, K."""

from __future__ import annotations

import decimal
import itertools
import json
import math
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from dp_accounting.dp_event import (
    ComposedDpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    RepeatAndSelectDpEvent,
    SelfComposedDpEvent,
)
from dp_accounting.rdp import RdpAccountant
from dp_accounting.rdp.rdp_privacy_accountant import compute_delta
from scipy import stats

import winsor
from winsor.core.accounting import (
    account,
    account_delta,
    certify,
    certify_delta,
    delta_curve,
    event_from_json,
    event_to_json,
    rdp,
)
from winsor.core.accounting.dominating import dominating_pair
from winsor.core.contract import ConfigurationError, Neighbouring
from winsor.core.events.alternatives import AlternativesDpEvent
from winsor.core.ledger import Ledger
from winsor.core.ledger.guarantee import guarantee
from winsor.core.randomness import new_key
from winsor.tuning import trial_counts
from winsor.tuning.selection import (
    SelectionDpEvent,
    SelectionProfileDpEvent,
    certified_deltas,
    epsilon_alone,
    epsilon_by_renyi,
    epsilon_directly,
)
from winsor.tuning.trial_counts import (
    PoissonTrials,
    TruncatedNegativeBinomial,
    draw,
    log_ratio,
    quantile,
    renyi_deltas,
    selected_divergences,
    smallest_log_ratio,
)

ADD, REPLACE = Neighbouring.ADD_OR_REMOVE_ONE, Neighbouring.REPLACE_ONE
DELTA = 1e-5
LAWS = [
    TruncatedNegativeBinomial.of_mean(10),
    TruncatedNegativeBinomial.of_mean(10, eta=1.0),
    TruncatedNegativeBinomial.of_mean(5, eta=-0.5),
    TruncatedNegativeBinomial.of_mean(30, eta=2.5),
]


def reference_trial(multiplier=2.6207):
    """A trial of epsilon 2.368 at delta 1e-5."""
    return [(PoissonSampledDpEvent(0.1, GaussianDpEvent(multiplier)), 200)]


# ---------------------------------------------------------------------------- finite mechanisms


def hockey_stick(p, q, epsilons):
    """H_{e^eps}(p || q) for each eps, exactly."""
    return np.maximum(p - np.exp(epsilons)[:, None] * q, 0.0).sum(axis=1)


def both_ways(p, q, epsilons):
    return np.maximum(hockey_stick(p, q, epsilons), hockey_stick(q, p, epsilons))


def best_of_k(law, p):
    """The law of the best (last in order) of K draws; K = 0 gives an outcome of its own.

    phi(F_i) - phi(F_(i-1)), in a form that keeps small probabilities accurate to themselves.
    """
    above = np.append(np.cumsum(p[::-1])[::-1][1:], 0.0)
    if isinstance(law, PoissonTrials):
        return np.append(np.exp(-law.mean * above) * -np.expm1(-law.mean * p), math.exp(-law.mean))
    u = law.gamma + (1 - law.gamma) * above
    logs = np.log1p((1 - law.gamma) * p / u)
    if law.eta == 0:
        return logs / -math.log(law.gamma)
    scale = math.expm1(-law.eta * math.log(law.gamma))
    return u**-law.eta * -np.expm1(-law.eta * logs) / scale


@pytest.mark.parametrize("law", [*LAWS, PoissonTrials(7.0)], ids=str)
def test_the_exact_law_of_the_best_is_that_of_the_generating_function(law):
    p = np.array([0.1, 0.4, 0.3, 0.2])
    reached = [law.generating(z) for z in (0.0, 0.1, 0.5, 0.8, 1.0)]
    best = best_of_k(law, p)
    assert best[:4] == pytest.approx(np.diff(reached), abs=1e-13)
    assert best.sum() == pytest.approx(1, abs=1e-12)


def random_pair(rng):
    """Two laws on a few ordered outcomes: close, far, or with outcomes that only one of them has.

    Half of the time the laws are tilted along the order: that is where selection is worst.
    """
    size = int(rng.integers(2, 9))
    p = rng.dirichlet(np.full(size, rng.choice([0.3, 1.0, 5.0])))
    if rng.random() < 0.5:
        q = p * np.exp(rng.normal(0, 1) * np.linspace(-1, 1, size))
    else:
        q = p * np.exp(rng.normal(0, rng.choice([0.1, 0.5, 2.0]), size))
    if rng.random() < 0.3:
        q[rng.integers(size)] *= rng.choice([0.0, 1e-4])
    return p, q / q.sum()


def random_law(rng):
    mean = float(np.exp(rng.uniform(0.05, 5)))
    eta = float(rng.choice([-0.7, -0.3, 0.0, 0.0, 1.0, 3.0]))
    return TruncatedNegativeBinomial.of_mean(mean, eta)


def test_the_bound_is_never_below_the_exact_divergence_of_finite_mechanisms():
    rng = np.random.default_rng(20)
    nodes, tightest = np.linspace(0, 8, 400), math.inf
    for _ in range(1000):
        law, (p, q) = random_law(rng), random_pair(rng)
        best, other = best_of_k(law, p), best_of_k(law, q)
        coarse = smallest_log_ratio(law, lambda at, p=p, q=q: both_ways(p, q, at), 8.0)
        for shift in (coarse, log_ratio(law, nodes, both_ways(p, q, nodes))):
            epsilons = np.linspace(shift, shift + 4, 30)
            bound = law.mean * both_ways(p, q, epsilons - shift)
            exact = both_ways(best, other, epsilons)
            assert np.all(bound >= exact * (1 - 1e-9) - 1e-15)
        assert coarse <= shift + (8 / 64 + 1e-9) * (1 + law.eta)  # a step of its grid
        positive = exact > 1e-9
        if positive.any():
            tightest = min(tightest, float(np.min(bound[positive] / exact[positive])))
    assert tightest < 3  # and not so far above that the comparison says nothing


def test_the_dominating_pair_is_never_below_either():
    rng = np.random.default_rng(21)
    nodes = np.linspace(0, 8, 400)
    for _ in range(300):
        law, (p, q) = random_law(rng), random_pair(rng)
        deltas = both_ways(p, q, nodes)
        shift = log_ratio(law, nodes, deltas)
        pair = dominating_pair(
            np.concatenate([[0.0], nodes + shift]), np.concatenate([[1.0], law.mean * deltas])
        )
        best, other = best_of_k(law, p), best_of_k(law, q)
        epsilons = np.linspace(0, shift + 8, 60)
        bound = np.array([pair.delta(e) for e in epsilons])
        assert np.all(bound >= both_ways(best, other, epsilons) * (1 - 1e-9) - 1e-14)
        # Two selections in a row: the pair must dominate them as a pair of laws too.
        together = both_ways(np.outer(best, best).ravel(), np.outer(other, other).ravel(), epsilons)
        assert np.all(twice(pair, epsilons) >= together * (1 - 1e-9) - 1e-13)


def twice(pair, epsilons):
    """The profile of the pair's two-fold composition."""
    ratios = np.concatenate([-pair.losses, pair.losses])
    masses = np.concatenate([pair.probabilities * np.exp(-pair.losses), pair.probabilities])
    rest = max(0.0, 1 - pair.infinite - masses.sum())
    ratios, masses = np.append(ratios, 0.0), np.append(masses, rest)
    sums = np.add.outer(ratios, ratios).ravel()
    weights = np.outer(masses, masses).ravel()
    infinite = 1 - (1 - pair.infinite) ** 2
    return np.array(
        [infinite + weights[sums > e] @ -np.expm1(e - sums[sums > e]) for e in epsilons]
    )


@pytest.mark.parametrize("poisson", [False, True])
def test_the_renyi_bound_is_never_below_the_exact_divergence_of_finite_mechanisms(poisson):
    rng = np.random.default_rng(22)
    orders = rdp.ORDERS
    for _ in range(200):
        p, q = random_pair(rng)
        if min(q) == 0:
            continue
        law = PoissonTrials(float(np.exp(rng.uniform(0, 4)))) if poisson else random_law(rng)
        with np.errstate(over="ignore"):
            one = np.maximum(renyi(p, q, orders), renyi(q, p, orders))
        several = selected_divergences(
            law, orders, one, lambda e, p=p, q=q: float(both_ways(p, q, np.array([e]))[0])
        )
        epsilons = np.linspace(0, 6, 20)
        bound = np.array([compute_delta(orders, several, e)[0] for e in epsilons])
        exact = both_ways(best_of_k(law, p), best_of_k(law, q), epsilons)
        assert np.all(bound >= exact * (1 - 1e-9) - 1e-12)


def renyi(p, q, orders):
    logs = orders[:, None] * np.log(p) + (1 - orders[:, None]) * np.log(q)
    return np.logaddexp.reduce(logs, axis=1) / (orders - 1)


@pytest.mark.parametrize("law", [*LAWS, PoissonTrials(7.0)], ids=str)
@pytest.mark.parametrize("shift", [0.05, 0.5, 2.0])
def test_the_account_is_never_below_the_exact_selection_of_gaussian_trials(law, shift):
    """Trials N(0, 1) and N(shift, 1), the largest (or smallest) of K: integrated numerically."""
    event = SelectionDpEvent(GaussianDpEvent(1 / shift), law)
    y = np.linspace(-9, 9 + shift, 400_001)
    epsilons = np.linspace(0, 8 * shift, 9)
    bounds = np.array([account_delta([(event, 1)], float(e)).delta for e in epsilons])
    for above in (stats.norm.sf, stats.norm.cdf):  # how the order counts
        worlds = []
        for centre in (0.0, shift):
            slopes = slope_of_generating(law, above(y - centre))
            worlds.append(stats.norm.pdf(y - centre) * slopes * (y[1] - y[0]))
        exact = both_ways(*worlds, epsilons)
        assert np.all(bounds >= exact * (1 - 1e-3) - 1e-9)
        assert bounds[0] < 1 or exact[0] > 0.05


def slope_of_generating(law, above):
    """phi'(1 - above)."""
    if isinstance(law, PoissonTrials):
        return law.mean * np.exp(-law.mean * above)
    return law.mean * (1 + above * (1 - law.gamma) / law.gamma) ** -(law.eta + 1)


def test_no_shift_smaller_than_log_r_would_do_in_general():
    """The direct bound is attained to a factor: a mechanism whose best outcome is rare."""
    law = TruncatedNegativeBinomial.of_mean(100)
    p, q = np.array([1 - 2e-3, 2e-3]), np.array([1 - 1e-3, 1e-3])
    best, other = best_of_k(law, p), best_of_k(law, q)
    alone = math.log(p[1] / q[1])
    assert math.log(best[0] / other[0]) < 0 < alone
    assert math.log(best[1] / other[1]) == pytest.approx(alone, rel=0.4)


# -------------------------------------------------------------------------------- the reference


@pytest.mark.parametrize(
    ("mean", "most", "renyi_says", "composed_says"),
    [(10, 3.86, 4.28, 8.69), (100, 4.71, 5.11, 38.6)],
)
def test_the_reference_numbers(mean, most, renyi_says, composed_says):
    trial = reference_trial()
    assert account(trial, DELTA).epsilon == pytest.approx(2.368, abs=2e-3)
    event = SelectionDpEvent.of_history(trial, TruncatedNegativeBinomial.of_mean(mean))
    direct = epsilon_directly(event, DELTA, ADD)
    assert most - 0.03 < direct <= most
    spent = account([(event, 1)], DELTA)
    assert direct * (1 - 1e-3) <= spent.epsilon <= most
    assert spent.accountant == "pld"
    assert epsilon_by_renyi(event, DELTA, ADD) == pytest.approx(renyi_says, abs=0.01)
    composed = account([(step, count * mean) for step, count in trial], DELTA).epsilon
    assert composed == pytest.approx(composed_says, rel=5e-3)


@pytest.mark.parametrize("law", LAWS, ids=str)
@pytest.mark.parametrize("relation", [ADD, REPLACE])
def test_account_agrees_with_the_direct_bound_at_every_delta(law, relation):
    event = SelectionDpEvent.of_history(reference_trial(4.0), law)
    for delta in (1e-3, 1e-6, 1e-9):
        direct = epsilon_directly(event, delta, relation)
        smaller = min(direct, epsilon_by_renyi(event, delta, relation))
        spent = account([(event, 1)], delta, relation).epsilon
        assert smaller * (1 - 5e-3) <= spent <= smaller * (1 + 2e-3)
        assert account_delta([(event, 1)], spent, relation).delta <= delta * 1.02


def test_the_renyi_bound_is_that_of_dp_accounting():
    trial = reference_trial()
    for law, shape in ((LAWS[0], 0.0), (LAWS[1], 1.0), (PoissonTrials(10.0), math.inf)):
        mine = epsilon_by_renyi(SelectionDpEvent.of_history(trial, law), DELTA, ADD)
        library = RdpAccountant(rdp.ORDERS)
        inner = ComposedDpEvent([SelfComposedDpEvent(*step) for step in trial])
        library.compose(RepeatAndSelectDpEvent(inner, law.mean, shape))
        theirs = library.get_epsilon(DELTA)
        if shape == math.inf:  # there the exact delta of a trial replaces the library's Renyi one
            assert mine < theirs
        else:
            assert mine == pytest.approx(theirs, rel=1e-6)


def test_selection_costs_more_than_one_trial_and_less_than_composition():
    trial = reference_trial()
    one, ten = account(trial, DELTA).epsilon, account([(trial[0][0], 2000)], DELTA).epsilon
    found = [
        account([(SelectionDpEvent.of_history(trial, law), 1)], DELTA).epsilon for law in LAWS[:2]
    ]
    assert one < found[0] < found[1] < ten
    longer = TruncatedNegativeBinomial.of_mean(20)
    assert found[0] < account([(SelectionDpEvent.of_history(trial, longer), 1)], DELTA).epsilon


@pytest.mark.parametrize("law", [*LAWS, PoissonTrials(7.0)], ids=str)
@pytest.mark.parametrize("relation", [ADD, REPLACE])
def test_alone_it_is_the_smaller_bound_and_near_the_pair_that_composes(law, relation):
    trial = [*reference_trial(4.0), (GaussianDpEvent(30.0), 1)]
    event = SelectionDpEvent.of_history(trial, law)
    alone, name = epsilon_alone(event, DELTA, relation)
    by_renyi, directly = (f(event, DELTA, relation) for f in (epsilon_by_renyi, epsilon_directly))
    assert alone == min(by_renyi, directly)
    assert name == ("pld" if directly <= by_renyi else "rdp")
    composing = account([(SelectionProfileDpEvent(event), 1)], DELTA, relation).epsilon
    assert alone == pytest.approx(composing, rel=5e-3)


def test_a_trial_without_a_loss_distribution_of_its_own_is_accounted_for_too():
    either = AlternativesDpEvent((GaussianDpEvent(4.0), GaussianDpEvent(5.0)))
    law = LAWS[0]
    found = [
        account([(SelectionDpEvent(event, law), 1)], DELTA).epsilon
        for event in (GaussianDpEvent(4.0), either)
    ]
    assert found[0] * (1 - 1e-6) <= found[1] <= found[0] * 1.01


# ---------------------------------------------------------------------------------- composition


def test_a_selection_composes_with_other_events():
    law = LAWS[0]
    selection = SelectionDpEvent(GaussianDpEvent(4.0), law)
    other = GaussianDpEvent(5.0)
    alone = account([(selection, 1)], DELTA).epsilon
    both = account([(selection, 1), (other, 1)], DELTA).epsilon
    apart = min(
        account([(selection, 1)], DELTA * s).epsilon
        + account([(other, 1)], DELTA * (1 - s)).epsilon
        for s in np.linspace(0.05, 0.95, 19)
    )
    by_renyi = rdp.epsilon([(selection, 1), (other, 1)], DELTA, ADD)
    assert alone < both <= min(apart, by_renyi)
    order = account([(other, 1), (selection, 1)], DELTA).epsilon
    assert order == pytest.approx(both, rel=1e-9)
    assert account([(selection, 2)], DELTA).epsilon < 2 * alone


def test_many_selections_compose():
    small = SelectionDpEvent(GaussianDpEvent(50.0), LAWS[0])
    spent = [account([(small, count)], DELTA).epsilon for count in (1, 4, 16)]
    assert spent[0] < spent[1] < spent[2] < 16 * spent[0]


def test_a_selection_may_hold_a_selection():
    inner = SelectionDpEvent(GaussianDpEvent(20.0), TruncatedNegativeBinomial.of_mean(3))
    outer = SelectionDpEvent(inner, TruncatedNegativeBinomial.of_mean(3))
    assert account([(inner, 1)], DELTA).epsilon < account([(outer, 1)], DELTA).epsilon < 2


@pytest.mark.parametrize("relation", [ADD, REPLACE])
def test_a_trial_that_is_one_of_several_events(relation):
    few = SelfComposedDpEvent(PoissonSampledDpEvent(0.1, GaussianDpEvent(2.0)), 50)
    many = SelfComposedDpEvent(PoissonSampledDpEvent(0.01, GaussianDpEvent(0.8)), 500)
    law = TruncatedNegativeBinomial.of_mean(5)
    *each, either = [
        account([(SelectionDpEvent(event, law), 1)], DELTA, relation).epsilon
        for event in (few, many, AlternativesDpEvent((few, many)))
    ]
    assert max(each) * (1 - 2e-3) <= either <= max(each) * 1.1


@pytest.mark.parametrize("of", [lambda event: event, SelectionProfileDpEvent])
def test_more_noise_costs_less_and_more_selections_cost_more(of):
    def epsilon(noise: float, count: int) -> float:
        event = of(SelectionDpEvent(GaussianDpEvent(noise), TruncatedNegativeBinomial.of_mean(5)))
        assert event_from_json(json.loads(json.dumps(event_to_json(event)))) == event
        return account([(event, count)], 1e-6).epsilon

    assert math.inf > epsilon(2.0, 2) > epsilon(4.0, 2) > epsilon(8.0, 2) > 0
    assert 0 < epsilon(4.0, 1) < epsilon(4.0, 2) < epsilon(4.0, 4) < math.inf


def test_other_noise_and_other_relations():
    law = LAWS[0]
    laplace = SelectionDpEvent(LaplaceDpEvent(5.0), law)
    assert 0.2 < account([(laplace, 1)], DELTA).epsilon <= 0.4 * (1 + 2e-3)  # pure: (eta + 2) eps
    sampled = SelectionDpEvent(PoissonSampledDpEvent(0.1, GaussianDpEvent(5.0)), law)
    add, replace = (account([(sampled, 1)], DELTA, relation).epsilon for relation in (ADD, REPLACE))
    assert add < replace


def test_poisson_trials_are_charged_by_renyi():
    event = SelectionDpEvent.of_history(reference_trial(), PoissonTrials(10.0))
    assert epsilon_directly(event, DELTA, ADD) == math.inf
    spent = account([(event, 1)], DELTA)
    assert spent.epsilon == pytest.approx(epsilon_by_renyi(event, DELTA, ADD), rel=1e-3)
    with_more = account([(event, 1), (GaussianDpEvent(3.0), 1)], DELTA).epsilon
    assert spent.epsilon < with_more < spent.epsilon + 2


def test_no_noise_and_nothing_done():
    law = LAWS[0]
    assert account([(SelectionDpEvent(NoOpDpEvent(), law), 1)], DELTA).epsilon == pytest.approx(
        0, abs=1e-6
    )
    assert account([(SelectionDpEvent(GaussianDpEvent(0.0), law), 1)], DELTA).epsilon == math.inf
    huge = SelectionDpEvent(GaussianDpEvent(0.05), law)
    assert (
        account([(huge, 1)], DELTA).epsilon > account([(GaussianDpEvent(0.05), 1)], DELTA).epsilon
    )


def test_the_delta_curve_of_a_selection_falls():
    event = SelectionDpEvent(GaussianDpEvent(2.0), LAWS[0])
    epsilons = np.linspace(0.5, 6, 12)
    curve = delta_curve([(event, 1)], epsilons)
    assert np.all(np.diff(curve) <= 0) and curve[-1] < 1e-8
    directly = [
        epsilon_directly(event, float(d), ADD) for d in curve if 1e-8 < d < 1e-2
    ]  # the curve read backwards
    asked = [e for e, d in zip(epsilons, curve, strict=True) if 1e-8 < d < 1e-2]
    assert directly == pytest.approx(asked, rel=2e-2)


# ------------------------------------------------------------------------------------- ledger


@pytest.mark.parametrize("law", [*LAWS, PoissonTrials(7.0)], ids=str)
def test_json_keeps_every_digit(law):
    event = SelectionDpEvent.of_history(reference_trial(), law)
    data = json.loads(json.dumps(event_to_json(event)))
    back = event_from_json(data)
    assert back == event
    assert account([(back, 1)], DELTA) == account([(event, 1)], DELTA)


def test_a_ledger_holds_a_selection(tmp_path):
    event = SelectionDpEvent.of_history(reference_trial(), LAWS[0])
    ledger = Ledger({"n": 100}, tmp_path / "ledger.jsonl")
    ledger.record("run", 0, event)
    ledger.record("run", 1, GaussianDpEvent(10.0))
    ledger.close()
    again = Ledger.read(tmp_path / "ledger.jsonl")
    assert again.history() == ledger.history()
    assert guarantee([again], DELTA, ADD).epsilon > account([(event, 1)], DELTA).epsilon


def test_whoever_reads_a_ledger_finds_the_event(tmp_path):
    """By the entry point of pyproject.toml: nothing of `winsor.tuning` is imported before."""
    root = Path(winsor.__file__).parents[1]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    point = f"selection = {project['entry-points']['winsor.events']['selection']}"
    metadata = tmp_path / "events-0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: events\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text(f"[winsor.events]\n{point}\n")
    data = event_to_json(SelectionDpEvent(GaussianDpEvent(2.0), LAWS[0]))
    code = "from winsor.core.accounting import event_from_json, event_to_json; import sys; "
    code += f"print(event_to_json(event_from_json({data!r})), 'torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (tmp_path, root)))},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (done.stdout.strip(), done.stderr) == (f"{data} False", "")


def test_a_fixed_number_of_trials_is_refused():
    with pytest.raises(ConfigurationError, match="fixed number of trials is a composition"):
        event_to_json(SelectionDpEvent(GaussianDpEvent(1.0), 10))
    with pytest.raises(ConfigurationError, match="law of a selection"):
        event_from_json(
            {"event": "selection", "law": "fixed", "inner": event_to_json(GaussianDpEvent(1.0))}
        )


# ------------------------------------------------------------------------------------- K itself


@pytest.mark.parametrize("law", [*LAWS, PoissonTrials(7.0)], ids=str)
def test_the_law_of_k_is_the_one_in_the_proof(law):
    terms = list(itertools.islice(law.probabilities(), 4000))
    assert sum(float(p) for _, p in terms) == pytest.approx(1, abs=1e-6)
    assert sum(k * float(p) for k, p in terms) == pytest.approx(law.mean, rel=1e-4)
    for z in (0.0, 0.3, 0.9, 0.999):
        powers = sum(z**k * float(p) for k, p in terms)
        assert powers == pytest.approx(law.generating(z), abs=1e-6)
    slope = (law.generating(1.0) - law.generating(1 - 1e-7)) / 1e-7
    assert slope == pytest.approx(law.mean, rel=1e-3)


@pytest.mark.parametrize("law", [*LAWS, PoissonTrials(7.0)], ids=str)
def test_k_is_drawn_from_its_law(law):
    drawn = np.array([draw(law, new_key(seed)) for seed in range(2000)])
    for level in (0.25, 0.5, 0.75, 0.95):
        k = quantile(law, level)
        first = 0 if isinstance(law, PoissonTrials) else 1
        exact = sum(float(p) for _, p in itertools.islice(law.probabilities(), k + 1 - first))
        assert np.mean(drawn <= k) == pytest.approx(exact, abs=0.04)
    assert draw(law, new_key(3)) == draw(law, new_key(3))


def test_the_inverse_distribution_function_is_exact_at_its_steps(monkeypatch):
    """A coin just below P(K <= k) gives k, and the one just above gives k + 1."""
    law = LAWS[0]
    with decimal.localcontext(prec=90):
        total = decimal.Decimal(0)
        for k, term in itertools.islice(law.probabilities(), 5):
            total += term
            below = int(total * 2**256)
            for coin, expected in ((below, k), (below + 1, k + 1)):
                fake = lambda *_, coin=coin: FakeStream(coin)  # noqa: E731
                monkeypatch.setattr(trial_counts, "stream", fake)
                assert draw(law, b"") == expected


class FakeStream:
    def __init__(self, coin):
        self.coin = coin

    def bytes(self, count):
        return self.coin.to_bytes(count, "little")


@pytest.mark.parametrize(
    "make",
    [
        lambda: TruncatedNegativeBinomial(-1.0, 0.5),
        lambda: TruncatedNegativeBinomial(0.0, 1.0),
        lambda: TruncatedNegativeBinomial(0.0, 0.0),
        lambda: TruncatedNegativeBinomial.of_mean(1.0),
        lambda: TruncatedNegativeBinomial.of_mean(math.nan),
        lambda: PoissonTrials(0.5),
        lambda: quantile(LAWS[0], 1.0),
    ],
)
def test_impossible_laws_are_refused(make):
    with pytest.raises(ConfigurationError):
        make()


# -------------------------------------------------------------------------- what a machine costs


def test_the_profile_of_a_trial_is_the_certified_one():
    """Raised by the sampler's price at every epsilon, and by no more than that."""
    trial = reference_trial()
    at = np.linspace(0.1, 6.0, 30)
    ideal, real = delta_curve(trial, at), certified_deltas(trial, at, ADD)
    assert np.all(real > ideal)
    assert np.all(real[ideal > 1e-12] < ideal[ideal > 1e-12] * 1.001)
    one_by_one = [certify_delta(trial, float(epsilon)).delta for epsilon in at[::7]]
    assert real[::7] == pytest.approx(one_by_one, rel=2e-2)


def test_what_is_reported_is_charged_for_the_sampler():
    law = LAWS[0]
    event = SelectionDpEvent.of_history(reference_trial(), law)
    base = certify(reference_trial(), DELTA / law.mean).epsilon
    assert epsilon_directly(event, DELTA, ADD) > base
    assert account([(event, 1)], DELTA).epsilon < certify([(event, 1)], DELTA).epsilon <= 3.86


def test_renyi_deltas_are_those_of_the_library():
    divergences = rdp.divergences(reference_trial(), ADD, rdp.ORDERS)
    at = np.linspace(0.0, 8.0, 9)
    theirs = [compute_delta(rdp.ORDERS, divergences, float(e))[0] for e in at]
    assert renyi_deltas(rdp.ORDERS, divergences, at) == pytest.approx(theirs, rel=1e-9)
    nothing = np.zeros_like(rdp.ORDERS)
    assert renyi_deltas(rdp.ORDERS, nothing, at).max() == 0
