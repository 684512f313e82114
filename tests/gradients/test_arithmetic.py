"""Arithmetic R: the library and NumPy against exact numbers, and digits that belong to a row."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import Tensor

from winsor.core import compiled
from winsor.gradients import arithmetic, parameter_rows
from winsor.gradients.arithmetic import BLOCK, BLOCKS, PLAIN, OuterMap, add_up_chunks, library
from winsor.gradients.buffers import Layout
from winsor.gradients.layers.convolution import ConvolutionPiece, Geometry
from winsor.gradients.parameter_rows import Factors, ParameterRows
from winsor.gradients.recorded_view import RecordedView
from winsor.gradients.rows import RowsView

LIBRARY = library()
WAYS = {"library": LIBRARY, "NumPy": PLAIN}
way_of = pytest.mark.parametrize("way", WAYS)


@pytest.fixture(autouse=True)
def _widest_vectors():
    yield
    LIBRARY.use(8)


def seeded(*key: int) -> torch.Generator:
    return torch.Generator().manual_seed(hash(key) % 2**31)


def randn(generator: torch.Generator, *shape: int, dtype=torch.float32) -> Tensor:
    """Numbers of all magnitudes that a type has, row by row."""
    scale = (
        torch.linspace(-40, 36, shape[0])
        if dtype is torch.float32
        else torch.linspace(-70, 70, shape[0])
    )
    sizes = (10.0 ** scale.double()).view(-1, *[1] * (len(shape) - 1))
    return (torch.randn(*shape, generator=generator).double() * sizes).to(dtype)


def zeros(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.float64)


def test_there_is_a_library():
    assert LIBRARY is not None  # CI has a compiler


# ------------------------------------------------------------------------------ exact numbers


def exact(x: Tensor) -> list:
    return [exact(row) for row in x] if x.dim() else Fraction(float(x))


def near(found: Tensor, expected: list, most: list, relative: float = 1e-14) -> None:
    """Each number is off by a share of what there is if nothing cancels."""
    for a, b, m in zip(found.flatten().tolist(), expected, most, strict=True):
        assert abs(Fraction(a) - b) <= Fraction(relative) * m


@way_of
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(6, 1, 3, 4), (5, 3, 2, 5), (4, 9, 2, 1), (7, 2, 9, 3)])
def test_small_cases_are_exact_but_for_rounding(way, dtype, shape):
    way, (n, places, k, d) = WAYS[way], shape
    generator = seeded(*shape)
    e, x = randn(generator, n, places, k, dtype=dtype), randn(generator, n, places, d, dtype=dtype)
    e = e.flip(0) if places == 2 else e  # small rows of one side meet large ones of the other
    w = torch.rand(n, generator=generator).double()
    left, right, weights = exact(e), exact(x), exact(w)
    span, rows, sums, sizes = range(places), [], {}, {}
    for i in range(n):
        row = {
            (a, b): [left[i][t][a] * right[i][t][b] for t in span]
            for a in range(k)
            for b in range(d)
        }
        rows.append({at: (sum(terms), sum(map(abs, terms))) for at, terms in row.items()})
        for at, (net, gross) in rows[-1].items():
            sums[at] = sums.get(at, 0) + weights[i] * net
            sizes[at] = sizes.get(at, 0) + weights[i] * gross
    formed = way.form_rows(e, x)
    for i, row in enumerate(rows):
        near(formed[i], [net for net, _ in row.values()], [gross for _, gross in row.values()])
    norms, reaches = way.factor_norms([e], x)
    near(norms, [sum(a * a for a, _ in row.values()) for row in rows],
         [sum(a * a for _, a in row.values()) for row in rows])  # fmt: skip
    squares = [[sum(v * v for v in place) for place in row] for row in right]
    near(way.squares(x), [sum(row) for row in squares], [sum(row) for row in squares])
    lengths = arithmetic.lengths_of_places(e) * arithmetic.lengths_of_places(x)
    torch.testing.assert_close(reaches[:, 0], lengths.sum(1), rtol=1e-14, atol=0)
    out = torch.ones(k, d, dtype=torch.float64)
    way.weigh_products(w, e, x, out, False)
    near(out, list(sums.values()), list(sizes.values()))
    flat = zeros(places, d)
    way.weigh_rows(w, x, flat, False)
    columns = [[weights[i] * right[i][t][b] for i in range(n)] for t in span for b in range(d)]
    near(flat, [sum(c) for c in columns], [sum(map(abs, c)) for c in columns])
    inner = way.inner_products(x[:, 0], x[:2, 0])
    terms = [
        [right[i][0][b] * right[j][0][b] for b in range(d)]
        for i in range(n)
        for j in range(min(n, 2))
    ]
    near(inner, [sum(t) for t in terms], [sum(map(abs, t)) for t in terms])


SHAPES = [
    (1, 1, 1, 1), (3, 1, 784, 10), (2, 300, 17, 33), (2, 300, 120, 9), (1, 1100, 100, 90),
    (2, 130, 193, 200), (2, 40, 9, 500), (40, 33, 200, 25), (2, 33000, 3, 2), (1000, 1, 33, 430),
]  # fmt: skip


def tensors(shape, dtype=torch.float32):
    n, places, k, d = shape
    generator = seeded(*shape)
    return (
        torch.randn(n, places, k, generator=generator).to(dtype),
        torch.randn(n, places, d, generator=generator).to(dtype),
        torch.rand(n, generator=generator).double(),
    )


def answers(way, e: Tensor, x: Tensor, w: Tensor) -> list[Tensor]:
    rows = [way.squares(x), *way.factor_norms([e, e[:, :, :1]], x), way.form_rows(e, x)]
    product, row, sums = zeros(e.shape[2], x.shape[2]), zeros(*x.shape[1:]), zeros(4, x.shape[2])
    way.weigh_products(w, e, x, product, False)
    way.weigh_rows(w, x, row, False)
    index = torch.arange(e.shape[0] * e.shape[1]).view(e.shape[:2]) % 5 - 1
    way.scatter(w, x, index, sums)
    return [*rows, way.inner_products(x[:, 0], x[:1, -1]), product, row, sums]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_larger_cases_agree_with_long_doubles(shape, dtype):
    e, x, w = tensors(shape, dtype)
    left, right, weights = (t.numpy().astype(np.longdouble) for t in (e, x, w))
    rows = np.matmul(left.transpose(0, 2, 1), right)
    first = np.matmul(left[:, :, :1].transpose(0, 2, 1), right)
    norms = (rows**2).sum((1, 2)) + (first**2).sum((1, 2))
    lengths = [np.sqrt((t**2).sum(2)) for t in (left, left[:, :, :1], right)]
    reaches = np.stack([(each * lengths[2]).sum(1) for each in lengths[:2]], 1)
    sums = np.zeros((4, shape[3]), np.longdouble)
    index = np.arange(shape[0] * shape[1]) % 5 - 1
    weighted = (weights.reshape(-1, 1, 1) * right).reshape(-1, shape[3])
    np.add.at(sums, index[index >= 0], weighted[index >= 0])
    expected = [
        (right**2).sum((1, 2)), norms, reaches, rows, right[:, 0] @ right[:1, -1].T,
        np.tensordot(weights, rows, 1), np.tensordot(weights, right, 1), sums,
    ]  # fmt: skip
    for found, precise in zip(answers(LIBRARY, e, x, w), expected, strict=True):
        scale = np.abs(precise).max()
        assert np.abs(found.numpy() - precise).max() <= 1e-13 * scale


def test_adding_goes_on_from_what_is_there():
    e, x, w = tensors((5, 1, 30, 50))
    for way in WAYS.values():
        out, twice = torch.ones(30, 50, dtype=torch.float64), zeros(30, 50)
        way.weigh_products(w, e, x, out, True)
        way.weigh_products(2 * w, e, x, twice, False)
        torch.testing.assert_close(2 * out - 2, twice, rtol=1e-12, atol=1e-12)
        row = torch.ones(50, dtype=torch.float64)
        way.weigh_rows(None, x[:, 0], row, True)
        torch.testing.assert_close(row, 1 + x[:, 0].double().sum(0), rtol=1e-13, atol=1e-13)


# ------------------------------------------------------------------------------ same digits


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(a.numpy().tobytes() == b.numpy().tobytes() for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_digits_do_not_depend_on_vectors_or_threads(shape, dtype, monkeypatch):
    given = tensors(shape, dtype)
    assert LIBRARY.use(8) in (4, 8)
    expected = answers(LIBRARY, *given)
    assert LIBRARY.use(4) == 4
    assert same(answers(LIBRARY, *given), expected)
    LIBRARY.use(8)
    monkeypatch.setattr(arithmetic, "WORTH_A_THREAD", 1)
    for threads in (2, 3):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        assert same(answers(LIBRARY, *given), expected)


@way_of
@pytest.mark.parametrize(
    "shape", [(9, 1, 30, 50), (5, 20, 8, 7), (4, 150, 70, 30), (33, 7, 2, 784)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_digits_of_a_row_are_its_own(way, shape, dtype):
    way, (e, x, w) = WAYS[way], tensors(shape, dtype)
    expected = answers(way, e, x, w)[:5]
    other, n = torch.full_like(e[:1], math.inf), len(e)
    for index in ([n - 1], [0], [n - 1, 0], [1, 1, 2, 0], list(range(n - 1, -1, -1))):
        one, two = e[index], x[index]
        found = answers(
            way, torch.cat([other, one]), torch.cat([x[:1], two]), w.new_ones(len(index) + 1)
        )
        # the last direction of `inner_products` is that of another row
        inner = way.inner_products(two[:, 0], x[:1, -1])
        assert same([*(a[1:] for a in found[:4]), inner], [a[index] for a in expected])


@pytest.mark.parametrize("shape", [(300, 1, 50, 90), (70, 5, 13, 430)])
def test_an_element_of_a_sum_does_not_depend_on_the_size_of_the_sum(shape):
    e, x, w = tensors(shape)
    whole, part = zeros(shape[2], shape[3]), zeros(5, 3)
    LIBRARY.weigh_products(w, e, x, whole, False)
    LIBRARY.weigh_products(w, e[..., 2:7], x[..., 31:34], part, False)
    assert torch.equal(whole[2:7, 31:34], part)


def test_sums_are_chained_in_blocks():
    """One plus a number that is lost beside it, again and again: only short chains keep them."""
    count = BLOCK * BLOCKS * 2 + 5
    left, right = torch.ones(count, 1), torch.full((count, 1), 2.0**-50, dtype=torch.float64)
    right[0] = 1.0
    chain = BLOCK + BLOCKS + 2
    for way in WAYS.values():
        out, index = [zeros(1, 1) for _ in range(3)], torch.zeros(count, 1, dtype=torch.long)
        way.weigh_products(None, left, right, out[0], False)
        way.weigh_rows(None, right, out[1], False)
        way.scatter(None, right.unsqueeze(1), index, out[2])
        for found in out:
            assert abs(float(found) - 1 - (count - 1) * 2.0**-50) <= chain * 2.0**-53


def test_sums_over_chunks_of_rows_are_chained_in_blocks(monkeypatch):
    """The same where each row is a chunk of its own: its numbers fill the cache."""
    monkeypatch.setattr(parameter_rows, "NUMBERS_AT_ONCE", 0)
    count = 16 * BLOCK
    values = torch.full((count, 1, 1), 2.0**-54, dtype=torch.float64)
    values[0] = 1.0
    ones, loss, like = torch.ones_like(values), values[:, 0, 0], {"w": zeros(1, 1)}
    flat = Geometry((1,), (0,), (1,), False, (0,), 1)
    piece = ConvolutionPiece(values, ones, torch.Size((1, 1, 1)), flat)
    view = RecordedView(like, {"w": Factors(ones, values)}, loss, Layout(like))
    sums = [zeros(1, 1, 1), zeros(1, 1)]
    piece.weighted(None, sums[0])
    ParameterRows.weighted(Factors(ones, values), None, sums[1])
    sums.append(view.map_sum(lambda rows: rows)["w"])
    sums.append(RowsView({"w": values}, chunk=1).map_sum(lambda rows: rows)["w"])
    sums.append(view.cut_sum(torch.ones(count, dtype=torch.float64), 2.0**-60)["w"] * 2.0**60)
    exact = 1 + (count - 1) * 2.0**-54
    for found in sums[:-1]:
        assert abs(float(found) - exact) <= (BLOCK + 16) * 2.0**-54
    assert float(sums[-1]) == count


def test_as_many_chunks_as_there_may_be_are_added_up_in_their_order():
    met = []

    def add(start, stop, into):
        met.append((start, stop))
        into += 1.0

    chunks, out = [(i, i + 1) for i in range(BLOCK * BLOCKS + 3)], zeros(1)
    add_up_chunks(chunks, add, out)
    assert met == chunks
    assert float(out) == len(chunks)


# -------------------------------------------------------------------------- unusual numbers


@way_of
def test_products_of_four_float32_neither_overflow_nor_underflow(way):
    way = WAYS[way]
    for tiny, huge in ((1e-45, 3.4e38), (1e-45, 1e-45), (3.4e38, 3.4e38)):
        for places in (1, 3, 40):
            e, x = torch.full((2, places, 2), tiny), torch.full((2, places, 3), huge)
            norms, reaches = way.factor_norms([e], x)
            length = places * math.sqrt(6) * float(e[0, 0, 0]) * float(x[0, 0, 0])
            torch.testing.assert_close(norms.sqrt(), zeros(2) + length, rtol=1e-13, atol=0)
            torch.testing.assert_close(reaches[:, 0], zeros(2) + length, rtol=1e-13, atol=0)
            out = zeros(2, 3)
            way.weigh_products(1 / norms.sqrt(), e, x, out, False)
            torch.testing.assert_close(out, zeros(2, 3) + 2 / math.sqrt(6), rtol=1e-13, atol=0)


@way_of
def test_float64_is_held(way):
    way = WAYS[way]
    x = torch.tensor([-501.0, -500.0, -251.0, -250.0, 250.0, 251.0], dtype=torch.float64).exp2()
    rows, factors = [0.0, 1.0, 1.0, 1.0, 1.0, math.inf], [0.0, 0.0, 0.0, 1.0, 1.0, math.inf]
    for copies in (1, 40):
        column = x.view(6, 1).expand(6, copies).contiguous()
        assert (way.squares(column) / copies / x / x).tolist() == rows
        assert (
            way.inner_products(column, torch.ones(1, copies))[:, 0] / copies / x
        ).tolist() == rows
        found = [zeros(6), zeros(1, 6), zeros(1, 6), *(zeros(copies, 6) for _ in range(2))]
        way.weigh_rows(None, column.T, found[0], False)
        way.scatter(
            None, x.view(1, 1, 6).repeat(copies, 1, 1), torch.zeros(copies, 1).long(), found[1]
        )
        way.weigh_products(None, torch.ones(copies, 1), column.T, found[2], False)
        way.weigh_products(None, torch.ones(1, copies), x.view(1, 6), found[3], False)
        way.weigh_products(
            None, -x.view(1, 6), torch.ones(1, copies), back := zeros(6, copies), False
        )
        found[4].copy_(-back.T)
        for share, out in zip((copies, copies, copies, 1, 1), found, strict=True):
            read = rows if out is found[0] or out is found[1] else factors
            assert bool((out.reshape(-1, 6) / share / x == torch.tensor(read).double()).all())
    pairs = x.view(6, 1, 1), torch.ones(6, 1, 3)
    assert (way.form_rows(*pairs)[:, 0, 1] / x).tolist() == factors


@way_of
def test_rows_made_of_what_is_held_are_read_as_they_are(way):
    for size in (2.0**-250, 2.0**-149):
        e = torch.full((2, 2, 3), size, dtype=torch.float64)
        e = e.float() if size == 2.0**-149 else e
        rows = WAYS[way].form_rows(e, e)
        assert WAYS[way].squares(rows).tolist() == WAYS[way].factor_norms([e], e)[0].tolist()
        assert WAYS[way].squares(rows).tolist() == [36 * size**4] * 2


@way_of
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("places", [1, 3, 40])
def test_a_row_that_is_not_finite_is_told_and_spoils_no_other(way, value, places):
    way, (e, x, w) = WAYS[way], tensors((6, places, 4, 30))
    expected = answers(way, e, x, w)[:4]
    for given in (e, x):
        bad = given.clone()
        bad[2, places // 2, 1] = value
        found = answers(way, *((bad, x) if given is e else (e, bad)), w)[:4]
        told = [t.flatten(1).isfinite().all(1) if t.dim() > 1 else t.isfinite() for t in found]
        for good in told[1:] if given is e else told:
            assert good.tolist() == [i != 2 for i in range(6)]
        others = [0, 1, 3, 4, 5]
        assert same([t[others] for t in found], [t[others] for t in expected])


@way_of
@pytest.mark.parametrize("shape", [(0, 3, 4, 5), (3, 0, 4, 5), (0, 0, 4, 5), (3, 2, 4, 0)])
def test_nothing_adds_up_to_nothing(way, shape):
    n, places, k, d = shape
    way, e, x = WAYS[way], torch.ones(n, places, k), torch.ones(n, places, d)
    norms, reaches = way.factor_norms([e, e], x)
    assert torch.equal(norms, zeros(n)) and torch.equal(reaches, zeros(n, 2))
    assert torch.equal(way.form_rows(e, x), zeros(n, k, d))
    assert torch.equal(way.squares(x), zeros(n))
    out, row = zeros(k, d) + 1, zeros(places, d) + 1
    way.weigh_products(torch.ones(n).double(), e, x, out, True)
    way.weigh_rows(None, x, row, n > 0)
    assert torch.equal(out, zeros(k, d) + 1)
    assert torch.equal(row, zeros(places, d) + (1 + n if n else 0))
    way.weigh_products(None, e, x, out, False)
    assert torch.equal(out, zeros(k, d))
    assert way.inner_products(torch.ones(n, d), torch.ones(2, d)).shape == (n, 2)


# ------------------------------------------------------------------------------- interface


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_any_layout_and_type_is_served(dtype):
    e, x, w = tensors((6, 4, 5, 30), torch.float64)
    e, x = e.to(dtype), x.to(dtype)
    expected = answers(LIBRARY, e.contiguous(), x.contiguous(), w)
    across = [t.permute(2, 1, 0).contiguous().permute(2, 1, 0) for t in (e, x)]
    assert same(answers(LIBRARY, *across, w.float().double()), answers(LIBRARY, e, x, w.float()))
    doubles = e.double(), x.double()
    if dtype is not torch.float64:
        assert same(answers(LIBRARY, *doubles, w), expected)
        assert same(answers(LIBRARY, doubles[0], x, w), expected)
    e.requires_grad_()
    for name in ("squares", "form_rows", "factor_norms"):
        given = {"squares": (x,), "form_rows": (e, x), "factor_norms": ([e], x)}[name]
        found = getattr(arithmetic, name)(*given)
        assert not (found[0] if name == "factor_norms" else found).requires_grad


def test_sums_go_into_any_memory():
    e, x, w = tensors((6, 1, 5, 30))
    expected, across, narrow = zeros(5, 30), zeros(30, 5).T, torch.zeros(5, 30)
    for out in (expected, across, narrow):
        arithmetic.weigh_products(w, e, x, out)
    assert torch.equal(across, expected) and torch.equal(narrow, expected.float())


def test_shapes_that_do_not_fit_are_refused():
    e, x, w = tensors((6, 3, 5, 30))
    for call in (
        lambda: arithmetic.weigh_products(w[1:], e, x, zeros(5, 30)),
        lambda: arithmetic.weigh_products(w, e[1:], x, zeros(5, 30)),
        lambda: arithmetic.weigh_products(w, e, x, zeros(5, 29)),
        lambda: arithmetic.weigh_rows(w, x, zeros(90 + 1)),
        lambda: arithmetic.factor_norms([e, e[:, 1:]], x),
        lambda: arithmetic.form_rows(e, x[:, 1:]),
        lambda: arithmetic.inner_products(x[:, 0], x[:, 0, 1:]),
        lambda: arithmetic.scatter(w, x, torch.zeros(6, 2, dtype=torch.long), zeros(9, 30)),
        lambda: arithmetic.scatter(w, x, torch.zeros(6, 3, dtype=torch.long), zeros(9, 31)),
    ):
        with pytest.raises(ValueError, match="fit together"):
            call()


@way_of
def test_several_maps_of_one_input_are_taken_together(way):
    way, (e, x, _) = WAYS[way], tensors((5, 40, 70, 20))
    lefts = [e, e[:, :, :7], e[:, :, 7:]]
    together, reaches = way.factor_norms(lefts, x)
    apart = [way.factor_norms([left], x) for left in lefts]
    torch.testing.assert_close(together, sum(a for a, _ in apart), rtol=1e-13, atol=0)
    torch.testing.assert_close(reaches, torch.cat([b for _, b in apart], 1), rtol=1e-14, atol=0)


@way_of
def test_an_index_beyond_the_table_is_refused(way):
    index = torch.tensor([[0, 6]])
    with pytest.raises((IndexError, RuntimeError)):
        WAYS[way].scatter(None, torch.ones(1, 2, 3), index, zeros(6, 3))


def test_large_numbers_of_places_make_no_difference_to_the_indices_they_go_to():
    generator = seeded(1)
    index = torch.randint(-1, 40, (50, 60), generator=generator)
    index[:, ::2] = 3  # 1,500 places in one row
    right, w = torch.randn(50, 60, 500, generator=generator), torch.rand(50, generator=generator)
    one, other = zeros(40, 500), zeros(40, 500)
    for way, out in ((LIBRARY, one), (PLAIN, other)):
        way.scatter(w, right, index, out)
    torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


# ---------------------------------------------------------------------------- linear maps


@pytest.mark.parametrize("n", [1, 2, 16, 131, 300])
@pytest.mark.parametrize("shape", [(1, 1), (3, 16), (10, 784), (16, 15), (17, 33), (128, 31)])
def test_maps_have_exact_norms_and_sums(n, shape):
    (out, size), generator = shape, seeded(n, *shape)
    e, x = randn(generator, n, out), torch.randn(n, size, generator=generator)
    w, losses = torch.rand(n, generator=generator).double(), torch.randn(n, generator=generator)
    maps = [OuterMap(e, x, 1), OuterMap(e, None, 1)]
    exact = (e.double().square().sum(1) * (x.double().square().sum(1) + 2)).sqrt()
    for way in WAYS.values():
        norms, fine = way.norms_of_maps(maps, losses)
        assert fine and norms.dtype is torch.float64
        torch.testing.assert_close(norms, exact, rtol=1e-14, atol=0)
        weight, bias, alone = zeros(out, size) + 7, zeros(out) + 7, zeros(out) + 7
        way.sums_of_maps(maps, w, [(weight, bias), (None, alone)])
        scaled = e.double() * w.unsqueeze(1)
        size_of = scaled.abs().T @ x.double().abs()
        assert bool(((weight - scaled.T @ x.double()).abs() <= 1e-13 * size_of).all())
        assert torch.equal(bias, alone)
        torch.testing.assert_close(bias, scaled.sum(0), rtol=1e-12, atol=0)


@way_of
@pytest.mark.parametrize("place", ["loss", "input", "gradient"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_maps_that_are_not_finite_are_told(way, place, value):
    e, x, losses = torch.ones(5, 3), torch.ones(5, 20), torch.ones(5)
    {"loss": losses, "input": x[:, 0], "gradient": e[:, 0]}[place][3] = value
    assert not WAYS[way].norms_of_maps([OuterMap(e, x, 0)], losses)[1]
    assert WAYS[way].norms_of_maps([OuterMap(e[:3], x[:3], 0)], losses[:3])[1]


# -------------------------------------------------------------------------------- loading


class Changed:
    """The library, but for one function."""

    def __init__(self, **changed) -> None:
        self.changed = changed

    def __getattr__(self, name):
        return self.changed.get(name, getattr(LIBRARY, name))


def float32_products(weights, left, right, out, add):
    e = left * weights.float().view(-1, *[1] * (left.dim() - 1))
    out.copy_(e.flatten(0, -2).T @ right.to(e.dtype).flatten(0, -2))


def rounded_norms(lefts, right):
    return [found.float().double() for found in LIBRARY.factor_norms(lefts, right)]


def norms_that_know_others(lefts, right):
    squares, reaches = LIBRARY.factor_norms(lefts, right)
    return squares * (1 + 2.0**-50 * len(right)), reaches


@pytest.mark.parametrize("changed", [
    {"weigh_products": float32_products},
    {"factor_norms": norms_that_know_others},
    {"factor_norms": rounded_norms},
    {"squares": lambda x: x.square().flatten(1).sum(1).double()},
    {"form_rows": lambda left, right: (left.mT @ right).double()},
])  # fmt: skip
def test_a_library_with_other_numbers_is_not_used(changed):
    assert arithmetic.agrees(Changed()) and not arithmetic.agrees(Changed(**changed))


def test_without_a_library_numpy_serves(monkeypatch):
    monkeypatch.setattr(arithmetic, "library", lambda: None)
    e, x, _ = tensors((4, 3, 5, 6))
    assert torch.equal(arithmetic.form_rows(e, x), PLAIN.form_rows(e, x))
    torch.testing.assert_close(
        LIBRARY.form_rows(e, x), PLAIN.form_rows(e, x), rtol=1e-12, atol=1e-14
    )
    monkeypatch.setenv("WINSOR_NOISE_KERNEL", "0")
    assert compiled.load(arithmetic.SOURCE, arithmetic._Compiled, arithmetic.agrees) is None
