"""Is each row's loss a function of that row alone? Asked of the code, with a few real rows.

    g_i = d loss(model, batch)[i] / d parameters    must not change when other rows of the batch do

Every per-sample bound rests on this. An engine sees where *gradients* flow between rows; a batch
statistic that was detached, a loss divided by its mean or by the number of rows, or inputs
standardised over the batch do not show there, although one row then moves all others. So a few rows
are result alone, in batches of several sizes, and in batches whose other rows were replaced by
others, by zeros and by rows a hundred times as large; losses and gradients must agree.

Guarantee
---------
None about models in general: a check is a finite number of trials. It finds every mixing that
shows, in the state that the model is in, on the rows that were drawn. Nothing about those rows is
returned: the check passes, or an error names the place. It leaves no trace (`trial_pass.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten
from torch.utils.data import default_collate

from winsor.core.contract import UnsupportedModel, WinsorError
from winsor.gradients import refuse_unsupported
from winsor.training.checks.arguments import refuse_misfit, refuse_nothing_finite
from winsor.training.checks.trial_pass import (
    Collate,
    Loss,
    PassResult,
    RowInBatch,
    Tolerance,
    TrialPass,
    name_the_place,
    same_randomness,
)

RANDOM = (
    "rows assumed independent: checked at equal batch sizes only, the model draws random numbers"
)
UNSTEADY = "rows assumed independent: the model gives the same rows other losses each time"

BASE = 5
"""Rows of the batch that all others are compared with."""
WATCHED = (0, 3)
"""Of those, the rows that are compared; neither is the middle one, which a reversal leaves."""
SPARE = 4
"""Rows that take the places of others."""
SEEDS = 3
"""Draws tried where random numbers cannot be switched off."""
TOLERANCES = {
    torch.float64: Tolerance(1e-5, 1e-9),
    torch.float32: Tolerance(1e-3, 1e-4),
    torch.float16: Tolerance(0.1, 1e-2),
    torch.bfloat16: Tolerance(0.25, 0.1),
}
"""By the coarsest numbers that the computation passed through."""


@dataclass(frozen=True)
class _Trial:
    """A row in another batch, and in words what is different about it."""

    row: int
    place: RowInBatch
    said: str
    invented: bool = False


def check_rows(
    model: nn.Module,
    loss: Loss,
    rows: Sequence[Any],
    collate: Collate = default_collate,
    begun: bool = False,
) -> tuple[str, ...]:
    """Raise `UnsupportedModel` if the loss or the gradient of a row depends on other rows.

    Parameters
    ----------
    model
        In the mode in which it is trained. An engine may be attached, but must not be recording.
    loss
        ``loss(model, batch)`` gives one value per row.
    rows
        Samples as the dataset gives them; nine or more are best.
    collate
        What makes a batch of a list of samples.
    begun
        Whether something was released already. Rows without a single finite loss are refused only
        before that: it is the rows that decide it, and not the code.

    Returns
    -------
    What could not be checked, as conditions of a guarantee: empty if everything was.
    """
    refuse_unsupported(model)
    apart = len(rows)
    rows = list(itertools.islice(itertools.cycle(rows), max(len(rows), BASE + SPARE)))
    trial_pass, tolerance, losses = _prepared(model, loss, collate, rows[:BASE])
    if not begun:
        refuse_nothing_finite(losses, apart)
    rows = [*_extremes_watched(rows[:BASE], losses), *rows[BASE:]]
    steady, trial_pass = _steadied(trial_pass, rows[:BASE], tolerance)
    if steady == "never":
        return (UNSTEADY,)
    whole = steady == "always"
    for seed in range(1 if whole else SEEDS):
        base = trial_pass.run(rows[:BASE], WATCHED, seed)
        comparison = _Comparison(trial_pass, base, rows[:BASE], tolerance, seed)
        for trial in _changed(rows) if not whole else (*_changed(rows), *_resized(rows)):
            comparison.refuse_difference(trial, same_shapes=not whole)
        comparison.refuse_memory(rows, same_shapes=not whole)
    return () if whole else (RANDOM,)


def _extremes_watched(base: list[Any], losses: Tensor) -> list[Any]:
    """Return the rows with the largest and the smallest loss, where they are watched: the ones that
    a limit taken from the batch cuts first."""
    order = losses.nan_to_num(0.0, 0.0, 0.0).argsort().tolist()
    places = {WATCHED[0]: order[-1], WATCHED[1]: order[0]}
    rest = iter(order[1:-1])
    return [base[places[j] if j in places else next(rest)] for j in range(BASE)]


def _changed(rows: Sequence[Any]) -> Iterator[_Trial]:
    """Return the watched row where it was, every other row exchanged."""
    base, spare = rows[:BASE], rows[BASE : BASE + SPARE]
    for i in WATCHED:
        others = iter(spare)
        replaced = [row if j == i else next(others) for j, row in enumerate(base)]
        yield _Trial(i, RowInBatch(replaced, i), "other rows of its batch were replaced")
        for factor, said in ((0.0, "set to zero"), (100.0, "scaled by 100")):
            made_up = [row if j == i else _scaled(row, factor) for j, row in enumerate(base)]
            if all(row is not None for row in made_up):
                said = f"other rows of its batch were {said}"
                yield _Trial(i, RowInBatch(made_up, i), said, invented=True)


def _resized(rows: Sequence[Any]) -> Iterator[_Trial]:
    """Return the watched row in batches of other sizes, at other positions."""
    spare = rows[BASE : BASE + SPARE]
    for i in WATCHED:
        row = rows[i]
        yield _Trial(i, RowInBatch([spare[0], row], 1), f"its batch had 2 rows instead of {BASE}")
        yield _Trial(
            i, RowInBatch([row, spare[1], spare[2]], 0), f"its batch had 3 rows instead of {BASE}"
        )
        if len(rows) > BASE:
            yield _Trial(
                i, RowInBatch(rows, i), f"its batch had {len(rows)} rows instead of {BASE}"
            )
        yield _Trial(i, RowInBatch([row], 0), f"it was alone instead of one of {BASE}")


def _scaled(sample: Any, factor: float) -> Any:
    """Return the sample with its floating-point numbers scaled; None if it has none."""
    leaves, spec = tree_flatten(sample)
    if not any(_is_float(leaf) for leaf in leaves):
        return None
    return tree_unflatten([x * factor if _is_float(x) else x for x in leaves], spec)


def _is_float(x: Any) -> bool:
    if isinstance(x, Tensor):
        return x.is_floating_point()
    if isinstance(x, np.ndarray):
        return bool(np.issubdtype(x.dtype, np.floating))
    return isinstance(x, float)


class _Comparison:
    """Trials against one base batch."""

    def __init__(
        self,
        trial_pass: TrialPass,
        base: PassResult,
        samples: Sequence[Any],
        tolerance: Tolerance,
        seed: int,
    ) -> None:
        self._trial_pass = trial_pass
        self._base = base
        self._samples = samples
        self._tolerance = tolerance
        self._seed = seed

    def refuse_difference(self, trial: _Trial, same_shapes: bool) -> None:
        place = trial.place
        if same_shapes and not self._comparable(place.samples):
            return  # a padded length changes what is drawn for every row
        try:
            result = self._trial_pass.run(place.samples, (place.position,), self._seed)
        except WinsorError:
            raise
        except Exception as error:
            if trial.invented:
                return  # values that no real row has may be refused by the loss: targets above 1
            raise UnsupportedModel(
                f"the loss must be computable for any number of rows, as batches are drawn. Got "
                f"{type(error).__name__} for {len(place.samples)} of them: {error}"
            ) from error
        tolerance = self._tolerance
        if place.position == trial.row and (same_shapes or self._comparable(place.samples)):
            # Equal shapes are rounded alike, in however narrow numbers.
            tolerance = min(tolerance, TOLERANCES[torch.float32], key=lambda t: t.relative)
        if _differ(self._base, trial.row, result, place.position, tolerance):
            self._refuse(trial)

    def refuse_memory(self, rows: Sequence[Any], same_shapes: bool) -> None:
        """Compare the row after one batch with the row among others after another batch.

        Code that remembers rows, or that begins to mix them after its first batch, gives itself
        away. Code that merely counts its batches does not.
        """
        row, one, other = rows[0], list(rows[:BASE]), list(rows[BASE : BASE + SPARE])
        other = [*other, rows[1]]
        changed = [row, *other[1:]]
        if same_shapes and not (self._comparable(other) and self._comparable(changed)):
            return
        here = self._trial_pass.run(one, (0,), self._seed, after=one)
        there = self._trial_pass.run(changed, (0,), self._seed, after=other)
        if _differ(here, 0, there, 0, self._tolerance):
            raise UnsupportedModel(
                "rows must not mix: the loss of a row changes with the rows of an earlier batch, "
                "or rows mix from the second batch on. Something in the model or in the loss "
                f"function keeps state from call to call. {REMEDY}"
            )

    def _comparable(self, samples: Sequence[Any]) -> bool:
        with same_randomness(self._seed):
            one, other = (
                tree_map(_shape, tree_leaves(self._trial_pass.collate(list(s))))
                for s in (self._samples, samples)
            )
        return bool(one == other)

    def _refuse(self, trial: _Trial) -> None:
        here = RowInBatch(self._samples, trial.row)
        place = name_the_place(self._trial_pass, here, trial.place, self._tolerance, self._seed)
        raise UnsupportedModel(
            f"rows must not mix: the loss or the gradient of a row changed when {trial.said}. "
            f"Found {place}. {REMEDY}"
        )


REMEDY = (
    "One row then moves what all others contribute, and no clipping bounds that. Compute each "
    "row's loss from that row and public constants alone: docs/what-mixes-rows.md says how."
)


def _shape(x: Any) -> Any:
    return (x.shape, x.dtype) if isinstance(x, Tensor) else type(x)


def _differ(one: PassResult, i: int, other: PassResult, j: int, tolerance: Tolerance) -> bool:
    """Compare two rows. Gradients that are not finite are left out: 0 * inf of another row is
    rounding's fault."""
    if not tolerance.same(one.losses[i], other.losses[j]):
        return True
    here, there = one.grads[i], other.grads[j]
    if not all(bool(g.isfinite().all()) for g in (*here, *there)):
        return False
    size = max(_norm(here), _norm(there))
    apart = _norm([a - b for a, b in zip(here, there, strict=True)])
    return apart > tolerance.relative * size + tolerance.absolute


