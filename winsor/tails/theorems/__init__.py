"""Thresholds, radii and schedules that the papers' theorems prescribe, where winsor uses them.

The other theorems are in `winsor_papers.theory`, a distribution of its own. The advice is about
utility: noise is calibrated by `winsor.core.accounting` from the sensitivity that was enforced.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from winsor.tails.theorems.averaged import *  # noqa: F403
    from winsor.tails.theorems.sco import *  # noqa: F403
    from winsor.tails.theorems.thresholds import *  # noqa: F403

_NAMES = {
    "averaged": (
        "AclipParameters",
        "AclipProblem",
        "RestartSchedule",
        "aclip_constrained",
        "aclip_holder",
        "aclip_restarts",
        "aclip_steps",
        "aclip_unconstrained",
    ),
    "sco": (
        "MeanError",
        "ScoParameters",
        "ZcdpBudget",
        "iterative_error",
        "iterative_groups",
        "iterative_inner_steps",
        "iterative_updating",
        "simple_clipping",
        "simple_clipping_error",
        "simple_clipping_radius",
        "zcdp_budget_exact",
        "zcdp_to_dp",
    ),
    "thresholds": (
        "MIXING_RATIOS",
        "ClippedSchedule",
        "clipped_sgd_schedule",
        "mixing_width",
        "no_clipping_threshold",
        "sampling_noise_threshold",
    ),
}
_HOMES = {name: f"winsor.tails.theorems.{home}" for home, names in _NAMES.items() for name in names}

__all__ = sorted(_HOMES)


if not TYPE_CHECKING:  # or a type checker would believe in any name

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value = getattr(import_module(_HOMES[name]), name)
        return value
