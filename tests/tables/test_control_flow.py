"""What a method does is a function of public arguments: no row is seen but in released values."""

from __future__ import annotations

import neighbours
import numpy as np
import pytest
from neighbours import METRICS, Neighbour, Use, chosen, differences, untried

from winsor import metrics
from winsor.core.contract import ConfigurationError
from winsor.tables import PrivateScaler

CASES = chosen(1)


def test_every_public_name_is_tried_or_said_to_take_no_private_rows():
    assert untried() == set()


def test_every_metric_is_tried():
    kinds = [getattr(metrics, name) for name in metrics.__all__]
    found = {k.__name__ for k in kinds if isinstance(k, type) and issubclass(k, metrics.Metric)}
    assert found - {"Metric"} == set(METRICS)


def test_there_are_kinds_enough_of_neighbours():
    assert len({name for _, name, _, _ in (pair for _, pair in CASES)}) >= 30


@pytest.mark.parametrize(
    ("use", "pair"), CASES, ids=[f"{use.name}-{pair.container}-{pair.name}" for use, pair in CASES]
)
def test_no_row_shows_but_in_released_values(use, pair):
    """A seeded choice: `python -m tests.support.neighbours --all` tries everything."""
    assert differences(use, pair) == []


# ------------------------------------------------------------------------------ planted mistakes

COLUMN = np.arange(1.0, 65.0)[:, None]


def scaled(table):
    return PrivateScaler(epsilon=1.0, delta=1e-4, random_state=bytes(32)).fit(table)


def refusing(table):
    if table.max() > 1e6:
        raise ConfigurationError("too large")
    return scaled(table)


def warning(table):
    np.log(table - 1.5)  # NumPy warns
    return scaled(table)


def printing(table):
    if table.max() > 1e6:
        print("a large row")
    return scaled(table)


def keeping(table):
    model = scaled(table)
    model.largest_ = table.max()
    return model


def typed(table):
    model = scaled(table)
    model.mean_ = model.mean_.astype(np.float32 if table.max() > 1e6 else np.float64)
    return model


def releasing_more(table):
    return [scaled(table) for _ in range(2 if table.max() > 1e6 else 1)]


@pytest.mark.parametrize(
    ("mistake", "where"),
    [
        (refusing, "raised"),
        (printing, "printed"),
        (keeping, "result"),
        (typed, "result"),
        (releasing_more, "releases"),
    ],
)
def test_planted_mistakes_are_found(mistake, where, monkeypatch):
    monkeypatch.setattr(neighbours, "BEFORE", {})
    use = Use(mistake.__name__, mistake, ("float",), COLUMN)
    found = differences(use, Neighbour("float", "1e160", COLUMN.repeat(3, axis=1), 1e160))
    assert where in {each.split(":")[0] for each in found}


def test_planted_warnings_are_found(monkeypatch):
    monkeypatch.setattr(neighbours, "BEFORE", {})
    table = COLUMN.repeat(3, axis=1) + 1
    pair = Neighbour("float", "zero", table, 0.0)
    assert "warnings" in differences(Use("warning", warning, ("float",), table), pair)[0]
