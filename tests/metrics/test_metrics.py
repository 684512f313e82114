"""Private metrics: how far one row moves them, what their intervals cover, what they cost."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from dp_accounting.dp_event import GaussianDpEvent

from winsor.core.accounting import account
from winsor.core.contract import ConfigurationError, Neighbouring
from winsor.core.ledger import Ledger
from winsor.metrics import (
    AUC,
    R2,
    Accuracy,
    ByGroup,
    Calibration,
    ClippedLoss,
    Columns,
    ConfusionMatrix,
    DevianceExplained,
    Quantiles,
    measure,
)

ADD, REPLACE = Neighbouring.ADD_OR_REMOVE_ONE, Neighbouring.REPLACE_ONE

METRICS = {
    "accuracy": Accuracy(),
    "confusion": ConfusionMatrix([0, 1]),
    "loss": ClippedLoss(3.0),
    "r2": R2(-1.0, 2.0),
    "r2 of small residuals": R2(-1.0, 2.0, residual_bound=0.3),
    "deviance": DevianceExplained([0, 1], bound=4.0),
    "auc": AUC(bins=8),
    "calibration": Calibration(bins=5),
    "quantiles": Quantiles([0.1, 0.5], -1.0, 1.0, bins=16),
    "absolute quantiles": Quantiles([0.9], 0.0, 1.0, bins=16, absolute=True),
}
METRICS |= {f"{name} by group": ByGroup(metric, ["a", "b"]) for name, metric in METRICS.items()}

ODD_NUMBERS = [0.0, 1.0, -1e300, 1e300, math.inf, -math.inf, math.nan]


def table(rng, n=40):
    return {
        "targets": rng.integers(0, 2, n).astype(float),
        "predictions": rng.integers(0, 2, n).astype(float),
        "scores": rng.random(n),
        "losses": rng.exponential(1, n),
        "groups": rng.choice(["a", "b", "c"], n),
    }


def hostile_rows():
    """Rows with extreme, odd and unknown values in every column."""
    numbers = itertools.product(ODD_NUMBERS, ODD_NUMBERS)
    for (target, prediction), score, loss in zip(
        numbers, itertools.cycle(ODD_NUMBERS), itertools.cycle(ODD_NUMBERS[::-1]), strict=False
    ):
        for group in ("a", "b", "nobody's"):
            yield {
                "targets": target,
                "predictions": prediction,
                "scores": score,
                "losses": loss,
                "groups": group,
            }


# ------------------------------------------------------------------------------------ sensitivity


@pytest.mark.parametrize("name", METRICS)
def test_no_row_moves_a_metric_by_more_than_its_bound(name):
    metric = METRICS[name]
    rows = table(np.random.default_rng(0))
    without = metric.total(Columns.of(**rows))
    assert without.shape == (metric.width,)
    moved, places = 0.0, []
    for row in hostile_rows():
        more = {key: np.append(values, row[key]) for key, values in rows.items()}
        total = metric.total(Columns.of(**more))
        assert np.isfinite(total).all()
        places.append(total - without)
        moved = max(moved, float(np.linalg.norm(total - without)))
    assert moved <= metric.bound * (1 + 1e-9)
    assert moved >= 0.7 * metric.bound  # and the bound is not idle
    distances = [np.linalg.norm(a - b) for a, b in itertools.combinations(places[::5], 2)]
    assert max(distances) <= metric.replace * (1 + 1e-9)


@pytest.mark.parametrize("relation", [ADD, REPLACE])
def test_a_joint_release_is_one_gaussian_of_the_stated_size(relation):
    names = ["accuracy", "auc", "loss", "calibration by group"]
    chosen = {name: METRICS[name] for name in names}
    shares = {"accuracy": 0.4, "auc": 0.3, "loss": 0.2, "calibration by group": 0.1}
    rows = table(np.random.default_rng(1))
    found = measure(
        chosen,
        **rows,
        epsilon=1.0,
        delta=1e-3,
        shares=shares,
        relation=relation,
        random_state=0,
    )
    assert 0.99 <= found.guarantee.epsilon <= 1.0
    assert found.guarantee.relation is relation
    ((event, count),) = found.ledger.history()
    assert isinstance(event, GaussianDpEvent) and count == 1
    # The largest joint move of one row, in units of each metric's own noise.
    for row in hostile_rows():
        more = {key: np.append(values, row[key]) for key, values in rows.items()}
        squares = 0.0
        for name, metric in chosen.items():
            move = metric.total(Columns.of(**more)) - metric.total(Columns.of(**rows))
            squares += float(np.linalg.norm(move) / found.noise_std[name]) ** 2
        if relation is ADD:
            assert math.sqrt(squares) <= 1 / event.noise_multiplier
    # and the largest move when a row becomes another
    parts = [shares[name] * (m.replace / m.bound) ** 2 for name, m in chosen.items()]
    if relation is REPLACE:
        std = found.noise_std["accuracy"] * math.sqrt(shares["accuracy"]) / 0.5
        assert event.noise_multiplier == pytest.approx(std / math.sqrt(sum(parts)), rel=1e-6)


def test_the_noise_is_that_of_the_event():
    zeros = {"targets": np.zeros(50), "predictions": np.zeros(50)}
    draws = [
        measure(ConfusionMatrix([0, 1]), **zeros, noise_multiplier=3.0, random_state=seed)
        for seed in range(400)
    ]
    assert {d.noise_std["ConfusionMatrix"] for d in draws} == {
        draws[0].noise_std["ConfusionMatrix"]
    }
    entries = np.array([d["ConfusionMatrix"].value[0, 0] - 50 for d in draws])  # never clipped
    assert entries.std() == pytest.approx(3.0, rel=0.1)
    assert abs(entries.mean()) < 0.5


# --------------------------------------------------------------------------------------- coverage


def coverage(estimates, truth):
    inside = [np.asarray((e.low <= truth) & (truth <= e.high), float) for e in estimates]
    return np.mean(inside, axis=0)


def population(rng, n):
    """Rows whose population values are known in closed form or from a huge sample."""
    scores = rng.beta(2, 2, n)
    targets = (rng.random(n) < np.clip(scores + 0.05, 0, 1)).astype(int)
    predictions = (scores > 0.5).astype(int)
    chances = np.where(targets == 1, scores, 1 - scores)
    return {
        "targets": targets,
        "predictions": predictions,
        "scores": scores,
        "losses": -np.log(chances),
        "groups": np.where(rng.random(n) < 0.7, "many", "few"),
    }


BIG = population(np.random.default_rng(99), 2_000_000)


def repeats(metric, n=1500, noise_multiplier=12.0, count=200, rows=population):
    name = type(metric).__name__
    return [
        measure(
            metric,
            **rows(np.random.default_rng(seed), n),
            noise_multiplier=noise_multiplier,
            random_state=seed,
        )[name]
        for seed in range(count)
    ]


def truth_of(metric):
    """The metric of two million rows, without noise."""
    from winsor.metrics.metric import Size

    columns = Columns.of(**BIG)
    return metric.read(metric.total(columns), 1e-9, Size(columns.n), 0.95)


def in_range(share):
    return np.all((share >= 0.90) & (share <= 0.99))


def test_accuracy_is_covered():
    metric = Accuracy()
    assert in_range(coverage(repeats(metric), truth_of(metric).value))


def test_loss_is_covered():
    metric = ClippedLoss(3.0)
    assert in_range(coverage(repeats(metric), truth_of(metric).value))


def test_deviance_is_covered():
    metric = DevianceExplained([0, 1], bound=4.0)
    found = repeats(metric, n=4000)
    assert in_range(coverage(found, truth_of(metric).value))
    losses = [one.details["log loss"] for one in found]
    assert in_range(coverage(losses, truth_of(metric).details["log loss"].value))


@pytest.mark.parametrize("noise", [2.0, 12.0])
def test_auc_is_covered(noise):
    metric = AUC(bins=16)
    found = repeats(metric, n=3000, noise_multiplier=noise)
    assert in_range(coverage(found, truth_of(metric).value))
    rounding = truth_of(metric).details["largest effect of rounding"].value
    order = np.argsort(BIG["scores"][:100_000])
    y = BIG["targets"][:100_000][order]
    exact = np.cumsum(1 - y)[y == 1].sum() / (y.sum() * (1 - y).sum())
    assert abs(truth_of(metric).value - exact) <= rounding + 0.005


def test_calibration_is_covered():
    metric = Calibration(bins=4)
    found = repeats(metric, n=3000)
    exact = truth_of(metric)
    shares = coverage(found, exact.value)
    assert shares.shape == (4,) and in_range(shares)
    large = [one.details["in the large"] for one in found]
    assert in_range(coverage(large, exact.details["in the large"].value))
    absolute = [one.details["expected calibration error"] for one in found]
    assert coverage(absolute, exact.details["expected calibration error"].value) >= 0.95
    rows = np.mean([one.details["rows"].value for one in found], axis=0)
    assert rows == pytest.approx(3000 * exact.details["rows"].value / len(BIG["targets"]), rel=0.1)


def linear_rows(rng, n):
    x = rng.uniform(-1, 1, n)
    return {"targets": x + rng.normal(0, 0.3, n).clip(-0.9, 0.9), "predictions": 0.9 * x}


@pytest.mark.parametrize("residual_bound", [None, 1.0])
def test_r2_is_covered(residual_bound):
    from winsor.metrics.metric import Size

    metric = R2(-2.0, 2.0, residual_bound)
    found = repeats(metric, n=6000, rows=linear_rows)
    columns = Columns.of(**linear_rows(np.random.default_rng(98), 1_000_000))
    exact = metric.read(metric.total(columns), 1e-9, Size(columns.n), 0.95)
    assert in_range(coverage(found, exact.value))
    squared = [one.details["mean squared error"] for one in found]
    assert in_range(coverage(squared, exact.details["mean squared error"].value))
    y, guess = columns.targets, columns.predictions
    assert exact.value == pytest.approx(1 - np.mean((y - guess) ** 2) / np.var(y), abs=1e-6)


def test_quantiles_are_covered():
    metric = Quantiles([0.1, 0.5, 0.9], -1.0, 1.0, bins=128)
    found = repeats(metric, n=3000, noise_multiplier=8.0, rows=linear_rows)
    residuals = (lambda r: r["targets"] - r["predictions"])(
        linear_rows(np.random.default_rng(98), 1_000_000)
    )
    exact = np.quantile(residuals, [0.1, 0.5, 0.9])
    shares = coverage(found, exact)
    assert np.all(shares >= 0.90)
    widths = np.mean([one.high - one.low for one in found], axis=0)
    assert np.all(widths < 0.4)
    errors = [one.value - exact for one in found]
    assert np.all(np.abs(np.mean(errors, axis=0)) < 0.05)


def test_a_confusion_matrix_is_covered_with_its_details():
    metric = ConfusionMatrix([0, 1])
    found = repeats(metric, n=1500)
    exact = truth_of(metric)
    assert in_range(coverage(found, exact.value * 1500 / len(BIG["targets"])))
    for name in ("accuracy", "recall", "precision"):
        inner = [one.details[name] for one in found]
        assert in_range(coverage(inner, exact.details[name].value)), name


@pytest.mark.parametrize("inner", [Accuracy(), ClippedLoss(3.0)], ids=["accuracy", "loss"])
def test_groups_are_covered(inner):
    metric = ByGroup(inner, ["many", "few"])
    found = repeats(metric, n=4000)
    exact = truth_of(inner).value  # groups are drawn without regard to anything else
    for group in ("many", "few"):
        assert in_range(coverage([one[group] for one in found], exact)), group
    widths = [np.mean([one[g].high - one[g].low for one in found]) for g in ("many", "few")]
    assert widths[0] < widths[1]


def test_a_group_lost_in_the_noise_says_so():
    rows = {"targets": [1] * 100, "predictions": [1] * 100, "groups": ["a"] * 98 + ["b"] * 2}
    metric = ByGroup(Accuracy(), ["a", "b"])
    found = measure(metric, **rows, noise_multiplier=5.0, random_state=0)["ByGroup"]
    assert (found["b"].low, found["b"].high) == (0.0, 1.0)
    assert found["a"].low > 0.3


# ------------------------------------------------------------------------------ ledger and refusals


def test_measurements_add_up_in_one_ledger(tmp_path):
    ledger = Ledger({"n": 1000}, tmp_path / "ledger.jsonl")
    truth = np.arange(1000) % 2
    options = {"targets": truth, "predictions": truth, "delta": 1e-5, "ledger": ledger}
    first = measure(Accuracy(), **options, epsilon=1.0, random_state=1)
    second = measure(Accuracy(), **options, epsilon=1.0, random_state=2)
    assert first.guarantee.epsilon < second.guarantee.epsilon < 2
    assert first["Accuracy"].value != second["Accuracy"].value
    history = Ledger.read(tmp_path / "ledger.jsonl").history()
    assert sum(count for _, count in history) == 2
    assert account(history, 1e-5).epsilon == pytest.approx(second.guarantee.epsilon, rel=1e-3)
    assert any("n = 1000 is public" in c for c in second.guarantee.conditions)


def test_events_do_not_depend_on_the_rows():
    histories = []
    for seed in (0, 1):
        rows = table(np.random.default_rng(seed))
        chosen = {name: METRICS[name] for name in ("accuracy", "auc", "r2 by group")}
        histories.append(measure(chosen, **rows, epsilon=1.0, delta=1e-3).ledger.history())
    assert histories[0] == histories[1]


def test_estimates_can_be_printed():
    found = measure(
        {"a": Accuracy(), "c": ConfusionMatrix([0, 1])},
        targets=[0, 1] * 500,
        predictions=[0, 1] * 500,
        epsilon=1.0,
        delta=1e-4,
        random_state=0,
    )
    assert "95% interval" in str(found["a"]) and 0.9 < float(found["a"]) <= 1
    assert "95% intervals" in str(found["c"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"epsilon": None}, "either epsilon or noise_multiplier"),
        ({"noise_multiplier": 1.0}, "either epsilon or noise_multiplier"),
        ({"predictions": None}, "predictions must be given"),
        ({"predictions": [1]}, "columns of one length"),
        ({"metrics": {}}, "at least one"),
        ({"metrics": {"a": "accuracy"}}, "must be metrics"),
        ({"shares": {"b": 1.0}}, "shares must be given"),
        ({"shares": {"a": 0.5}}, "add up to 1"),
        ({"level": 1.0}, "level must be"),
        ({"delta": 0.5}, "below 1/n"),
        ({"epsilom": 1.0}, "Did you mean epsilon="),
    ],
)
def test_refusals(change, words):
    given = {
        "metrics": {"a": Accuracy()},
        "targets": [0, 1] * 50,
        "predictions": [0, 1] * 50,
        "epsilon": 1.0,
    } | change
    with pytest.raises(ConfigurationError, match=words):
        measure(given.pop("metrics"), **given)


@pytest.mark.parametrize(
    "make",
    [
        lambda: ConfusionMatrix([0, 0]).total(Columns.of(targets=[0], predictions=[0])),
        lambda: ClippedLoss(0.0),
        lambda: R2(1.0, 1.0),
        lambda: AUC(bins=1),
        lambda: Quantiles([], 0.0, 1.0),
        lambda: Quantiles([1.0], 0.0, 1.0),
        lambda: DevianceExplained([0]),
        lambda: ClippedLoss(1.0).total(Columns.of(losses=np.array(["a", "b"]))),
        lambda: Columns.of(),
    ],
)
def test_impossible_settings_are_refused(make):
    with pytest.raises(ConfigurationError):
        make()
