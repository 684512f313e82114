"""Noise is standard normal, reproducible, and the same with and without the background thread."""

from __future__ import annotations

import math
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from winsor.contract import ConfigurationError
from winsor.mechanisms import noise
from winsor.mechanisms.noise import AHEAD, BLOCK, NoiseSource, group

KEY = bytes(range(32))


@pytest.mark.parametrize("size", [1, 2, 7, 1000, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 5])
def test_the_background_thread_does_not_change_values(size: int) -> None:
    ahead, now = NoiseSource(KEY), NoiseSource(KEY, prefetch=False)
    for step in (0, 1, 2, 70, 71, 140, 3):  # in order, with gaps, and back
        for stream in ("grad", "count"):
            value = ahead.normal(step, stream, size)
            assert value.shape == (size,)
            assert value.dtype is torch.float32
            assert torch.equal(value, now.normal(step, stream, size))


def at(step: int, stream: str, size: int, key: bytes = KEY) -> Tensor:
    return NoiseSource(key, prefetch=False).normal(step, stream, size)


@pytest.mark.parametrize("size", [1, 5, 1000, BLOCK // 3, BLOCK // 2, BLOCK // 2 + 1])
def test_steps_that_share_a_slab_share_no_value(size: int) -> None:
    source = NoiseSource(KEY)
    steps = range(2 * group(size) + 2) if size < 100 else range(5)
    seen = torch.cat([source.normal(step, "grad", size) for step in steps])
    expected = torch.cat([at(step, "grad", size) for step in steps])
    assert torch.equal(seen, expected)
    assert len(seen[:5000].unique()) >= len(seen[:5000]) - 1  # 31 bits: rare coincidences


def test_steps_streams_and_keys_are_independent() -> None:
    size = 20_000
    draws = [
        at(0, "grad", size),
        at(1, "grad", size),
        at(1 << 64, "grad", size),
        at(0, "count", size),
        at(0, "grad", size, KEY[:-1] + b"\0"),
    ]
    correlation = np.corrcoef(torch.stack(draws).numpy())
    assert np.abs(correlation - np.eye(5)).max() < 5 / math.sqrt(size)
    assert len({tuple(d[:8].tolist()) for d in draws}) == 5


@pytest.mark.parametrize("prefetch", [True, False])
@pytest.mark.parametrize("size", [5, BLOCK + 1, AHEAD + BLOCK + 3])
def test_adding_noise_adds_the_normals_of_the_step(size: int, prefetch: bool) -> None:
    source = NoiseSource(KEY, prefetch)
    for step in (0, 1):
        flat = torch.ones(size)
        source.add(step, "grad", flat, 0.5)
        assert torch.equal(flat, torch.ones(size).add_(at(step, "grad", size), alpha=0.5))
    source.close()


def test_noise_is_added_in_other_precisions() -> None:
    flat = torch.zeros(100, dtype=torch.float64)
    NoiseSource(KEY, prefetch=False).add(0, "grad", flat, 1.0)
    assert torch.equal(flat, at(0, "grad", 100).double())


def test_the_name_of_the_method_follows_its_values(monkeypatch: pytest.MonkeyPatch) -> None:
    name = noise.method()
    assert name == noise.method.__wrapped__()
    monkeypatch.setattr(noise, "_fill", lambda out, bits: out.fill(1.0))
    assert noise.method.__wrapped__() != name


def test_blocks_are_independent_of_each_other() -> None:
    first, second = at(0, "grad", 2 * BLOCK).numpy().reshape(2, -1)
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / math.sqrt(BLOCK)
    halves = first.reshape(2, -1)  # cosine and sine of the same angle
    assert abs(np.corrcoef(halves)[0, 1]) < 5 / math.sqrt(BLOCK // 2)
    assert abs(np.corrcoef(halves**2)[0, 1]) < 5 / math.sqrt(BLOCK // 2)


def many(size: int) -> Tensor:
    """About a million values, from as many steps as that takes: small sizes share slabs."""
    source = NoiseSource(KEY, prefetch=False)
    return torch.cat([source.normal(7 + i, "grad", size) for i in range(-(-1_000_000 // size))])


@pytest.mark.parametrize("size", [1_000_003, 4096])
def test_values_are_standard_normal(size: int) -> None:
    x = many(size).numpy().astype(np.float64)
    assert stats.kstest(x, "norm").pvalue > 1e-3
    assert abs(x.mean()) < 4 / math.sqrt(len(x))
    assert abs(x.var() - 1) < 4 * math.sqrt(2 / len(x))
    assert abs(stats.kurtosis(x)) < 4 * math.sqrt(24 / len(x))
    for z in (2.0, 3.0, 4.0):
        expected = len(x) * 2 * stats.norm.sf(z)
        assert abs((np.abs(x) > z).sum() - expected) < 5 * math.sqrt(expected) + 1


def test_values_are_finite_and_reach_far_into_the_tail() -> None:
    x = at(9, "grad", 8_000_000)
    assert x.isfinite().all()
    assert 5.0 < float(x.abs().max()) < 7.0


class Scripted:
    """A bit generator with radii of 31 zero bits, and finer bits as given."""

    def __init__(self, fine: int) -> None:
        self._answers = [0, fine]

    def random_raw(self, count: int) -> np.ndarray:
        return np.full(count, self._answers.pop(0), dtype=np.uint64)


def test_the_tail_is_fine_grained_beyond_31_bits() -> None:
    out = np.empty(2, dtype=np.float32)
    radii = []
    for fine in (0, 1 << 40, 1 << 63):
        noise._fill(out, Scripted(fine))
        radii.append(float(out[0]))  # angle zero: cosine 1
    exact = [math.sqrt(-2 * math.log((f + 0.5) * 2.0**-95)) for f in (0, 1 << 40, 1 << 63)]
    assert radii == pytest.approx(exact, rel=1e-5)
    assert radii[0] > 11


def test_a_value_is_never_overwritten_while_it_is_held() -> None:
    source = NoiseSource(KEY)
    for size in (5000, BLOCK):
        held = [
            source.normal(step, "grad", size) for step in range(0, 12 * group(size), group(size))
        ]
        for i, value in enumerate(held):
            assert torch.equal(value, at(i * group(size), "grad", size))


def test_the_thread_ends_with_its_source() -> None:
    before = threading.active_count()
    source = NoiseSource(KEY)
    source.normal(0, "grad", 10)
    assert threading.active_count() == before + 1
    source.close()
    assert threading.active_count() == before
    assert torch.equal(source.normal(200, "grad", 10), at(200, "grad", 10))  # starts anew
    del source
    assert threading.active_count() == before


def test_a_forked_process_draws_the_same_noise() -> None:
    code = (
        "import os, torch\n"
        "from winsor.mechanisms.noise import NoiseSource\n"
        "source, other = NoiseSource(7), NoiseSource(7, prefetch=False)\n"
        "source.normal(0, 'grad', 100)\n"
        "child = os.fork()\n"
        "good = torch.equal(source.normal(64, 'grad', 100), other.normal(64, 'grad', 100))\n"
        "if child == 0:\n"
        "    os._exit(0 if good else 1)\n"
        "_, status = os.waitpid(child, 0)\n"
        "assert good and status == 0\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.parametrize("key", [b"short", bytes(65), -1])
def test_weak_keys_are_refused(key: bytes | int) -> None:
    with pytest.raises(ConfigurationError, match="noise key"):
        NoiseSource(key)


def test_whole_numbers_are_keys_too() -> None:
    assert torch.equal(
        NoiseSource(5).normal(0, "grad", 9),
        NoiseSource((5).to_bytes(16, "little")).normal(0, "grad", 9),
    )
