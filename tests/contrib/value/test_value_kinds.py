"""Each kind's factors against the true operator norms, row by row.

A whole network hides a wrong factor behind looser ones, so every factor is compared with the
Jacobian of its own operation: b with the largest singular value of d y / d x, a^2 with that of
d y / d theta, and ``given`` with the gradient for random and for worst output-gradients.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from winsor.contrib.value.bounds import KINDS, kind_of
from winsor.contrib.value.bounds.kind import RowBlocks
from winsor.contrib.value.bounds.spectral import OperatorNorms
from winsor.core.contract import UnsupportedModel
from winsor.gradients.arithmetic import THETA
from winsor.gradients.graph import Graph
from winsor.gradients.weight_gradients import KeptConvolution, kept

N = 3


def recorded(function, x, parameters=()):
    """The one recorded step of ``function``, its kind and its output."""
    y = function(x)
    names = {id(p): f"p{i}" for i, p in enumerate(parameters)}
    (step,) = Graph([y.grad_fn], names).steps
    rows = RowBlocks(N, OperatorNorms({}))
    return step, kind_of(step, rows), rows, y


def jacobian(y, wrt, row):
    """d y[row] / d wrt as a matrix."""
    outputs = y.reshape(N, -1)[row]
    rows = [torch.autograd.grad(out, wrt, retain_graph=True)[0].flatten() for out in outputs]
    return torch.stack(rows).double()


def conv(*args, **kwargs):
    torch.manual_seed(1)
    return nn.Conv2d(*args, **kwargs)


OPERATIONS = {  # function, shape of a row, how much larger than the truth b may be
    "linear": (nn.Linear(5, 4), (5,), 1.001),
    "linear without bias": (nn.Linear(5, 4, bias=False), (5,), 1.001),
    "convolution": (conv(2, 3, 3, padding=1), (2, 6, 6), 1.3),
    "strided convolution": (conv(2, 3, 3, stride=2, padding=1), (2, 7, 7), 1.3),
    "wide stride": (conv(2, 3, 2, stride=3), (2, 8, 8), 1.01),
    "dilated convolution": (conv(1, 2, 3, dilation=2, padding=2), (1, 7, 7), 4),
    "dilated and strided": (conv(1, 2, 3, dilation=2, stride=2), (1, 9, 9), 4),
    "grouped convolution": (conv(4, 4, 3, groups=2), (4, 6, 6), 1.3),
    "max pooling": (nn.MaxPool2d(3, 1), (1, 6, 6), 3.1),
    "max pooling, apart": (nn.MaxPool2d(2), (1, 6, 6), 1.001),
    "max pooling, padded and dilated": (nn.MaxPool2d(3, 2, 1, dilation=2), (1, 9, 9), 3.1),
    "average pooling": (nn.AvgPool2d(3, 1), (1, 9, 9), 1.2),
    "average pooling, apart": (nn.AvgPool2d(2), (1, 6, 6), 1.001),
    "average pooling, padded": (nn.AvgPool2d(3, 2, padding=1), (1, 7, 7), 1.6),
    "average pooling, 3d": (nn.AvgPool3d(2, 1), (1, 4, 4, 4), 1.7),
    "max pooling, 3d": (nn.MaxPool3d(2, 1), (1, 4, 4, 4), 3),
    "adaptive average": (nn.AdaptiveAvgPool2d(2), (1, 6, 6), 1.001),
    "adaptive maximum": (nn.AdaptiveMaxPool2d(2), (1, 6, 6), 1.001),
    "mean": (lambda x: x.mean((1, -1)), (2, 3, 4), 1.001),
    "sum": (lambda x: x.sum(2), (2, 5), 1.001),
    "log-softmax": (lambda x: F.log_softmax(x, dim=-1), (6,), 3.6),
    "group norm": (nn.GroupNorm(2, 4), (4, 3), 1.5),
    "layer norm": (nn.LayerNorm(5), (5,), 1.5),
    "layer norm over positions": (nn.LayerNorm(5), (3, 5), 1.5),
    "slice": (lambda x: x[:, 1:4], (6,), 1.001),
    "select": (lambda x: x[:, 2], (6, 2), 1.001),
    "transpose": (lambda x: x.transpose(1, 2), (3, 4), 1.001),
    "permute": (lambda x: x.permute(0, 2, 1), (3, 4), 1.001),
    "padding": (lambda x: F.pad(x, (1, 2)), (4,), 1.001),
    "view": (lambda x: x.view(N, -1), (2, 3), 1.001),
    "squeeze": (lambda x: x.squeeze(2), (3, 1), 1.001),
    "unsqueeze": (lambda x: x.unsqueeze(1), (3,), 1.001),
    "scaled": (lambda x: x * torch.tensor([[1.0, -3.0], [0.5, 0.1], [0.0, 2.0]]), (2,), 1.001),
    "divided": (lambda x: x / torch.tensor([[1.0, -3.0], [0.5, 0.1], [4.0, 2.0]]), (2,), 1.001),
    "negated": (lambda x: -x, (4,), 1.001),
    "shifted": (lambda x: x + 1.0, (4,), 1.001),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_back_is_at_least_the_operator_norm(name):
    torch.manual_seed(2)
    function, shape, loose = OPERATIONS[name]
    if isinstance(function, nn.GroupNorm | nn.LayerNorm):
        nn.init.uniform_(function.weight, -2, 2)
    x = (torch.randn(N, *shape) * torch.tensor([0.3, 1.0, 5.0]).view(-1, *[1] * len(shape))) + 0.5
    x.requires_grad_()
    parameters = list(function.parameters()) if isinstance(function, nn.Module) else []
    step, kind, rows, y = recorded(function, x, parameters)
    position = min(kind.data)
    with torch.no_grad():
        bounds = torch.as_tensor(kind.back(step, position, rows)).expand(N)
    for row in range(N):
        true = float(torch.linalg.matrix_norm(jacobian(y, x, row), 2))
        assert true <= float(bounds[row]) * (1 + 1e-5) <= true * loose + 1e-5


SLOPES = {
    "GELU": (lambda x: F.gelu(x), "GeluBackward0"),
    "GELU, tanh form": (lambda x: F.gelu(x, approximate="tanh"), "GeluBackward0"),
    "SiLU": (F.silu, "SiluBackward0"),
    "Mish": (F.mish, "MishBackward0"),
    "hard swish": (F.hardswish, "HardswishBackward0"),
    "hard sigmoid": (F.hardsigmoid, "HardsigmoidBackward0"),
    "sigmoid": (torch.sigmoid, "SigmoidBackward0"),
    "softplus": (F.softplus, "SoftplusBackward0"),
    "SELU": (F.selu, "EluBackward0"),
    "ELU": (lambda x: F.elu(x, alpha=2.5), "EluBackward0"),
    "leaky ReLU": (lambda x: F.leaky_relu(x, 1.7), "LeakyReluBackward0"),
    "tanh": (torch.tanh, "TanhBackward0"),
    "ReLU6": (F.relu6, "HardtanhBackward0"),
    "product": (lambda x: x * 3.5, "MulBackward0"),
    "quotient": (lambda x: x / 0.25, "DivBackward0"),
}


@pytest.mark.parametrize("name", SLOPES)
def test_slopes_are_the_largest_and_no_larger(name):
    function, op = SLOPES[name]
    x = torch.linspace(-8, 8, 400_001, dtype=torch.float64)[:, None].requires_grad_()
    y = function(x)
    (slopes,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
    (step,) = Graph([y.grad_fn], {}).steps
    assert step.op == op
    rows = RowBlocks(len(x), OperatorNorms({}))
    bound = float(torch.as_tensor(kind_of(step, rows).back(step, 0, rows)).max())
    assert slopes.abs().max() <= bound <= slopes.abs().max() * 1.002 + 1e-3


def test_every_known_operation_is_tested_here_or_with_the_slopes():
    """A new operation needs a test of its factor."""
    here = set()
    for function, shape, _ in OPERATIONS.values():
        here.add(function(torch.randn(N, *shape, requires_grad=True)).grad_fn.name())
    there = {op for _, op in SLOPES.values()}
    entrywise = {  # the same factor 1, by the same line as ReLU and tanh
        "ReluBackward0", "ClampBackward0", "ClampBackward1", "ClampMinBackward0", "AbsBackward0",
        "ClampMaxBackward0", "ThresholdBackward0", "AliasBackward0", "CloneBackward0",
        "UnsafeViewBackward0", "ReshapeAliasBackward0", "SqueezeBackward0",
    }  # fmt: skip
    variants = {
        "SubBackward0", "CatBackward0", "AdaptiveAvgPool3DBackward0", "AdaptiveMaxPool3DBackward0",
    }  # fmt: skip
    assert set(KINDS) == here | there | entrywise | variants


LAYERS = {
    "linear": (lambda: nn.Linear(4, 3), (4,)),
    "linear without bias": (lambda: nn.Linear(4, 3, bias=False), (4,)),
    "convolution": (lambda: conv(2, 3, 3, padding=1), (2, 4, 4)),
    "convolution without bias": (lambda: conv(2, 3, 2, stride=2, bias=False), (2, 5, 5)),
    "dilated convolution": (lambda: conv(1, 2, 2, dilation=3, padding=1), (1, 6, 6)),
    "grouped convolution": (lambda: conv(4, 4, 2, groups=2), (4, 4, 4)),
    "wide convolution": (lambda: conv(2, 9, 3), (2, 4, 4)),
    "1d convolution": (lambda: nn.Conv1d(2, 3, 3, padding=2), (2, 6)),
    "3d convolution": (lambda: nn.Conv3d(1, 2, 2), (1, 3, 3, 3)),
    "group norm": (lambda: nn.GroupNorm(2, 4), (4, 5)),
    "group norm, one channel each": (lambda: nn.GroupNorm(4, 4), (4, 5)),
    "layer norm": (lambda: nn.LayerNorm(6), (6,)),
    "layer norm over positions": (lambda: nn.LayerNorm(6), (4, 6)),
}


def worst_and_random(matrix):
    """Output-gradients that a bound must survive: the worst one, and random ones."""
    left, _, _ = torch.linalg.svd(matrix)
    yield left[:, 0]
    yield torch.ones(len(matrix), dtype=torch.float64)
    for _ in range(4):
        yield torch.randn(len(matrix), dtype=torch.float64)


def pieces_of(step, e):
    """What may be kept of a step: of a convolution its rows, or its input and e if those are
    smaller, which they are in layers too large for a test."""
    yield kept(step, e, N)
    if step.op == "ConvolutionBackward0":
        yield KeptConvolution(step, e, N)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("inputs", ["random", "constant", "positive", "spike"])
def test_own_and_given_bound_the_gradient_of_the_parameters(name, inputs):
    torch.manual_seed(3)
    make, shape = LAYERS[name]
    layer = make()
    if isinstance(layer, nn.GroupNorm | nn.LayerNorm):
        nn.init.uniform_(layer.weight, -2, 2)
    x = {
        "random": torch.randn(N, *shape),
        "constant": torch.ones(N, *shape) + 1e-3 * torch.randn(N, *shape),
        "positive": torch.randn(N, *shape).relu() * 3,
        "spike": torch.zeros(N, *shape),
    }[inputs]
    if inputs == "spike":
        x.view(N, -1)[:, -1] = 7.0
    x.requires_grad_()
    parameters = list(layer.parameters())
    step, kind, rows, y = recorded(layer, x, parameters)
    own = torch.as_tensor(kind.own(step, rows)).expand(N).double()
    for row in range(N):
        matrix = torch.cat([jacobian(y, p, row) for p in parameters], dim=1)
        assert torch.linalg.matrix_norm(matrix, 2).square() <= own[row] * (1 + 1e-5) + 1e-9
        for e in worst_and_random(matrix):
            true = (e @ matrix).square().sum()
            assert true <= own[row] * e.square().sum() * (1 + 1e-5) + 1e-9
            if kind.given is not None:
                full = torch.zeros(N, len(e))
                full[row] = e
                for piece in pieces_of(step, full.view(y.shape)):
                    with torch.no_grad():
                        bound = kind.given(step, piece, rows)[row]
                    assert true <= bound * (1 + 2e-5) + 1e-9


@pytest.mark.parametrize("positions", [2, 5])
@pytest.mark.parametrize("bias", [True, False])
def test_a_linear_layer_at_several_positions(positions, bias):
    torch.manual_seed(4)
    layer = nn.Linear(4, 3, bias=bias)
    x = torch.randn(N * positions, 4)
    step, kind, rows, y = recorded(layer, x, list(layer.parameters()))
    own = torch.as_tensor(kind.own(step, rows)).expand(N).double()
    for row in range(N):
        matrix = torch.cat([jacobian(y, p, row) for p in layer.parameters()], dim=1)
        for e in worst_and_random(matrix):
            full = torch.zeros(N, len(e))
            full[row] = e
            true = (e @ matrix).square().sum()
            with torch.no_grad():
                given = kind.given(step, kept(step, full.view(y.shape), N), rows)[row]
            assert true <= given * (1 + 2e-5) <= own[row] * e.square().sum() * 1.001 + 1e-9


def test_a_residual_sum_counts_both_ways():
    x = torch.randn(N, 4, requires_grad=True)
    y = x + torch.tanh(x)
    graph = Graph([y.grad_fn], {})
    rows = RowBlocks(N, OperatorNorms({}))
    first = graph.steps[0]
    assert [kind_of(first, rows).back(first, i, rows) for i in (0, 1)] == [1.0, 1.0]
    z = torch.sub(torch.tanh(x), torch.sigmoid(x), alpha=3.0)
    (step, *_) = Graph([z.grad_fn], {}).steps
    assert [kind_of(step, rows).back(step, i, rows) for i in (0, 1)] == [1.0, 3.0]
    parts = torch.cat([torch.tanh(x), torch.sigmoid(x)], 1)
    (step, *_) = Graph([parts.grad_fn], {}).steps
    assert [kind_of(step, rows).back(step, i, rows) for i in (0, 1)] == [1.0, 1.0]


@pytest.mark.parametrize("scale", [1e-25, 1e-20, 1e-12, 1e6])
@pytest.mark.parametrize("size", [1e-18, 1.0, 1e12, 1e18])
@pytest.mark.parametrize("name", ["linear without bias", "convolution without bias", "linear"])
def test_products_of_the_huge_and_the_tiny_are_not_lost(name, size, scale):
    """float32 squares under- and overflow long before their products do."""
    torch.manual_seed(5)
    make, shape = LAYERS[name]
    layer = make()
    x = torch.randn(N, *shape) * size
    parameters = list(layer.parameters())
    step, kind, rows, y = recorded(layer, x, parameters)
    e = torch.randn(y.shape) * scale
    with torch.no_grad():
        bounds = [kind.given(step, p, rows).double().sqrt() for p in pieces_of(step, e)]
    for row in range(N):
        one = torch.zeros_like(e)
        one[row] = e[row]
        rows_of_e = torch.autograd.grad(y, parameters, one, retain_graph=True)
        true = sum(g.double().square().sum() for g in rows_of_e).sqrt()
        for bound in bounds:
            assert true <= bound[row] * (1 + 2e-5) + 1e-6 or not bound[row].isfinite()


MIXING = {
    "mean over the batch": lambda x: x.mean(0, keepdim=True),
    "sum over everything": lambda x: x.sum((0, 1)),
    "transposed batch": lambda x: x.transpose(0, 1),
    "permuted batch": lambda x: x.permute(1, 0),
    "slice of the batch": lambda x: x[1:],
    "one row": lambda x: x[0],
    "joined batches": lambda x: torch.cat([x, x.tanh()], 0),
    "softmax over the batch": lambda x: F.log_softmax(x, dim=0),
    "norm over the batch": lambda x: F.layer_norm(x, x.shape),
    "reshaped rows": lambda x: x.view(2, -1),
    "padded batch": lambda x: F.pad(x, (0, 0, 0, 3)),
    "divisor of its own": lambda x: F.avg_pool2d(x.view(N, 1, 2, 2), 2, divisor_override=1),
    "uneven windows": lambda x: F.adaptive_avg_pool2d(x.view(N, 1, 1, 4), (1, 3)),
    "border counts": lambda x: F.avg_pool2d(
        x.view(N, 1, 2, 2), 2, 1, padding=1, count_include_pad=False
    ),
    "transposed convolution": lambda x: F.conv_transpose2d(
        x.view(N, 1, 2, 2), torch.ones(1, 1, 2, 2)
    ),
    "scaled product": lambda x: torch.addmm(torch.ones(2), x, torch.ones(4, 2), alpha=2),
    "different shapes": lambda x: x + x[:, :1],
}


@pytest.mark.parametrize("name", MIXING)
def test_settings_without_a_proof_are_refused(name):
    x = torch.randn(N, 4, requires_grad=True)
    y = MIXING[name](x.tanh())
    rows = RowBlocks(N, OperatorNorms({}))
    with pytest.raises(UnsupportedModel, match="Flat"):
        for step in Graph([y.grad_fn], {}).steps:
            kind_of(step, rows)


@pytest.mark.parametrize("options", [{}, {"bias": False}, {"stride": 2}, {"groups": 2}])
def test_small_maps_of_many_channels_are_bounded_by_their_norms(options):
    layer = conv(64, 96, 3, padding=1, **options)
    x = torch.randn(N, 64, 4, 4, generator=torch.Generator().manual_seed(2))
    x[1] *= 1e3
    step, kind, rows, y = recorded(layer, x.requires_grad_(), tuple(layer.parameters()))
    e = torch.randn(y.shape, generator=torch.Generator().manual_seed(3))
    piece = kept(step, e, N)
    assert isinstance(piece, KeptConvolution)
    found = kind.given(step, piece, rows)
    for row in range(N):
        gradient = torch.autograd.grad(y[row], tuple(layer.parameters()), e[row], retain_graph=True)
        exact = sum(float(g.double().square().sum()) for g in gradient)
        assert exact <= float(found[row].detach()) * (1 + 1e-5)
        assert float(found[row].detach()) <= 1.01 * exact


def test_places_that_cancel_keep_their_bound_above_rounding():
    """Two places of 1e6 whose gradients cancel: the sum rounds by what the places are."""
    layer = conv(96, 96, 1, bias=False)
    x = torch.zeros(N, 96, 4, 4)
    x[0, :, 1, 1] = x[0, :, 1, 2] = 1e6
    step, kind, rows, y = recorded(layer, x.requires_grad_(), tuple(layer.parameters()))
    e = torch.zeros_like(y)
    e[0, :, 1, 1], e[0, :, 1, 2] = 1.0, -1.0
    piece = kept(step, e, N)
    assert isinstance(piece, KeptConvolution)
    found = kind.given(step, piece, rows)
    longest = 4 * 96 * 96e12  # if the places did not cancel
    assert float(found[0].detach()) == pytest.approx(THETA * longest, rel=1e-5)
