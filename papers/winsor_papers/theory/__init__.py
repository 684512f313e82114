"""The theorems of the five papers: what they advise, and what they promise (no torch).

| paper | what to choose | what is promised |
|---|---|---|
| 1 DC-DPSGD | `dc_dpsgd.py`, `dc_dpsgd_cases.py` | `dc_dpsgd_rates.py` |
| 2 heavy-tailed DP-SCO | `sco.py`, `sco_budgets.py` | `sco_gradients.py`, `sco_rates.py` |
| 3 value clipping | `value_clipping.py` | `value_clipping_rates.py` |
| 4 AClipped-dpSGD | `averaged.py` | `averaged_means.py`, `averaged_rates.py` |
| 5 ModelMix | `modelmix.py` | `modelmix_rates.py`, `modelmix_privacy.py` |

Choices are plain numbers; promises are `Bound`s, which carry their source, their terms and the
state of their assumptions. `promises` puts the main ones side by side.

They speak of utility. None is a privacy statement: noise is calibrated by `winsor.core.accounting`
from the sensitivity that was really enforced. Where a paper hides an absolute constant it is an
argument here, and where its text contradicts itself the docstring says which reading was taken
and why. ``log`` is natural throughout.
"""

from __future__ import annotations

from winsor.rules.body_and_tail import (
    DcThresholds,
    dc_dpsgd_ratio,
    dc_dpsgd_steps,
    dc_dpsgd_thresholds,
    freedman_constant,
    heavy_tailed_dpsgd_threshold,
    sub_weibull_bound,
)
from winsor.tails.theorems.averaged import (
    AclipParameters,
    AclipProblem,
    RestartSchedule,
    aclip_bias,
    aclip_constrained,
    aclip_holder,
    aclip_restarts,
    aclip_steps,
    aclip_unconstrained,
)
from winsor.tails.theorems.modelmix import (
    MIXING_RATIOS,
    ClippedSchedule,
    clipped_sgd_schedule,
    mixing_width,
    sampling_noise_threshold,
)
from winsor.tails.theorems.sco import (
    MeanError,
    ScoParameters,
    iterative_error,
    iterative_groups,
    iterative_inner_steps,
    iterative_updating,
    simple_clipping,
    simple_clipping_error,
    simple_clipping_radius,
    zcdp_budget,
    zcdp_budget_exact,
)
from winsor.tails.theorems.value_clipping import no_clipping_step_size, no_clipping_threshold
from winsor_papers.theory.averaged_means import (
    aclip_accumulated_error,
    aclip_batch_size,
    aclip_noise,
    aclip_spread,
    section_5_label,
    section_5_logistic_loss,
    section_5_ridge_loss,
)
from winsor_papers.theory.averaged_rates import (
    aclip_complexity,
    aclip_constrained_risk,
    aclip_convex_rate,
    aclip_holder_rate,
    aclip_holder_risk,
    aclip_restart_risk,
    aclip_strongly_convex_rate,
    aclip_table_1,
    aclip_unconstrained_risk,
)
from winsor_papers.theory.bound import Bound
from winsor_papers.theory.dc_dpsgd_cases import (
    discriminative_thresholds_by_noise,
    dpsgd_noise_level,
    dpsgd_threshold_by_noise,
)
from winsor_papers.theory.dc_dpsgd_rates import (
    dc_dpsgd_table_1,
    discriminative_rate,
    discriminative_uniform_rate,
    heavy_tailed_dpsgd_rate,
    split_noise_multiplier,
    subspace_skewing,
    subspace_skewing_corrected,
)
from winsor_papers.theory.modelmix_privacy import (
    Amplified,
    LossMoments,
    corollary_4_1_epsilon,
    gaussian_mixing_order,
    laplace_mixing_moments,
    laplace_mixing_order,
)
from winsor_papers.theory.modelmix_rates import (
    ClippedExample,
    clipped_dpsgd_rate,
    clipping_example,
    modelmix_convex_risk,
    modelmix_rate,
    straw_man_round,
)
from winsor_papers.theory.sco_budgets import (
    ZcdpBudget,
    advanced_composition,
    compose_zcdp,
    dp_to_zcdp,
    per_step_budget,
    zcdp_to_dp,
)
from winsor_papers.theory.sco_gradients import (
    descent_risk,
    iterative_gradient_bias,
    iterative_gradient_moment,
    iterative_gradient_rate,
    iterative_mean_bound,
    iterative_mean_rate,
    simple_gradient_bias,
    simple_gradient_moment,
)
from winsor_papers.theory.sco_rates import (
    iterative_updating_rate,
    minimax_risk,
    sco_table_1,
    simple_clipping_rate,
)
from winsor_papers.theory.value_clipping_proofs import (
    SubExponential,
    expected_from_conditional,
    largest_gradient,
    pessimistic_risk,
    sgd_values,
)
from winsor_papers.theory.value_clipping_rates import (
    full_batch_rate,
    gradient_clipping_rate,
    mean_growth,
    no_clipping_rate,
    sgd_risk,
    value_clipping_steps,
    value_clipping_table_1,
)
from winsor_papers.theory.what_is_promised import Circumstances, Promise, promises

