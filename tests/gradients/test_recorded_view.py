"""Rows that are not finite or not representable contribute zero, alike in every engine."""

from __future__ import annotations

import engine_zoo as zoo
import pytest
import torch
from torch import Tensor, nn

from winsor.core.contract import ProtocolError
from winsor.gradients import Directions, Need, View, make_engine, trainable_parameters
from winsor.gradients.arithmetic import THETA

ENGINES = ("loop", "func", "ghost")
NAMES = ["weight", "bias"]


def linear_loss(out: Tensor) -> Tensor:
    return out.sum(1)


def view_of(x: Tensor, engine: str) -> View:
    torch.manual_seed(0)
    return zoo.make_view(nn.Linear(3, 2), x, engine, linear_loss)[1]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_bad_row_is_neutralised_and_counted(engine: str, value: float) -> None:
    x = torch.randn(5, 3)
    good = view_of(x[[0, 1, 3, 4]], engine)
    x[2] = value
    view = view_of(x, engine)
    assert view.neutralised == 1
    assert view.norms()[2] == 0
    assert view.losses().isfinite().all()
    weights = torch.tensor([1.0, 1.0, float("inf"), 1.0, 1.0])
    expected = good.weighted_sum(torch.ones(4))
    zoo.close_trees(expected, view.weighted_sum(weights), 1e-6)
    zoo.close_trees(expected, view.map_sum(lambda rows: rows), 1e-6)
    zoo.close(good.norms(), view.norms()[[0, 1, 3, 4]], 1e-6)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("scale", [1e30, 1e20, 1e-20, 1e-30, 0.0])
def test_extreme_rows_have_exact_norms(engine: str, scale: float) -> None:
    """Squares over- or underflow float32 here; the norms must not."""
    x = torch.randn(5, 3)
    x[3] *= scale
    model = nn.Linear(3, 2, bias=False)
    _, view = zoo.make_view(model, x, engine, linear_loss)
    assert view.neutralised == 0
    exact = x.double().norm(dim=1) * 2**0.5
    torch.testing.assert_close(view.norms(), exact, rtol=1e-12, atol=0)
    clipped = view.weighted_sum((1.0 / view.norms().clamp_min(1e-38)).clamp(max=1e30))
    assert clipped["weight"].isfinite().all()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_loss_that_is_not_finite_silences_its_row(engine: str) -> None:
    x = torch.randn(4, 3)

    def losses(out: Tensor) -> Tensor:
        shift = torch.tensor([0.0, float("inf"), 0.0, 0.0])
        return out.sum(1) + shift

    _, view = zoo.make_view(nn.Linear(3, 2), x, engine, losses)
    assert view.neutralised == 1
    assert view.losses()[1] == 0
    assert view.norms().tolist()[1] == 0
    assert view.weighted_sum(torch.ones(4))["bias"].tolist() == [3.0, 3.0]


@pytest.mark.parametrize("engine", ENGINES)
def test_bad_rows_in_deep_models(engine: str) -> None:
    torch.manual_seed(0)
    model, x = zoo.Residual(), torch.randn(6, 3, 8, 8)
    x[1], x[4, 0, 0, 0] = float("nan"), float("inf")
    names = list(trainable_parameters(model))
    _, view = zoo.make_view(model, x, engine)
    _, oracle = zoo.make_view(model, x, "loop")
    assert view.neutralised == 2
    weights = torch.linspace(0.1, 1, 6)
    zoo.close_trees(oracle.weighted_sum(weights), view.weighted_sum(weights), 1e-5)
    groups = [names[:3], names[3:]]
    zoo.close(oracle.group_norms(groups), view.group_norms(groups), 1e-5)
    zoo.close(oracle.sketch(Directions(5, 1)), view.sketch(Directions(5, 1)), 1e-5)


def test_bad_tokens_and_convolutions_are_silenced_in_every_kind_of_piece() -> None:
    torch.manual_seed(0)

    def losses(out: Tensor) -> Tensor:
        return out.flatten(1).sum(1) * torch.tensor([1.0, float("nan"), 2.0, 0.5])

    for body, x in (
        (nn.Embedding(7, 3), torch.randint(0, 7, (4, 5))),
        (nn.EmbeddingBag(7, 3), torch.randint(0, 7, (4, 5))),
        (nn.Conv2d(20, 24, 3), torch.randn(4, 20, 4, 4)),
        (nn.Linear(40, 30), torch.randn(4, 3, 40)),
        (nn.GroupNorm(1, 2), torch.randn(4, 2, 3)),
        (nn.Conv1d(1, 2, 2, groups=1), torch.randn(4, 1, 4)),
    ):
        _, oracle = zoo.make_view(body, x, "loop", losses)
        _, view = zoo.make_view(body, x, "ghost", losses)
        assert view.neutralised == oracle.neutralised == 1
        weights = torch.ones(4)
        zoo.close_trees(oracle.weighted_sum(weights), view.weighted_sum(weights), 1e-5)
        zoo.close(oracle.norms(), view.norms(), 1e-5)


