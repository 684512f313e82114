"""Figure 4 of paper 3: clipping frequency, and gradient against value clipping, on synthetic data.

10,000 rows of a 256-dimensional standard Gaussian, targets from a linear model (the paper gives no
scale: w* is standard Gaussian, without noise), linear regression f(w) = mean of (x.w - y)^2 / 2.

* *simulated*, as the appendix describes it: every row of a batch of 128 is the true gradient plus
  standard Gaussian noise, the light tail of the theory. Gradients of nobody in particular: such
  runs are open, and stand in the published column. Value clipping uses the declared pair
  beta_1 = 4L, beta_2 = 2d, for |grad f + zeta|^2 <= 2 |grad f|^2 + 2 |zeta|^2 with |zeta|^2 near d.
* *of rows*: the same problem with the gradients of its rows, certified, with the growth condition
  |grad f_i|^2 = 2 |x_i|^2 f_i, which holds with equality: value clipping is gradient clipping.

Sigma, delta and the batch are those of section 6; thresholds around the noise's length of 16.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from winsor.contrib.value.value import Value
from winsor.contrib.value.wgc import NetworkGrowth, WeakGrowth, clipping_frequency
from winsor.gradients.view import View
from winsor.rules.rule import Rule, State
from winsor.training.make_private import make_private
from winsor_papers.reproductions.reproduction import Line, Measured, Reproduced, Request
from winsor_papers.reproductions.value.curves import EPOCHS, Watched, mean_curve
from winsor_papers.reproductions.value.problems import BATCH, DELTA, NOISE
from winsor_papers.reproductions.verdicts import Comparison, sentence
from winsor_papers.value.claim import printed_scale

THRESHOLDS = (10.0, 20.0, 40.0)
RATE = {"simulated": 0.1, "of rows": 0.05}


@dataclass(frozen=True, eq=False)
class Regression:
    """Rows, targets, and the length of a run."""

    x: Tensor
    y: Tensor
    epochs: int

    @property
    def steps_per_epoch(self) -> int:
        return max(1, round(len(self.y) / BATCH))

    @property
    def steps(self) -> int:
        return self.epochs * self.steps_per_epoch

    def loss(self, w: Tensor) -> float:
        return float((self.x @ w - self.y).square().mean() / 2)


def regression(n: int, d: int, epochs: int, seed: int = 0) -> Regression:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=generator)
    return Regression(x, x @ torch.randn(d, generator=generator), epochs)


def figure_4(request: Request) -> Reproduced:
    """Both readings of the experiment."""
    given = regression(10_000, 256, 2 if request.quick else EPOCHS)
    thresholds = THRESHOLDS[1:2] if request.quick else THRESHOLDS
    note = "Quick: one threshold, 2 epochs." if request.quick else f"{EPOCHS} epochs."
    return figure_4_of(given, thresholds, request, note)


def figure_4_of(
    given: Regression, thresholds: Sequence[float], request: Request, note: str
) -> Reproduced:
    seeds = request.seeds_or(2, 5)
    lines = []
    for threshold in thresholds:
        for method in ("GC", "VC"):
            request.say(f"C = {threshold:g}, {method}")
            open_runs = [simulated(given, method, threshold, seed) for seed in seeds]
            lines.append(_line("simulated", threshold, method, open_runs))
            runs = [of_rows(given, method, threshold, seed) for seed in seeds]
            lines.append(_line("of rows", threshold, method, runs))
    return Reproduced(
        "Figure 4 of paper 3 (synthetic data with light-tailed noise)",
        "training loss over that of the zero start",
        tuple(lines),
        synthetic_verdict(lines),
        {"rows": len(given.y), "d": given.x.shape[1], "noise_multiplier": NOISE, "batch": BATCH,
         "delta": DELTA, "epochs": given.epochs, "steps": RATE},
        (
            "Simulated gradients belong to no record: their runs are public, without a guarantee.",
            "The paper gives neither thresholds, nor step sizes, nor the scale of the model.",
            "The paper draws curves; the columns by epoch are their points, means over the seeds.",
            note,
        ),
    )  # fmt: skip


@dataclass(frozen=True)
class Curve:
    """Relative losses and per cent of clipped gradients, of every epoch."""

    losses: tuple[float, ...]
    frequencies: tuple[float, ...]
    epsilon: float | None = None


def simulated(given: Regression, method: str, threshold: float, seed: int) -> Curve:
    """Algorithm 1 or 3 on the true gradient plus standard Gaussian noise, row by row."""
    torch.manual_seed(seed)
    n, d = given.x.shape
    gram, pull = given.x.T @ given.x / n, given.x.T @ given.y / n
    smoothness = float(torch.linalg.eigvalsh(gram)[-1])
    growth = WeakGrowth(4 * smoothness, 2.0 * d)
    w, start = torch.zeros(d), given.loss(torch.zeros(d))
    losses, frequencies = [], []
    for _ in range(given.epochs):
        norms: list[Tensor] = []
        for _ in range(given.steps_per_epoch):
            rows = (gram @ w - pull) + torch.randn(BATCH, d)
            norms.append(rows.norm(dim=1))
            if method == "GC":
                scale = (threshold / norms[-1]).clamp_max(1.0)
            else:
                scale = printed_scale(torch.tensor([given.loss(w)]), growth, threshold)
                scale = scale.expand(BATCH)
            noise = threshold * NOISE * torch.randn(d)
            w = w - RATE["simulated"] / BATCH * (scale @ rows + noise)
        losses.append(given.loss(w) / start)
        frequencies.append(100 * clipping_frequency(norms, threshold))
    return Curve(tuple(losses), tuple(frequencies))


@dataclass(frozen=True, repr=False)
class WatchedValue(Value):
    """Value clipping that keeps its bounds: for public data only."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "seen", [])

    def weights(self, view: View, state: State) -> Tensor:
        found = super().weights(view, state)
        self.seen.append(self.max_grad_norm / found)  # type: ignore[attr-defined]
        return found


