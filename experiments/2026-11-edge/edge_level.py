"""What of the lead on claims is the level: the third round with means of predictions set right.

    .venv/bin/python benchmarks/edge_level.py        # a minute; benchmarks/results/edge_level.json

Clipping shortens the gradients of large claims, so a model ends below the mean of the rows. Here a
constant is added to the tuned models' log-means, such that predictions have the mean of the
validation rows. It is paid for by no ledger: a diagnosis, not a method.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable

import torch
from edge import Cells, train
from edge_beds import Bed, Rows, beds, explained_deviance
from edge_confirm import CANDIDATE, FRESH, KIND, Runs, choice
from saving import save
from torch import Tensor, nn

CLAIMS = ("injury", "french")


class Raised(nn.Module):
    """A model of log-means with a constant added."""

    def __init__(self, model: Callable[[Tensor], Tensor], by: float) -> None:
        super().__init__()
        self._model, self._by = model, by

    def forward(self, x: Tensor) -> Tensor:
        return self._model(x) + self._by


def ratio(model: nn.Module, rows: Rows) -> float:
    """The mean of the predictions over that of the amounts."""
    return explained_deviance(model, rows)["mean_ratio"]


def both(bed: Bed, method: str) -> dict[str, list[float]]:
    """Test scores of the fresh seeds as they are and at the right level, and means before that."""
    chosen = choice(bed, Runs(bed, Cells(bed, KIND), compute=False).best(method))
    found: dict[str, list[float]] = {"score": [], "levelled": [], "mean_ratio": []}
    for seed in FRESH:
        task = bed.task(seed)
        model, _ = train(bed, task, chosen, seed)
        with torch.no_grad():
            raised = Raised(model, -math.log(ratio(model, task.validation)))
            found["score"].append(explained_deviance(model, task.test)["score"])
            found["levelled"].append(explained_deviance(raised, task.test)["score"])
            found["mean_ratio"].append(ratio(model, task.test))
    return found


if __name__ == "__main__":
    table = {
        name: {method: both(beds()[name], method) for method in ("flat", CANDIDATE)}
        for name in CLAIMS
    }
    save("edge_level", {"seeds": list(FRESH), "beds": table})
    for name, pair in table.items():
        for method, one in pair.items():
            told = ", ".join(f"{key} {statistics.fmean(one[key]):.3f}" for key in one)
            print(f"{name:8} {method:6} {told}")
