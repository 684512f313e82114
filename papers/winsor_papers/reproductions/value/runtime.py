"""Table 2 of paper 3: the time of an epoch under SGD, micro-batching, Opacus and value clipping.

The paper times epochs on a GPU. Here single steps are timed on one core, as processor time; the
contenders take turns in short blocks, so that all of them meet the same machine, and every round
gives one ratio of medians to plain SGD. Compare ratios, not seconds. Batches are random numbers of
the shape of the paper's rows (784 pixels, 512 features): the time does not depend on their values.

    SGD              one backward pass, no privacy
    micro-batching   one backward pass per row, clipped one by one
    Opacus           per-sample gradients by hooks, if the package is installed
    GC               gradient clipping in winsor: norms without per-sample gradients
    VC               value clipping with the paper's bound; "tight" with winsor's own
"""

from __future__ import annotations

import importlib.util
import os
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from winsor.contrib.value.value import Value
from winsor.core.sampling.samplers import FullBatch
from winsor.models.networks import mlp
from winsor.rules.flat import Flat
from winsor.rules.rule import Rule
from winsor.training.make_private import make_private
from winsor_papers.reproductions.cells import Values, Wanted, cell
from winsor_papers.reproductions.reproduction import Line, Measured, Reproduced, Request
from winsor_papers.reproductions.value.problems import BATCH, DELTA, HIDDEN, MODELS, NOISE
from winsor_papers.reproductions.verdicts import Comparison, sentence

Step = Callable[[], None]
LEARNING_RATE, CLIP = 0.01, 1.0

PRINTED = {  # data, model: seconds per epoch of SGD, micro-batching, Opacus, VC
    ("MNIST", "linear"): (6.83, 34.82, 12.80, 8.62),
    ("MNIST", "2-layer NN"): (6.91, 43.75, 16.61, 8.96),
    ("CIFAR-10", "linear"): (0.58, 23.99, 4.13, 1.25),
    ("CIFAR-10", "2-layer NN"): (0.65, 30.86, 7.47, 1.70),
}
PRINTED_METHODS = ("SGD", "micro-batching", "Opacus", "VC")
WIDTHS = {"MNIST": 784, "CIFAR-10": 512}
ROWS = {"MNIST": 60_000, "CIFAR-10": 50_000}
PROBED_BLOCK = 5
LONG = {"micro-batching": 10}
"""Methods whose step is itself a hundred passes: their blocks are so many times shorter."""


@dataclass(frozen=True)
class Timing:
    """How long to measure: rounds of blocks of steps."""

    rounds: int
    block: int
    batch_size: int = BATCH


def table_2(request: Request) -> Reproduced:
    """Ratios to SGD of every method on the four models."""
    rounds = len(request.seeds_or(5, 20))
    return table_2_of(Timing(rounds, 20 if request.quick else 100), request)


def table_2_of(timing: Timing, request: Request) -> Reproduced:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        found = {key: _measured(*key, timing, request) for key in PRINTED}
    finally:
        torch.set_num_threads(threads)
    lines = [line for key, one in found.items() for line in _lines(*key, one["seconds"], timing)]
    loads = sorted(one["load"] for one in found.values())
    notes = [
        "Processor time on a CPU, PyTorch on one thread; the paper has a P100 GPU and includes the "
        "loading of data. The interval is over rounds.",
        "Random rows of the paper's shapes; models without biases, batches of 128. Rounds are "
        f"blocks of {timing.block} steps, of micro-batching a tenth: a step of it is 128 passes.",
        f"Load meanwhile {loads[0]:.1f} to {loads[-1]:.1f}, of which 1 is this table: "
        "methods take turns in short blocks, and only ratios within a round are compared.",
    ]
    if importlib.util.find_spec("opacus") is None:
        notes.append("Opacus is not installed here: its lines have the printed figure only.")
    return Reproduced(
        "Table 2 of paper 3 (runtime)",
        "time of a step over that of SGD",
        tuple(lines),
        runtime_verdict(lines),
        {"rounds": timing.rounds, "block": timing.block, "batch_size": timing.batch_size,
         "threads": 1, "clock": "processor time"},
        tuple(notes),
    )  # fmt: skip


def _measured(data: str, model: str, timing: Timing, request: Request) -> Values:
    request.say(f"{data}, {model}")
    width = WIDTHS[data]
    sizes = [width, 10] if model == MODELS[0] else [width, HIDDEN, 10]
    return cell(_timed_cell(f"{data}, {model}", sizes, timing))


def _lines(data: str, model: str, seconds: dict[str, list[float]], timing: Timing) -> list[Line]:
    printed = dict(zip(PRINTED_METHODS, PRINTED[data, model], strict=True))
    lines = []
    for method in dict.fromkeys((*PRINTED_METHODS, *seconds)):
        figure = printed.get(method)
        text = None if figure is None else f"{figure / printed['SGD']:.2f} ({figure:g} s)"
        label = {"data": data, "model": model, "method": method}
        if method not in seconds:
            lines.append(Line(label, printed=text, extra={"epoch": "not installed"}))
            continue
        ratios = [ours / plain for ours, plain in zip(seconds[method], seconds["SGD"], strict=True)]
        epoch = statistics.median(seconds[method]) * ROWS[data] / timing.batch_size
        lines.append(
            Line(
                label,
                printed=text,
                certified=Measured.of(ratios),
                extra={"epoch": f"{epoch:.2f} s"},
            )
        )
    return lines


