"""Table 3 of paper 4: averaged clipping against DP-SGD on CIFAR-10.

The paper trains ResNet-18 on 50,000 images for 150 epochs with batches of 500, lambda = 30 and
steps between 0.001 and 0.01. Its noise has the deviation s lambda on every coordinate of the mean,
with s near 1: thirty on each coordinate, where our gradients have norms of a few. Our runs with it
stay at chance; how the printed accuracies were had we do not know (the public
code passes a variance where a deviation is asked for; we have not run that code). So
besides "as printed" UC and DP-SGD have a line "tuned", with a threshold and step that suit it.

    CC   averaged clipping with projection onto a ball around the start
    UC   the same without projection

As in the paper, an accuracy is the mean over the last five epochs of every run.

For equal epsilon the noise on the mean over the largest possible signal is the same for every
lambda, 2 s sqrt(d): only a shorter step makes averaged clipping bearable.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor

from winsor.rules.averaged import Averaged
from winsor.rules.flat import Flat
from winsor.rules.rule import Rule
from winsor.training.iterates import Ball
from winsor_papers.reproductions.cifar import CifarSize, problem
from winsor_papers.reproductions.reproduction import Line, Measured, Reproduced, Request
from winsor_papers.reproductions.training_runs import (
    Problem,
    TrainingRecipe,
    cifar10,
    evaluate,
    plain_noise,
    train,
)
from winsor_papers.reproductions.verdicts import Comparison, sentence

PRINTED = {  # epsilon: accuracies of CC, UC, DP-SGD; seconds per epoch on a GPU
    2.0: (("64.23 ± 0.51", "63.69 ± 0.59", "63.09 ± 0.46"), (27.38, 27.63, 57.64)),
    4.0: (("67.78 ± 0.32", "67.19 ± 0.44", "66.64 ± 0.37"), (27.02, 27.21, 57.99)),
    6.0: (("73.26 ± 0.16", "71.12 ± 0.18", "70.99 ± 0.22"), (27.12, 27.17, 58.46)),
}
METHODS = ("CC", "UC", "DP-SGD")
LAST = 5
"""Epochs that an accuracy is the mean of."""


@dataclass(frozen=True)
class Table3:
    """CifarSize and constants; the defaults are the paper's where it has them."""

    epsilons: tuple[float, ...] = (2.0, 4.0, 6.0)
    rows: int | None = None
    batch_size: int = 500
    epochs: float = 150
    model: str = "resnet18"
    clip: float = 30.0
    lr: float = 0.01
    radius: float = 10.0
    """Of the ball of CC, around the start. The paper does not give it."""
    tuned: tuple[tuple[float, float], ...] = ((1.0, 0.01), (1.0, 0.001), (1.0, 0.0001))
    """Thresholds and steps to choose from for averaged clipping."""
    tuned_sgd: tuple[float, float] = (1.0, 0.5)


QUICK = Table3(
    epsilons=(2.0, 6.0), rows=10_000, batch_size=250, epochs=2, model="cnn",
    tuned=((1.0, 0.003), (1.0, 0.0003)),
)  # fmt: skip


def table_3(request: Request) -> Reproduced:
    """The table; published and certified runs of averaged clipping side by side."""
    setting = QUICK if request.quick else Table3()
    train_rows, test_rows = cifar10(request.folder())
    return table_3_of(setting, train_rows, test_rows, request)


def table_3_of(
    setting: Table3, train_rows: tuple[Tensor, Tensor], test_rows: tuple[Tensor, Tensor],
    request: Request,
) -> Reproduced:  # fmt: skip
    size = CifarSize(setting.rows, setting.batch_size, setting.epochs, setting.model)
    given = problem(size, train_rows, test_rows)
    seeds = request.seeds_or(2, 5)
    lines = [
        line
        for epsilon in setting.epsilons
        for line in _epsilon_lines(given, setting, epsilon, seeds, request)
    ]
    return Reproduced(
        "Table 3 of paper 4 (CIFAR-10)",
        "test accuracy in per cent (chance: 10)",
        tuple(lines),
        table_3_verdict(lines),
        asdict(setting),
        (
            f"{size.describe(given)}; the paper: ResNet-18 with batch statistics, 50,000 rows.",
            "Accuracies are means over the last five epochs of every run, as in the paper; the "
            'column "last epochs" has their deviation over epochs and runs, the paper\'s ±.',
            "Published noise is for sensitivity lambda; two clipped means can be 2 lambda apart.",
            "The tuned lines choose threshold and step with the first seed, outside epsilon.",
            "Seconds per epoch are processor time, with testing.",
        ),
    )


@dataclass(frozen=True)
class Trained:
    """Accuracy in per cent, certified epsilon and processor seconds per epoch, over seeds."""

    accuracy: Measured
    epsilon: float
    seconds: float
    curves: tuple[tuple[float, ...], ...]
    """Accuracies of the epochs, one curve per seed."""

    @property
    def deviation(self) -> str:
        """Over the last epochs of all seeds, as the paper's ± is."""
        last = [value for curve in self.curves for value in curve[-LAST:]]
        if len(last) < 2:
            return "one epoch"
        return f"{statistics.fmean(last):.4g} ± {statistics.stdev(last):.2g}"

    def by_epoch(self) -> str:
        """The mean curve."""
        means = (statistics.fmean(values) for values in zip(*self.curves, strict=True))
        return " ".join(f"{value:.4g}" for value in means)


