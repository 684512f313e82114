"""The forward engine: one backward pass, weights per row, and rows that are not finite."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from winsor.contrib.value.engine import ForwardEngine
from winsor.core.contract import LossError, ProtocolError, UnsupportedModel
from winsor.gradients import make_engine, trainable_parameters
from winsor.gradients.graph import Graph, region
from winsor.gradients.loop import LoopEngine
from winsor.gradients.view import Need
from winsor.models.networks import Residual, mlp, resnet_gn, two_layer_cnn


def nothing(graph):
    return frozenset()


def everything(graph):
    return frozenset(graph.steps)


WATCHED = {"nothing": nothing, "everything": everything}


class Positions(nn.Module):
    """Linear layers at several positions per row, one with a weight that is not transposed."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(5, 6)
        self.weight = nn.Parameter(torch.randn(6, 4))
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return (torch.relu(self.first(x)) @ self.weight).mean(1)


MODELS = {
    "perceptron": (lambda: mlp([12, 9, 7, 4]), (12,)),
    "no bias": (lambda: mlp([12, 9, 4], bias=False), (12,)),
    "positions": (Positions, (3, 5)),
    "cnn": (lambda: two_layer_cnn(4), (1, 28, 28)),
    "resnet": (lambda: resnet_gn(8, 4, width=4, group=2), (3, 8, 8)),
    "residual perceptron": (
        lambda: nn.Sequential(nn.Linear(6, 5), Residual(nn.Sequential(nn.ReLU(), nn.Linear(5, 5)))),
        (6,),
    ),
}


def channels_last():
    return two_layer_cnn(4).to(memory_format=torch.channels_last)


MODELS["channels last"] = (channels_last, (1, 28, 28))


def stream(view, watched=nothing):
    def visit(step, piece):
        return torch.zeros(view.size, dtype=torch.float64)

    return view.stream(visit, watched(view.graph))


def close(found, expected, **tolerances):
    """Sums are float64, whatever the model."""
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, expected.double(), **tolerances)


def batch(shape, n=7):
    return torch.randn(n, *shape), torch.arange(n) % 4


def engine_for(model):
    engine = ForwardEngine(model, trainable_parameters(model))
    engine.attach()
    engine.recording(True)
    return engine


def cross_entropy(z, y):
    return F.cross_entropy(z, y, reduction="none")


@pytest.mark.parametrize("watched", WATCHED.values(), ids=WATCHED)
@pytest.mark.parametrize("name", MODELS)
def test_weighted_sums_equal_the_oracle(name, watched):
    torch.manual_seed(2)
    make, shape = MODELS[name]
    model, (x, y) = make(), batch(shape)
    engine = engine_for(model)
    weights = torch.tensor([1.0, 0.5, 2.0, 0.0, 0.1, 1.0, 3.0])
    losses = cross_entropy(model(x), y)
    view = engine.view(losses)
    oracle = LoopEngine(model, trainable_parameters(model)).view(losses)
    stream(view, watched)
    found, expected = view.weighted_sum(weights), oracle.weighted_sum(weights)
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        close(found[key], value, rtol=1e-4, atol=1e-6)
        assert not found[key].requires_grad
    for key, value in oracle.total().items():
        close(view.total()[key], value, rtol=1e-4, atol=1e-6)


BROKEN = {
    "nan": float("nan"),
    "inf": float("inf"),
    "minus inf": float("-inf"),
    "huge": 1e30,
    "overflow": 3e38,
}


@pytest.mark.parametrize("watched", WATCHED.values(), ids=WATCHED)
@pytest.mark.parametrize("name", ["perceptron", "cnn", "resnet"])
@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_row_contributes_zero_and_changes_no_other(what, name, watched):
    torch.manual_seed(3)
    make, shape = MODELS[name]
    model, (x, y) = make(), batch(shape)
    x[2].view(-1)[::3] = BROKEN[what]
    x[5] = BROKEN[what]
    weights = torch.tensor([1.0, 0.5, 0.0, 1.0, 0.1, 0.0, 3.0])
    engine = engine_for(model)
    view = engine.view(cross_entropy(model(x), y))
    stream(view, watched)
    found = view.weighted_sum(weights)
    assert view.neutralised == 2
    kept = [0, 1, 3, 4, 6]
    engine.recording(False)
    oracle = LoopEngine(model, trainable_parameters(model))
    expected = oracle.view(cross_entropy(model(x[kept]), y[kept])).weighted_sum(weights[kept])
    for key, value in expected.items():
        close(found[key], value, rtol=1e-4, atol=1e-5)


def test_rows_that_break_the_gradient_are_told_apart_by_what_was_kept():
    """The rule gave every row a weight; the weighted sum is not finite because of two of them."""
    torch.manual_seed(4)
    model, (x, y) = mlp([12, 9, 4]), batch((12,), 9)
    x[4], x[7] = float("inf"), float("nan")
    view = engine_for(model).view(cross_entropy(model(x), y))
    found = view.weighted_sum(torch.ones(9))
    kept = [0, 1, 2, 3, 5, 6, 8]
    oracle = LoopEngine(model, trainable_parameters(model))
    expected = oracle.view(cross_entropy(model(x[kept]), y[kept])).total()
    for key, value in expected.items():
        close(found[key], value, rtol=1e-4, atol=1e-5)
    assert view.neutralised == 2


