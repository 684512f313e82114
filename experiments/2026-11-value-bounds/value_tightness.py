"""How tight and how cheap the certified bounds of the rule Value are.

    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/value_tightness.py [--networks 400] [--repeats 60]

1. Search for a violation: random networks (perceptrons with biases, convolutions of every geometry,
   pooling, GroupNorm, LayerNorm, residual sums; fresh, rescaled and trained weights) times 25
   hostile rows each. Counts norms above their bound.
2. Tightness: median of bound / norm for named models, fresh and trained, for each form of the rule
   and for appendix D of the paper (biases left out of its bound, so it may fall below the norm).
3. Cost: forward, backward and clipping, relative to plain autograd, interleaved in one run; medians
   of CPU time. Noise and update are the same for every rule and are left out.

Writes benchmarks/results/value_tightness.json.
"""

from __future__ import annotations

import argparse
import copy
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from saving import save
from torch import Tensor, nn
from torch.nn import functional as F

ROOT = Path(__file__).parent
sys.path.insert(0, str(ROOT.parent / "tests" / "support"))

import value_networks  # noqa: E402

from winsor.grads import make_engine, trainable_parameters  # noqa: E402
from winsor.grads.forward import ForwardEngine  # noqa: E402
from winsor.models.networks import mlp, resnet_gn, two_layer_cnn  # noqa: E402
from winsor.rules.flat import Flat  # noqa: E402
from winsor.rules.rule import ROUNDING  # noqa: E402
from winsor.rules.value import Value  # noqa: E402
from winsor.rules.wgc import relu_network_bound  # noqa: E402

Loss = Callable[[Tensor], Tensor]


def smooth_images(n: int, channels: int, size: int) -> Tensor:
    return F.interpolate(torch.randn(n, channels, 4, 4), size=size, mode="bilinear")


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor], tuple[str, ...]]] = {
    "linear 784-10": (lambda: mlp([784, 10]), lambda: torch.rand(64, 784), ("value",)),
    "MLP 784-128-10": (lambda: mlp([784, 128, 10]), lambda: torch.rand(64, 784), ("value",)),
    "MLP, five layers": (
        lambda: mlp([784, 128, 128, 128, 128, 10]), lambda: torch.rand(64, 784), ("value",),
    ),
    "two-layer CNN": (
        lambda: two_layer_cnn(groups=None), lambda: smooth_images(32, 1, 28).sigmoid(), (),
    ),
    "two-layer CNN, GroupNorm": (two_layer_cnn, lambda: smooth_images(32, 1, 28).sigmoid(), ()),
    "ResNet-8, GroupNorm": (lambda: resnet_gn(8), lambda: smooth_images(16, 3, 32), ()),
    "ResNet-9, GroupNorm": (lambda: resnet_gn(9), lambda: smooth_images(16, 3, 32), ()),
    "ResNet-20, GroupNorm": (lambda: resnet_gn(20), lambda: smooth_images(8, 3, 32), ()),
}  # fmt: skip

COSTS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "MLP 784-128-10, B=128": (lambda: mlp([784, 128, 10]), lambda: torch.randn(128, 784)),
    "CNN + GroupNorm, B=256": (two_layer_cnn, lambda: torch.randn(256, 1, 28, 28)),
}


def bounds_and_norms(
    model: nn.Module, x: Tensor, loss: Loss, forms: tuple[str, ...]
) -> tuple[dict[str, Tensor], Tensor]:
    parameters = trainable_parameters(model)
    rules = {form: Value(1.0, form=form) for form in forms}
    engine = ForwardEngine(model, parameters, keeps_graph=True)
    engine.attach()
    engine.recording(True)
    losses = loss(model(x))
    view = engine.view(losses)
    bounds = {form: rule.bounds(view, rule.init({}, 1.0)) for form, rule in rules.items()}
    engine.detach()
    oracle = make_engine(model, parameters, "loop").view(losses)
    return bounds, oracle.norms()


