"""Property tests: closed forms equal the oracle over random shapes."""

from __future__ import annotations

import engine_zoo as zoo
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from winsor.gradients import trainable_parameters

small = st.integers(1, 4)


def assert_equal(model: nn.Module, x: Tensor) -> None:
    torch.manual_seed(0)
    model = model.double()
    x = x.double() if x.is_floating_point() else x
    _, oracle = zoo.make_view(model, x, "loop")
    _, fast = zoo.make_view(model, x, "ghost")
    zoo.assert_same_views(oracle, fast, list(trainable_parameters(model)), rtol=1e-9)


@given(n=small, places=st.lists(small, max_size=2), inner=st.integers(1, 9), out=st.integers(1, 9))
def test_linear(n: int, places: list[int], inner: int, out: int) -> None:
    assert_equal(nn.Linear(inner, out, bias=out % 2 == 0), torch.randn(n, *places, inner))


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[nn.Module, Tensor]:
    dimensions, groups = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    kernel = [draw(st.integers(1, 3)) for _ in range(dimensions)]
    dilation = draw(st.integers(1, 2))
    stride = draw(st.integers(1, 3))
    inner, out = groups * draw(st.integers(1, 2)), groups * draw(st.integers(1, 3))
    transposed = draw(st.booleans())
    options: dict[str, object] = {
        "stride": stride,
        "dilation": dilation,
        "groups": groups,
        "bias": draw(st.booleans()),
        "padding": draw(st.integers(0, 1)),
    }
    if transposed:
        kinds = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
        options["output_padding"] = draw(st.integers(0, max(stride, dilation) - 1))
    else:
        kinds = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
        options["padding_mode"] = draw(st.sampled_from(["zeros", "reflect"]))
    sides = [dilation * (k - 1) + 1 + draw(st.integers(2, 4)) for k in kernel]
    module = kinds[dimensions - 1](inner, out, tuple(kernel), **options)
    return module, torch.randn(draw(small), inner, *sides)


@given(convolutions())
@settings(max_examples=60)
def test_convolutions(case: tuple[nn.Module, Tensor]) -> None:
    assert_equal(*case)


@given(n=small, length=st.integers(1, 6), size=st.integers(2, 6), d=small, bag=st.booleans())
def test_embeddings(n: int, length: int, size: int, d: int, bag: bool) -> None:
    torch.manual_seed(n + 10 * length)
    index = torch.randint(0, size, (n, length))
    kind = nn.EmbeddingBag if bag else nn.Embedding
    assert_equal(kind(size, d, padding_idx=0 if d % 2 else None), index)


@given(n=small, channels=st.sampled_from([2, 4, 6]), sides=st.lists(st.integers(2, 3), max_size=3))
def test_norms(n: int, channels: int, sides: list[int]) -> None:
    x = torch.randn(n, channels, *sides)
    shape = x.shape[-1:] if sides else (channels,)
    for module in (nn.GroupNorm(2, channels), nn.LayerNorm(shape), nn.RMSNorm(shape)):
        if not (isinstance(module, nn.GroupNorm) and not sides and channels == 2):
            assert_equal(module, x)
    if sides:
        kinds = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
        assert_equal(kinds[len(sides) - 1](channels, affine=True), x)


@given(
    n=small,
    length=st.integers(1, 4),
    layers=st.integers(1, 2),
    both_ways=st.booleans(),
    batch_first=st.booleans(),
    kind=st.sampled_from([nn.RNN, nn.LSTM, nn.GRU]),
)
@settings(max_examples=25)
def test_recurrent(
    n: int, length: int, layers: int, both_ways: bool, batch_first: bool, kind: type[nn.RNNBase]
) -> None:
    model = zoo.Recurrent(kind, num_layers=layers, bidirectional=both_ways, batch_first=batch_first)
    assert_equal(model, torch.randn(n, length, 4))


@given(n=small, length=st.integers(1, 5), cross=st.booleans(), batch_first=st.booleans())
@settings(max_examples=25)
def test_attention(n: int, length: int, cross: bool, batch_first: bool) -> None:
    model = zoo.Attention(cross=cross, batch_first=batch_first)
    assert_equal(model, torch.randn(n, length, 8))


@given(n=small, length=st.integers(1, 5), seed=st.integers(0, 100))
@settings(max_examples=25)
def test_tied_language_models(n: int, length: int, seed: int) -> None:
    torch.manual_seed(seed)
    assert_equal(zoo.TiedLanguageModel(), torch.randint(0, 11, (n, length)))
