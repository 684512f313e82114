"""Audit a training that somebody else wrote: a DP-SGD loop in the manner of Opacus, with a mistake.

    python examples/gallery/somebody_elses_training.py [--full] [--out DIR]

Two versions of one loop are replayed on neighbouring datasets under the same randomness. The honest
one keeps its claims. The other divides by the size of the batch that happened to be drawn, which no
account of DP-SGD allows. The full form replays every row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from options import asked_for
from page import Shown
from torch import Tensor
from torch.utils.data import TensorDataset

from winsor.audit import ReplayReport, replay
from winsor.audit.replaying.opacus import opacus_adapter

ROWS, RATE, STEPS = 24, 0.5, 4
CHANGES = (
    "Write train(dataset): everything from building the model to what is returned.",
    "With Opacus itself: replay(train, dataset, adapters=[opacus_adapter()]).",
    "Another library: give opacus_adapter the class that clips and adds noise, and the one that "
    "draws batches.",
    "The report speaks of private rows: it is for whoever holds the data.",
)


class Batches:
    """Poisson batches."""

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(STEPS):
            yield (torch.rand(ROWS) < RATE).nonzero().ravel().tolist()


class ClippingSGD:
    """Clips every row's gradient, sums, adds noise, divides, steps."""

    def __init__(self, weights: Tensor, by_realised_size: bool) -> None:
        self.params = [weights]
        self.max_grad_norm, self.noise_multiplier = 1.0, 1.0
        self.expected_batch_size = ROWS * RATE
        self.by_realised_size = by_realised_size

    def clip_and_accumulate(self, gradients: Tensor) -> None:
        norms = gradients.norm(dim=1).clamp_min(self.max_grad_norm)
        clipped = gradients * (self.max_grad_norm / norms * (1 - 1e-6))[:, None]
        self.params[0].summed_grad = clipped.sum(0)  # type: ignore[attr-defined]

    def add_noise(self) -> None:
        for p in self.params:
            total = p.summed_grad  # type: ignore[attr-defined]
            p.grad = total + self.noise_multiplier * self.max_grad_norm * torch.randn_like(total)

    def step(self, gradients: Tensor) -> None:
        self.clip_and_accumulate(gradients)
        self.add_noise()
        size = len(gradients) if self.by_realised_size else self.expected_batch_size
        for p in self.params:
            assert p.grad is not None
            p.data -= 0.5 * p.grad / max(size, 1)


def training(by_realised_size: bool) -> Callable[[TensorDataset], Tensor]:
    """A function that trains least squares on a dataset."""

    def train(dataset: TensorDataset) -> Tensor:
        weights = torch.zeros(3, dtype=torch.float64)  # hostile rows overflow single precision
        optimizer = ClippingSGD(weights, by_realised_size)
        for batch in Batches():
            rows = [dataset[i] for i in batch]
            x = (
                torch.stack([row[0] for row in rows]).double()
                if rows
                else torch.zeros(0, 3).double()
            )
            y = torch.stack([row[1] for row in rows]).double() if rows else torch.zeros(0).double()
            optimizer.step((x @ weights - y)[:, None] * x)
        return weights

    return train


def audited(by_realised_size: bool, rows: list[int] | None) -> ReplayReport:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, 3, generator=draw)
    dataset = TensorDataset(x, x @ torch.tensor([1.0, -1.0, 0.5]))
    adapters = [opacus_adapter(ClippingSGD, Batches)]
    return replay(training(by_realised_size), dataset, rows=rows, adapters=adapters)


def main(arguments: list[str] | None = None) -> None:
    options = asked_for(__doc__, "somebody_elses_training", arguments)
    rows = list(range(ROWS)) if options.full else [3]
    honest, mistaken = audited(False, rows), audited(True, rows)
    results = [
        ("divides by the expected size", _told(honest)),
        ("divides by the realised size", _told(mistaken)),
    ]
    promise = (
        f"{len(rows)} row{'s' if len(rows) > 1 else ''} held back or made hostile: the honest loop "
        f"{'passed' if honest.passed else 'failed'}, the mistaken one "
        f"{'passed' if mistaken.passed else 'was caught'}."
    )
    Shown("Auditing somebody else's training", promise, results, CHANGES).write(options.out)


def _told(report: ReplayReport) -> str:
    if report.passed:
        return "nothing found"
    kinds = sorted({finding.kind for finding in report.findings})
    return f"{len(report.findings)} findings: {', '.join(kinds)}"


if __name__ == "__main__":
    main()