def of_rows(given: Regression, method: str, threshold: float, seed: int) -> Curve:
    """The same problem with its own rows, private and certified."""
    rule: Rule
    if method == "GC":
        rule = Watched(threshold)
    else:
        rule = WatchedValue(threshold, growth=NetworkGrowth(2.0))
    torch.manual_seed(seed)
    model = nn.Linear(given.x.shape[1], 1, bias=False)
    nn.init.zeros_(model.weight)
    private = make_private(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=RATE["of rows"]),
        dataset=TensorDataset(given.x, given.y),
        rule=rule,
        batch_size=BATCH,
        delta=DELTA,
        noise_multiplier=NOISE,
        steps=given.steps,
        seed=seed,
    )
    losses = []
    start = given.loss(torch.zeros(given.x.shape[1]))
    for _ in range(given.epochs):
        for x, y in private.batches(given.steps_per_epoch):
            private.step((model(x)[:, 0] - y).square() / 2)
        losses.append(given.loss(model.weight.detach()[0]) / start)
    spent = private.spent().epsilon
    private.detach()
    seen = [batch for batch in rule.seen if batch.numel()]  # type: ignore[attr-defined]
    above = threshold * (1 + 1e-4)  # weights of 1 keep a bound of C itself
    frequencies = [
        100 * clipping_frequency(part, above) for part in batched(seen, given.steps_per_epoch)
    ]
    return Curve(tuple(losses), tuple(frequencies), spent)


def batched(norms: list[Tensor], size: int) -> list[list[Tensor]]:
    """Consecutive pieces of ``size`` batches, the epochs; a short rest belongs to the last."""
    count = max(1, len(norms) // size)
    ends = [*(size * (i + 1) for i in range(count - 1)), len(norms)]
    return [norms[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def _line(kind: str, threshold: float, method: str, runs: Sequence[Curve]) -> Line:
    ends = Measured.of([run.losses[-1] for run in runs])
    private = runs[0].epsilon is not None
    return Line(
        {"gradients": kind, "C": f"{threshold:g}", "method": method},
        printed="VC near GC; frequency falls",
        published=None if private else ends,
        published_certifies=None if private else math.inf,
        certified=ends if private else None,
        certified_epsilon=runs[0].epsilon,
        extra={
            "loss by epoch": mean_curve([run.losses for run in runs]),
            "clipped by epoch": mean_curve([run.frequencies for run in runs]),
        },
    )


NEAR = 0.1
"""Share of the start's loss within which two ends count as near."""


def synthetic_verdict(lines: Sequence[Line]) -> str:
    """Does the frequency fall, and how far is value clipping from gradient clipping?"""
    fell = counted = 0
    ends: dict[tuple[str, str, str], Measured] = {}
    for line in lines:
        found = line.certified or line.published
        assert found is not None
        ends[line.label["gradients"], line.label["C"], line.label["method"]] = found
        if line.label["method"] == "GC":
            first, *_, last = (float(v) for v in line.extra["clipped by epoch"].split())
            counted += 1
            fell += last <= first
    near = [
        Comparison(f"{kind}, C = {clip}", ends[kind, clip, "VC"], found, margin=NEAR,
                   smaller_is_better=True)
        for (kind, clip, method), found in ends.items()
        if method == "GC"
    ]  # fmt: skip
    return (
        f"The frequency of clipping does not rise on {fell} of {counted} lines. Value clipping "
        f"ends at most {NEAR:g} of the start's loss above gradient clipping: "
        f"{sentence(near, 'cases')}."
    )
