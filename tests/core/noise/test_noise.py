"""A source of lattice noise: values whatever the threads, owners of buffers, low-bit attacks."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant

from winsor.core.accounting.lattice import (
    bits_for,
    charge,
    compensated,
    growth,
    half_log2_up,
    sampler,
)
from winsor.core.contract import ConfigurationError, UnsoundRelease
from winsor.core.noise import kernel, lattice, source
from winsor.core.noise.ahead import Request, Slab
from winsor.core.noise.source import AHEAD, BLOCK, NoiseSource, group

KEY = bytes(range(32))
HERE = Path(__file__).parent


def plain(key: bytes = KEY) -> NoiseSource:
    return NoiseSource(key, prefetch=False, use_kernel=False)


def released(source: NoiseSource, entry: int, x: np.ndarray, std: float = 0.5) -> np.ndarray:
    copy = x.copy()
    source.add(entry, "grad", copy, std)
    return copy


# --------------------------------------------------------------------------------------- values


@pytest.mark.parametrize("size", [1, 2, 7, 1000, BLOCK // 2, BLOCK // 2 + 1, BLOCK + 1])
def test_threads_kernel_and_grouping_change_no_value(size: int) -> None:
    sources = [NoiseSource(KEY, ahead, fast) for ahead in (True, False) for fast in (True, False)]
    for entry in (0, 1, 2, 70, 71, 140, 3):  # in order, with gaps, and back
        for stream in ("grad", "count"):
            values = [s.normal(entry, stream, size) for s in sources]
            assert values[0].shape == (size,) and values[0].dtype == np.float64
            assert all(np.array_equal(values[0], v) for v in values)
    for each in sources:
        each.close()


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_a_release_is_the_rounded_sum_plus_noise(dtype: type) -> None:
    x = np.linspace(-3, 3, 1001).astype(dtype)
    bits = bits_for(1001)
    gamma = 0.3 * 2.0**-bits
    noise = plain().normal(5, "grad", 1001) * 2.0**bits
    expected = (np.rint(x.astype(float) * (1 / gamma)) + noise) * gamma
    for each in (NoiseSource(KEY), plain()):
        assert np.array_equal(released(each, 5, x, 0.3), expected.astype(dtype))
        each.close()


def test_values_beyond_those_drawn_ahead() -> None:
    size = AHEAD + 70_003
    ahead, now = NoiseSource(KEY), NoiseSource(KEY, prefetch=False)
    for entry in (0, 1):
        x = np.ones(size, np.float32)
        assert np.array_equal(released(ahead, entry, x), released(now, entry, x))
    ahead.close()


def test_leaves_and_slices_are_pieces_of_one_vector() -> None:
    x = np.arange(1000.0, dtype=np.float32)
    whole = released(plain(), 3, x)
    for each in (NoiseSource(KEY), NoiseSource(KEY, prefetch=False), plain()):
        leaves = [x[:1].copy(), x[1:334].copy().reshape(9, 37), x[334:].copy()]
        each.add_leaves(3, "grad", leaves, 0.5)
        assert np.array_equal(np.concatenate([leaf.flatten() for leaf in leaves]), whole)
        part = x[401:777].copy()
        each.add_slice(3, "grad", [part], 0.5, 401, 1000)
        assert np.array_equal(part, whole[401:777])
        each.close()


def test_strided_tensors_are_noised_where_they_are() -> None:
    x = np.zeros((50, 20), np.float32)
    plain().add(0, "grad", x.T, 1.0)
    assert np.array_equal(x.T.reshape(-1), released(plain(), 0, np.zeros(1000, np.float32), 1.0))


def test_streams_sizes_entries_laws_and_keys_differ() -> None:
    n = 20_000
    draws = [
        plain().normal(0, "grad", n),
        plain().normal(1, "grad", n),
        plain().normal((1 << 63) - 1, "grad", n),
        plain().normal(0, "count", n),
        plain().normal(0, "grad", n + 1)[:n],
        plain().normal(0, "grad", n, law="laplace"),
        plain(KEY[:-1] + b"\0").normal(0, "grad", n),
    ]
    correlation = np.corrcoef(np.stack(draws))
    assert np.abs(correlation - np.eye(len(draws))).max() < 5 / math.sqrt(n)


def test_the_method_has_a_name() -> None:
    assert source.method() == source.method.__wrapped__()
    assert source.method() == "bda839cfe373a4b9"  # the noise of resumed runs: never change it


@pytest.mark.parametrize("key", [b"short", bytes(65), -1])
def test_weak_keys_are_refused(key: bytes | int) -> None:
    with pytest.raises(ConfigurationError, match="noise key"):
        NoiseSource(key)


@pytest.mark.parametrize("std", [0.0, -1.0, math.nan, math.inf])
def test_no_noise_is_refused(std: float) -> None:
    with pytest.raises(ConfigurationError, match="finite std"):
        plain().add(0, "grad", np.zeros(3), std)


# ------------------------------------------------------------------------------ owners, threads


def test_what_was_handed_out_is_never_overwritten() -> None:
    each = NoiseSource(KEY)
    for size in (5000, BLOCK):
        entries = range(0, 12 * group(size), group(size))
        held = [each.normal(entry, "grad", size) for entry in entries]
        for entry, value in zip(entries, held, strict=True):
            assert np.array_equal(value, plain().normal(entry, "grad", size))
    each.close()


def test_the_thread_ends_with_its_source() -> None:
    before = threading.active_count()
    each = NoiseSource(KEY)
    each.normal(0, "grad", 10)
    assert threading.active_count() == before + 1
    each.close()
    assert threading.active_count() == before
    assert np.array_equal(each.normal(200, "grad", 10), plain().normal(200, "grad", 10))
    del each
    assert threading.active_count() == before


def test_an_error_in_the_background_reaches_the_caller() -> None:
    class Broken:
        def draw(self, *_: object) -> None:
            raise MemoryError("no more")

    request = Request(Slab(KEY, "gaussian", 30, 0, 1, 5), np.empty(5), Broken())
    request.serve()
    with pytest.raises(MemoryError, match="no more"):
        request.take()


def run(code: str) -> str:
    path = os.pathsep.join([str(HERE), *sys.path])
    done = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", "-c", code],
        capture_output=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stderr.decode()


def test_a_forked_process_may_look_but_not_add() -> None:
    run(
        "import os, numpy as np\n"
        "from winsor.core.noise.source import NoiseSource\n"
        "from winsor.core.contract import UnsoundRelease\n"
        "one, other = NoiseSource(7), NoiseSource(7, prefetch=False)\n"
        "one.normal(0, 'grad', 100)\n"
        "child = os.fork()\n"
        "good = np.array_equal(one.normal(64, 'grad', 100), other.normal(64, 'grad', 100))\n"
        "if child == 0:\n"
        "    try:\n"
        "        one.add(65, 'grad', np.zeros(100), 1.0)\n"
        "    except UnsoundRelease:\n"
        "        os._exit(0 if good else 1)\n"
        "    os._exit(2)\n"
        "_, status = os.waitpid(child, 0)\n"
        "one.add(65, 'grad', np.zeros(100), 1.0)\n"
        "assert good and status == 0, status\n"
    )


def test_nothing_is_said_when_the_interpreter_ends_while_noise_is_drawn() -> None:
    said = run(
        "import numpy as np\n"
        "from winsor.core.noise.source import NoiseSource\n"
        "kept = [NoiseSource(7, use_kernel=fast) for fast in (True, False)]\n"
        "for one in kept:\n"
        "    one.add(0, 'grad', np.zeros(1 << 22), 1.0)\n"
        "kept.append(kept)\n"  # a cycle: collected at the very end
    )
    assert said == ""


def test_without_a_compiler_the_pure_path_serves(tmp_path: Path) -> None:
    code = "from winsor.core.noise import kernel, source\n"
    code += "assert kernel.load() is None\nprint(source.method())"
    for variable, value in [("WINSOR_NOISE_KERNEL", "0"), ("PATH", "")]:
        env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), variable: value}
        env["PYTHONPATH"] = os.pathsep.join([str(HERE), *sys.path])
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, capture_output=True, timeout=120, env=env, text=True)
        assert done.stdout.strip() == source.method(), done.stderr


def test_a_kernel_that_draws_other_bits_is_not_used() -> None:
    class Other:
        def draw(self, *_: object) -> None: ...

    assert not kernel.agrees(Other())  # type: ignore[arg-type]


# ------------------------------------------------------------------------- what an expert tries

Guess = Callable[[np.ndarray, np.ndarray, float], float]
"""(released, sum under a hypothesis, std) -> how well they fit."""


def is_float32(out: np.ndarray, g: np.ndarray, std: float) -> float:
    z = (out - g) / std
    return float((z == z.astype(np.float32)).mean())


def parity(out: np.ndarray, g: np.ndarray, std: float) -> float:
    return float((((out - g).view(np.int64) & 1) == 0).mean())


def mantissa(out: np.ndarray, g: np.ndarray, std: float) -> float:
    low = (out - g).view(np.int64) & 0xFFFF
    return float(np.mean([(low >> b & 1).mean() for b in range(16)]) < 0.45)


def reachable(out: np.ndarray, g: np.ndarray, std: float) -> float:
    """Whether the noise is on the lattice, if the sum is."""
    steps = (out - g) / (std * 2.0 ** -bits_for(len(g)))
    return float((np.abs(steps - np.rint(steps)) == 0.5).mean())


def subnormal_bits(out: np.ndarray, g: np.ndarray, std: float) -> float:
    whole = np.rint(out / (std * 2.0 ** -bits_for(len(g)))).astype(np.int64)
    return float((whole & 1).mean() + ((whole >> 1) & 1).mean())


ATTACKS = [is_float32, parity, mantissa, reachable, subnormal_bits]


def successes(noise: Callable[[int, np.ndarray, float], None], guess: Guess, kind: str) -> float:
    """How often the better-fitting of two neighbouring sums is the true one, of 2,000."""
    rng, wins, size, std = np.random.default_rng(3), 0, 24, 36.3  # epsilon 0.1 at delta 1e-5
    for trial in range(2000):
        sums = [rng.standard_normal(size).astype(kind) for _ in range(1)]
        shift = rng.standard_normal(size)
        sums.append((sums[0] + shift / np.linalg.norm(shift)).astype(kind))
        truth = trial % 2
        x = sums[truth].copy()
        noise(trial, x, std)
        out = x.astype(np.float64)
        fit = [guess(out, s.astype(np.float64), std) for s in sums]
        wins += fit[truth] > fit[1 - truth] or (fit[0] == fit[1] and rng.random() < 0.5)
    return wins / 2000


@pytest.mark.parametrize("kind", ["float32", "float64"])
@pytest.mark.parametrize("guess", ATTACKS)
def test_low_bits_tell_nothing(guess: Guess, kind: str) -> None:
    each = NoiseSource(KEY)
    assert successes(lambda i, x, s: each.add(i, "grad", x, s), guess, kind) <= 0.55
    each.close()


def test_the_attack_works_on_noise_of_lower_precision() -> None:
    def float32_noise(trial: int, x: np.ndarray, std: float) -> None:
        noise = np.random.default_rng(trial).standard_normal(x.shape, dtype=np.float32)
        x += std * noise.astype(float)

    assert successes(float32_noise, near_float32, "float64") > 0.95


def near_float32(out: np.ndarray, g: np.ndarray, std: float) -> float:
    z = (out - g) / std
    return float((np.abs(z - z.astype(np.float32)) < 1e-15).mean())


@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_nearness_to_float32_tells_nothing(kind: str) -> None:
    each = NoiseSource(KEY)
    rate = successes(lambda i, x, s: each.add(i, "grad", x, s), near_float32, kind)
    assert rate <= 0.55
    each.close()


def test_releases_lie_on_the_lattice_whatever_the_sum() -> None:
    """The set of reachable values is the same for all sums."""
    std, size = 0.37, 5000
    gamma = std * 2.0 ** -bits_for(size)
    rng = np.random.default_rng(0)
    for x in (np.zeros(size), rng.standard_normal(size)):
        steps = released(plain(), 1, x, std) / gamma
        assert np.abs(steps - (np.floor(steps) + 0.5)).max() < 1e-4  # the division rounds


# ------------------------------------------------------------------------------------ the price


def test_rounding_moves_neighbours_no_further_apart_than_charged() -> None:
    rng, size, std = np.random.default_rng(5), 2000, 1.0
    bits = bits_for(size)
    gamma, zero = std * 2.0**-bits, np.zeros(size)
    for scale in (1e-3, 1.0, 1e4, 2.0**40):
        x = rng.standard_normal(size) * scale
        y = x + rng.standard_normal(size) * 1e-7
        a, b = x.copy(), y.copy()
        lattice.apply(zero, gamma, a)
        lattice.apply(zero, gamma, b)
        moved = np.linalg.norm((a - b) / gamma)
        assert moved <= np.linalg.norm(x - y) / gamma + growth({bits: size}) / 2.0**-bits


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 1 << 18, (1 << 18) + 1, 10**8, 10**12])
def test_the_grid_follows_the_size(size: int) -> None:
    j = half_log2_up(size)
    assert 4**j >= size and (j == 0 or 4 ** (j - 1) < size)
    assert growth({bits_for(size): size}) <= 2.0**-16 * (1 + 1e-9)


def effective_multiplier(noise_multiplier: float, growth: float) -> float:
    """What to account for when the noise stays as it was."""
    return noise_multiplier / (1.0 + noise_multiplier * growth)


def epsilon(q: float, nm: float, steps: int, delta: float) -> float:
    accountant = PLDAccountant()
    event = dp_event.PoissonSampledDpEvent(q, dp_event.GaussianDpEvent(nm))
    accountant.compose(event, steps)
    return float(accountant.get_epsilon(delta))


@pytest.mark.parametrize(
    ("q", "nm", "steps", "size"),
    [(0.01, 1.0, 1000, 10**4), (0.004, 0.8, 10**4, 10**8), (1e-3, 0.6, 10**5, 10**8),
     (1.0, 20.0, 1, 10**8)],
)  # fmt: skip
def test_typical_plans_change_by_less_than_a_fifth_of_a_percent(
    q: float, nm: float, steps: int, size: int
) -> None:
    ideal = epsilon(q, nm, steps, 1e-6)
    grid = growth({bits_for(size): size})
    real = effective_multiplier(nm, grid)
    certified = charge(lambda delta: epsilon(q, real, steps, delta), 1e-6, size * steps)
    assert ideal < certified < 1.002 * ideal
    assert effective_multiplier(nm * compensated(nm, grid), grid) == pytest.approx(nm, rel=1e-12)


def test_the_sampler_costs_next_to_nothing_and_impossible_charges_are_infinite() -> None:
    assert sampler(1e13, 1e-12) < 2e-6
    assert charge(lambda delta: 700.0, 1e-6, 1e13) == math.inf
    assert charge(lambda delta: 60.0, 1e-6, 1e20) == math.inf  # mass beyond the reach
    assert math.isfinite(charge(lambda delta: 30.0, 1e-6, 1e13))


def test_the_charge_is_an_upper_bound_for_one_draw() -> None:
    """N = 1: (1 + eta) on each side."""
    value = charge(lambda delta: 1.0, 1e-5, 1.0)
    assert 1.0 + 2 * math.log1p(2.0**-45) <= value < 1.0 + 1e-11


def test_adding_in_a_fork_is_a_typed_error() -> None:
    each = plain()
    each._process = -1
    with pytest.raises(UnsoundRelease, match="forked"):
        each.add(0, "grad", np.zeros(2), 1.0)
