"""Private metrics during a training: looks at private rows, each through the door and paid for.

    evaluate = Evaluation({"accuracy": Accuracy()}, noise_multiplier=50.0, times=4)
    private = winsor.fit(..., epsilon=3.0, evaluate=evaluate)
    evaluate.results[-1].measured["accuracy"]        # with an interval that includes the noise

The looks are written to the run's own ledger: `PrivateTraining.spent` includes them, and a run that
is calibrated to an epsilon keeps within it, looks included.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from dp_accounting.dp_event import ComposedDpEvent, DpEvent, SelfComposedDpEvent
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from winsor.core.accounting import certify
from winsor.core.checks import as_relation, positive, whole
from winsor.core.contract import BudgetExceeded, ConfigurationError, Neighbouring
from winsor.core.events.registry import History
from winsor.gradients import trainable_parameters
from winsor.metrics import Measurement, Metric, event_of, measure
from winsor.planning import calibrate
from winsor.planning.bands import Banded
from winsor.planning.choose import dataset_size, make_sampler, planned_steps
from winsor.rules.rule import dry_run
from winsor.training.loop import PrivateTraining
from winsor.training.make_private import Arguments
from winsor.training.planned import PlannedSteps
from winsor.training.ranks.ranks import Ranks

Columns = Mapping[str, Tensor]
_ROWS = 1000  # per forward pass


def of_classes(model: nn.Module, batch: Any) -> Columns:
    """Targets, predictions, losses and (of two classes) scores of an (inputs, labels) batch."""
    inputs, labels = batch
    logits = model(inputs)
    columns = {
        "targets": labels,
        "predictions": logits.argmax(1),
        "losses": F.cross_entropy(logits, labels, reduction="none"),
    }
    return {**columns, "scores": logits.softmax(1)[:, 1]} if logits.shape[1] == 2 else columns


@dataclass(frozen=True)
class Look:
    """One evaluation: after which step, and what was found."""

    step: int
    measured: Measurement


class Evaluation:
    """What is measured on private rows, how often, and with how much noise.

    Parameters
    ----------
    metrics
        One metric of `winsor.metrics`, or several by name: all leave in one release.
    noise_multiplier
        Noise of each look: an accuracy of n rows has a noise of noise_multiplier / (2 n).
    rows
        Private rows; the training rows if not given. (Rows that are public need none of this.)
    times
        How many looks, evenly spaced over the run, the last at its end.
    columns
        ``columns(model, batch)``: one value per row, by the names that `measure` knows. Default:
        classification of (inputs, labels).
    shares, level
        As in `winsor.metrics.measure`.
    """

    def __init__(
        self,
        metrics: Metric | Mapping[str, Metric],
        *,
        noise_multiplier: float,
        rows: Dataset[Any] | None = None,
        times: int = 1,
        columns: Callable[[nn.Module, Any], Columns] = of_classes,
        shares: Mapping[str, float] | None = None,
        level: float = 0.95,
    ) -> None:
        self.metrics = metrics
        self.noise_multiplier = positive("noise_multiplier", noise_multiplier)
        self.rows = rows
        self.times = whole("times", times)
        self.columns = columns
        self.shares = shares
        self.level = level
        self.results: list[Look] = []
        """What was found, in order. Released: it may be shown."""

    def history(self, relation: Neighbouring) -> History:
        """What all looks cost."""
        event = event_of(self.metrics, self.noise_multiplier, relation, self.shares)
        return [(event, self.times)]

    def marks(self, planned: int) -> set[int]:
        """The steps after which to look."""
        if self.times > planned:
            raise ConfigurationError(
                f"times must be at most the number of steps, {planned}. Got {self.times} instead."
            )
        return {-(-planned * k // self.times) for k in range(1, self.times + 1)}

    def look(self, private: PrivateTraining, rows: Dataset[Any]) -> Measurement:
        """Measure the model as it is, and pay for it in the run's ledger."""
        refuse_units(private.protects_units)
        refuse_ranks()
        measured = measure(
            self.metrics,
            **self._columns(private.model, rows),
            noise_multiplier=self.noise_multiplier,
            shares=self.shares,
            level=self.level,
            delta=private.delta,
            relation=private.relation,
            ledger=private.ledger,
            allow_large_delta=True,  # the run's own delta was checked by make_private
        )
        self.results.append(Look(private.steps_done, measured))
        return measured

    @torch.no_grad()
    def _columns(self, model: nn.Module, rows: Dataset[Any]) -> dict[str, Any]:
        training = model.training
        model.eval()
        found: dict[str, list[Any]] = {}
        for batch in DataLoader(rows, batch_size=_ROWS):
            for name, values in self.columns(model, batch).items():
                found.setdefault(name, []).append(values.cpu().numpy())
        model.train(training)
        return {name: np.concatenate(parts) for name, parts in found.items()}

    def as_numbers(self) -> dict[str, float]:
        """The latest look, for callbacks and progress: only what passed the door."""
        found: dict[str, float] = {}
        for name, estimate in self.results[-1].measured.estimates.items() if self.results else ():
            if np.ndim(estimate.value) == 0:
                found[name] = float(estimate.value)
                found[f"{name}/low"] = float(estimate.low)
                found[f"{name}/high"] = float(estimate.high)
        return found


