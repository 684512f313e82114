"""Figure 5 of paper 3: test accuracy of gradient and value clipping over sigma and delta, on MNIST.

    sigma in {0.5, 1, 2, 4, 8},    delta in {1e-3, 1e-4, 1e-5}

Training does not know delta, so there is one run per sigma, method and seed, and three epsilons,
one per delta, from its events. The paper computes its epsilons with Opacus; here they are
certified. It does not name the threshold: ``THRESHOLD`` is one of its section 6.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from winsor.contrib.value.value import Value
from winsor.contrib.value.wgc import NetworkGrowth
from winsor.rules.flat import Flat
from winsor.rules.rule import Rule
from winsor_papers.reproductions.reproduction import Line, Measured, Reproduced, Request
from winsor_papers.reproductions.value.curves import EPOCHS
from winsor_papers.reproductions.value.lockstep import AsPrinted, Run
from winsor_papers.reproductions.value.problems import ValueTask, mnist
from winsor_papers.reproductions.value.together import NOTE, Accuracies, advanced
from winsor_papers.reproductions.verdicts import Difference, difference, judged

SIGMAS = (0.5, 1.0, 2.0, 4.0, 8.0)
DELTAS = (1e-3, 1e-4, 1e-5)
THRESHOLD = 20.0
PRINTED = {"linear": "GC - 2 (epsilon 10) to GC - 5", "2-layer NN": "GC - 3 (epsilon 10) to GC - 9"}


def figure_5(request: Request) -> Reproduced:
    """The sweep; in part when quick."""
    rows, epochs = (20_000, 1) if request.quick else (None, EPOCHS)
    tasks = [task.for_epochs(epochs) for task in mnist(request.folder(), rows=rows)]
    sigmas = SIGMAS[::2] if request.quick else SIGMAS
    note = "Quick: 20,000 rows, 1 epoch, three sigmas." if request.quick else "All of MNIST."
    return figure_5_of(tasks, sigmas, request, note)


def figure_5_of(
    tasks: Sequence[ValueTask], sigmas: Sequence[float], request: Request, note: str
) -> Reproduced:
    seeds = request.seeds_or(1, 5)
    lines: list[Line] = []
    for task in tasks:
        request.say(task.model)
        lines += _model_lines(task, sigmas, seeds)
    return Reproduced(
        "Figure 5 of paper 3 (gradient and value clipping over sigma and delta)",
        "test accuracy in per cent",
        tuple(lines),
        sweep_verdict(lines),
        {"sigmas": tuple(sigmas), "deltas": DELTAS, "threshold": THRESHOLD},
        (
            "One run for all deltas: training does not depend on delta, epsilon does.",
            "Published value clipping is Algorithm 3 as printed; it certifies nothing.",
            "Value clipping is appendix D's growth condition with each row's own loss.",
            "The last of the paper's step sizes for every line.",
            NOTE,
            note,
        ),
    )


METHODS: dict[str, Rule | AsPrinted] = {
    "GC": Flat(THRESHOLD),
    "VC": Value(THRESHOLD, growth=NetworkGrowth()),
    "VC as printed": AsPrinted(THRESHOLD),
}


def _model_lines(task: ValueTask, sigmas: Sequence[float], seeds: Sequence[int]) -> list[Line]:
    keys = [(method, sigma) for sigma in sigmas for method in METHODS]
    runs = [Run(METHODS[method], sigma, task.rates[-1]) for method, sigma in keys]
    by_seed = [advanced(task.problem, runs, seed, looks=1) for seed in seeds]
    found = {key: [ran[place] for ran in by_seed] for place, key in enumerate(keys)}
    return [
        _line(task, (method, sigma, delta), found[method, sigma], found["VC as printed", sigma])
        for sigma in sigmas
        for method in ("GC", "VC")
        for delta in DELTAS
    ]


def _line(
    task: ValueTask,
    key: tuple[str, float, float],
    runs: Sequence[Accuracies],
    printed: Sequence[Accuracies],
) -> Line:
    method, sigma, delta = key
    line = Line(
        {
            "model": task.model,
            "sigma": f"{sigma:g}",
            "delta": f"{delta:g}",
            "method": method,
        },
        certified=Measured.of([run.test for run in runs]),
        certified_epsilon=runs[0].epsilon(delta),
    )
    if method == "GC":
        return line
    return replace(
        line,
        printed=PRINTED[task.model],
        published=Measured.of([run.test for run in printed]),
        published_certifies=math.inf,
    )


def sweep_verdict(lines: Sequence[Line]) -> str:
    """Does the gap between both grow with sigma, as the paper observes?

    The paper names neither threshold nor length nor step size here: this is not its own setting.
    """
    gradient: dict[tuple[str, float], Measured] = {}
    value: dict[str, dict[tuple[str, float], Measured]] = {"as printed": {}, "certified": {}}
    for line in lines:
        key = line.label["model"], float(line.label["sigma"])
        assert line.certified is not None
        if line.label["method"] == "GC":
            gradient[key] = line.certified
            continue
        value["certified"][key] = line.certified
        if line.published is not None:
            value["as printed"][key] = line.published
    parts = [f"{reading}: {_growth(gradient, found)}" for reading, found in value.items() if found]
    sigmas = sorted({sigma for _, sigma in gradient})
    return (
        f"From sigma {sigmas[0]:g} to {sigmas[-1]:g} value clipping loses more against gradient "
        f"clipping. {'. '.join(part[0].upper() + part[1:] for part in parts)}."
    )


def _growth(
    gradient: Mapping[tuple[str, float], Measured], value: Mapping[tuple[str, float], Measured]
) -> str:
    """How the gap grows from the smallest sigma to the largest, model by model."""
    sigmas = sorted({sigma for _, sigma in value})
    parts = []
    for model in dict.fromkeys(model for model, _ in value):
        first, last = (
            difference(gradient[model, sigma], value[model, sigma])
            for sigma in (sigmas[0], sigmas[-1])
        )
        grown = grown_by(first, last)
        parts.append(
            f"{model} {judged(grown, None, False)}, from {first.mean:.1f} to {last.mean:.1f} "
            f"points (smallest detectable difference {grown.detectable:.2g})"
        )
    return "; ".join(parts)


def grown_by(first: Difference, last: Difference) -> Difference:
    """The growth of a difference; both are over seeds of their own."""
    half = None
    if first.half_width is not None and last.half_width is not None:
        half = math.hypot(first.half_width, last.half_width)
    detectable = math.hypot(first.detectable, last.detectable)
    return Difference(last.mean - first.mean, half, detectable)
