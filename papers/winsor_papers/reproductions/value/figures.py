"""Figures 2 and 3 of paper 3: value against gradient clipping, training and test accuracy.

*published* is Algorithm 3 as printed, which certifies nothing, *certified* the same bound with each
row's own loss, at the same noise. winsor's tightest bound has no line: on these models it is the
norm, so that it clips as gradient clipping does.

Printed epsilons (1.0379 for MNIST at noise 1, batches of 128, delta 1e-5) are those of 10 epochs
under Opacus' Renyi accountant; so the paper trained 10 epochs. The certified epsilon is smaller.
"""

from __future__ import annotations

import math
import tempfile
from dataclasses import replace
from pathlib import Path

from winsor_papers.reproductions.reproduction import Line, Measured, Reproduced, Request
from winsor_papers.reproductions.training_runs import Problem
from winsor_papers.reproductions.value.curves import EPOCHS, PLAIN, Tuned, mean_curve, tuned
from winsor_papers.reproductions.value.problems import NOISE, ValueTask, cifar, mnist
from winsor_papers.reproductions.value.together import EARLY, NOTE, Accuracies
from winsor_papers.reproductions.verdicts import Comparison, sentence

PRINTED_EPSILON = {"MNIST": 1.0379, "CIFAR-10": 0.9580}
CACHE = Path(tempfile.gettempdir()) / "winsor-scattering-cache"
LOSS = 4.0
"""Points that value clipping loses at most against gradient clipping, by the paper's text."""


def tasks(request: Request) -> list[ValueTask]:
    """MNIST in part when quick; else MNIST and CIFAR-10, for the paper's epochs."""
    if request.quick:
        return [task.for_epochs(2) for task in mnist(request.folder(), rows=20_000)]
    found = [*mnist(request.folder()), *cifar(request.folder(), CACHE)]
    return [task.for_epochs(EPOCHS) for task in found]


def scale_note(request: Request) -> str:
    if request.quick:
        return "Quick: the first 20,000 rows of MNIST, 2 epochs; CIFAR-10 in the full run only."
    return (
        "CIFAR-10: as many rows as the file has (the paper: 50,000), and scattering features in "
        "place of VGG16 features."
    )


def settings_of(problem: Problem) -> dict[str, float]:
    return {
        "noise_multiplier": NOISE,
        "batch_size": problem.batch_size,
        "delta": problem.delta,
        "steps": problem.steps,
        "rows": len(problem.train[1]),
    }


def figures_2_3(request: Request) -> Reproduced:
    """Gradient against value clipping at the same noise: test accuracy, with training accuracy."""
    return figures_2_3_of(tasks(request), request, scale_note(request))


def thresholds_of(task: ValueTask, request: Request) -> tuple[float, ...]:
    return task.thresholds[1::2] if request.quick else task.thresholds


def figures_2_3_of(given: list[ValueTask], request: Request, note: str) -> Reproduced:
    lines: list[Line] = []
    for task in given:
        request.say(f"{task.data}, {task.model}")
        thresholds = thresholds_of(task, request)
        found = tuned(task, thresholds, list(request.seeds_or(2, 5)))
        lines.append(_plain_line(task, found[PLAIN].runs))
        for clip in thresholds:
            lines.append(_private_line(task, clip, "GC", found["GC", clip]))
            line = _private_line(task, clip, "VC", found["VC", clip])
            lines.append(_with_printed(line, task, found["VC as printed", clip]))
    return Reproduced(
        "Figures 2 and 3 of paper 3 (value clipping against gradient clipping)",
        "test accuracy in per cent",
        tuple(lines),
        value_verdict(lines),
        settings_of(given[0].problem),
        ("Published value clipping is Algorithm 3 as printed, with the mean loss: one record can "
         "move its sum without bound, so it certifies nothing.",
         "Every method and threshold has its own best of the paper's step sizes, by the training "
         "accuracy of the first seed; this choice is outside epsilon, as in the paper.",
         "The paper gives curves: the columns by epoch are their points, of training accuracy on "
         f"every {EARLY}th row before the last epoch. The printed column is the loss against "
         "gradient clipping that its text names.",
         "winsor's tightest bound, Value(C), is the norm itself on these models: it would repeat "
         "gradient clipping with other noise.", NOTE, note),
    )  # fmt: skip


def _plain_line(task: ValueTask, runs: list[Accuracies]) -> Line:
    extra = {
        "training": str(Measured.of([run.training for run in runs])),
        "not private": str(Measured.of([run.test for run in runs])),
        **_curves(runs),
    }
    return Line(_label(task, None, "SGD"), extra=extra)


def _curves(runs: list[Accuracies]) -> dict[str, str]:
    """Figure 2 and figure 3: training and test accuracy after every epoch."""
    return {
        "training by epoch": mean_curve([run.training_curve for run in runs]),
        "test by epoch": mean_curve([run.test_curve for run in runs]),
    }


def _private_line(task: ValueTask, threshold: float, method: str, found: Tuned) -> Line:
    runs = found.runs
    return Line(
        _label(task, threshold, method),
        certified=Measured.of([run.test for run in runs]),
        certified_epsilon=max(run.epsilon(task.problem.delta) for run in runs),
        extra={
            "training": str(Measured.of([run.training for run in runs])),
            "step size": f"{found.lr:g}",
            **_curves(runs),
        },
    )


def _with_printed(line: Line, task: ValueTask, found: Tuned) -> Line:
    """The line of value clipping with Algorithm 3 as printed beside it."""
    extra = {
        "published, training by epoch": mean_curve([run.training_curve for run in found.runs]),
        "published, test by epoch": mean_curve([run.test_curve for run in found.runs]),
    }
    return replace(
        line,
        printed=_printed_loss(task),
        published=Measured.of([run.test for run in found.runs]),
        published_certifies=math.inf,
        extra={**line.extra, **extra},
    )


def _label(task: ValueTask, threshold: float | None, method: str) -> dict[str, str]:
    clip = "" if threshold is None else f"{threshold:g}"
    return {"data": task.data, "model": task.model, "C": clip, "method": method}


def _printed_loss(task: ValueTask) -> str:
    if task.data != "MNIST":
        return "GC, nearly"
    return "GC - 2" if task.model == "linear" else "GC - 2 to 4"


def value_verdict(lines: list[Line]) -> str:
    """The loss of value clipping against gradient clipping, over all pairs.

    The paper's own claim is about Algorithm 3 as printed, where its text names a loss; with each
    row's own loss it is another method.
    """
    found = {tuple(line.label.values()): line for line in lines}
    printed, certified = [], []
    for (data, model, clip, method), line in found.items():
        if method != "VC":
            continue
        gradient, name = found[data, model, clip, "GC"].certified, f"{data}, {model}, C = {clip}"
        assert gradient is not None and line.certified is not None
        certified.append(Comparison(name, line.certified, gradient, margin=LOSS))
        if line.published is not None:
            own = names_a_loss(data, model, float(clip))
            printed.append(Comparison(name, line.published, gradient, own_setting=own, margin=LOSS))
    return (
        f"Value clipping is at most {LOSS:g} points behind gradient clipping (paper: 2 to 4 on "
        "MNIST), as printed, which has no guarantee: "
        f"{sentence(printed, 'cases', ' points')}. With each row's own loss, certified: "
        f"{sentence(certified, 'cases', ' points')}."
    )


def names_a_loss(data: str, model: str, clip: float) -> bool:
    """Does the paper's text give a loss here? Of small thresholds it says that the gap is larger;
    its CIFAR-10 features are not ours."""
    return data == "MNIST" and (model == "linear" or clip >= 20)
