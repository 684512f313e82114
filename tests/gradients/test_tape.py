"""Recording leaves no trace: copies, pickles, evaluation and detaching see the plain model."""

from __future__ import annotations

import copy
import io

import engine_zoo as zoo
import pytest
import torch
from torch import Tensor, nn

from winsor.gradients import make_engine, trainable_parameters

FAST = ("func", "ghost")


def model_and_data() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return zoo.Residual(), torch.randn(4, 3, 8, 8)


@pytest.mark.parametrize("engine", FAST)
def test_detach_restores_the_model(engine: str) -> None:
    model, x = model_and_data()
    before, keys = model(x), list(model.state_dict())
    state = {id(m): dict(m.__dict__) for m in model.modules()}
    runner = make_engine(model, trainable_parameters(model), engine)
    runner.attach()
    runner.attach()  # idempotent
    runner.recording(True)
    runner.view(zoo.square_loss(model(x)))
    assert list(model.state_dict()) == keys
    runner.detach()
    for module in model.modules():
        assert "forward" not in module.__dict__
        assert module.__dict__.keys() == state[id(module)].keys()
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
    for p in model.parameters():
        assert p.grad is None
        assert not getattr(p, "_post_accumulate_grad_hooks", None)
    torch.testing.assert_close(model(x), before)


@pytest.mark.parametrize("engine", FAST)
def test_a_forward_of_the_instance_comes_back(engine: str) -> None:
    model = nn.Linear(3, 2)
    plain = model.forward
    model.forward = lambda x: plain(x) * 2  # type: ignore[method-assign]
    own = model.forward
    runner = make_engine(model, trainable_parameters(model), engine)
    runner.attach()
    runner.detach()
    assert model.forward is own


@pytest.mark.parametrize("engine", FAST)
def test_copies_of_an_attached_model_are_plain_and_separate(engine: str) -> None:
    model, x = model_and_data()
    runner = make_engine(model, trainable_parameters(model), engine)
    runner.attach()
    runner.recording(True)
    twin = copy.deepcopy(model)
    stream = io.BytesIO()
    torch.save(model, stream)
    stream.seek(0)
    loaded = torch.load(stream, weights_only=False)
    with torch.no_grad():
        model.head.weight.zero_()  # type: ignore[union-attr]
    for other in (twin, loaded):
        assert other(x).abs().sum() > 0
        assert not torch.allclose(other(x), model(x))
        other(x).sum().backward()  # plain autograd, nothing recorded
        assert other.head.weight.grad is not None
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("engine", FAST)
def test_forward_passes_that_are_not_recorded_are_plain(engine: str) -> None:
    model, x = model_and_data()
    expected = [p.clone() for p in torch.autograd.grad(model(x).sum(), list(model.parameters()))]
    runner = make_engine(model, trainable_parameters(model), engine)
    runner.attach()
    runner.recording(False)
    model(x).sum().backward()
    for p, g in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(p.grad, g)
    runner.recording(True)
    with torch.no_grad():
        assert not model(x).requires_grad


@pytest.mark.parametrize("engine", FAST)
def test_a_stray_forward_pass_does_not_disturb_the_next_view(engine: str) -> None:
    """Logging a training loss between steps must change nothing."""
    model, x = model_and_data()
    _, oracle = zoo.make_view(model, x, "loop")
    runner = make_engine(model, trainable_parameters(model), engine)
    runner.attach()
    runner.recording(True)
    unused = model(x * 3)
    view = runner.view(zoo.square_loss(model(x)))
    assert unused.requires_grad
    zoo.assert_same_views(oracle, view, list(trainable_parameters(model)), 1e-5)


@pytest.mark.parametrize("engine", FAST)
def test_views_follow_the_parameters(engine: str) -> None:
    """Several steps with updates in between, by optimiser and by assignment of data."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), torch.randn(5, 3)
    runner = make_engine(model, trainable_parameters(model), engine)
    runner.attach()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for step in range(4):
        runner.recording(False)
        oracle = make_engine(model, trainable_parameters(model), "loop").view(
            zoo.square_loss(model(x))
        )
        runner.recording(True)
        view = runner.view(zoo.square_loss(model(x)))
        zoo.assert_same_views(oracle, view, list(trainable_parameters(model)), 1e-5)
        for p, g in zip(model.parameters(), view.total().values(), strict=True):
            p.grad = g.to(p.dtype)
        optimizer.step()
        if step == 1:
            model[0].weight.data = model[0].weight.data * 0.5


def test_the_random_stream_of_the_user_is_left_alone() -> None:
    model, x = model_and_data()
    torch.manual_seed(5)
    expected = torch.rand(3)
    runner = make_engine(model, trainable_parameters(model), "ghost")
    runner.attach()
    runner.recording(True)
    torch.manual_seed(5)
    runner.view(zoo.square_loss(model(x))).norms()
    assert torch.equal(torch.rand(3), expected)


def test_explain_names_every_layer_with_its_choice() -> None:
    model, x = model_and_data()
    engine, _ = zoo.make_view(model, x, "ghost")
    table = engine.explain()  # type: ignore[attr-defined]
    for path in ("stem.0", "stem.1", "body.0", "short", "head"):
        assert path in table
    assert "rows" in table
    engine, _ = zoo.make_view(zoo.Bare(), torch.randn(5, 4), "ghost")
    assert "torch.func" in engine.explain()  # type: ignore[attr-defined]
