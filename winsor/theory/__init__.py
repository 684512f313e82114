"""The parameter formulas of the five papers, each once, as pure functions of floats (no torch).

| paper | file | source |
|---|---|---|
| 1 DC-DPSGD | `dc_dpsgd.py` | Theorems 4.1 and 5.3 (B.1, E.1) |
| 2 heavy-tailed DP-SCO | `sco.py` | Theorems 2, 4, 7, Lemmas 6 and 8, (12) |
| 3 value clipping | `value_clipping.py` | eqs. (2), (9)-(12) |
| 4 AClipped-dpSGD | `averaged.py` | Theorems 3, 4, 6, 7, Lemma 1 |
| 5 ModelMix | `modelmix.py` | Theorems 3.2 and B.1 |

They advise on utility. None is a privacy statement: noise is calibrated by `winsor.accounting`
from the sensitivity that was really enforced. Where a paper hides an absolute constant it is an
argument here, and where its text contradicts itself the docstring says which reading was taken
and why. ``log`` is natural throughout.
"""

from __future__ import annotations

from winsor.theory.averaged import (
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
from winsor.theory.dc_dpsgd import (
    DcThresholds,
    dc_dpsgd_ratio,
    dc_dpsgd_steps,
    dc_dpsgd_thresholds,
    freedman_constant,
    heavy_tailed_dpsgd_threshold,
    sub_weibull_bound,
)
from winsor.theory.modelmix import (
    MIXING_RATIOS,
    ClippedSchedule,
    clipped_sgd_schedule,
    mixing_width,
    sampling_noise_threshold,
)
from winsor.theory.sco import (
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
from winsor.theory.value_clipping import no_clipping_step_size, no_clipping_threshold

__all__ = [
    "MIXING_RATIOS",
    "AclipParameters",
    "AclipProblem",
    "ClippedSchedule",
    "DcThresholds",
    "MeanError",
    "RestartSchedule",
    "ScoParameters",
    "aclip_bias",
    "aclip_constrained",
    "aclip_holder",
    "aclip_restarts",
    "aclip_steps",
    "aclip_unconstrained",
    "clipped_sgd_schedule",
    "dc_dpsgd_ratio",
    "dc_dpsgd_steps",
    "dc_dpsgd_thresholds",
    "freedman_constant",
    "heavy_tailed_dpsgd_threshold",
    "iterative_error",
    "iterative_groups",
    "iterative_inner_steps",
    "iterative_updating",
    "mixing_width",
    "no_clipping_step_size",
    "no_clipping_threshold",
    "sampling_noise_threshold",
    "simple_clipping",
    "simple_clipping_error",
    "simple_clipping_radius",
    "sub_weibull_bound",
    "zcdp_budget",
    "zcdp_budget_exact",
]