__all__ = [
    "MIXING_RATIOS",
    "AclipParameters",
    "AclipProblem",
    "Amplified",
    "Bound",
    "Circumstances",
    "ClippedExample",
    "ClippedSchedule",
    "DcThresholds",
    "LossMoments",
    "MeanError",
    "Promise",
    "RestartSchedule",
    "ScoParameters",
    "SubExponential",
    "ZcdpBudget",
    "aclip_accumulated_error",
    "aclip_batch_size",
    "aclip_bias",
    "aclip_complexity",
    "aclip_constrained",
    "aclip_constrained_risk",
    "aclip_convex_rate",
    "aclip_holder",
    "aclip_holder_rate",
    "aclip_holder_risk",
    "aclip_noise",
    "aclip_restart_risk",
    "aclip_restarts",
    "aclip_spread",
    "aclip_steps",
    "aclip_strongly_convex_rate",
    "aclip_table_1",
    "aclip_unconstrained",
    "aclip_unconstrained_risk",
    "advanced_composition",
    "clipped_dpsgd_rate",
    "clipped_sgd_schedule",
    "clipping_example",
    "compose_zcdp",
    "corollary_4_1_epsilon",
    "dc_dpsgd_ratio",
    "dc_dpsgd_steps",
    "dc_dpsgd_table_1",
    "dc_dpsgd_thresholds",
    "descent_risk",
    "discriminative_rate",
    "discriminative_thresholds_by_noise",
    "discriminative_uniform_rate",
    "dp_to_zcdp",
    "dpsgd_noise_level",
    "dpsgd_threshold_by_noise",
    "expected_from_conditional",
    "freedman_constant",
    "full_batch_rate",
    "gaussian_mixing_order",
    "gradient_clipping_rate",
    "heavy_tailed_dpsgd_rate",
    "heavy_tailed_dpsgd_threshold",
    "iterative_error",
    "iterative_gradient_bias",
    "iterative_gradient_moment",
    "iterative_gradient_rate",
    "iterative_groups",
    "iterative_inner_steps",
    "iterative_mean_bound",
    "iterative_mean_rate",
    "iterative_updating",
    "iterative_updating_rate",
    "laplace_mixing_moments",
    "laplace_mixing_order",
    "largest_gradient",
    "mean_growth",
    "minimax_risk",
    "mixing_width",
    "modelmix_convex_risk",
    "modelmix_rate",
    "no_clipping_rate",
    "no_clipping_step_size",
    "no_clipping_threshold",
    "per_step_budget",
    "pessimistic_risk",
    "promises",
    "sampling_noise_threshold",
    "sco_table_1",
    "section_5_label",
    "section_5_logistic_loss",
    "section_5_ridge_loss",
    "sgd_risk",
    "sgd_values",
    "simple_clipping",
    "simple_clipping_error",
    "simple_clipping_radius",
    "simple_clipping_rate",
    "simple_gradient_bias",
    "simple_gradient_moment",
    "split_noise_multiplier",
    "straw_man_round",
    "sub_weibull_bound",
    "subspace_skewing",
    "subspace_skewing_corrected",
    "value_clipping_steps",
    "value_clipping_table_1",
    "zcdp_budget",
    "zcdp_budget_exact",
    "zcdp_to_dp",
]
