"""A run proposed from public rows: rule, threshold, batch size, learning rate and steps.

1. Batch size and steps follow `winsor.tuning.recipe`, or are given.
2. Gradient norms of the public (or synthetic) rows are fitted, and short dry runs on these rows
   with the noise of the real run rank rules and learning rates (`winsor.tuning.recommend`).

Guarantee
---------
The private rows are not read, only their number is used: the proposal costs no privacy. The noise
multiplier is the certified one for the real run. Rows that are not public must not be passed.
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from winsor.core.checks import choice, whole
from winsor.core.contract import ConfigurationError

if TYPE_CHECKING:
    from torch.utils.data import TensorDataset

    from winsor.planning.plan import Question
    from winsor.tuning.recommendations import Recommendation, RunBudget

MODELS = ("linear", "mlp", "two_layer_cnn")
NAMES = (("x", "y"), ("x_train", "y_train"))
MOST_ROWS = 10_000
MOST_CLASSES = 100


@dataclass(frozen=True)
class PublicRows:
    """Rows that may be looked at, and what they are: ``classes`` is None for regression."""

    data: TensorDataset
    shape: tuple[int, ...]
    classes: int | None


@dataclass(frozen=True)
class Proposal:
    """What to run, with the ranking behind it."""

    run: RunBudget
    model: str
    found: Recommendation

    def to_json(self) -> dict[str, Any]:
        """Return the proposed run and the ranking as plain values."""
        best, run = self.found.best, self.run
        return {
            "n": run.n,
            "epsilon": run.epsilon,
            "delta": run.delta,
            "model": self.model,
            "rule": repr(best.rule),
            "threshold": best.threshold,
            "batch_size": run.batch_size,
            "learning_rate": best.learning_rate,
            "momentum": best.momentum,
            "steps": run.steps,
            "noise_multiplier": best.noise_multiplier,
            "tail": self.found.tail.verdict.tail.value,
            "untrained_loss": self.found.untrained_loss,
            "ranking": [
                {"rule": repr(c.rule), "learning_rate": c.learning_rate, "loss": c.loss}
                for c in self.found.candidates
            ],
        }


def propose(
    rows: PublicRows,
    question: Question,
    *,
    model: str = "linear",
    dry_steps: int = 60,
    seed: int = 0,
) -> Proposal:
    """Rank rules on public rows for the real run.

    ``question`` needs ``n`` and ``epsilon`` of the real run. Its delta is 1/(10 n) if it is left
    out; batch size and steps are those of `winsor.tuning.recipe`. ``model`` is one of `MODELS`.
    """
    from winsor.tuning.recipes import recipe
    from winsor.tuning.recommendations import RunBudget, recommend

    n, epsilon, size = question.n, question.epsilon, question.batch_size
    if n is None or epsilon is None:
        raise ConfigurationError(f"n and epsilon must be given. Got {n!r} and {epsilon!r} instead.")
    delta = 1 / (10 * n) if question.delta is None else question.delta
    network = _model(model, rows, seed)
    d = sum(p.numel() for p in network.parameters())
    whole_size = None if size is None else whole("batch_size", size)
    run = recipe(n, d, epsilon, delta, batch_size=whole_size, steps=question.steps)
    large = question.allow_large_delta
    budget = RunBudget(n, epsilon, delta, run.batch_size, run.steps, large)
    loss = _loss(rows.classes)
    found = recommend(network, rows.data, budget, loss=loss, dry_steps=dry_steps, seed=seed)
    return Proposal(budget, model, found)


# -------------------------------------------------------------------------------------- reading


def read_public(path: Path) -> PublicRows:
    """Read public rows from an .npz file with arrays x and y (or x_train and y_train)."""
    import numpy as np

    if path.suffix != ".npz" or not path.is_file():
        raise ConfigurationError(
            f"--data must be an .npz file that exists. Got {str(path)!r} instead. Write one with "
            "numpy.savez(path, x=rows, y=targets)."
        )
    try:
        with np.load(path, allow_pickle=False) as archive:
            pair = next((p for p in NAMES if set(p) <= set(archive.files)), None)
            if pair is None:
                raise ConfigurationError(
                    f"{path.name} must hold the arrays x and y, or x_train and y_train. Got "
                    f"{', '.join(archive.files) or 'none'} instead."
                )
            x, y = (archive[name] for name in pair)
    except (OSError, zipfile.BadZipFile, EOFError, ValueError) as error:
        if isinstance(error, ConfigurationError):
            raise
        raise ConfigurationError(
            f"{path.name} must be a NumPy archive of plain numbers. Got something else; write it "
            "with numpy.savez(path, x=rows, y=targets)."
        ) from error
    return public_rows(x, y)


def public_rows(x: Any, y: Any) -> PublicRows:
    """Check and convert public arrays; at most `MOST_ROWS` rows are kept, drawn at random."""
    import numpy as np
    import torch
    from torch.utils.data import TensorDataset

    if x.ndim < 2 or y.ndim != 1 or len(x) != len(y):
        raise ConfigurationError(
            "x must have one row per record and y one value per row. Got shapes "
            f"{x.shape} and {y.shape} instead."
        )
    if not all(np.issubdtype(a.dtype, np.number) or a.dtype == bool for a in (x, y)):
        raise ConfigurationError(f"x and y must be numbers. Got {x.dtype} and {y.dtype} instead.")
    if len(x) > MOST_ROWS:
        kept = np.random.default_rng(0).choice(len(x), MOST_ROWS, replace=False)
        x, y = x[kept], y[kept]
    rows = x.astype(np.float32) / 127.5 - 1 if x.dtype == np.uint8 else x.astype(np.float32)
    if rows.ndim == 3:
        rows = rows[:, None]  # grey images
    if not (np.isfinite(rows).all() and np.isfinite(y).all()):
        raise ConfigurationError("x and y must be finite. Got NaN or infinity instead.")
    classes = None
    if not np.issubdtype(y.dtype, np.floating):
        labels, y = np.unique(y, return_inverse=True)
        classes = len(labels)
        if not 2 <= classes <= MOST_CLASSES:
            raise ConfigurationError(
                f"y of whole numbers must name 2 to {MOST_CLASSES} classes. Got {classes} "
                "instead. Store y as floating point for regression."
            )
    target = torch.from_numpy(y.astype(np.float32 if classes is None else np.int64))
    return PublicRows(TensorDataset(torch.from_numpy(rows), target), rows.shape[1:], classes)


def _model(name: str, rows: PublicRows, seed: int) -> Any:
    import torch

    from winsor.models.built_in import BUILT_IN

    torch.manual_seed(seed)
    return BUILT_IN[choice("model", name, MODELS)](rows.shape, rows.classes or 1)


def _loss(classes: int | None) -> Any:
    from torch.nn import functional as F

    from winsor.training.fit import cross_entropy

    def huber(model: Any, batch: Any) -> Any:
        return F.huber_loss(model(batch[0]).squeeze(1), batch[1], reduction="none")

    return huber if classes is None else cross_entropy
