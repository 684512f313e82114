"""Figure 2 (a, b) of ModelMix: SGD without clipping and noise, mixed and not. NOT PRIVATE.

The paper trains ResNet-20 at the rate q = 0.05 for 2,000 steps on CIFAR-10 (a) and SVHN (b), with
tau = 0.1 eta and 0.05 eta, and finds that a larger tau costs more late in the run while 0.05 eta
costs almost nothing. The step eta is not given; here it is that of (c, d), 0.1. SVHN cannot be had
on this machine.

The gradient is the plain mean over a Poisson batch, divided by its expected size; the update is
`MixingUpdate`, the one that private runs use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import torch
from torch.nn import functional as F

from winsor.contrib.modelmix.mechanism import ModelMix
from winsor.contrib.modelmix.update import MixingUpdate
from winsor.core.randomness import new_key
from winsor_papers.reproductions.cells import Wanted, cell, data_name, model_name
from winsor_papers.reproductions.cifar import CifarSize, problem
from winsor_papers.reproductions.reproduction import Line, Measured, Reproduced, Request
from winsor_papers.reproductions.training_runs import Problem, cifar10, evaluate, probed

RATE, STEPS = 0.05, 2000
PLAIN = "no mixing"


@dataclass(frozen=True)
class Unnoised:
    """One panel: a size, a step, and the thresholds over the step."""

    size: CifarSize
    lr: float = 0.1
    taus: tuple[float, ...] = (0.1, 0.05)
    looks: int = 10

    def lines(self) -> list[tuple[str, ModelMix | None]]:
        mixed = [(f"tau = {tau:g} eta", ModelMix(tau)) for tau in self.taus]
        return [(PLAIN, None), *mixed]


FULL = Unnoised(CifarSize(None, 2500, STEPS * RATE, "resnet20"))
QUICK = Unnoised(CifarSize(2000, 100, 3, "cnn"), looks=3)


def figure_2_ab(request: Request) -> Reproduced:
    """Panel (a); (b) has no data."""
    setting = QUICK if request.quick else FULL
    train_rows, test_rows = cifar10(request.folder())
    rows = min(setting.size.rows or len(train_rows[1]), len(train_rows[1]))
    size = CifarSize(rows, round(RATE * rows), setting.size.epochs, setting.size.model)
    given = problem(size, train_rows, test_rows)
    return figure_2_ab_of(given, setting, request, request.seeds_or(1, 3))


def figure_2_ab_of(
    given: Problem, setting: Unnoised, request: Request, seeds: Sequence[int]
) -> Reproduced:
    lines, curves = [], {}
    for name, mix in setting.lines():
        request.say(name)
        runs = [cell(_trail_cell(given, setting, (name, mix), seed))["trail"] for seed in seeds]
        curves[name] = [[accuracy for _, accuracy in run] for run in runs]
        for place, (step, _) in enumerate(runs[0]):
            found = Measured.of([run[place][1] for run in runs])
            label = {"line": name, "step": str(step)}
            lines.append(Line(label, extra={"test accuracy, NOT PRIVATE": str(found)}))
    return Reproduced(
        "Figure 2 (a) of paper 5 (mixing without noise, CIFAR-10)",
        "test accuracy in per cent, of runs that protect nobody",
        tuple(lines),
        figure_2_ab_verdict({name: _last(found) for name, found in curves.items()}),
        asdict(setting),
        (
            f"{setting.size.model} with GroupNorm, {len(given.train[1]):,} rows, {given.steps} "
            f"steps at q = {RATE}; the paper has ResNet-20, 50,000 rows, {STEPS} steps. It does "
            "not give the step; 0.1 is that of its panel (c). Panel (b) is SVHN, which cannot be "
            "had on this machine. There is no clipping and no noise: these lines have no epsilon.",
        ),
    )


def _trail_cell(
    given: Problem, setting: Unnoised, line: tuple[str, ModelMix | None], seed: int
) -> Wanted:
    """One run as a cell."""
    name, mix = line
    marks = [round(given.steps * (i + 1) / setting.looks) for i in range(setting.looks)]
    return Wanted(
        f"{given.name}, without noise, {'mixed' if mix else 'plain'}, {given.steps} steps of "
        f"{given.batch_size}",
        {
            "data": data_name(*given.train, *given.test),
            "model": model_name(given.model),
            "lr": setting.lr,
            "line": name,
            "looks": setting.looks,
            "seed": seed,
        },
        lambda: {"trail": trail(given, setting, mix, seed)},
        {"trail": [(step, 50.0) for step in marks]},
        given.steps,
        lambda steps: trail(probed(given.for_steps(steps)), replace(setting, looks=1), mix, seed),
        given.batch_size / probed(given).batch_size,
    )


def _last(runs: list[list[float]]) -> float:
    return sum(run[-1] for run in runs) / len(runs)


def trail(
    given: Problem, setting: Unnoised, mix: ModelMix | None, seed: int
) -> list[tuple[int, float]]:
    """(step, test accuracy) along one run."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = given.model()
    parameters = dict(model.named_parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=setting.lr)
    mixing = None
    if mix is not None:
        mixing = MixingUpdate(parameters, optimizer, None, given.batch_size, mix, new_key(seed))
    x, y = given.train
    looks = {round(given.steps * (i + 1) / setting.looks) for i in range(setting.looks)}
    found = []
    for step in range(1, given.steps + 1):
        chosen = torch.rand(len(y), generator=generator) < given.batch_size / len(y)
        losses = F.cross_entropy(model(x[chosen]), y[chosen], reduction="sum")
        gradients = torch.autograd.grad(losses, list(parameters.values()))
        if mixing is not None:
            summed = dict(zip(parameters, gradients, strict=True))
            mixing.move(summed, step - 1, std=1e-3)  # no noise: only the grid
        else:
            with torch.no_grad():
                for parameter, gradient in zip(parameters.values(), gradients, strict=True):
                    parameter -= setting.lr / given.batch_size * gradient
        if step in looks:
            found.append((step, evaluate(model, *given.test)[0]))
    return found


def figure_2_ab_verdict(last: dict[str, float]) -> str:
    """What mixing costs at the end, by threshold."""
    costs = {name: last[PLAIN] - accuracy for name, accuracy in last.items() if name != PLAIN}
    wide, narrow = costs.values()
    agrees = narrow <= 1 and wide >= narrow
    word = "Reproduced in the means" if agrees else "Not reproduced at our size"
    told = ", ".join(f"{name}: {-cost:+.1f}" for name, cost in costs.items())
    return (
        f"{word}: points against plain SGD at the end of the run, {told} (paper: almost nothing "
        "at 0.05 eta, more at 0.1 eta)."
    )