def _norm(tensors: Sequence[Tensor]) -> float:
    return float(sum((float(t.double().square().sum()) for t in tensors), start=0.0) ** 0.5)


# --------------------------------------------------------------------------- precision, steadiness


def _prepared(
    model: nn.Module, loss: Loss, collate: Collate, base: Sequence[Any]
) -> tuple[TrialPass, Tolerance, Tensor]:
    """Prepare passes, in float64 where the model allows it; return the losses of ``base`` too."""
    trial_pass = TrialPass(model, loss, collate, exact=True)
    if trial_pass.exact:
        coarsest = _Coarsest()
        try:
            result = trial_pass.run(base, WATCHED, watch=lambda batch: coarsest)
        except WinsorError:
            raise
        except Exception:  # float32 constants in the forward, a device without float64, ...
            pass
        else:
            if result.losses.dtype is torch.float64:
                return trial_pass, TOLERANCES[coarsest.dtype], result.losses
    trial_pass, coarsest = TrialPass(model, loss, collate, exact=False), _Coarsest()
    try:
        result = trial_pass.run(base, (), watch=lambda batch: coarsest)
    except (RuntimeError, TypeError) as error:
        refuse_misfit(error, model)
        raise
    return trial_pass, TOLERANCES[coarsest.dtype], result.losses


class _Coarsest(TorchFunctionMode):
    """Looks on, and remembers the coarsest floating-point numbers that came out of anything."""

    def __init__(self) -> None:
        super().__init__()
        self.dtype = torch.float64

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, tuple | list) else (out,):
            if isinstance(x, Tensor) and x.is_floating_point():
                coarser = torch.finfo(x.dtype).eps > torch.finfo(self.dtype).eps
                if coarser and x.dtype in TOLERANCES:
                    self.dtype = x.dtype
        return out


def _steadied(
    trial_pass: TrialPass, base: Sequence[Any], tolerance: Tolerance
) -> tuple[str, TrialPass]:
    """Tell whether the same rows give the same losses: "always", with equal "seeds" only, or
    "never".

    Dropout is switched off. Were it left on wherever these losses do not show it, as those of sure
    predictions do not, it would show in another batch and look like another row.
    """
    calm = trial_pass.without_dropout()
    for one, seeds, answer in ((calm, (0, 1), "always"), (trial_pass, (0, 0), "seeds")):
        first, second = (one.run(base, WATCHED, seed) for seed in seeds)
        if not any(_differ(first, i, second, i, tolerance) for i in WATCHED):
            return answer, one
    return "never", trial_pass