def trained(given: Problem, recipe: TrainingRecipe, ball: float | None, seeds: range) -> Trained:
    """One run per seed, tested after every epoch."""
    epochs = given.steps * given.batch_size / len(given.train[1])
    curves, epsilons, seconds = [], [], []
    for seed in seeds:
        outcome = train(
            given,
            replace(recipe, ball=_ball(given, ball, seed)),
            seed,
            looks=max(1, round(epochs)),
            watch={"test": lambda model: evaluate(model, *given.test)[0]},
        )
        seconds.append(outcome.seconds)
        curves.append(outcome.watched["test"])
        epsilons.append(outcome.epsilon)
    return Trained(ends(curves), max(epsilons), min(seconds) / epochs, tuple(curves))


def ends(curves: Sequence[Sequence[float]]) -> Measured:
    """The statistic of Table 3: the mean of each run over its last epochs."""
    return Measured.of([statistics.fmean(curve[-LAST:]) for curve in curves])


def _ball(given: Problem, radius: float | None, seed: int) -> Ball | None:
    """Around the start, which a run with the same seed will have."""
    if radius is None:
        return None
    torch.manual_seed(seed)
    return Ball(radius, dict(given.model().named_parameters()))


def _epsilon_lines(
    given: Problem, setting: Table3, epsilon: float, seeds: range, request: Request
) -> list[Line]:
    noise = plain_noise(given, epsilon)  # the same multiplier for every rule with one release
    printed = dict(zip(METHODS, zip(*PRINTED[epsilon], strict=True), strict=True))
    lines = []
    for method in METHODS:
        request.say(f"epsilon {epsilon:g}, {method}")
        ball = setting.radius if method == "CC" else None
        rule: Rule = Flat(setting.clip) if method == "DP-SGD" else Averaged(setting.clip)
        sound = trained(
            given, TrainingRecipe(rule, setting.lr, noise_multiplier=noise), ball, seeds
        )
        accuracy, gpu = printed[method]
        line = Line(
            {"nominal": f"{epsilon:g}", "method": method, "constants": "as printed"},
            printed=accuracy,
            certified=sound.accuracy,
            certified_epsilon=sound.epsilon,
            extra={
                "last epochs": sound.deviation,
                "epoch": f"{sound.seconds:.3g} s",
                "epoch in the paper": f"{gpu:g} s (GPU)",
            },
        )
        if method != "DP-SGD":
            half = TrainingRecipe(rule, setting.lr, noise_multiplier=noise / 2)
            claimed = trained(given, half, ball, seeds)
            line = replace(line, published=claimed.accuracy, published_certifies=claimed.epsilon)
        lines.append(line)
    return [*lines, *_tuned_lines(given, setting, epsilon, noise, seeds)]


def _tuned_lines(
    given: Problem, setting: Table3, epsilon: float, noise: float, seeds: range
) -> list[Line]:
    """UC and DP-SGD with constants that suit them, certified."""
    tried = {
        (clip, lr): trained(
            given, TrainingRecipe(Averaged(clip), lr, noise_multiplier=noise), None, seeds[:1]
        )
        for clip, lr in setting.tuned
    }
    clip, lr = max(tried, key=lambda constants: tried[constants].accuracy.mean)
    runs: dict[str, tuple[float, float, Rule]] = {
        "UC": (clip, lr, Averaged(clip)),
        "DP-SGD": (*setting.tuned_sgd, Flat(setting.tuned_sgd[0])),
    }
    lines = []
    for method, (threshold, rate, rule) in runs.items():
        result = trained(given, TrainingRecipe(rule, rate, noise_multiplier=noise), None, seeds)
        constants = f"tuned: {threshold:g}, step {rate:g}"
        lines.append(
            Line(
                {"nominal": f"{epsilon:g}", "method": method, "constants": constants},
                certified=result.accuracy,
                certified_epsilon=result.epsilon,
                extra={"last epochs": result.deviation, "epoch": f"{result.seconds:.3g} s"},
            )
        )
    return lines


def table_3_verdict(lines: list[Line]) -> str:
    """Does averaged clipping beat DP-SGD: as printed, as published, tuned?"""
    best: dict[str, dict[str, Measured]] = {}
    seconds: dict[bool, list[float]] = {True: [], False: []}
    leak = 0.0
    for line in lines:
        assert line.certified is not None
        row = best.setdefault(line.label["nominal"], {})
        averaged = line.label["method"] != "DP-SGD"
        key = "averaged" if averaged else "sgd"
        row[key] = _better(row.get(key), line.certified)
        if line.published is not None and line.published_certifies is not None:
            row["claimed"] = _better(row.get("claimed"), line.published)
            leak = max(leak, line.published_certifies / float(line.label["nominal"]))
        if line.label["constants"] == "as printed":
            seconds[averaged].append(float(line.extra["epoch"].split()[0]))
    ratio = statistics.median(seconds[True]) / statistics.median(seconds[False])
    certified, published = (
        [Comparison(nominal, row[key], row["sgd"]) for nominal, row in best.items()]
        for key in ("averaged", "claimed")
    )
    return (
        f"The best averaged clipping ahead of the best DP-SGD, certified: "
        f"{sentence(certified, 'epsilons', ' points')}; as published: "
        f"{sentence(published, 'epsilons', ' points')}. Its epochs take {ratio:.2f} of the time "
        f"(paper: 0.47). Published noise certifies {leak:.2g} times its epsilon."
    )


def _better(one: Measured | None, other: Measured) -> Measured:
    return other if one is None or other.mean > one.mean else one
