"""Random small networks and hostile inputs, to search for a gradient norm above its bound."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from winsor.models.networks import Residual

ROWS = 25
Loss = Callable[[Tensor], Tensor]
ACTIVATIONS = (nn.ReLU, nn.ReLU, nn.Tanh, nn.GELU, nn.SiLU, nn.Sigmoid, nn.LeakyReLU, nn.ELU)


class MeanOverPositions(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


def perceptron(r: random.Random, depth: int | None = None) -> tuple[nn.Module, tuple[int, ...]]:
    depth = depth or r.randint(1, 5)
    sizes = [r.randint(1, 12) for _ in range(depth)] + [r.randint(2, 6)]
    layers: list[nn.Module] = []
    for i in range(depth):
        layers.append(nn.Linear(sizes[i], sizes[i + 1], bias=r.random() < 0.7))
        if i < depth - 1:
            if r.random() < 0.2:
                layers.append(nn.LayerNorm(sizes[i + 1], elementwise_affine=r.random() < 0.7))
            layers.append(r.choice(ACTIVATIONS)())
            if r.random() < 0.2:
                layers.append(nn.Dropout(r.choice([0.1, 0.5])))
    return nn.Sequential(*layers), (sizes[0],)


def sequence(r: random.Random) -> tuple[nn.Module, tuple[int, ...]]:
    """Linear layers at several positions per row."""
    d, width = r.randint(2, 6), r.randint(2, 8)
    layers = [nn.Linear(d, width, bias=r.random() < 0.7), r.choice(ACTIVATIONS)()]
    if r.random() < 0.5:
        layers.append(Residual(nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width))))
    return nn.Sequential(*layers, MeanOverPositions(), nn.Linear(width, 3)), (r.randint(2, 9), d)


def _norm(r: random.Random, channels: int) -> list[nn.Module]:
    if r.random() < 0.5:
        return []
    groups = r.choice([g for g in (1, 2, 3, 4) if channels % g == 0])
    return [nn.GroupNorm(groups, channels, affine=r.random() < 0.8)]


def _pool(r: random.Random, dims: int) -> list[nn.Module]:
    kernel = r.randint(2, 3)
    stride = r.randint(1, kernel)
    if dims == 1:
        return [r.choice([nn.MaxPool1d(kernel, stride), nn.AvgPool1d(kernel, stride)])]
    if dims == 3:
        return [r.choice([nn.MaxPool3d(2, 1), nn.AvgPool3d(2, 1)])]
    return [r.choice([nn.MaxPool2d(kernel, stride), nn.AvgPool2d(kernel, stride)])]


def convolutional(r: random.Random, dims: int = 2) -> tuple[nn.Module, tuple[int, ...]]:
    conv = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[dims]
    channels, size = r.choice([1, 2, 4]), {1: 24, 2: 11, 3: 7}[dims]
    shape = (channels, *[size] * dims)
    layers: list[nn.Module] = []
    probe = torch.zeros(1, *shape)
    for _ in range(r.randint(1, 3)):
        groups = r.choice([1, 1, 2]) if channels % 2 == 0 else 1
        width = r.choice([2, 4, 6])
        block = [
            conv(
                channels, width, r.randint(1, 4), stride=r.randint(1, 3), padding=r.randint(0, 2),
                dilation=r.randint(1, 2), groups=groups, bias=r.random() < 0.6,
            )
        ]  # fmt: skip
        block += [*_norm(r, width), r.choice(ACTIVATIONS)()]
        if r.random() < 0.5:
            block += _pool(r, dims)
        try:
            probe = nn.Sequential(*block)(probe)
        except (RuntimeError, ValueError):  # the image became smaller than a window
            break
        layers += block
        channels = width
    if dims == 2 and r.random() < 0.4:
        layers.append(nn.AdaptiveAvgPool2d(1))
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels, 4)), shape
    return nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(4, bias=r.random() < 0.7)), shape


def residual(r: random.Random) -> tuple[nn.Module, tuple[int, ...]]:
    width = r.choice([2, 4])

    def branch(stride: int = 1) -> nn.Module:
        layers = [nn.Conv2d(width, width, 3, stride, 1, bias=r.random() < 0.5), *_norm(r, width)]
        return nn.Sequential(*layers, nn.ReLU(), nn.Conv2d(width, width, 3, 1, 1))

    blocks: list[nn.Module] = []
    for _ in range(r.randint(1, 3)):
        down = r.random() < 0.3
        shortcut = nn.Conv2d(width, width, 1, 2, bias=False) if down else None
        blocks += [Residual(branch(2 if down else 1), shortcut), r.choice(ACTIVATIONS)()]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 5)]
    return nn.Sequential(nn.Conv2d(2, width, 3, 1, 1), *blocks, *head), (2, 8, 8)


MAKERS = (
    perceptron,
    perceptron,
    sequence,
    convolutional,
    convolutional,
    lambda r: convolutional(r, 1),
    lambda r: convolutional(r, 3),
    residual,
)


def hostile_rows(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Rows of very different sizes; zeros, constants, spikes and duplicates among them."""
    x = torch.randn(ROWS, *shape, generator=generator)
    x *= 10 ** (torch.rand(ROWS, *[1] * len(shape), generator=generator) * 5 - 3)
    x[0] = 0.0
    x[1] = 1.0
    x[2] = x[2].abs()
    x[3] = 0.0
    x[3].view(-1)[-1] = 50.0
    x[4] = 3.0 + 1e-3 * x[4]
    x[5] = x[6]
    return x


def random_loss(r: random.Random, classes: int, generator: torch.Generator) -> Loss:
    labels = torch.randint(0, classes, (ROWS,), generator=generator)
    target = torch.randn(ROWS, classes, generator=generator)
    kind = r.choice(["ce", "ce", "mse", "huber"])
    if kind == "ce":
        return lambda z: F.cross_entropy(z, labels, reduction="none")
    if kind == "mse":
        return lambda z: (z - target).square().sum(1)
    return lambda z: F.huber_loss(z, target, reduction="none").mean(1)


def random_case(seed: int) -> tuple[nn.Module, Tensor, Loss]:
    """A network (fresh, rescaled or trained), its inputs and a loss of its outputs."""
    r = random.Random(seed)
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model, shape = r.choice(MAKERS)(r)
    x = hostile_rows(shape, generator)
    loss = random_loss(r, model(x).shape[1], generator)
    state = r.choice(["fresh", "rescaled", "trained"])
    if state == "rescaled":
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(10 ** r.uniform(-1, 0.7))
    elif state == "trained":
        train(model, torch.randn(ROWS, *shape, generator=generator), loss)
    return model, x, loss


def train(model: nn.Module, x: Tensor, loss: Loss, steps: int = 6) -> None:
    """A few steps along the sign of the gradient: weights far from any initialisation."""
    parameters = list(model.parameters())
    for _ in range(steps):
        gradient = torch.autograd.grad(loss(model(x)).mean(), parameters, allow_unused=True)
        with torch.no_grad():
            for p, g in zip(parameters, gradient, strict=True):
                if g is not None:
                    p.sub_(0.05 * g.sign())