def test_a_loss_that_is_not_finite_drops_its_row():
    torch.manual_seed(5)
    model, (x, y) = mlp([12, 9, 4]), batch((12,), 4)
    offset = torch.tensor([0.0, float("inf"), 0.0, float("nan")])
    view = engine_for(model).view(cross_entropy(model(x), y) + offset)
    assert view.losses()[1] == 0
    found = view.weighted_sum(torch.ones(4))
    oracle = LoopEngine(model, trainable_parameters(model))
    expected = oracle.view(cross_entropy(model(x), y)).weighted_sum(torch.tensor([1.0, 0, 1, 0]))
    for key, value in expected.items():
        close(found[key], value, rtol=1e-4, atol=1e-6)


def test_dropout_has_one_mask_beside_a_row_that_is_not_finite():
    torch.manual_seed(6)
    model = nn.Sequential(nn.Linear(12, 40), nn.Dropout(0.5), nn.ReLU(), nn.Linear(40, 4))
    x, y = batch((12,))
    x[0] = float("nan")
    state = torch.get_rng_state()
    engine = engine_for(model)
    found = engine.view(cross_entropy(model(x), y)).weighted_sum(torch.tensor([0.0] + [1.0] * 6))
    after = torch.get_rng_state()
    torch.set_rng_state(state)
    engine.recording(False)
    losses = cross_entropy(model(torch.nan_to_num(x)), y)
    oracle = LoopEngine(model, trainable_parameters(model)).view(losses)
    expected = oracle.weighted_sum(torch.tensor([0.0] + [1.0] * 6))
    for key, value in expected.items():
        close(found[key], value, rtol=1e-4, atol=1e-6)
    assert torch.equal(after, torch.get_rng_state())  # each pass drew once


def test_an_empty_batch_gives_zeros():
    model = mlp([3, 2])
    view = engine_for(model).view(cross_entropy(model(torch.zeros(0, 3)), torch.zeros(0).long()))
    assert view.size == 0
    assert all(not g.any() for g in view.weighted_sum(torch.zeros(0)).values())


def test_frozen_layers_get_no_gradient_and_are_crossed():
    torch.manual_seed(7)
    model, (x, y) = mlp([12, 9, 7, 4]), batch((12,))
    model[3].weight.requires_grad_(False)
    view = engine_for(model).view(cross_entropy(model(x), y))
    stream(view)
    found = view.weighted_sum(torch.ones(7))
    assert "3.weight" not in found
    losses = cross_entropy(model(x), y)
    for key, value in LoopEngine(model, trainable_parameters(model)).view(losses).total().items():
        close(found[key], value, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "loss",
    [
        lambda model, z: z.square().sum(1) + 0.1 * model[1].weight.square().sum(),
        lambda model, z: model(torch.zeros_like(z)).square().sum(1) + z.square().sum(1),
    ],
    ids=["penalty on weights", "two forward passes"],
)
def test_losses_that_reach_parameters_another_way_are_refused(loss):
    model = mlp([3, 3])
    engine = engine_for(model)
    with pytest.raises(LossError, match="another way"):
        engine.view(loss(model, model(torch.randn(4, 3))))


def test_losses_that_look_at_other_rows_are_refused():
    model = mlp([3, 3])
    engine = engine_for(model)
    losses = model(torch.randn(4, 3)).square().sum(1)
    with pytest.raises(LossError, match="other rows"):
        engine.view(losses / losses.sum())


def test_losses_of_another_model_are_refused():
    model, other = mlp([3, 3]), mlp([3, 3])
    engine = engine_for(model)
    model(torch.randn(4, 3))
    with pytest.raises(LossError, match="the model that is trained"):
        engine.view(other(torch.randn(4, 3)).square().sum(1))


def test_a_model_must_be_called_as_a_whole():
    model = mlp([3, 4, 3])
    engine = engine_for(model)
    with pytest.raises(ProtocolError, match="call model"):
        engine.view(model[1](torch.randn(4, 3)).square().sum(1))


class TwoHeads(nn.Module):
    def __init__(self, nested):
        super().__init__()
        self.body, self.a, self.b = nn.Linear(5, 6), nn.Linear(6, 3), nn.Linear(6, 2)
        self.nested = nested

    def forward(self, x):
        h = torch.relu(self.body(x))
        return (self.a(h), h) if self.nested else {"a": self.a(h), "b": self.b(h)}


