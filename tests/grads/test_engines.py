"""Every engine gives what the loop oracle gives, for every layer winsor claims to serve."""

from __future__ import annotations

from collections.abc import Callable

import engine_zoo as zoo
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from winsor.grads import trainable_parameters

FAST = ("func", "ghost")


def reals(*shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(shape)


def tokens(size: int, *shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randint(0, size, shape)


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def frozen_weight() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3), nn.Conv1d(1, 2, 2))
    for name, p in model.named_parameters():
        p.requires_grad_(name.endswith("bias"))
    return nn.Sequential(model[0], model[1], model[2])


def batch_norm_in_eval() -> nn.Module:
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Tanh())
    model[1].running_mean.uniform_(-1, 1)
    return model.eval()


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "linear": (lambda: nn.Linear(5, 3), reals(6, 5)),
    "linear, wide": (lambda: nn.Linear(3, 7, bias=False), reals(6, 3)),
    "linear at places": (lambda: nn.Linear(5, 3), reals(6, 2, 4, 5)),
    "linear, ghost": (lambda: nn.Linear(40, 30), reals(4, 3, 40)),
    "MLP": (
        lambda: nn.Sequential(nn.Linear(5, 8), nn.ReLU(inplace=True), nn.Linear(8, 3)),
        reals(6, 5),
    ),
    "Conv1D": (
        lambda: nn.Sequential(zoo.Conv1D(6, 5), nn.Tanh(), zoo.Conv1D(4, 6)),
        reals(4, 3, 5),
    ),
    "conv1d, same": (
        lambda: nn.Conv1d(3, 4, 4, padding="same", dilation=2),
        reals(5, 3, 11),
    ),
    "conv2d, groups": (
        lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1, dilation=2, groups=2),
        reals(5, 4, 9, 8),
    ),
    "conv2d, ghost": (lambda: nn.Conv2d(20, 24, 3), reals(3, 20, 4, 4)),
    "conv3d, circular": (
        lambda: nn.Conv3d(2, 3, 3, padding=1, padding_mode="circular"),
        reals(3, 2, 4, 3, 4),
    ),
    "conv2d, depthwise, valid": (
        lambda: nn.Conv2d(4, 4, 3, groups=4, padding="valid"),
        reals(3, 4, 6, 6),
    ),
    "transposed conv1d": (
        lambda: nn.ConvTranspose1d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2),
        reals(4, 4, 5),
    ),
    "transposed conv2d": (lambda: nn.ConvTranspose2d(3, 4, (2, 3), dilation=2), reals(3, 3, 4, 5)),
    "transposed conv3d": (lambda: nn.ConvTranspose3d(2, 3, 2, stride=2), reals(3, 2, 2, 3, 2)),
    "conv twice": (zoo.ConvTwice, reals(4, 3, 5, 5)),
    "embedding": (lambda: nn.Embedding(9, 4, padding_idx=2), tokens(9, 6, 5)),
    "embedding, long": (lambda: nn.Embedding(300, 4), tokens(300, 5, 3, 2)),
    "bag, mean": (lambda: nn.EmbeddingBag(9, 4, padding_idx=1), tokens(9, 6, 5)),
    "bag, sum": (lambda: nn.EmbeddingBag(9, 4, mode="sum"), tokens(9, 6, 5)),
    "bag, max": (lambda: nn.EmbeddingBag(9, 4, mode="max"), tokens(9, 6, 5)),
    "layer norm": (lambda: nn.LayerNorm((3, 4)), reals(5, 2, 3, 4)),
    "layer norm, rows": (lambda: nn.LayerNorm(4, bias=False), reals(5, 4)),
    "RMS norm": (lambda: nn.RMSNorm(4), reals(5, 3, 4)),
    "group norm": (lambda: nn.GroupNorm(2, 6), reals(5, 6, 3, 4)),
    "instance norm": (lambda: nn.InstanceNorm2d(3, affine=True), reals(5, 3, 4, 4)),
    "batch norm in eval": (batch_norm_in_eval, reals(5, 2, 5, 5)),
    "RNN": (
        lambda: zoo.Recurrent(nn.RNN, num_layers=2, nonlinearity="relu", batch_first=True),
        reals(4, 5, 4),
    ),
    "LSTM": (
        lambda: zoo.Recurrent(nn.LSTM, num_layers=2, bidirectional=True, batch_first=True),
        reals(4, 5, 4),
    ),
    "LSTM, projected": (lambda: zoo.Recurrent(nn.LSTM, proj_size=3, bias=False), reals(4, 5, 4)),
    "GRU": (lambda: zoo.Recurrent(nn.GRU, num_layers=2, bidirectional=True), reals(4, 6, 4)),
    "cells": (zoo.Cells, reals(4, 3, 4)),
    "attention": (lambda: zoo.Attention(batch_first=True), reals(4, 6, 8)),
    "attention, time first": (lambda: zoo.Attention(), reals(4, 6, 8)),
    "cross attention": (lambda: zoo.Attention(cross=True, batch_first=True), reals(4, 6, 8)),
    "cross attention, own sizes": (
        lambda: zoo.Attention(cross=True, batch_first=True, kdim=8, vdim=8),
        reals(4, 6, 8),
    ),
    "transformer": (encoder, reals(4, 5, 8)),
    "ResNet": (zoo.Residual, reals(4, 3, 8, 8)),
    "bare parameters": (zoo.Bare, reals(6, 4)),
    "class token": (zoo.ClassToken, reals(5, 3, 6)),
    "twice": (zoo.Twice, reals(6, 4)),
    "tied": (zoo.TiedLanguageModel, tokens(11, 6, 4)),
    "tied, shared positions": (lambda: zoo.TiedLanguageModel(expanded=True), tokens(11, 6, 4)),
    "LoRA": (zoo.LoRA, reals(5, 3, 6)),
    "frozen weights": (frozen_weight, reals(6, 4)),
    "weight norm": (lambda: parametrizations.weight_norm(nn.Linear(4, 3)), reals(6, 4)),
    "PReLU": (lambda: nn.Sequential(nn.Linear(4, 3), nn.PReLU(3)), reals(6, 4)),
}


