"""What chance explains is taken away; what it does not stays, and the level with it."""

from __future__ import annotations

import numpy as np
import pytest

from winsor.tables import PrivateLinearRegression, PrivateLogisticRegression
from winsor.tables.linear.metric import towards_level
from winsor.tables.losses import Logistic, Softmax, Squared


def test_the_level_stays_and_noise_goes():
    draw = np.random.default_rng(0)
    constant = draw.normal(size=30)
    noise = 0.1 * draw.normal(size=(30, 1))
    theta = 3 * constant[:, None] + noise
    shrunk = towards_level(theta, constant, np.array([0.01]))
    assert constant @ shrunk[:, 0] == pytest.approx(constant @ theta[:, 0])
    left = shrunk - constant[:, None] * (constant @ shrunk) / (constant @ constant)
    assert np.linalg.norm(left) < 0.3 * np.linalg.norm(noise)
    assert np.allclose(towards_level(theta, constant, np.array([0.0])), theta)


@pytest.mark.parametrize("signal", [0.0, 0.5, 1.0, 5.0])
def test_it_never_costs_much_and_gains_where_signals_are_weak(signal):
    draw = np.random.default_rng(1)
    truth = np.zeros((12, 1))
    truth[0] = signal
    plain, better = [], []
    for _ in range(400):
        found = truth + 0.3 * draw.normal(size=(12, 1))
        plain.append(np.sum((found - truth) ** 2))
        better.append(np.sum((towards_level(found, None, np.array([0.09])) - truth) ** 2))
    assert np.mean(better) < (1.01 if signal > 1 else 0.75) * np.mean(plain)


def test_information_is_that_of_the_loss():
    assert Squared().information(np.array([7.0])).tolist() == [1.0]
    assert Logistic().information(np.zeros(1)).tolist() == [0.25]
    assert Softmax(3).information(np.zeros(3)) == pytest.approx(np.full(3, 2 / 9))


@pytest.mark.parametrize("stated", [True, False])
def test_a_regression_of_few_rows_is_not_far_worse_than_the_mean(stated):
    draw = np.random.default_rng(2)
    x = draw.uniform(50, 150, size=(300, 12))
    y = 100 + 0.5 * (x[:, 0] - 100) + 20 * draw.normal(size=300)
    given = {"bounds": (0, 200), "target_range": (0, 200)} if stated else {}
    for seed in range(5):
        model = PrivateLinearRegression(epsilon=0.3, random_state=seed, **given).fit(x, y)
        assert model.score(x, y) > -0.5
        assert not model.coef_.any()


def test_classes_without_slopes_have_the_chances_of_the_majority():
    draw = np.random.default_rng(3)
    x, y = 1e3 + draw.normal(size=(200, 30)), (draw.random(200) < 0.8).astype(int)
    model = PrivateLogisticRegression(epsilon=0.3, random_state=0).fit(x, y)
    assert not model.coef_.any() and (model.predict(x) == 1).all()
