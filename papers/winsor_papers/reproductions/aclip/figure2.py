"""Figure 2 of paper 4: test accuracy after every epoch on CIFAR-10, with a line without privacy.

The runs are those of Table 3 at the printed constants (`table3.py`).
"""

from __future__ import annotations

from dataclasses import asdict, replace

from torch import Tensor

from winsor.rules.averaged import Averaged
from winsor.rules.flat import Flat
from winsor.rules.rule import Rule
from winsor_papers.reproductions.aclip.table3 import (
    METHODS,
    PRINTED,
    QUICK,
    Table3,
    Trained,
    ends,
    trained,
)
from winsor_papers.reproductions.cells import Values, Wanted, cell, data_name, model_name
from winsor_papers.reproductions.cifar import CifarSize, problem
from winsor_papers.reproductions.reproduction import Line, Measured, Reproduced, Request
from winsor_papers.reproductions.training_runs import (
    Problem,
    TrainingRecipe,
    cifar10,
    evaluate,
    plain_noise,
    probed,
)
from winsor_papers.reproductions.value.open_runs import plain_sgd
from winsor_papers.reproductions.verdicts import Comparison, sentence

PRINTED_BASELINE = "83.28 ± 0.02"


def figure_2(request: Request) -> Reproduced:
    """Test accuracy after every epoch, with a line that is not private."""
    setting = QUICK if request.quick else Table3()
    train_rows, test_rows = cifar10(request.folder())
    return figure_2_of(setting, train_rows, test_rows, request)


def figure_2_of(
    setting: Table3, train_rows: tuple[Tensor, Tensor], test_rows: tuple[Tensor, Tensor],
    request: Request,
) -> Reproduced:  # fmt: skip
    size = CifarSize(setting.rows, setting.batch_size, setting.epochs, setting.model)
    given = problem(size, train_rows, test_rows)
    seeds = request.seeds_or(1, 5)
    lines = [_open_line(given, setting, seeds)]
    for epsilon in setting.epsilons:
        noise = plain_noise(given, epsilon)
        for method in METHODS:
            request.say(f"epsilon {epsilon:g}, {method}")
            lines.append(_curve_line(given, setting, epsilon, noise, method, seeds))
    return Reproduced(
        "Figure 2 of paper 4 (test accuracy along the run, CIFAR-10)",
        "test accuracy in per cent over the last five epochs (chance: 10)",
        tuple(lines),
        curve_verdict(lines),
        asdict(setting),
        (
            f"{size.describe(given)}; the paper: ResNet-18 with batch statistics, 50,000 rows.",
            "The paper draws curves; the columns by epoch are their points, means over the seeds.",
            "Constants as printed: lambda = 30, whatever the method.",
        ),
    )


def _curve_line(
    given: Problem, setting: Table3, epsilon: float, noise: float, method: str, seeds: range
) -> Line:
    ball = setting.radius if method == "CC" else None
    rule: Rule = Flat(setting.clip) if method == "DP-SGD" else Averaged(setting.clip)
    recipe = TrainingRecipe(rule, setting.lr, noise_multiplier=noise)
    sound = trained(given, recipe, ball, seeds)
    line = Line(
        {"nominal": f"{epsilon:g}", "method": method},
        printed=dict(zip(METHODS, PRINTED[epsilon][0], strict=True))[method],
        certified=sound.accuracy,
        certified_epsilon=sound.epsilon,
        extra={"certified by epoch": sound.by_epoch()},
    )
    if method == "DP-SGD":
        return line
    claimed = trained(given, replace(recipe, noise_multiplier=noise / 2), ball, seeds)
    return replace(
        line,
        published=claimed.accuracy,
        published_certifies=claimed.epsilon,
        extra={**line.extra, "published by epoch": claimed.by_epoch()},
    )


def _open_line(given: Problem, setting: Table3, seeds: range) -> Line:
    """The same network and step without clipping or noise."""
    curves = [tuple(cell(_open_cell(given, setting.lr, seed))["test"]) for seed in seeds]
    shown = Trained(ends(curves), 0.0, 0.0, tuple(curves))
    return Line(
        {"nominal": "", "method": "baseline"},
        printed=PRINTED_BASELINE,
        extra={"not private by epoch": shown.by_epoch(), "not private": str(shown.accuracy)},
    )


def _open_cell(given: Problem, lr: float, seed: int) -> Wanted:
    """One run without privacy."""

    def run(at: Problem) -> Values:
        curve: list[float] = []
        plain_sgd(at, lr, seed, lambda model: curve.append(evaluate(model, *at.test)[0]))
        return {"test": curve}

    return Wanted(
        f"{given.name}, not private, {given.steps} steps of {given.batch_size}",
        {
            "data": data_name(*given.train, *given.test),
            "model": model_name(given.model),
            "lr": lr,
            "seed": seed,
        },
        lambda: run(given),
        {"test": [50.0] * max(1, round(given.steps * given.batch_size / len(given.train[1])))},
        given.steps,
        lambda steps: run(probed(given.for_steps(steps))),
        given.batch_size / probed(given).batch_size,
    )


def curve_verdict(lines: list[Line], where: str = "At the printed constants") -> str:
    """Where do certified averaged clipping and DP-SGD end?"""
    rows: dict[str, dict[str, Measured]] = {}
    for line in lines:
        if line.certified is not None:
            rows.setdefault(line.label["nominal"], {})[line.label["method"]] = line.certified
    ends = [
        Comparison(nominal, max(row["CC"], row["UC"], key=lambda end: end.mean), row["DP-SGD"])
        for nominal, row in rows.items()
    ]
    return (
        f"{where} averaged clipping ends above DP-SGD, certified: "
        f"{sentence(ends, 'epsilons', ' points')}."
    )
