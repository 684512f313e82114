"""Figure 1 of paper 3: how often DP-SGD clips, from epoch to epoch.

Gradient clipping, whose account is not in doubt: the runs of figures 2 and 3. The frequency and the
training accuracy are exact functions of the training rows: shown here of public data, never
released from private data.
"""

from __future__ import annotations

from winsor_papers.reproductions.reproduction import Line, Measured, Reproduced, Request
from winsor_papers.reproductions.value.curves import Tuned, mean_curve, tuned
from winsor_papers.reproductions.value.figures import scale_note, settings_of, tasks, thresholds_of
from winsor_papers.reproductions.value.problems import ValueTask
from winsor_papers.reproductions.value.together import EARLY, NOTE
from winsor_papers.reproductions.verdicts import Comparison, sentence

STUCK = "about 15"
"""Per cent, printed for the two-layer network on MNIST at the two largest thresholds."""
LOW = 5.0
"""Per cent of gradients clipped: below it, clipping hardly happens."""


def figure_1(request: Request) -> Reproduced:
    """The share of clipped gradients in the first and in the last epoch."""
    return figure_1_of(tasks(request), request, scale_note(request))


def figure_1_of(given: list[ValueTask], request: Request, note: str) -> Reproduced:
    lines = []
    for task in given:
        request.say(f"{task.data}, {task.model}")
        thresholds = thresholds_of(task, request)
        found = tuned(task, thresholds, list(request.seeds_or(1, 5)))
        lines += [_frequency_line(task, clip, found["GC", clip]) for clip in thresholds]
    return Reproduced(
        "Figure 1 of paper 3 (clipping frequency of DP-SGD during training)",
        "per cent of gradients clipped in the last epoch",
        tuple(lines),
        frequency_verdict(lines),
        settings_of(given[0].problem),
        ("Of the paper's step sizes, the one with the best training accuracy of the first seed.",
         "The paper gives curves: the columns by epoch are their points, of training accuracy on "
         f"every {EARLY}th row before the last epoch. The printed column is what its text says of "
         "them.", NOTE, note),
    )  # fmt: skip


def _frequency_line(task: ValueTask, threshold: float, found: Tuned) -> Line:
    runs = found.runs
    return Line(
        {"data": task.data, "model": task.model, "C": f"{threshold:g}"},
        printed=_printed_frequency(task, threshold),
        certified=Measured.of([run.clipped_curve[-1] for run in runs]),
        certified_epsilon=max(run.epsilon(task.problem.delta) for run in runs),
        extra={
            "first epoch": str(Measured.of([run.clipped_curve[0] for run in runs])),
            "training accuracy": str(Measured.of([run.training for run in runs])),
            "step size": f"{found.lr:g}",
            "clipped by epoch": mean_curve([run.clipped_curve for run in runs]),
            "training by epoch": mean_curve([run.training_curve for run in runs]),
        },
    )


def _printed_frequency(task: ValueTask, threshold: float) -> str:
    stuck = (task.data, task.model) == ("MNIST", "2-layer NN") and threshold >= 20
    return STUCK if stuck else "falls"


def frequency_verdict(lines: list[Line]) -> str:
    """Does the frequency fall where the paper says so? Where it rises, does it stay near zero?"""
    falls, stuck, low = [], [], 0
    for line in lines:
        assert line.certified is not None
        first = Measured.read(line.extra["first epoch"], line.certified.seeds)
        name = " ".join(line.label.values())
        if line.printed == STUCK:
            stuck.append(f"{first.mean:.2g} to {line.certified.mean:.2g}")
            continue
        # the paper says "in most cases", which no single line can contradict
        falls.append(Comparison(name, first, line.certified))
        low += line.certified.mean >= first.mean and line.certified.mean < LOW
    told = sentence(falls, "lines", " points")
    text = (
        f"The frequency falls from the first epoch to the last (paper: in most cases): {told}; "
        f"where it does not fall in the mean, {low} of them stay below {LOW:g} per cent."
    )
    if stuck:
        text += (
            f" Where the paper says that it is small at first and then stays at {STUCK} per cent, "
            f"it goes from {', from '.join(stuck)} per cent."
        )
    return text
