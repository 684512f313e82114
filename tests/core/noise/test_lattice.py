"""Lattice noise: the kernel and the pure path draw the same bits, of the law they claim."""

from __future__ import annotations

import dataclasses
import itertools
import math

import mpmath
import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy import stats

from winsor.core.accounting import lattice as charge
from winsor.core.noise import kernel, lattice
from winsor.core.noise import laws as tables
from winsor.core.noise.laws import CELL_BITS, INDEX_BITS, Law

KEY = bytes(range(32))
LAWS = [tables.gaussian(), tables.laplace()]
BOTH = pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
mpmath.mp.dps = 60


def pure(law: Law, entry: int, first: int, count: int, bits: int, key: bytes = KEY) -> np.ndarray:
    out = np.full(count, np.nan)
    lattice.draw(law, key, entry, first, count, bits, out)
    return out


def compiled() -> kernel.Kernel:
    """This machine has a compiler, AES and AVX2; elsewhere there is nothing to compare."""
    found = kernel.load()
    assert found is not None
    return found


# ------------------------------------------------------------------------ the same bits, anywhere


@BOTH
@pytest.mark.parametrize("bits", [26, 31, 40])
@pytest.mark.parametrize("first", [0, 1, 12345, (1 << 40) + 7])
def test_the_kernel_draws_the_bits_of_the_pure_path(law: Law, bits: int, first: int) -> None:
    sizes = [1, 2, 3, 7, 1023, 1024, 1025, lattice.CHUNK - 1, lattice.CHUNK, lattice.CHUNK + 1]
    for number, count in enumerate([*sizes, lattice.TOGETHER + 5]):
        entry, key = 3**number, bytes([number]) * 32
        out = np.empty(count)
        compiled().draw(law, key, entry, first, count, bits, out)
        assert np.array_equal(out, pure(law, entry, first, count, bits, key))


@BOTH
@pytest.mark.parametrize("count", [1, 15, 33, 1025, 5000])
def test_processors_with_and_without_wide_ciphers_draw_the_same_bits(law: Law, count: int) -> None:
    found = compiled()
    drawn = np.empty(count)
    found._library.winsor_narrow()
    try:
        found.draw(law, KEY, 9, 3, count, 31, drawn)
    finally:
        found._library.winsor_supported()  # looks at the processor again
    assert np.array_equal(drawn, pure(law, 9, 3, count, 31))


@BOTH
def test_random_places_agree(law: Law) -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        key = rng.bytes(32)
        entry, first = int(rng.integers(0, 1 << 62)) * 3, int(rng.integers(0, 1 << 46))
        count, bits, entries = int(rng.integers(1, 700)), int(rng.integers(26, 41)), 3
        theirs, ours = np.empty(3 * count), np.empty(3 * count)
        compiled().draw(law, key, entry, first, count, bits, theirs, entries)
        lattice.draw(law, key, entry, first, count, bits, ours, entries)
        assert np.array_equal(theirs, ours)
        assert np.array_equal(
            ours[count : 2 * count], pure(law, entry + 1, first, count, bits, key)
        )


@BOTH
def test_any_slice_can_be_drawn_alone(law: Law) -> None:
    whole = pure(law, 9, 0, 100_000, 30)
    for first, count in [(0, 1), (1, 1), (1, 2), (33_333, 50_001), (99_999, 1)]:
        assert np.array_equal(pure(law, 9, first, count, 30), whole[first : first + count])


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6, 1e30])
def test_releases_agree_bit_for_bit(kind: type, scale: float) -> None:
    x = (np.random.default_rng(1).standard_normal(300_001) * scale).astype(kind)
    x[:4] = [0.0, -0.0, np.inf, np.nan]
    y, gamma = x.copy(), 0.7 * 2.0**-29
    lattice.release(LAWS[0], KEY, 4, 3, 29, gamma, x)
    compiled().release(LAWS[0], KEY, 4, 3, 29, gamma, y)
    assert x.tobytes() == y.tobytes()
    assert np.isnan(x[3]) and np.isfinite(x[:3]).all()


def far_law(law: Law) -> Law:
    """All of it in the outer bands, which are never reached by chance."""
    return dataclasses.replace(
        law,
        name=law.name + " far",
        residual_from=0,
        alias_limit=np.zeros_like(law.alias_limit),
        alias_symbol=np.full_like(law.alias_symbol, -1),
    )