def refuse_units(protected: bool) -> None:
    """A metric bounds what one row adds; a person with many rows adds more."""
    if protected:
        raise ConfigurationError(
            "evaluate must be used where rows are protected. Got unit=... instead: a metric bounds "
            "what one row adds, and a unit has several. Measure on public rows."
        )


def refuse_ranks() -> None:
    """Ranks that each measured would release several values, and pay for one."""
    if Ranks.here() is not None:
        raise ConfigurationError(
            "evaluate must be used in one process. Got several ranks instead, of which those "
            "without rows in a step would not come to the look. Measure after the training, on "
            "rank 0, with a ledger of its own."
        )


def with_looks(arguments: Arguments, evaluation: Evaluation) -> Arguments:
    """The arguments of a run that keeps within its epsilon, the looks included."""
    refuse_ranks()
    epsilon, delta = arguments.get("epsilon"), arguments["delta"]
    relation = as_relation(arguments.get("relation", Neighbouring.ADD_OR_REMOVE_ONE))
    looks = evaluation.history(relation)
    multiplier = arguments.get("noise_multiplier")
    if epsilon is None:
        return arguments
    plan = _planned(arguments, relation)
    evaluation.marks(plan.steps)

    def whole_run(nm: float) -> DpEvent:
        parts = [*plan.events(nm), *looks]
        return ComposedDpEvent([SelfComposedDpEvent(event, count) for event, count in parts])

    if multiplier is None:
        multiplier = calibrate.noise_multiplier(whole_run, 1, epsilon, delta, relation)
    else:
        spent = certify([(whole_run(multiplier), 1)], delta, relation).epsilon
        if spent > epsilon:
            raise BudgetExceeded(
                f"training and evaluation must stay within epsilon = {epsilon!r}. Got {spent:.4g} "
                "instead. Add noise, look less often, or raise epsilon."
            )
    return {**arguments, "epsilon": None, "noise_multiplier": multiplier}


def _planned(arguments: Arguments, relation: Neighbouring) -> PlannedSteps:
    asked = arguments.get("mechanism") or "gaussian"
    if isinstance(asked, Banded):
        raise ConfigurationError(
            "evaluate must be given without epsilon where noise is correlated. Got Banded(...) "
            "with epsilon instead. Give noise_multiplier, and read the total from spent()."
        )
    n = dataset_size(arguments["dataset"])
    sampler = make_sampler(
        arguments.get("sampling", "poisson"),
        n,
        arguments["batch_size"],
        arguments.get("sampling_rate"),
    )
    parameters = trainable_parameters(arguments["model"])
    return PlannedSteps(
        dry_run(arguments["rule"], parameters, sampler.expected_size),
        asked,
        sampler,
        relation,
        arguments["delta"],
        planned_steps(arguments.get("epochs"), arguments.get("steps"), sampler),
    )
