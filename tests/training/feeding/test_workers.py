"""Workers load ahead, draw the same whatever their number, and leave with their parent."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset, TensorDataset

from winsor.core.ledger.chain import ChainedFile
from winsor.core.randomness import new_key
from winsor.core.sampling.samplers import Poisson
from winsor.training.feeding.feed import Feed

KEY = new_key(seed=3)
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # on few cores


class Drawing(Dataset):
    """Each row shows what it drew from the three random streams."""

    def __len__(self):
        return 60

    def __getitem__(self, i):
        drawn = float(torch.rand(())), float(np.random.random()), random.random()  # noqa: NPY002
        return torch.tensor([float(i), *drawn], dtype=torch.float64)


class Counting(Poisson):
    """Remembers which steps were drawn."""

    drawn: list[int] = []

    def indices(self, key, step):
        self.drawn.append(step)
        return super().indices(key, step)


def batches(feed, first, count):
    return [[f.batch for f in fragments] for fragments in feed.steps(first, count)]


def flat(steps):
    return [row.tolist() for step in steps for batch in step for row in batch]


def test_batches_are_streamed():
    sampler = Counting(60, 0.2)
    sampler.drawn.clear()
    feed = Feed(Drawing(), sampler, KEY, num_workers=2)
    steps = feed.steps(0, 100_000)
    next(next(steps))
    assert 0 < len(sampler.drawn) < 20
    steps.close()


def test_every_step_is_drawn_once():
    sampler = Counting(60, 0.2)
    sampler.drawn.clear()
    feed = Feed(Drawing(), sampler, KEY, max_physical_batch_size=4, num_workers=2)
    batches(feed, 0, 6)
    assert sampler.drawn == list(range(6))


def test_rows_are_those_without_workers_and_empty_steps_pass():
    data = TensorDataset(torch.arange(60.0))
    sampler = Poisson(60, 0.02)
    alone = Feed(data, sampler, KEY, max_physical_batch_size=2)
    helped = Feed(data, sampler, KEY, max_physical_batch_size=2, num_workers=2)
    one = [[f.batch[0].tolist() for f in fragments] for fragments in alone.steps(0, 25)]
    two = [[f.batch[0].tolist() for f in fragments] for fragments in helped.steps(0, 25)]
    assert one == two and [] in one


@pytest.mark.parametrize("data", [Drawing(), Subset(Drawing(), range(60))], ids=["rows", "subset"])
def test_augmentation_depends_on_key_and_step_only(data):
    sampler = Poisson(60, 0.2)
    one = batches(Feed(data, sampler, KEY, 5, num_workers=1), 0, 6)
    many = batches(Feed(data, sampler, KEY, 5, num_workers=3), 0, 6)
    later = batches(Feed(data, sampler, KEY, 5, num_workers=2), 4, 2)
    assert flat(one) == flat(many)
    assert flat(one[4:]) == flat(later)
    drawn = [row[1] for row in flat(one)]
    assert len(set(drawn)) == len(drawn)  # rows of different fragments draw different values


def test_the_users_random_streams_are_left_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    batches(Feed(Drawing(), Poisson(60, 0.2), KEY, num_workers=2), 0, 3)
    assert torch.equal(torch.rand(3), expected)


SLOW = textwrap.dedent(
    """
    import os, sys, time, torch
    from torch.utils.data import Dataset
    from pathlib import Path
    from winsor.core.ledger.chain import ChainedFile
    from winsor.core.randomness import new_key
    from winsor.training.feeding.feed import Feed
    from winsor.core.sampling.samplers import Poisson

    folder = Path(sys.argv[1])

    class Slow(Dataset):
        def __len__(self): return 40
        def __getitem__(self, i):
            (folder / f"worker-{os.getpid()}").touch()
            time.sleep(0.5 if "slow" in sys.argv else 0.01)
            return torch.tensor(float(i))

    ledger = ChainedFile(folder / "ledger")
    for fragments in Feed(Slow(), Poisson(40, 0.5), new_key(0), num_workers=2).steps(0, 1000):
        for fragment in fragments:
            (folder / "going").touch()
    """
)


def started(folder, *words):
    command = [sys.executable, "-c", SLOW, str(folder), *words]
    return subprocess.Popen(command, start_new_session=True, stderr=subprocess.PIPE)


def until(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.01)


def gone(process):
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def test_orphans_hold_no_lock_and_die(tmp_path):
    """Killed while its workers are in the middle of slow rows."""
    process = started(tmp_path, "slow")
    until(lambda: len(list(tmp_path.glob("worker-*"))) == 2)
    workers = [int(file.name.split("-")[1]) for file in tmp_path.glob("worker-*")]
    process.kill()
    process.communicate()
    ChainedFile(tmp_path / "ledger").close()  # at once: no orphan is in the way
    until(lambda: all(gone(worker) for worker in workers), 3.0)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_to_the_group_leave_workers_to_their_parent(tmp_path, number):
    process = started(tmp_path)
    until(lambda: (tmp_path / "going").exists())
    for file in tmp_path.glob("worker-*"):
        os.kill(int(file.name.split("-")[1]), number)
    (tmp_path / "going").unlink()
    until(lambda: (tmp_path / "going").exists())  # it still gets batches
    assert process.poll() is None
    process.kill()
    process.communicate()