def double(x: Tensor) -> Tensor:
    return x.double() if x.is_floating_point() else x


@pytest.mark.parametrize("engine", FAST)
@pytest.mark.parametrize("name", MODELS)
def test_engine_equals_loop_in_float64(name: str, engine: str) -> None:
    torch.manual_seed(0)
    build, data = MODELS[name]
    model, x = build().double(), double(data())
    _, oracle = zoo.make_view(model, x, "loop")
    _, fast = zoo.make_view(model, x, engine)
    zoo.assert_same_views(oracle, fast, list(trainable_parameters(model)), rtol=1e-9)


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("name", MODELS)
def test_ghost_equals_loop_in_float32(name: str) -> None:
    torch.manual_seed(1)
    build, data = MODELS[name]
    model, x = build(), data()
    _, oracle = zoo.make_view(model, x, "loop")
    _, fast = zoo.make_view(model, x, "ghost")
    zoo.assert_same_views(oracle, fast, list(trainable_parameters(model)), rtol=1e-5)


@pytest.mark.parametrize("engine", FAST)
def test_bags_with_offsets(engine: str) -> None:
    torch.manual_seed(0)

    class Bags(nn.Module):
        def __init__(self, last: bool) -> None:
            super().__init__()
            self.bag = nn.EmbeddingBag(9, 4, mode="sum", include_last_offset=last)
            self.last = last

        def forward(self, index: Tensor) -> Tensor:
            offsets = torch.tensor([0, 2, 2, 5] + ([len(index)] if self.last else []))
            return self.bag(index, offsets, per_sample_weights=index.to(self.bag.weight) / 3)

    for last in (False, True):
        model, index = Bags(last).double(), torch.randint(0, 9, (9,))
        _, oracle = zoo.make_view(model, index, "loop")
        if engine == "func":  # bags of unequal length cannot be told apart by rows
            with pytest.raises(TypeError):
                zoo.make_view(model, index, engine)
        else:
            _, fast = zoo.make_view(model, index, engine)
            zoo.assert_same_views(oracle, fast, ["bag.weight"], rtol=1e-9)