def _timed_cell(name: str, sizes: list[int], timing: Timing) -> Wanted:
    """All methods on one model; a probe has shorter blocks."""

    def work(at: Timing) -> Values:
        seconds = take_turns(contenders(sizes, at.batch_size), at)
        return {"seconds": seconds, "load": os.getloadavg()[1]}  # of the last five minutes

    block = min(PROBED_BLOCK, timing.block)
    return Wanted(
        f"runtime of {name}, {timing.rounds} rounds of {timing.block} steps",
        {"sizes": sizes, "batch": timing.batch_size, "shorter blocks": LONG},
        lambda: work(timing),
        {"seconds": {method: [1.0] * timing.rounds for method in methods()}, "load": 1.0},
        timing.rounds,
        lambda rounds: work(Timing(rounds, block, timing.batch_size)),
        timing.block / block,
    )


def methods() -> tuple[str, ...]:
    """What is timed; Opacus where it is installed."""
    installed = importlib.util.find_spec("opacus") is not None
    others = ("Opacus",) if installed else ()
    return ("SGD", "micro-batching", *others, "GC", "VC", "VC, tight bound")


def take_turns(steps: dict[str, Step], timing: Timing) -> dict[str, list[float]]:
    """Per method and round, the median time of a step."""
    for step in steps.values():
        for _ in range(3):
            step()
    medians: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(timing.rounds):
        for name, step in steps.items():
            times = []
            for _ in range(max(1, timing.block // LONG.get(name, 1))):
                start = time.process_time()  # of all threads: winsor draws noise in another one
                step()
                times.append(time.process_time() - start)
            medians[name].append(statistics.median(times))
    return medians


def contenders(sizes: list[int], batch_size: int) -> dict[str, Step]:
    """One step of every method, each with a model of its own and the same rows."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(batch_size, sizes[0], generator=generator)
    y = torch.randint(0, sizes[-1], (batch_size,), generator=generator)
    steps = {"SGD": _plain(sizes, x, y), "micro-batching": _microbatching(sizes, x, y)}
    if importlib.util.find_spec("opacus") is not None:
        steps["Opacus"] = _opacus(sizes, x, y)
    rules: dict[str, Rule] = {
        "GC": Flat(CLIP),
        "VC": Value(CLIP, form="value"),
        "VC, tight bound": Value(CLIP),
    }
    return steps | {name: _private(rule, sizes, x, y) for name, rule in rules.items()}


def _fresh(sizes: list[int]) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = mlp(sizes, bias=False)
    return model, torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)


def _plain(sizes: list[int], x: Tensor, y: Tensor) -> Step:
    model, optimizer = _fresh(sizes)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


def _microbatching(sizes: list[int], x: Tensor, y: Tensor) -> Step:
    model, optimizer = _fresh(sizes)
    parameters = list(model.parameters())

    def step() -> None:
        sums = [torch.zeros_like(parameter) for parameter in parameters]
        for row in range(len(y)):
            loss = F.cross_entropy(model(x[row : row + 1]), y[row : row + 1])
            gradient = torch.autograd.grad(loss, parameters)
            norm = torch.stack([part.norm() for part in gradient]).norm()
            weight = (CLIP / norm).clamp_max(1.0)
            for total, part in zip(sums, gradient, strict=True):
                total.addcmul_(part, weight)
        for parameter, total in zip(parameters, sums, strict=True):
            parameter.grad = (total + torch.randn_like(total) * (NOISE * CLIP)) / len(y)
        optimizer.step()

    return step


def _opacus(sizes: list[int], x: Tensor, y: Tensor) -> Step:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opacus import GradSampleModule
        from opacus.optimizers import DPOptimizer

        model, optimizer = _fresh(sizes)
        wrapped = GradSampleModule(model)
        noisy = DPOptimizer(
            optimizer, noise_multiplier=NOISE, max_grad_norm=CLIP, expected_batch_size=len(y)
        )

    def step() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            noisy.zero_grad()
            F.cross_entropy(wrapped(x), y).backward()
            noisy.step()

    return step


def _private(rule: Rule, sizes: list[int], x: Tensor, y: Tensor) -> Step:
    model, optimizer = _fresh(sizes)
    run = make_private(
        model=model,
        optimizer=optimizer,
        dataset=TensorDataset(x, y),
        rule=rule,
        noise_multiplier=NOISE,
        delta=DELTA,
        steps=10**6,
        batch_size=len(y),
        sampling=FullBatch(len(y)),
    )
    batches = run.batches()

    def step() -> None:
        rows, labels = next(batches)
        run.step(F.cross_entropy(model(rows), labels, reduction="none"))

    return step


def runtime_verdict(lines: list[Line]) -> str:
    """Is value clipping the fastest of the private methods that the paper compares?"""
    ratios: dict[tuple[str, str], dict[str, Measured]] = {}
    for line in lines:
        if line.certified is not None:
            key = line.label["data"], line.label["model"]
            ratios.setdefault(key, {})[line.label["method"]] = line.certified
    fastest, tight = [], []
    for key, found in ratios.items():
        rivals = [found[name] for name in ("micro-batching", "Opacus") if name in found]
        name, best = ", ".join(key), min(rivals, key=lambda rival: rival.mean)
        fastest.append(Comparison(name, found["VC"], best, smaller_is_better=True))
        ours = found["VC, tight bound"]
        tight.append(Comparison(name, ours, found["GC"], smaller_is_better=True))
    values = [found["VC"].mean for found in ratios.values()]
    return (
        f"Value clipping is the fastest of the paper's private methods, at {min(values):.2g} to "
        f"{max(values):.2g} times SGD: {sentence(fastest, 'cases')}. With the tight bound faster "
        f"than winsor's gradient clipping: {sentence(tight, 'cases')}."
    )
