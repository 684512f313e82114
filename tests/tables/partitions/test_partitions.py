"""Sums over partitions are those of one table, and one release leaves."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow
import pyarrow.dataset
import pyarrow.parquet
import pytest

from winsor.core.contract import ConfigurationError
from winsor.tables import means, partitions
from winsor.tables.linear.metric import unpacked_triangle
from winsor.tables.partitions.statistics import Triangle

KEY = bytes(range(32))


@pytest.fixture(scope="module")
def table():
    middle = np.array([1.0, 0.0, -2.0])
    return middle + np.random.default_rng(0).standard_t(2.5, size=(9_000, 3))


def cut(table, places):
    parts = np.split(table, places)
    return partitions.Partitions.of_loaders([lambda part=part: part for part in parts], columns=3)


@pytest.mark.parametrize("places", [[], [1], [10, 10, 4_000], range(100, 9_000, 100)])
def test_the_mean_of_partitions_is_that_of_one_table(table, places):
    options = {"radius": 5.0, "epsilon": 1.0, "random_state": KEY, "centre": [0.5, 0.0, 0.0]}
    whole = means.clipped_mean(table, **options)
    found = partitions.clipped_mean(cut(table, list(places)), **options)
    assert np.abs(found.estimate - whole.estimate).max() < 1e-9
    assert found.guarantee.epsilon == whole.guarantee.epsilon
    assert found.noise_std == whole.noise_std


def test_a_dataset_on_disk_is_read_in_pieces(table, tmp_path, monkeypatch):
    monkeypatch.setattr("winsor.tables.partitions.source.AT_ONCE", 700)
    for number, part in enumerate(np.array_split(table, 3)):
        columns = dict(zip("abc", part.T, strict=True))
        pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / f"{number}.parquet")
    dataset = pyarrow.dataset.dataset(tmp_path)
    source = partitions.Partitions.of_dataset(dataset, ["a", "b", "c"])
    seen = []
    n, _ = source.sum(lambda rows: (seen.append(len(rows)), rows.sum(0))[1])
    assert (n, max(seen) <= 700) == (9_000, True)
    found = partitions.clipped_mean(source, radius=5.0, epsilon=1.0, random_state=KEY)
    whole = means.clipped_mean(table, radius=5.0, epsilon=1.0, random_state=KEY)
    assert np.abs(found.estimate - whole.estimate).max() < 1e-9


def test_partitions_are_computed_where_the_map_says_and_again_after_a_failure(table):
    failed = []

    def load(part, number):
        if number == 2 and not failed:
            failed.append(number)
            raise ConnectionError("the worker is gone")
        return part

    def retried(f, loaders):
        def insist(loader):
            try:
                return f(loader)
            except ConnectionError:
                return f(loader)

        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(insist, loaders))

    loaders = [
        lambda part=part, number=number: load(part, number)
        for number, part in enumerate(np.array_split(table, 5))
    ]
    source = partitions.Partitions.of_loaders(loaders, columns=3, map=retried)
    found = partitions.clipped_mean(source, radius=5.0, epsilon=1.0, random_state=KEY)
    whole = means.clipped_mean(table, radius=5.0, epsilon=1.0, random_state=KEY)
    assert failed == [2]
    assert np.abs(found.estimate - whole.estimate).max() < 1e-9


@pytest.mark.parametrize("row", [[0, 0, 0], [1e30, -1e30, 5], [1e200, 1e200, 1e200], [3, 4, 0]])
def test_a_row_moves_the_moments_by_at_most_the_square_of_the_bound(row):
    moved = Triangle(np.zeros(3), 2.0, 1.0)(np.array([row], dtype=float))
    assert np.linalg.norm(moved) <= 4.0
    square = unpacked_triangle(moved, 4)
    assert np.allclose(square, square.T)
    assert np.linalg.norm(square) == pytest.approx(np.linalg.norm(moved))


def test_moments_say_means_covariances_and_least_squares():
    chance = np.random.default_rng(1)
    x = chance.normal(size=(60_000, 2))
    y = 0.5 + x @ [1.0, -0.5] + 0.1 * chance.normal(size=60_000)
    table = np.column_stack([x, y])
    source = partitions.Partitions.of_loaders([lambda: table[:1], lambda: table[1:]], columns=3)
    found = partitions.second_moments(source, bound=12.0, reach=3.0, epsilon=2.0, random_state=KEY)
    assert np.abs(found.mean - table.mean(0)).max() < 0.02
    assert np.abs(found.covariance - np.cov(table.T)).max() < 0.05
    weights, level = found.least_squares(2, [0, 1])
    assert np.abs(weights - [1.0, -0.5]).max() < 0.05
    assert abs(level - 0.5) < 0.05
    assert 1.9 < found.guarantee.epsilon <= 2.0


def test_what_cannot_be_summed_is_refused(table):
    two = partitions.Partitions.of_loaders([lambda: table[:, :2]], columns=3)
    with pytest.raises(ConfigurationError, match="every partition must have 3 columns"):
        partitions.clipped_mean(two, radius=1.0, epsilon=1.0)
    none = partitions.Partitions.of_loaders([lambda: table[:0]], columns=3)
    with pytest.raises(ConfigurationError, match="must have rows"):
        partitions.clipped_mean(none, radius=1.0, epsilon=1.0)
    with pytest.raises(ConfigurationError, match="at least one"):
        partitions.Partitions.of_loaders([], columns=3)
    with pytest.raises(ConfigurationError, match="reach must be below bound"):
        partitions.second_moments(cut(table, []), bound=1.0, reach=1.0, epsilon=1.0)
