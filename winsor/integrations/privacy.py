"""What a run promises, in one object, where the trainer says all the rest."""

from __future__ import annotations

from typing import Any, Unpack

from winsor.core.checks import refuse_unknown
from winsor.core.contract import ConfigurationError
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
        """These, as `make_private` takes them."""
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