@pytest.mark.parametrize("engine", ("loop", *FAST))
def test_a_parameter_that_took_no_part_has_zero_gradient(engine: str) -> None:
    class Spare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(3, 2), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x)

    _, view = zoo.make_view(Spare(), torch.randn(4, 3), engine)
    total = view.weighted_sum(torch.ones(4))
    assert list(total) == ["used.weight", "used.bias", "unused.weight", "unused.bias"]
    assert total["unused.weight"].shape == (2, 3)
    assert not total["unused.weight"].any()
    assert total["used.weight"].any()
    mapped = view.map_sum(lambda rows: {name: row * 2 for name, row in rows.items()})
    torch.testing.assert_close(mapped["used.weight"], 2 * total["used.weight"])


@pytest.mark.parametrize("engine", ("loop", *FAST))
@pytest.mark.parametrize("build", [lambda: nn.Linear(3, 2), lambda: nn.Conv1d(1, 2, 2)])
def test_a_batch_without_rows(engine: str, build: Callable[[], nn.Module]) -> None:
    model = build()
    x = torch.zeros(0, 3) if isinstance(model, nn.Linear) else torch.zeros(0, 1, 4)
    _, view = zoo.make_view(model, x, engine)
    assert view.size == 0
    assert view.neutralised == 0
    assert view.norms().shape == view.losses().shape == (0,)
    assert view.group_norms([["weight"], ["bias"]]).shape == (0, 2)
    assert not view.weighted_sum(torch.zeros(0))["weight"].any()
    assert not view.map_sum(lambda rows: rows)["weight"].any()


@pytest.mark.parametrize("engine", FAST)
def test_autocast_agrees_to_bfloat16(engine: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(4 * 36, 8), nn.LayerNorm(8)
    )
    x = torch.randn(5, 1, 8, 8)

    def losses(out: Tensor) -> Tensor:
        return zoo.square_loss(out.float())

    with torch.autocast("cpu", dtype=torch.bfloat16):
        _, oracle = zoo.make_view(model, x, "loop", losses)
        _, fast = zoo.make_view(model, x, engine, losses)
    assert fast.norms().dtype is torch.float32
    zoo.close(oracle.norms(), fast.norms(), rtol=3e-2)
    zoo.close_trees(oracle.total(), fast.total(), rtol=5e-2)


@pytest.mark.parametrize("engine", FAST)
@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_with_dropout(engine: str, reentrant: bool) -> None:
    def view_of(name: str) -> object:
        torch.manual_seed(3)
        model = zoo.Checkpointed(reentrant).double()
        torch.manual_seed(4)  # the same dropout mask for every engine
        return zoo.make_view(model, torch.ones(5, 4).double().cumsum(0) / 5, name)[1]

    names = list(trainable_parameters(zoo.Checkpointed()))
    if reentrant:  # the loop cannot run several backward passes through it; plain training can
        plain = zoo.Checkpointed(False)
        assert list(trainable_parameters(plain)) == names
        torch.manual_seed(3)
        model = zoo.Checkpointed(False).double()
        torch.manual_seed(4)
        oracle = zoo.make_view(model, torch.ones(5, 4).double().cumsum(0) / 5, "loop")[1]
    else:
        oracle = view_of("loop")
    zoo.assert_same_views(oracle, view_of(engine), names, rtol=1e-9)


def test_checkpointing_does_not_keep_inputs_alive() -> None:
    """Under checkpointing the tape must not hold the activations that were meant to be dropped."""
    import weakref

    seen: list[weakref.ref[Tensor]] = []

    class Watch(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            out = x * 2
            seen.append(weakref.ref(out))
            return out

    model = zoo.Checkpointed()
    model.first = nn.Sequential(nn.Linear(4, 6), Watch(), nn.Linear(6, 6))
    from winsor.grads import make_engine

    engine = make_engine(model, trainable_parameters(model), "ghost")
    engine.attach()
    engine.recording(True)
    losses = zoo.square_loss(model(torch.randn(5, 4)))
    assert seen[0]() is None  # dropped after the forward pass
    view = engine.view(losses)
    assert view.norms().shape == (5,)
    engine.detach()