@pytest.mark.parametrize("left_over", [5.0, 1e-3])
def test_ghost_norms_survive_cancellation(left_over: float) -> None:
    """Places whose gradients cancel leave a small norm; it must not read smaller than it is, nor
    than its share of the places' own lengths."""
    torch.manual_seed(0)
    model = nn.Linear(64, 64, bias=False)
    a = torch.randn(4, 1, 64)
    x = torch.cat([a, -a], dim=1) * 100 + left_over * torch.randn(4, 2, 64)  # ghost norms

    def losses(out: Tensor) -> Tensor:
        return out.sum((1, 2))  # the same output-gradient at both places

    _, oracle = zoo.make_view(model.double(), x.double(), "loop", losses)
    _, view = zoo.make_view(model.float(), x, "ghost", losses)
    gross = 8 * x.double().norm(dim=2).sum(1)  # |e| = 8 at every place
    expected = torch.hypot(oracle.norms(), gross * THETA**0.5)
    torch.testing.assert_close(view.norms(), expected, rtol=1e-9, atol=0)


def test_rules_without_per_sample_needs_get_plain_autograd() -> None:
    torch.manual_seed(0)
    model, x = zoo.Residual(), torch.randn(6, 3, 8, 8)
    _, oracle = zoo.make_view(model, x, "loop")
    engine = make_engine(model, trainable_parameters(model), needs=Need.MEAN)
    engine.attach()
    for _ in range(3):
        engine.recording(True)
        view = engine.view(zoo.square_loss(model(x)))
        zoo.close_trees(oracle.total(), view.total(), 1e-5)
        zoo.close(oracle.losses(), view.losses(), 1e-6)
        with pytest.raises(ProtocolError):
            view.norms()
    assert "no per-sample work" in engine.explain()  # type: ignore[attr-defined]


def small_view() -> View:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    engine = make_engine(model, trainable_parameters(model), "ghost")
    engine.attach()
    engine.recording(True)
    return engine.view(model(torch.randn(5, 4)).square().sum(1))


def test_the_last_sum_is_the_weighted_sum_and_frees_what_was_recorded() -> None:
    weights = torch.linspace(0.1, 1.0, 5)
    expected = small_view().weighted_sum(weights)
    view = small_view()
    found = view.weighted_sum(weights, last=True)
    norms = view.norms()  # known already
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert torch.equal(norms, small_view().norms())
    assert not view._recorded
    for ask in (
        lambda: view.weighted_sum(weights),
        lambda: view.weighted_sum(weights, last=True),
        view.total,
        lambda: view.group_norms([["0.weight"]]),
        lambda: view.map_sum(lambda rows: rows),
    ):
        with pytest.raises(ProtocolError, match="after its last sum"):
            ask()


def test_the_last_sum_takes_weights_per_parameter() -> None:
    names = small_view().total().keys()
    weights = {name: torch.full((5,), 0.5) for name in names}
    found, expected = (
        small_view().weighted_sum(weights, last=True),
        small_view().weighted_sum(weights),
    )
    assert all(torch.equal(found[name], expected[name]) for name in names)


@pytest.mark.parametrize("change", ["set", "delete", "update", "pop"])
def test_the_leaves_of_a_flat_tree_cannot_be_exchanged(change: str) -> None:
    """Noise is added to the flat tensor: a leaf outside of it would get none."""
    tree = small_view().total()
    assert tree.flat.numel() == sum(leaf.numel() for leaf in tree.values())
    with pytest.raises(TypeError, match="must stay the views they are"):
        match change:
            case "set":
                tree["0.bias"] = torch.zeros(3)
            case "delete":
                del tree["0.bias"]
            case "update":
                tree.update({"0.bias": torch.zeros(3)})
            case "pop":
                tree.pop("0.bias")


def test_the_last_parameters_are_summed_and_freed_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits are the largest output-gradients: they are gone before most of the sum is there."""
    x = torch.randn(5, 3, 4)
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 50))
    _, view = zoo.make_view(model, x, "ghost", lambda out: out.square().sum((1, 2)))
    held, recorded = [], view.recorded
    for kind in {type(piece) for piece in recorded.values()}:
        plain = kind.weighted
        monkeypatch.setattr(
            kind,
            "weighted",
            lambda piece, w, out, plain=plain: (held.append(list(recorded)), plain(piece, w, out)),
        )
    view.weighted_sum(torch.ones(5), last=True)
    in_order = ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert [set(names) for names in held] == [set(in_order[: 4 - k]) for k in range(4)]
