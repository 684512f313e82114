"""Every engine gives what the loop oracle gives, for every layer winsor claims to serve."""

from __future__ import annotations

from collections.abc import Callable

import engine_zoo as zoo
import pytest
import torch
from layer_zoo import MODELS
from torch import Tensor, nn

from winsor.gradients import trainable_parameters

FAST = ("func", "ghost")


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
    assert fast.norms().dtype is torch.float64
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
    """Under checkpointing the recorder must not hold activations that were meant to be dropped."""
    import weakref

    seen: list[weakref.ref[Tensor]] = []

    class Watch(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            out = x * 2
            seen.append(weakref.ref(out))
            return out

    model = zoo.Checkpointed()
    model.first = nn.Sequential(nn.Linear(4, 6), Watch(), nn.Linear(6, 6))
    from winsor.gradients import make_engine

    engine = make_engine(model, trainable_parameters(model), "ghost")
    engine.attach()
    engine.recording(True)
    losses = zoo.square_loss(model(torch.randn(5, 4)))
    assert seen[0]() is None  # dropped after the forward pass
    view = engine.view(losses)
    assert view.norms().shape == (5,)
    engine.detach()