def test_several_outputs_are_summed_over():
    torch.manual_seed(8)
    model = TwoHeads(nested=False)
    engine = engine_for(model)
    out = model(torch.randn(6, 5))
    losses = out["a"].square().sum(1) + out["b"].abs().sum(1)
    expected = LoopEngine(model, trainable_parameters(model)).view(losses).total()
    view = engine.view(losses)
    stream(view)
    found = view.weighted_sum(torch.ones(6))
    for key, value in expected.items():
        close(found[key], value, rtol=1e-4, atol=1e-6)


def test_outputs_inside_one_another_are_refused():
    model = TwoHeads(nested=True)
    engine = engine_for(model)
    logits, hidden = model(torch.randn(6, 5))
    with pytest.raises(UnsupportedModel, match="another output"):
        engine.view(logits.square().sum(1) + hidden.square().sum(1))


def test_tied_weights_and_narrow_numbers_are_refused_before_training():
    tied = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    tied[2].weight = tied[0].weight
    with pytest.raises(UnsupportedModel, match="tied"):
        engine_for(tied)
    with pytest.raises(UnsupportedModel, match="float32"):
        engine_for(mlp([3, 3]).to(torch.bfloat16))
    with pytest.raises(UnsupportedModel, match="BatchNorm"):
        engine_for(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)))


@pytest.mark.parametrize(
    "ask",
    [
        lambda v: v.norms(),
        lambda v: v.group_norms([["1.weight"]]),
        lambda v: v.sketch(None),
        lambda v: v.map_sum(lambda rows: rows),
        lambda v: v.weighted_sum({"1.weight": torch.ones(4)}),
    ],
    ids=["norms", "group norms", "sketch", "rows", "weights per parameter"],
)
def test_what_needs_per_sample_gradients_is_refused(ask):
    model = mlp([3, 3])
    view = engine_for(model).view(model(torch.randn(4, 3)).square().sum(1))
    with pytest.raises(ProtocolError, match="forward engine"):
        ask(view)


def test_detaching_leaves_no_trace():
    model = mlp([3, 3])
    before = dict(model.__dict__)
    engine = engine_for(model)
    engine.attach()  # once more changes nothing
    engine.detach()
    assert not model._forward_hooks and not model._forward_pre_hooks
    assert model.__dict__.keys() == before.keys()


def test_rules_that_need_the_forward_graph_get_this_engine():
    model = mlp([3, 3])
    parameters = trainable_parameters(model)
    assert make_engine(model, parameters, "auto", Need.FORWARD | Need.LOSSES).name == "forward"
    assert make_engine(model, parameters, "auto", Need.NORMS).name != "forward"
    assert make_engine(model, parameters, "loop", Need.FORWARD).name == "loop"


def test_a_region_takes_all_users_of_a_step_or_none():
    """In x + F(x) the sum cannot be crossed without F: x would be known in part only."""
    model = MODELS["residual perceptron"][0]()
    out = model(torch.randn(4, 6))
    names = {id(p): name for name, p in model.named_parameters()}
    graph = Graph([out.grad_fn], names)
    assert region(graph, lambda step: True) == set(graph.steps)
    without_relu = region(graph, lambda step: step.op != "ReluBackward0")
    for step in graph.steps:
        inside = {user in without_relu for user in step.users}
        assert len(inside) <= 1
    assert not without_relu


class Twins(nn.Module):
    """A sum hands one and the same output-gradient to both layers, and the outputs are its seed."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.head = nn.Linear(5, 4), nn.Linear(5, 4), nn.Linear(4, 4)

    def forward(self, x):
        h = self.a(x) + self.b(torch.tanh(x))
        return self.head(h) + h


@pytest.mark.parametrize("broken", [False, True])
def test_a_last_sum_of_shared_output_gradients(broken):
    torch.manual_seed(9)
    model, (x, y) = Twins(), batch((5,))
    if broken:
        x[2] = float("inf")
    weights = torch.tensor([1.0, 0.5, 2.0, 0.3, 0.1, 1.0, 3.0])
    kept = [i for i in range(7) if not (broken and i == 2)]
    losses = cross_entropy(model(x[kept]), y[kept])
    oracle = LoopEngine(model, trainable_parameters(model)).view(losses)
    expected = oracle.weighted_sum(weights[kept])
    view = engine_for(model).view(cross_entropy(model(x), y))
    stream(view)
    found = view.weighted_sum(weights, last=True)
    for key, value in expected.items():
        close(found[key], value, rtol=1e-4, atol=1e-6)


def test_a_streamed_pass_lets_go_of_the_graph_and_is_run_once():
    model, (x, y) = two_layer_cnn(4), batch((1, 28, 28))
    losses = cross_entropy(model(x), y)
    view = engine_for(model).view(cross_entropy(model(x), y))
    visits = []
    for _ in range(2):
        view.stream(lambda step, piece: visits.append(step) or torch.zeros(7).double())
    assert len(visits) == sum(bool(step.weights) for step in view.graph.steps)
    losses.sum().backward()  # another graph of the same model is not concerned
    with pytest.raises(RuntimeError, match="freed"):
        view.graph.outputs[0].saved("mat1")
    with pytest.raises(ProtocolError, match="let go of its graph"):
        stream(view, everything)
