"""What notebooks show: well-formed, escaped, self-contained, and released values only."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from sklearn.pipeline import make_pipeline
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import winsor
from winsor import tables
from winsor.charts import notebook_html as cards
from winsor.core.contract import Guarantee, Neighbouring
from winsor.planning.plan import Question, solve
from winsor.tables import clipped_mean

EMPTY = {"rect", "line", "polyline", "br", "hr", "img"}


class Balanced(HTMLParser):
    """Every tag that opens closes, in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in EMPTY:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def read(html: str) -> str:
    """The text of a card, which asks for nothing from elsewhere and sets no colour of its own."""
    assert not re.search(r"https?:|src=|<script|<link|#[0-9a-f]{3,6}\b", html)
    return Balanced(html).text


def trained(rule=None, steps=3, **changes):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 4, generator=generator)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    arguments = {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "dataset": TensorDataset(x, (x[:, 0] > 0).long()),
        "rule": rule or winsor.rules.Flat(1.0),
        "batch_size": 50,
        "steps": 10,
        "delta": 1e-4,
        "epsilon": 4.0,
        "seed": 0,
    }
    private = winsor.make_private(**{**arguments, **changes})
    if steps:
        for rows, labels in private.batches(steps):
            private.step(F.cross_entropy(model(rows), labels, reduction="none"))
    return private


def test_a_training_says_what_it_is_and_what_it_has_spent():
    private = trained()
    spent = private.spent()
    for shown in (repr(private), read(private._repr_html_())):
        assert "Sequential, 23 trained parameters, step 3 of 10" in shown
        assert f"epsilon {spent.epsilon:.4g} of 4 spent at delta 0.0001" in shown
        assert "Flat(max_grad_norm=1.0)" in shown
    assert repr(private).count("\n") == 2
    html = private._repr_html_()
    filled = float(re.findall(r'<rect width="([0-9.]+)"', html)[1])
    assert filled == pytest.approx(400 * spent.epsilon / 4.0, abs=0.1)
    assert "0.weight3 x 412" in read(html)


def test_before_the_first_step_nothing_is_spent():
    private = trained(steps=0, epsilon=None, noise_multiplier=1.0)
    assert "epsilon 0 spent" in repr(private)
    assert '<rect width="0.0"' in private._repr_html_()


def test_the_clip_fraction_comes_from_the_monitor_that_paid_for_it():
    watched = trained(winsor.tails.PrivateMonitor(winsor.rules.Flat(1.0)))
    reading = str(watched.rule.reading(watched.rule_state))
    assert "clipped" in reading
    assert reading in repr(watched) and reading in read(watched._repr_html_())
    assert "clipped" not in repr(trained())


def test_a_monitor_that_is_not_private_is_not_shown():
    from winsor.rules.debug_monitor import DebugMonitor

    with pytest.warns(winsor.core.contract.PrivacyLeakWarning):
        private = trained(DebugMonitor(winsor.rules.Flat(1.0)))
    assert "clipped" not in repr(private) and "clipped" not in private._repr_html_()


def test_a_run_that_was_tampered_with_shows_no_epsilon():
    private = trained()
    with torch.no_grad():
        next(iter(private.model.parameters())).add_(1.0)
    for shown in (repr(private), read(private._repr_html_())):
        assert "nothing is certified: weights must change by private.step alone" in shown
        assert "spent at delta" not in shown


def test_a_guarantee_names_what_it_rests_on():
    given = Guarantee(1.0, 1e-5, Neighbouring.REPLACE_ONE, "pld", 3, "full batch", ("n < 5",))
    assert repr(given).splitlines() == [f"Guarantee {given}", "  rests on: n < 5"]
    html = given._repr_html_()
    assert "n &lt; 5" in html and "replace one" in read(html)


def test_a_mean_shows_its_value_noise_and_error():
    rows = np.random.default_rng(0).normal(size=(400, 6))
    one = clipped_mean(rows[:, 0], moments=(2, 1.0), epsilon=1.0, delta=1e-6, random_state=0)
    assert repr(one).startswith(f"MeanEstimate {float(one.estimate):.6g} (noise std ")
    assert f"at most {one.error_bound.total:.4g}" in repr(one)
    assert "at most" in read(one._repr_html_())
    many = clipped_mean(rows, radius=3.0, epsilon=1.0, delta=1e-6, random_state=0)
    assert ", ...] of 6 coordinates" in repr(many)
    assert f"{many.estimate[5]:.6g}" in read(many._repr_html_())


def test_a_plan_marks_what_it_computed():
    plan = solve(Question(n=6_000, batch_size=60, epochs=2, epsilon=3.0, delta=1e-5))
    assert "noise multiplier" in repr(plan) and repr(plan).count("(computed)") == 1
    html = plan._repr_html_()
    assert "<polyline" in html and "epsilon over 200 steps" in read(html)


def test_long_tables_are_cut_and_names_are_escaped():
    rows = [(f"<b>{i}", "1") for i in range(40)]
    text = read(cards.card("<i>", cards.table("t", ("a", "b"), rows)))
    assert "<i>" in text and "<b>11" in text and "<b>12" not in text and "and 28 more" in text


ESTIMATORS = [
    getattr(tables, name)
    for name in tables.__all__
    if hasattr(getattr(tables, name), "get_params") and hasattr(getattr(tables, name), "fit")
]


@pytest.mark.parametrize("kind", ESTIMATORS, ids=lambda kind: kind.__name__)
def test_estimators_show_themselves_without_a_warning(kind):
    estimator = kind(epsilon=1.0) if "epsilon" in kind().get_params() else kind()
    assert kind.__name__ in estimator._repr_html_()
    assert kind.__name__ in make_pipeline(estimator)._repr_html_()
