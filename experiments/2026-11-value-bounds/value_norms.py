"""What spectral norms cost in value clipping, by singular values and by Gram matrices.

    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/value_norms.py            # a minute

For some matrices: processor milliseconds of a certified norm. For the networks of paper 3 (random
rows, batches of 128, noise 1, step 0.01): processor milliseconds of a step of flat clipping and of
value clipping with either way, in turns, and how many of the norms that were asked for could be
carried from the step before instead. Writes benchmarks/results/value_norms.json.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from saving import save
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from winsor.models.networks import mlp
from winsor.rules.flat import Flat
from winsor.rules.rule import Rule
from winsor.rules.value import Value
from winsor.rules.value_bounds import chain, spectral
from winsor.sampling.samplers import FullBatch
from winsor.training.make_private import make_private

SHAPES = ((10, 784), (10, 128), (128, 784), (128, 972), (512, 512), (512, 2048))
NETWORKS = ([784, 128, 10], [512, 128, 10])
THRESHOLDS = (1.0, 20.0)
BATCH, TURNS, BLOCK = 128, 9, 30
BY_GRAM = spectral.spectral_norm
Norm = Callable[[torch.Tensor], float]


def by_singular_values(matrix: torch.Tensor) -> float:
    """As it was until 0.2.0."""
    return float(torch.linalg.svdvals(matrix.detach().double())[0]) * spectral.OUTWARDS


def milliseconds(work: Callable[[], Any]) -> float:
    start = time.process_time()
    work()
    return 1e3 * (time.process_time() - start)


def norms(shape: tuple[int, int]) -> dict[str, Any]:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0)) / shape[1] ** 0.5
    found: dict[str, Any] = {"shape": shape}
    for name, norm in (("singular_values_ms", by_singular_values), ("gram_ms", BY_GRAM)):
        times = [milliseconds(lambda: norm(matrix)) for _ in range(8)]  # noqa: B023
        found[name] = statistics.median(times[1:])
    found["ratio_of_bounds"] = BY_GRAM(matrix) / by_singular_values(matrix)
    return found


class Stepper:
    """Steps of one rule on one network; norms are computed by ``norm`` and counted."""

    def __init__(self, sizes: list[int], rule: Rule, norm: Norm) -> None:
        torch.manual_seed(0)
        self.model = mlp(sizes, bias=False)
        x, y = torch.randn(BATCH, sizes[0]), torch.randint(0, sizes[-1], (BATCH,))
        self.run = make_private(
            model=self.model,
            optimizer=torch.optim.SGD(self.model.parameters(), lr=0.01),
            dataset=TensorDataset(x, y),
            rule=rule,
            noise_multiplier=1.0,
            delta=1e-5,
            steps=10**5,
            batch_size=BATCH,
            sampling=FullBatch(BATCH),
        )
        self.batches = self.run.batches()
        self.norm = norm
        self.computed = self.steps = 0

    def block(self) -> float:
        """Milliseconds of a step, those that compute a norm and those that carry it."""

        def counted(matrix: torch.Tensor) -> float:
            self.computed += 1
            return self.norm(matrix)

        spectral.spectral_norm, chain.spectral_norm = counted, self.norm
        try:
            return statistics.fmean(milliseconds(self.step) for _ in range(BLOCK))
        finally:
            spectral.spectral_norm = chain.spectral_norm = BY_GRAM

    def step(self) -> None:
        rows, labels = next(self.batches)
        self.run.step(F.cross_entropy(self.model(rows), labels, reduction="none"))
        self.steps += 1


def steps(sizes: list[int], threshold: float) -> dict[str, Any]:
    value = Value(threshold, form="value")
    contenders = {
        "flat_ms": Stepper(sizes, Flat(threshold), BY_GRAM),
        "value_singular_values_ms": Stepper(sizes, value, by_singular_values),
        "value_gram_ms": Stepper(sizes, value, BY_GRAM),
    }
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(TURNS):
        for name, one in contenders.items():
            times[name].append(one.block())
    ours = contenders["value_gram_ms"]
    asked = ours.steps  # one hidden matrix; the head is centred and never carried
    return {
        "sizes": sizes,
        "threshold": threshold,
        **{name: statistics.median(found[1:]) for name, found in times.items()},
        "hidden_norms_asked": asked,
        "computed": ours.computed,
    }


def main() -> None:
    torch.set_num_threads(1)
    matrices = [norms(shape) for shape in SHAPES]
    networks = [steps(sizes, threshold) for sizes in NETWORKS for threshold in THRESHOLDS]
    for row in (*matrices, *networks):
        print(row)
    save("value_norms", {"load": os.getloadavg()[0], "norms": matrices, "steps": networks})


if __name__ == "__main__":
    main()
