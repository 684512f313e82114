"""Categories from a private set union: bounds, the chance of a lonely one, its price, pipelines."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm
from sklearn.compose import make_column_transformer
from sklearn.pipeline import make_pipeline

from winsor.audit import replay
from winsor.core.accounting import account_delta, event_from_json, event_to_json
from winsor.core.contract import ConfigurationError, Neighbouring, UnsoundRelease
from winsor.core.events.thresholded import ThresholdedGaussianDpEvent
from winsor.core.ledger.ledger import Ledger
from winsor.core.noise.gaussian import ThresholdedGaussian
from winsor.core.prepaid import PrepaidDoor
from winsor.core.sampling.samplers import FullBatch, Poisson
from winsor.tables import (
    PrivacyBudget,
    PrivateAdditiveRegressor,
    PrivateEncoder,
    PrivateRidge,
    private_categories,
    total_guarantee,
)
from winsor.tables.ranges.categories import as_texts, release, sensitivity

ADD, REPLACE = Neighbouring.ADD_OR_REMOVE_ONE, Neighbouring.REPLACE_ONE


def towns(n: int = 4_000) -> np.ndarray:
    """Two columns: common towns, and names that nobody shares."""
    draw = np.random.default_rng(0)
    common = draw.choice(["Bern", "Genf", "Zug"], size=n, p=[0.6, 0.3, 0.1])
    return np.array([common, [f"person {i}" for i in range(n)]], dtype=object).T


class Silent:
    """A door that lets through what it is given, and notes what was paid for."""

    std = 1.0

    def pay(self, mechanism, sampler, sensitivity, steps, shape):
        self.paid = sensitivity
        return self

    def release(self, value):
        self.value = value
        return value


ROWS = st.lists(st.tuples(*[st.sampled_from("abcdef")] * 3), min_size=2, max_size=12)


@given(ROWS, st.tuples(*[st.sampled_from("abcdefgh")] * 3))
@settings(max_examples=60, deadline=None)
def test_a_record_moves_the_counts_of_common_categories_by_what_is_paid_for(rows, other):
    """Against each neighbour: categories that only one of the tables has stand alone there."""

    def counted(table):
        found = [dict(zip(*np.unique(column, return_counts=True), strict=True)) for column in table]
        return [{str(name): int(count) for name, count in column.items()} for column in found]

    before = counted(as_texts(rows).T)
    for after, bound in (
        (counted(as_texts(rows[1:]).T), sensitivity(3).add_remove),
        (counted(as_texts([other, *rows[1:]]).T), sensitivity(3).replace),
    ):
        moved = 0
        for one, two in zip(before, after, strict=True):
            moved += sum((one[name] - two[name]) ** 2 for name in one.keys() & two.keys())
            lonely = [one.get(name, two.get(name)) for name in one.keys() ^ two.keys()]
            assert lonely == [1] * len(lonely)
            assert len(one.keys() - two.keys()) <= 1 and len(two.keys() - one.keys()) <= 1
        assert math.sqrt(moved) <= bound * (1 + 1e-12)


def test_what_is_counted_and_paid_for():
    door = Silent()
    found, counts = release(as_texts([["a", "x"], ["b", "x"], ["b", "y"]]), door, Loose())
    assert [names.tolist() for names in found] == [["a", "b"], ["x", "y"]]
    assert [own.tolist() for own in counts] == [[1, 2], [2, 1]]
    assert door.value.shape == (2, 8)  # more than there could be, whatever there are
    assert door.paid.add_remove == pytest.approx(math.sqrt(2))
    assert door.paid.replace == pytest.approx(2)


class Loose(ThresholdedGaussian):
    def __init__(self):
        super().__init__(1.0, 0.5)

    def threshold(self, std, columns):
        return 0.5


def test_a_category_of_one_person_is_seen_as_often_as_delta_allows_and_no_more():
    """Three columns, in each of which the last record is alone."""
    chance, runs = 0.2, 1_500
    table = as_texts([["a", "b", "c"]] * 30 + [["lonely"] * 3])
    seen = 0
    for run in range(runs):
        door = PrepaidDoor(Ledger({}), ADD, run.to_bytes(32, "little"))
        found, _ = release(table, door, ThresholdedGaussian(1.0, chance))
        seen += any("lonely" in names for names in found)
    error = math.sqrt(chance * (1 - chance) / runs)
    assert chance - 4 * error < seen / runs < chance + 2.5 * error


@pytest.mark.parametrize("columns", [1, 7])
@pytest.mark.parametrize("delta", [1e-3, 1e-9])
def test_the_threshold_keeps_its_chance(columns, delta):
    least = ThresholdedGaussian(2.0, delta).threshold(3.0, columns)
    seen = -math.expm1(columns * norm.logcdf((least - 1) / 3.0))
    assert 0.9 * delta < seen <= delta


@pytest.mark.parametrize("multiplier", [0.7, 4.0])
def test_the_price_is_that_of_noise_and_disclosure(multiplier):
    """delta(epsilon) = d + (1 - d) delta of the Gaussian, in closed form."""
    shown = 3e-6
    event = ThresholdedGaussianDpEvent(multiplier, shown)
    assert event_from_json(event_to_json(event)) == event
    for epsilon in (0.5, 2.0):
        mu = 1 / multiplier
        a, b = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
        gaussian = norm.cdf(a) - math.exp(epsilon) * norm.cdf(b)
        exact = shown + (1 - shown) * gaussian
        found = account_delta([(event, 1)], epsilon).delta
        assert exact * (1 - 1e-9) <= found <= 1.005 * exact


def test_two_of_them_disclose_twice():
    event = ThresholdedGaussianDpEvent(50.0, 1e-6)
    assert account_delta([(event, 2)], 3.0).delta == pytest.approx(2e-6, rel=1e-3)


def test_samples_have_no_account():
    mechanism, door = ThresholdedGaussian(1.0, 1e-6), PrepaidDoor(Ledger({}), ADD, bytes(32))
    with pytest.raises(UnsoundRelease, match="of all rows"):
        door.pay(mechanism, Poisson(100, 0.1), sensitivity(1), 1, (1, 100))
    door.pay(mechanism, FullBatch(100), sensitivity(1), 1, (1, 100))


@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
def test_common_categories_are_found_and_persons_are_not(relation):
    found = private_categories(towns(), epsilon=1.0, relation=relation, random_state=0)
    assert found.categories[0].tolist() == ["Bern", "Genf", "Zug"]
    assert found.categories[1].tolist() == []
    assert abs(found.counts[0] - [2_400, 1_200, 400]).max() < 150
    assert 0.98 < found.guarantee.epsilon <= 1.0
    assert len(found.ledger) == 1


@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
def test_replay(relation):
    def train(codes):
        names = np.array([[f"town {number + 0.0:g}" for number in row] for row in codes])
        return private_categories(names, epsilon=200.0, delta=1e-3, relation=relation)

    codes = np.arange(48).reshape(24, 2) % 3.0
    report = replay(train, codes)
    report.assert_passed()
    assert report.releases >= 1 and report.largest_share > 0.5


def test_names_that_share_a_hash_have_places_of_their_own():
    names = as_texts([[f"town {number}"] for number in range(60)])
    found, counts = release(names, Silent(), Loose(), 60)
    assert len(found[0]) == 60 and (counts[0] == 1).all()


def test_declared_categories_cost_nothing():
    declared = [["Genf", "Bern"], ["person 1"]]
    encoder = PrivateEncoder(categories=declared).fit(towns(50))
    assert encoder.epsilon_ == 0 and len(encoder.ledger_) == 0
    names = ["x0_Bern", "x0_Genf", "x0_other", "x1_person 1", "x1_other"]
    assert encoder.get_feature_names_out().tolist() == names
    coded = encoder.transform([["Bern", "person 1"], ["Rom", "person 2"]])
    assert coded.tolist() == [[1, 0, 0, 1, 0], [0, 0, 1, 0, 1]]


def test_some_declared_and_some_found():
    encoder = PrivateEncoder(categories=[None, ["person 7"]], epsilon=1.0, random_state=0)
    encoder.fit(towns())
    assert [len(names) for names in encoder.categories_] == [3, 1]
    assert 0.9 < encoder.epsilon_ <= 1.0


@pytest.mark.parametrize("model", [PrivateRidge, PrivateAdditiveRegressor])
def test_texts_in_a_pipeline(model):
    """One budget for the encoder and the model, and no warning of a step that is not private."""
    draw = np.random.default_rng(1)
    frame = pd.DataFrame({"town": towns()[:, 0], "age": draw.uniform(18, 90, 4_000)})
    y = 2.0 * (frame["town"] == "Genf") + frame["age"] / 50 + draw.normal(0, 0.3, 4_000)
    budget = PrivacyBudget()
    columns = make_column_transformer(
        (PrivateEncoder(epsilon=0.3, budget=budget, random_state=0), ["town"]),
        remainder="passthrough",
    )
    pipeline = make_pipeline(columns, model(epsilon=2.0, budget=budget, random_state=0))
    pipeline.fit(frame, y)
    assert pipeline.score(frame, y) > 0.8
    assert 2.0 < total_guarantee(pipeline).epsilon < 2.3


def test_what_cannot_be_is_refused():
    with pytest.raises(ConfigurationError, match="categories must be"):
        PrivateEncoder(categories=[["a"]]).fit(towns(10))
    with pytest.raises(ConfigurationError, match="categories must be"):
        PrivateEncoder(categories=["ab", "cd"]).fit(towns(10))
    with pytest.raises(ConfigurationError, match="must be a table"):
        private_categories(["a", "b"], epsilon=1.0)
    with pytest.raises(ConfigurationError, match="at most 5 rows"):
        release(as_texts(towns(6)), Silent(), Loose(), 5)