def search(networks: int) -> dict[str, Any]:
    """Part 1."""
    cases = violations = 0
    worst = {"outputs": 0.0, "forward": 0.0}
    for seed in range(networks):
        model, x, loss = value_networks.random_case(seed)
        bounds, norms = bounds_and_norms(model, x, loss, tuple(worst))
        for form, bound in bounds.items():
            finite = norms.isfinite() & bound.isfinite()
            share = (norms / (bound * (1 + ROUNDING)))[finite]
            violations += int((share > 1).sum())
            worst[form] = max(worst[form], float(share.max()))
        cases += len(x)
    return {"cases": cases, "violations": violations, "largest norm / bound": worst}


def appendix_d(model: nn.Module, x: Tensor, losses: Tensor) -> Tensor:
    """The paper's bound with exact spectral norms; it does not see biases."""
    norms = [
        float(torch.linalg.matrix_norm(p.detach(), 2)) for p in model.parameters() if p.dim() > 1
    ]
    return relu_network_bound(x, norms, losses)


def tightness(name: str, steps: int) -> dict[str, float]:
    """Part 2: median bound / norm by form, after ``steps`` of training."""
    torch.manual_seed(0)
    make, inputs, more = MODELS[name]
    model, x = make(), inputs()
    y = torch.randint(0, 10, (len(x),))

    def loss(z: Tensor) -> Tensor:
        return F.cross_entropy(z, y, reduction="none")

    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model(x)).mean().backward()
        optimizer.step()
    bounds, norms = bounds_and_norms(model, x, loss, ("outputs", "forward", *more))
    if more:
        bounds["appendix D"] = appendix_d(model, x, loss(model(x)).detach())
    return {form: float((bound / norms).median()) for form, bound in bounds.items()}


def cost(name: str, repeats: int) -> dict[str, float]:
    """Part 3: time of forward + backward + clipping over plain autograd."""
    torch.manual_seed(0)
    make, inputs = COSTS[name]
    first, x = make(), inputs()
    y = torch.randint(0, 10, (len(x),))

    def plain() -> None:
        first.zero_grad()
        F.cross_entropy(first(x), y).backward()

    runs: dict[str, Callable[[], None]] = {"plain": plain}
    rules = {"flat": Flat(1.0), "outputs": Value(1.0), "forward": Value(1.0, form="forward")}
    for label, rule in rules.items():
        runs[label] = _private(copy.deepcopy(first), rule, x, y)
    times: dict[str, list[float]] = {label: [] for label in runs}
    order = list(runs)
    shuffle = random.Random(0).shuffle
    for i in range(repeats + 3):
        shuffle(order)  # whoever runs next finds the caches as the last one left them
        for label in order:
            start = time.process_time()
            runs[label]()
            if i >= 3:
                times[label].append(time.process_time() - start)
    medians = {label: sorted(t)[len(t) // 2] for label, t in times.items()}
    return {label: t / medians["plain"] for label, t in medians.items()}


def _private(model: nn.Module, rule: Any, x: Tensor, y: Tensor) -> Callable[[], None]:
    parameters = trainable_parameters(model)
    engine = make_engine(model, parameters, "auto", rule.needs)
    engine.attach()
    engine.recording(True)
    state = rule.init(parameters, len(x))

    def run() -> None:
        losses = F.cross_entropy(model(x), y, reduction="none")
        rule.contributions(engine.view(losses), state)

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", type=int, default=400)
    parser.add_argument("--repeats", type=int, default=60)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, Any] = {"search": search(options.networks)}
    print(f"search: {found['search']}")
    found["tightness"] = {}
    for name in MODELS:
        rows = {"fresh": tightness(name, 0), "trained": tightness(name, 20)}
        found["tightness"][name] = rows
        for label, row in rows.items():
            text = "  ".join(f"{form} {ratio:10.3g}" for form, ratio in row.items())
            print(f"{name:26s} {label:8s} {text}")
    found["cost"] = {}
    for name in COSTS:
        found["cost"][name] = cost(name, options.repeats)
        text = "  ".join(f"{label} {ratio:.3f}" for label, ratio in found["cost"][name].items())
        print(f"{name:26s} {text}")
    save("value_tightness", found)


if __name__ == "__main__":
    main()