@BOTH
def test_the_outer_bands_agree_and_have_the_conditional_law(
    law: Law, monkeypatch: pytest.MonkeyPatch
) -> None:
    far = far_law(law)
    monkeypatch.setitem(tables.LAWS, far.name, lambda: far)
    ours, theirs = pure(far, 1, 0, 4000, 30), np.empty(4000)
    compiled().draw(far, KEY, 1, 0, 4000, 30, theirs)
    assert np.array_equal(ours, theirs)
    x = np.abs(ours) * 2.0**-30
    start = law.band_start[0] / 2 / 2**CELL_BITS
    assert x.min() > start
    cdf = stats.norm if law.name == "gaussian" else stats.laplace
    assert stats.kstest(1 - cdf.sf(x) / cdf.sf(start), "uniform").pvalue > 1e-3


def test_words_are_aes_256_in_counter_mode() -> None:
    nonce = (77).to_bytes(8, "big") + (5).to_bytes(8, "big")
    stream = Cipher(algorithms.AES(KEY), modes.CTR(nonce)).encryptor().update(bytes(64))
    words, _ = lattice._Cipher.of(KEY).words(77, 11, 6)
    assert words.tobytes() == stream[8:56]


def test_aes_matches_fips_197() -> None:
    """Appendix C.3: the key above, the text 00112233...: here as a counter block."""
    entry, place = 0x0011223344556677, 0x8899AABBCCDDEEFF
    domain, element = place >> 48, place & ((1 << 48) - 1)
    block = lattice._Cipher.of(KEY).scattered(
        np.array([entry], dtype=np.uint64), domain, np.array([element], dtype=np.uint64)
    )
    assert np.array(block).T.tobytes().hex() == "8ea2b7ca516745bfeafc49904b496089"


# ------------------------------------------------------------------------------- the exact law


def weights(law: Law) -> list[mpmath.mpf]:
    """Probability of each symbol, from the very tables that are used."""
    one = mpmath.mpf(2) ** 64
    share = mpmath.mpf((1 << INDEX_BITS) - law.residual_from) / (1 << INDEX_BITS)
    height = 1 << (64 - law.alias_bits)
    out, further = [mpmath.mpf(0)] * (2 * len(law.slope)), mpmath.mpf(0)
    for column, limit in enumerate(law.alias_limit.tolist()):
        for row, count in enumerate((limit, height - limit)):
            symbol = int(law.alias_symbol[row, column])
            if symbol < 0:
                further += share * count / one
            else:
                out[symbol] += share * count / one
    for first, last in itertools.pairwise(law.band_start):
        before = -1
        for symbol in range(first, last):
            upto = int(law.band_upto[symbol])
            out[symbol] = further * (upto - before) / one
            before = upto
        further *= (int(one) - 1 - before) / one
    return out


def accepted(law: Law, cell: int, slot: int, bits: int) -> int:
    """Of 2^53 heights, how many the floating-point test accepts."""
    low, high = 0, 1 << 53
    where = np.array([cell]), np.array([slot], dtype=np.uint64)
    while low < high:
        middle = (low + high) // 2
        height = np.array([middle << 11], dtype=np.uint64)
        if lattice._accepted(law, *where, height, bits)[0]:
            low = middle + 1
        else:
            high = middle
    return low


def density(law: Law, x: mpmath.mpf) -> mpmath.mpf:
    return mpmath.npdf(x) if law.name == "gaussian" else mpmath.exp(-x) / 2


def slope(law: Law, x: mpmath.mpf) -> mpmath.mpf:
    return -density(law, x) * (x if law.name == "gaussian" else 1)


@BOTH
def test_masses_of_cells(law: Law) -> None:
    for cell in range(0, len(law.slope), 5):
        x, y = mpmath.mpf(cell) / 32, mpmath.mpf(cell + 1) / 32
        exact = (
            mpmath.ncdf(-x) - mpmath.ncdf(-y)
            if law.name == "gaussian"
            else (mpmath.exp(-x) - mpmath.exp(-y)) / 2
        )
        assert abs(mpmath.mpf(law.masses[cell]) / 2 ** mpmath.mpf(320) / exact - 1) < 1e-45


def sampler_against_model(law: Law, cells: list[int], bits: int) -> float:
    """Largest relative distance of a lattice point's probability, as the tables and the
    floating-point test give it, from rectangle + wedge at midpoints."""
    width, symbols, worst = 1 << (bits - CELL_BITS), weights(law), mpmath.mpf(0)
    count = np.bincount(law.flat[: law.residual_from].astype(int) + 4096, minlength=9000)
    for cell in cells:
        edge = density(law, mpmath.mpf(cell + 1) / 32)
        unit = mpmath.mpf(2) ** -bits
        middles = [mpmath.mpf(cell) / 32 + (m + 0.5) * unit for m in range(width)]
        heights = [density(law, x) - edge for x in middles]
        mass = mpmath.mpf(law.masses[cell]) / 2 ** mpmath.mpf(320) - edge / 32
        odds = [(2 * (width - m) - 1) * accepted(law, cell, m, bits) for m in range(width)]
        assert count[4096 + cell] == count[4095 - cell]
        flat = mpmath.mpf(int(count[4096 + cell])) / (1 << INDEX_BITS)
        for m in range(width):
            model = edge * unit + mass * heights[m] / sum(heights)
            # symbols carry both signs
            real = (flat + symbols[2 * cell] / 2) / width
            real += symbols[2 * cell + 1] / 2 * odds[m] / sum(odds)
            worst = max(worst, abs(real / model - 1))
    return float(worst)


