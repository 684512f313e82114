"""What a run inside another trainer promises, and how long it is in logical steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Unpack

from torch.utils.data import Dataset

from winsor.core.checks import refuse_unknown
from winsor.core.contract import ConfigurationError
from winsor.planning.choose import dataset_size, make_sampler, planned_steps
from winsor.rules.rule import Rule
from winsor.training.make_private import ELSEWHERE, Options

TRAINERS = {
    "scheduler": "the trainer's own schedule",
    "collate_fn": "the trainer's collator",
    "num_workers": "the trainer's number of workers",
    "max_physical_batch_size": "the trainer's batch size per device",
    "resume": "the trainer's checkpoint",
    "batch_size": "the trainer's batch size",
    "epochs": "the trainer's number of epochs",
    "steps": "the trainer's number of steps",
}
"""Arguments of `make_private` that a trainer knows better, and who says them."""


class Privacy:
    """How much privacy, and by which rule: the part of `winsor.make_private` no trainer has.

    Parameters
    ----------
    rule, delta, epsilon, noise_multiplier
        As in `winsor.make_private`.
    **options
        Its rarer arguments: ``ledger``, ``unit``, ``relation``, ``mechanism``, ``seed``, ... What a
        trainer says itself (batch size, schedule, collator, workers) is refused here.

    Examples
    --------
    >>> import winsor
    >>> Privacy(epsilon=8.0, delta=1e-5, rule=winsor.rules.Flat(1.0))
    Privacy(epsilon=8.0, delta=1e-05, rule=Flat(max_grad_norm=1.0))
    """

    def __init__(
        self,
        *,
        rule: Rule,
        delta: float,
        epsilon: float | None = None,
        noise_multiplier: float | None = None,
        **options: Unpack[Options],
    ) -> None:
        for name in sorted(set(options) & set(TRAINERS)):
            raise ConfigurationError(
                f"{name} must not be in Privacy(...). Got {options[name]!r}, beside "  # type: ignore[literal-required]
                f"{TRAINERS[name]}. Give it to the trainer."
            )
        refuse_unknown("Privacy", options, Options.__annotations__, ELSEWHERE)
        if epsilon is None and noise_multiplier is None:
            raise ConfigurationError(
                "Privacy(...) must have epsilon (the target) or noise_multiplier. Got none."
            )
        self.rule = rule
        self.delta = delta
        self.epsilon = epsilon
        self.noise_multiplier = noise_multiplier
        self.options = options

    def arguments(self) -> dict[str, Any]:
        """Return the arguments as `make_private` takes them."""
        return {
            "rule": self.rule,
            "delta": self.delta,
            "epsilon": self.epsilon,
            "noise_multiplier": self.noise_multiplier,
            **self.options,
        }

    def __repr__(self) -> str:
        shown: dict[str, Any] = {"epsilon": self.epsilon, "delta": self.delta, "rule": self.rule}
        if self.noise_multiplier is not None:
            shown["noise_multiplier"] = self.noise_multiplier
        shown |= dict(self.options)
        return f"Privacy({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


@dataclass(frozen=True)
class RunLength:
    """Steps in all and in an epoch; rows of a logical batch, on average."""

    batch: int
    steps: int
    per_epoch: int

    @property
    def epochs(self) -> int:
        """Number of epochs, rounded up."""
        return -(-self.steps // self.per_epoch)


def run_length(
    dataset: Dataset[Any], batch: int, privacy: Privacy, epochs: float | None, steps: int | None
) -> RunLength:
    """Compute a run's length from ``steps``, or from ``epochs`` of as many steps as draw n rows."""
    options = privacy.options
    if "unit" in options:
        if steps is None:
            raise ConfigurationError(
                "max_steps must be given where units are protected: an epoch of rows is not one "
                "of units. Got a number of epochs instead."
            )
        return RunLength(batch, steps, steps)
    n = dataset_size(dataset)
    sampling, rate = options.get("sampling", "poisson"), options.get("sampling_rate")
    sampler = make_sampler(sampling, n, batch, rate)
    per_epoch = planned_steps(1, None, sampler)
    return RunLength(batch, planned_steps(epochs, steps, sampler), per_epoch)
