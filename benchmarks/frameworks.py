"""One training step of each framework on each task, as a pair (prepare, step).

`prepare` draws the batch and is not timed; `step` is forward, backward, clip, noise and update.
Every framework starts from the same weights and sees the same rows.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from models import Batch, Task
from torch import nn
from torch.utils.data import TensorDataset

import winsor
from winsor import rules

Step = tuple[Callable[[], Any], Callable[[], Any]]
LEARNING_RATE = 0.01
RULES = {
    "winsor flat": lambda: rules.Flat(1.0),
    "winsor automatic": lambda: rules.Automatic(1.0),
    "winsor averaged": lambda: rules.Averaged(1.0),
    "winsor value": lambda: rules.Value(1.0),
}
FRAMEWORKS = ("plain", *RULES, "opacus hooks", "opacus ghost", "opacus expanded")


class Loader:
    """Draws the batch anew for every step, as a data loader does: the rows are the same."""

    def __init__(self, batch: Batch) -> None:
        self._rows = batch
        self._index = torch.arange(len(batch[0]))
        self.batch = batch

    def __call__(self) -> None:
        x, y = self._rows
        self.batch = x[self._index], y[self._index]


def fresh(task: Task) -> tuple[nn.Module, Batch, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = task.model()
    batch = task.batch(task.batch_size)
    trained = [p for p in model.parameters() if p.requires_grad]
    return model, batch, torch.optim.SGD(trained, lr=LEARNING_RATE)


def plain(task: Task) -> Step:
    model, batch, optimizer = fresh(task)
    loader = Loader(batch)

    def step() -> None:
        task.losses(model, loader.batch).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return loader, step


def private(task: Task, rule: str) -> Step:
    model, batch, optimizer = fresh(task)
    run = winsor.make_private(
        model=model,
        optimizer=optimizer,
        dataset=TensorDataset(*batch),
        rule=RULES[rule](),
        noise_multiplier=1.0,
        delta=1e-5,
        steps=10**6,
        batch_size=task.batch_size,
        sampling=winsor.FullBatch(task.batch_size),
    )
    batches = run.batches()
    loader = Loader(batch)

    def prepare() -> None:
        loader.batch = next(batches)

    def step() -> None:
        run.step(task.losses(model, loader.batch))

    return prepare, step


def opacus_hooks(task: Task) -> Step:
    from opacus import GradSampleModule

    return opacus_rows(task, GradSampleModule)


def opacus_expanded(task: Task) -> Step:
    from opacus.grad_sample import GradSampleModuleExpandedWeights

    return opacus_rows(task, GradSampleModuleExpandedWeights)


def opacus_rows(task: Task, wrap: Callable[[nn.Module], nn.Module]) -> Step:
    """Explicit per-sample gradients, then the optimiser that clips them."""
    from opacus.optimizers import DPOptimizer

    model, batch, optimizer = fresh(task)
    wrapped = wrap(model)
    noisy = DPOptimizer(
        optimizer, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=task.batch_size
    )

    loader = Loader(batch)

    def step() -> None:
        task.losses(wrapped, loader.batch).mean().backward()
        noisy.step()
        noisy.zero_grad()

    return loader, step


def opacus_ghost(task: Task) -> Step:
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    model, batch, optimizer = fresh(task)
    wrapped = GradSampleModuleFastGradientClipping(
        model, use_ghost_clipping=True, max_grad_norm=1.0, loss_reduction="mean"
    )
    noisy = DPOptimizerFastGradientClipping(
        optimizer, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=task.batch_size
    )
    criterion = DPLossFastGradientClipping(wrapped, noisy, nn.CrossEntropyLoss())

    loader = Loader(batch)

    def step() -> None:
        x, y = loader.batch
        logits = wrapped(x)
        if logits.dim() == 3:
            loss = criterion(logits.flatten(0, 1), y.flatten(), shape=logits.shape)
        else:
            loss = criterion(logits, y)
        loss.backward()
        noisy.step()
        noisy.zero_grad()

    return loader, step


def build(framework: str, task: Task) -> Step:
    """The step of one framework on one task. Raises if the framework cannot do the task."""
    warnings.simplefilter("ignore")
    if framework == "plain":
        return plain(task)
    if framework in RULES:
        return private(task, framework)
    others = {
        "opacus hooks": opacus_hooks,
        "opacus ghost": opacus_ghost,
        "opacus expanded": opacus_expanded,
    }
    return others[framework](task)