def model_against_truth(law: Law, cells: list[int], bits: int) -> float:
    """Largest relative distance of that model from the law rounded to the lattice. The sum of
    midpoints by Euler and Maclaurin: its next term is smaller by a factor of 2^-2 bits."""
    unit, worst = mpmath.mpf(2) ** -bits, mpmath.mpf(0)
    for cell in cells:
        x, y = mpmath.mpf(cell) / 32, mpmath.mpf(cell + 1) / 32
        mass = mpmath.mpf(law.masses[cell]) / 2 ** mpmath.mpf(320)
        edge = density(law, y)
        middles = mass - unit**2 / 24 * (slope(law, y) - slope(law, x))
        stretch = (mass - edge / 32) / (middles - edge / 32)
        for place in (0.0, 0.3, 0.7, 1.0):
            m = int(place * ((1 << (bits - CELL_BITS)) - 1))
            left = x + m * unit
            if law.name == "gaussian":
                true = mpmath.ncdf(-left) - mpmath.ncdf(-left - unit)
            else:
                true = mpmath.exp(-left) * (1 - mpmath.exp(-unit)) / 2
            model = unit * (edge + (density(law, left + unit / 2) - edge) * stretch)
            worst = max(worst, abs(model / true - 1))
    return float(worst)


@BOTH
def test_every_lattice_point_is_within_eta_of_the_ideal(law: Law) -> None:
    last = len(law.slope) - 1
    bands = [b for start in law.band_start.tolist() for b in (start // 2 - 1, start // 2)]
    some = [0, 1, 2, 15, 31, 32, 33, 64, 100, 101, 102, 120, 200, *bands, last]
    cells = sorted({b for b in some if b <= last})
    exact = sampler_against_model(law, cells, bits=9)
    rounded = model_against_truth(law, cells, bits=charge.LEAST_BITS)
    assert exact < 2.0**-46
    assert rounded < 2.0**-46
    assert (1 + exact) * (1 + rounded) - 1 < charge.ETA


@BOTH
def test_the_tables_are_within_their_share_of_eta_in_every_cell(law: Law) -> None:
    """theta of the proof: rounded masses, weighed by how far a wedge rises above its mean."""
    symbols, worst = weights(law), mpmath.mpf(0)
    counts = np.bincount(law.flat[: law.residual_from].astype(int) + 4096, minlength=9000)
    for cell, whole in enumerate(law.masses):
        inner, edge = (density(law, mpmath.mpf(b) / 32) for b in (cell, cell + 1))
        mass = mpmath.mpf(whole) / 2 ** mpmath.mpf(320)
        flat = mpmath.mpf(int(counts[4096 + cell])) / (1 << INDEX_BITS)
        wedge = mass - edge / 32
        peak = (inner - edge) / 32 / wedge
        assert peak < 2.15 and inner / edge < 1.51
        rest_error = abs(symbols[2 * cell] / 2 + flat - edge / 32)
        wedge_error = abs(symbols[2 * cell + 1] / 2 - wedge)
        worst = max(worst, (rest_error + peak * wedge_error) / (edge / 32))
    assert worst < 2.0**-47


@BOTH
def test_symbols_add_up_and_every_cell_is_common_in_its_band(law: Law) -> None:
    total = mpmath.fsum(weights(law)) + mpmath.mpf(law.residual_from) / (1 << INDEX_BITS)
    assert abs(total - 1) < mpmath.mpf(2) ** -180
    inside = 2 * mpmath.fsum(law.masses) / mpmath.mpf(2) ** 320
    assert 0 <= 1 - inside <= law.outside


# ---------------------------------------------------------------------------------- statistics


def standard(law: Law, entry: int, count: int) -> np.ndarray:
    out = np.empty(count)
    compiled().draw(law, KEY, entry, 0, count, 30, out)
    return out * 2.0**-30


def test_moments_and_distribution_of_the_normal_law() -> None:
    x = standard(LAWS[0], 7, 4_000_000)
    n = len(x)
    assert stats.kstest(x, "norm").pvalue > 1e-3
    for power, (mean, variance) in {1: (0, 1), 2: (1, 2), 3: (0, 15), 4: (3, 96)}.items():
        assert abs((x**power).mean() - mean) < 4.5 * math.sqrt(variance / n)
    for z in (2.0, 3.0, 4.0, 4.9):
        expected = n * 2 * stats.norm.sf(z)
        assert abs((np.abs(x) > z).sum() - expected) < 5 * math.sqrt(expected) + 1


def test_distribution_of_the_laplace_law() -> None:
    x = standard(LAWS[1], 8, 4_000_000)
    assert stats.kstest(x, "laplace").pvalue > 1e-3
    assert abs(x.mean()) < 4.5 * math.sqrt(2 / len(x))
    assert abs((x**2).mean() - 2) < 4.5 * math.sqrt(20 / len(x))


@BOTH
def test_cells_slots_and_places_in_a_cell(law: Law) -> None:
    out = np.empty(4_000_000)
    compiled().draw(law, KEY, 9, 0, len(out), 30, out)
    cell = np.floor(out * 2.0 ** -(30 - CELL_BITS)).astype(int)
    size = np.minimum(np.where(cell >= 0, cell, -cell - 1), 150)
    mass = np.array([float(m / 2**320) for m in law.masses])
    expected = 2 * np.append(mass[:150], mass[150:].sum())
    observed = np.bincount(size, minlength=151)
    assert stats.chisquare(observed, expected / expected.sum() * len(out)).pvalue > 1e-3
    whole = np.floor(np.abs(out)).astype(np.int64)
    for shift in (0, 5, 10):  # the lowest bits are fair
        assert stats.chisquare(np.bincount((whole >> shift) & 255, minlength=256)).pvalue > 1e-3
    for b in (0, 20, 60):  # inside a cell the density falls as it should
        place = (whole[size == b] & ((1 << 25) - 1)) * 2.0**-25
        exact = stats.norm if law.name == "gaussian" else stats.laplace
        low, high = exact.cdf(b / 32), exact.cdf((b + 1) / 32)
        uniform = (exact.cdf((b + place) / 32) - low) / (high - low)
        assert stats.kstest(uniform, "uniform").pvalue > 1e-3


def test_the_tail_beyond_six_deviations_is_reached_and_as_heavy_as_it_should_be() -> None:
    seen = []
    for entry in range(100):
        x = np.abs(standard(LAWS[0], 10_000 + entry, 1 << 20))
        seen.append(x[x > 5])
    tail = np.concatenate(seen)
    expected = 100 * (1 << 20) * 2 * stats.norm.sf(5)
    assert abs(len(tail) - expected) < 5 * math.sqrt(expected)
    symbols = weights(LAWS[0])
    beyond = mpmath.fsum(symbols[2 * 6 * 32 :])
    assert abs(float(beyond) / (2 * stats.norm.sf(6)) - 1) < 1e-9
    assert min(symbols) > 0  # every cell up to 13 deviations


def test_entries_elements_and_keys_are_independent() -> None:
    n = 1 << 20
    draws = [standard(LAWS[0], entry, n) for entry in (0, 1, 2, 1 << 32)]
    other = np.empty(n)
    compiled().draw(LAWS[0], KEY[::-1], 0, 0, n, 30, other)
    rows = np.stack([*draws, other * 2.0**-30, np.roll(draws[0], 1), np.roll(draws[0], 2)])
    for each in (rows, rows**2, np.sign(rows)):
        assert np.abs(np.corrcoef(each) - np.eye(len(rows))).max() < 5 / math.sqrt(n)


def test_no_block_is_used_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every counter that the pure path encrypts under one key is another one."""
    seen: set[tuple[int, int]] = set()
    cipher = lattice._Cipher(KEY)
    words, scattered = cipher.words, cipher.scattered

    def note(entry: int, place: int) -> None:
        assert (entry, place) not in seen
        seen.add((entry, place))

    def noted_words(entry: int, first: int, count: int, rows: int = 1) -> tuple:
        for row in range(rows):
            for place in range(first >> 1, (first + count + 1) >> 1):
                note(entry + row, place)
        return words(entry, first, count, rows)

    def noted_scattered(entries: np.ndarray, domain: int, elements: np.ndarray) -> tuple:
        for entry, element in zip(entries.tolist(), elements.tolist(), strict=True):
            note(entry, (domain << 48) | element)
        return scattered(entries, domain, elements)

    monkeypatch.setattr(cipher, "words", noted_words)
    monkeypatch.setattr(cipher, "scattered", noted_scattered)
    monkeypatch.setattr(lattice._Cipher, "of", staticmethod(lambda key: cipher))
    for entry, count in [(0, 40_000), (1, 7), (2, 70_001)]:
        lattice.draw(LAWS[0], KEY, entry, 0, count, 30, np.empty(count))
    lattice.draw(LAWS[0], KEY, 10, 0, 100, 30, np.empty(6400), 64)
    assert len(seen) > 60_000
