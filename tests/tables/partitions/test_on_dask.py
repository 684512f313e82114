"""Partitions on a Dask cluster of two workers, one of which dies in the middle."""

import os
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass

import dask
import numpy as np
import pytest
from dask import array
from distributed import Client, LocalCluster
from fragile_loaders import Fragile

from winsor.core.contract import ConfigurationError
from winsor.tables import PrivateRidge, means, partitions
from winsor.tables.partitions.on_dask import delayed_parts

KEY = bytes(range(32))
OPTIONS = {"radius": 5.0, "epsilon": 1.0, "random_state": KEY}


PATIENCE = 120
"""Seconds for workers to come; without any, tasks fail after as many instead of waiting."""


@pytest.fixture(scope="module")
def client():
    """Two workers that nobody starts again: the one that is left has to do all of the work."""
    quiet = {
        "distributed.scheduler.no-workers-timeout": f"{PATIENCE}s",
        "distributed.admin.system-monitor.gil.enabled": False,
    }
    with (
        dask.config.set(quiet),
        LocalCluster(n_workers=0, dashboard_address=":0", silence_logs=50) as cluster,
        workers_of(cluster.scheduler_address, 2),
        Client(cluster) as found,
    ):
        found.wait_for_workers(2, timeout=PATIENCE)
        yield found


@contextmanager
def workers_of(address, count):
    command = [sys.executable, "-m", "distributed.cli.dask_worker", address]
    command += ["--no-nanny", "--nthreads", "1", "--memory-limit", "0", "--no-dashboard"]
    paths = os.pathsep.join(sys.path)  # where loaders are found when they are unpickled
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    workers = [
        subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) for _ in range(count)
    ]
    try:
        yield
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


@pytest.fixture(scope="module")
def table():
    x = np.random.default_rng(0).standard_t(3, size=(6_000, 2))
    return np.column_stack([x, x @ [1.0, -2.0] + 1])


def test_a_worker_that_dies_changes_nothing(client, table, tmp_path):
    mark = tmp_path / "died"
    loaders = [
        Fragile(part, mark if number == 3 else None)
        for number, part in enumerate(np.array_split(table, 6))
    ]
    source = partitions.Partitions.of_loaders(loaders, columns=3, client=client)
    found = partitions.clipped_mean(source, **OPTIONS)
    assert mark.exists()
    assert len(client.scheduler_info()["workers"]) == 1
    assert np.abs(found.estimate - means.clipped_mean(table, **OPTIONS).estimate).max() < 1e-9


def test_an_array_in_chunks_of_rows(client, table):
    source = partitions.Partitions.of_dask(array.from_array(table, chunks=(1_000, 3)), client)
    model = {"method": "suffstats", "epsilon": 2.0, "random_state": KEY}
    found = partitions.fit_ridge(PrivateRidge(**model), source)
    whole = PrivateRidge(**model).fit(table[:, :2], table[:, 2])
    assert np.allclose(found.coef_, whole.coef_, rtol=1e-9)


@dataclass
class Frame:
    """What a Dask data frame shows of itself; the real one takes seconds to import."""

    columns: list
    chosen: list | None = None

    def __getitem__(self, names):
        return Frame(self.columns, names)

    def to_delayed(self):
        return [("part", self.chosen)]


def test_data_frames_are_asked_for_their_columns():
    assert delayed_parts(Frame(["a", "b"]), ["b"]) == ([("part", ["b"])], 1)
    assert delayed_parts(Frame(["a", "b"]), None) == ([("part", ["a", "b"])], 2)
    with pytest.raises(ConfigurationError, match=r"Missing: \['c'\]"):
        delayed_parts(Frame(["a", "b"]), ["a", "c"])


def test_what_is_not_in_whole_rows_is_refused(table):
    with pytest.raises(ConfigurationError, match="chunks of whole rows"):
        delayed_parts(array.from_array(table, chunks=(1_000, 1)), None)
    with pytest.raises(ConfigurationError, match="chunks of whole rows"):
        delayed_parts(table, None)
    with pytest.raises(ConfigurationError, match="must be None for an array"):
        delayed_parts(array.from_array(table, chunks=(1_000, 3)), ["a"])
    with pytest.raises(ConfigurationError, match="not both"):
        partitions.Partitions.of_loaders([lambda: table], 3, map=map, client=object())
