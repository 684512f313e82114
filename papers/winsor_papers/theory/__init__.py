"""The theorems of the five papers: what they advise, and what they promise (no torch).

| paper | what to choose | what is promised |
|---|---|---|
| 1 DC-DPSGD | `body_and_tail`, `dc_dpsgd_cases.py` | `dc_dpsgd_rates.py` |
| 2 heavy-tailed DP-SCO | `sco`, `sco_budgets.py` | `sco_gradients.py`, `sco_rates.py` |
| 3 value clipping | `thresholds` | `value_clipping_rates.py`, `value_clipping_proofs.py` |
| 4 AClipped-dpSGD | `averaged` | `averaged_means.py`, `averaged_rates.py` |
| 5 ModelMix | `thresholds` | `modelmix_rates.py`, `modelmix_privacy.py` |

What winsor itself needs stands in winsor (`winsor.rules.body_and_tail`, `winsor.tails.theorems`;
named here without ``.py``) and can be read from here too. Names load when they are first used.

Choices are plain numbers; promises are `Bound`s, which carry their source, their terms and the
state of their assumptions. `promises` puts the main ones side by side.

They speak of utility. None is a privacy statement: noise is calibrated by `winsor.core.accounting`
from the sensitivity that was really enforced. Where a paper hides an absolute constant it is an
argument here, and where its text contradicts itself the docstring says which reading was taken
and why. ``log`` is natural throughout.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_NAMES = {
    "winsor.rules.body_and_tail": (
        "DcThresholds", "dc_dpsgd_ratio", "dc_dpsgd_steps", "dc_dpsgd_thresholds",
        "freedman_constant", "heavy_tailed_dpsgd_threshold", "sub_weibull_bound",
    ),
    "winsor.tails.theorems.averaged": (
        "AclipParameters", "AclipProblem", "RestartSchedule", "aclip_constrained",
        "aclip_holder", "aclip_restarts", "aclip_steps", "aclip_unconstrained",
    ),
    "winsor.tails.theorems.sco": (
        "MeanError", "ScoParameters", "ZcdpBudget", "iterative_error", "iterative_groups",
        "iterative_inner_steps", "iterative_updating", "simple_clipping",
        "simple_clipping_error", "simple_clipping_radius", "zcdp_budget_exact",
        "zcdp_to_dp",
    ),
    "winsor.tails.theorems.thresholds": (
        "ClippedSchedule", "MIXING_RATIOS", "clipped_sgd_schedule", "mixing_width",
        "no_clipping_threshold", "sampling_noise_threshold",
    ),
    "winsor_papers.theory.averaged_means": (
        "aclip_accumulated_error", "aclip_batch_size", "aclip_bias", "aclip_noise",
        "aclip_spread", "section_5_label", "section_5_logistic_loss",
        "section_5_ridge_loss",
    ),
    "winsor_papers.theory.averaged_rates": (
        "aclip_complexity", "aclip_constrained_risk", "aclip_convex_rate",
        "aclip_holder_rate", "aclip_holder_risk", "aclip_restart_risk",
        "aclip_strongly_convex_rate", "aclip_table_1", "aclip_unconstrained_risk",
    ),
    "winsor_papers.theory.bound": (
        "Bound",
    ),
    "winsor_papers.theory.dc_dpsgd_cases": (
        "discriminative_thresholds_by_noise", "dpsgd_noise_level",
        "dpsgd_threshold_by_noise",
    ),
    "winsor_papers.theory.dc_dpsgd_rates": (
        "dc_dpsgd_table_1", "discriminative_rate", "discriminative_uniform_rate",
        "heavy_tailed_dpsgd_rate", "split_noise_multiplier", "subspace_skewing",
        "subspace_skewing_corrected",
    ),
    "winsor_papers.theory.modelmix_privacy": (
        "Amplified", "LossMoments", "corollary_4_1_epsilon", "gaussian_mixing_order",
        "laplace_mixing_moments", "laplace_mixing_order",
    ),
    "winsor_papers.theory.modelmix_rates": (
        "ClippedExample", "clipped_dpsgd_rate", "clipping_example",
        "modelmix_convex_risk", "modelmix_rate", "straw_man_round",
    ),
    "winsor_papers.theory.sco_budgets": (
        "advanced_composition", "compose_zcdp", "dp_to_zcdp", "per_step_budget",
        "zcdp_budget",
    ),
    "winsor_papers.theory.sco_gradients": (
        "descent_risk", "iterative_gradient_bias", "iterative_gradient_moment",
        "iterative_gradient_rate", "iterative_mean_bound", "iterative_mean_rate",
        "simple_gradient_bias", "simple_gradient_moment",
    ),
    "winsor_papers.theory.sco_rates": (
        "iterative_updating_rate", "minimax_risk", "sco_table_1", "simple_clipping_rate",
    ),
    "winsor_papers.theory.value_clipping_proofs": (
        "SubExponential", "expected_from_conditional", "largest_gradient",
        "pessimistic_risk", "sgd_values",
    ),
    "winsor_papers.theory.value_clipping_rates": (
        "full_batch_rate", "gradient_clipping_rate", "mean_growth", "no_clipping_rate",
        "no_clipping_step_size", "sgd_risk", "value_clipping_steps",
        "value_clipping_table_1",
    ),
    "winsor_papers.theory.what_is_promised": (
        "Circumstances", "Promise", "promises",
    ),
}  # fmt: skip
_HOMES = {name: home for home, names in _NAMES.items() for name in names}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return __all__
