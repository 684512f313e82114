"""Who is told how a run of `winsor.fit` goes on, and what they are told: released values only.

    def log(values): print(values["step"], values["epsilon"])
    winsor.fit(..., callbacks=[log])                 # after every logical step
    winsor.fit(..., callbacks=[wandb.log])           # any function of a dictionary will do

A callback is a function of a dictionary, or an object with one or more of `on_step`, `on_epoch` and
`on_end`. The logger ``winsor`` gets a line for each epoch and the end, by Python's `logging`.

Guarantee
---------
The dictionary is made here, from the plan, the ledger, the rule's public state and metrics that
passed the door. No loss, no gradient and no row comes near it, so whatever a callback does with it
(plot it, send it, stop on it) is post-processing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from winsor.core.contract import ConfigurationError
from winsor.training.epochs import epoch_ends
from winsor.training.spending import Spending

if TYPE_CHECKING:
    from winsor.training.loop import PrivateTraining

Values = dict[str, int | float]
"""What a callback gets: names and numbers, all of them released or public."""

LOG = logging.getLogger("winsor")
LOG.addHandler(logging.NullHandler())  # silent unless somebody asks

MOMENTS = ("on_step", "on_epoch", "on_end")


class Callback(Protocol):
    """What an object may have to be told; each method is optional, and gets `Values`.

    ``step``, ``planned_steps``, ``epoch`` (passes over the data so far), ``epsilon`` (a certified
    upper bound on what was spent so far; at the end the certified value), ``delta``,
    ``learning_rate``, the numbers of the rule's public state (``rule/threshold``), and, after a
    look of `Evaluation`, its metrics with their intervals (``accuracy``, ``accuracy/low``,
    ``accuracy/high``).
    """

    def on_step(self, values: Values) -> None:
        """Act after every logical step."""

    def on_epoch(self, values: Values) -> None:
        """Act after every epoch."""

    def on_end(self, values: Values) -> None:
        """Act once after the last step."""


class Callbacks:
    """All callbacks of one run, told in the order in which they were given."""

    def __init__(self, given: Sequence[Any], private: PrivateTraining) -> None:
        self._private = private
        self._told = {moment: _methods(given, moment) for moment in MOMENTS}
        self._ends = epoch_ends(private.budget.planned_steps, private.sampler.rate)
        block = private.sampler.block
        self._spending = Spending(
            private.ledger, private.relation, private.budget, False, block=block
        )

    def stepped(self, before: int, measured: Mapping[str, float]) -> None:
        """Tell callbacks that a logical step is done; an empty batch is told with the one
        after it."""
        done = self._private.steps_done
        if done == before:
            return
        passed = [number for number, end in enumerate(self._ends, 1) if before < end <= done]
        if self._told["on_step"] or passed:
            values = self._values(measured)
            self._tell("on_step", values)
            if passed:
                self._tell("on_epoch", values)
                LOG.info("epoch %d/%d: %s", passed[-1], len(self._ends), in_words(values))

    def ended(self, measured: Mapping[str, float]) -> None:
        """Tell all callbacks that the run has ended."""
        spent = self._private.spent()
        self._tell("on_end", {**self._values(measured), "epsilon": spent.epsilon})
        LOG.info("finished: %s", spent)

    def _values(self, measured: Mapping[str, float]) -> Values:
        private = self._private
        rates = learning_rates(private)
        return {
            "step": private.steps_done,
            "planned_steps": private.budget.planned_steps,
            "epoch": private.steps_done * private.sampler.rate,
            "epsilon": self._spending.at_most(),
            "delta": private.delta,
            **({"learning_rate": rates[0]} if rates else {}),
            **{f"rule/{name}": value for name, value in public_numbers(private.rule_state).items()},
            **measured,
        }

    def _tell(self, moment: str, values: Values) -> None:
        for method in self._told[moment]:
            method(dict(values))  # each its own: nobody can change what the next one is told


def as_list(callbacks: Any) -> list[Any]:
    """Make a list of several callbacks, or of one by itself."""
    return list(callbacks) if isinstance(callbacks, list | tuple) else [callbacks]


def _methods(given: Sequence[Any], moment: str) -> list[Callable[[Values], Any]]:
    """Return what each callback does at this moment; a plain function is told of every step."""
    found = []
    for callback in given:
        if isinstance(callback, type) or not (
            callable(callback) or any(hasattr(callback, name) for name in MOMENTS)
        ):
            raise ConfigurationError(
                "callbacks must be functions of a dictionary, or objects with on_step, on_epoch or "
                f"on_end. Got {callback!r} instead. Write callbacks=[print], for a start."
            )
        if any(hasattr(callback, name) for name in MOMENTS):
            found += [getattr(callback, moment)] if hasattr(callback, moment) else []
        elif moment == "on_step":
            found.append(callback)
    return found


def in_words(values: Mapping[str, float]) -> str:
    """Describe a run that goes on in one line: only what callbacks are told."""
    line = (
        f"step {values['step']}/{values['planned_steps']}  epsilon <= {values['epsilon']:.4g} "
        f"at delta {values['delta']:g}"
    )
    rate = f"  lr {values['learning_rate']:.3g}" if "learning_rate" in values else ""
    known = ("step", "planned_steps", "epoch", "epsilon", "delta", "learning_rate")
    more = [
        f"{name} {value:.4g}{_interval(values, name)}"
        for name, value in values.items()
        if "/" not in name and name not in known
    ]
    return "  ".join([line + rate, *more])


def _interval(values: Mapping[str, float], name: str) -> str:
    low, high = values.get(f"{name}/low"), values.get(f"{name}/high")
    return "" if low is None or high is None else f" ({low:.4g} to {high:.4g})"


def learning_rates(private: PrivateTraining) -> list[float]:
    """Return the rates of the optimiser's groups, as the schedule has them now."""
    optimizer = getattr(private._update, "optimizer", None)
    return [] if optimizer is None else [float(group["lr"]) for group in optimizer.param_groups]


def public_numbers(state: Mapping[str, Any]) -> dict[str, float]:
    """Return the real numbers of a rule's public state: thresholds and the like, not counters."""
    return {
        name: value
        for name, value in state.items()
        if isinstance(value, float) and name != "expected_size" and not name.startswith("monitor_")
    }
