"""Where the algorithms, tables and figures of paper 3 are; its theorems are in `winsor.theory`."""

from __future__ import annotations

from winsor.theory.fidelity import Row

_FIGURES = "tests/reproductions/value/test_figures.py"

FIDELITY = (
    Row(
        3,
        "Algorithm 1, lines 3-6 (DP-SGD-GC)",
        "certified",
        "winsor.rules.flat.Flat",
        "tests/rules/test_clip.py::test_no_row_is_longer_than_the_threshold",
    ),
    Row(
        3,
        "Algorithms 1-3, last line (random iterate)",
        "certified",
        "winsor.training.iterates.Iterates",
        "tests/training/test_iterates.py::test_a_random_iterate_is_uniform",
        "has to be asked for",
        "the last iterate is usually better",
    ),
    Row(3, "Algorithm 2 (SGD)", "missing", reason="plain SGD without privacy: torch.optim.SGD"),
    Row(
        3,
        "Algorithm 3, line 4 (with f_i)",
        "certified",
        "winsor.rules.value.Value",
        "tests/rules/test_value.py::test_each_row_is_scaled_by_its_own_bound",
        "proven bounds by layer in place of a declared (beta_1, beta_2)",
        "a declared growth condition is a promise that nothing checks",
    ),
    Row(
        3,
        "Algorithm 3, line 4 (as printed, f(w))",
        "published",
        "winsor.papers.value.claim.as_printed",
        "tests/papers/value/test_claim.py::test_the_printed_sum_is_not_bounded_by_anything",
        "public data only",
        "one scale for all rows bounds none of them",
    ),
    Row(
        3,
        "Definition 3.1, Lemma 3.2",
        "both",
        "winsor.rules.wgc.WeakGrowth",
        "tests/rules/test_wgc.py::test_the_growth_condition_scales_with_the_gap_to_the_lower_bound",
    ),
    Row(
        3,
        "Section 6.1 (WGC of linear and logistic models)",
        "both",
        "winsor.rules.wgc.logistic_regression",
        "tests/rules/test_wgc.py::test_logistic_regression_is_bounded",
    ),
    Row(
        3,
        "Appendix D, eqs. (18), (19)",
        "both",
        "winsor.rules.wgc.relu_network",
        "tests/rules/test_wgc.py::test_appendix_d_bounds_networks_without_biases",
        "refused for networks with biases",
        "it is no bound there",
    ),
    Row(
        3,
        "Theorem 3.4, Corollary 5.1",
        "published",
        "winsor.papers.value.claim.ValueRun.claim",
        "tests/papers/value/test_claim.py::"
        "test_reading_f_i_certifies_the_published_epsilon_with_the_same_noise",
        "noise from an accountant",
        "c_1 and c_2 are not named",
    ),
    Row(
        3,
        "Proposition 4.2, Proposition 4.3, eq. (1)",
        "missing",
        reason="orders inside C of eq. (2), which winsor.theory.no_clipping_threshold has whole",
    ),
    Row(
        3,
        "Lemma A.9, Lemma B.1",
        "missing",
        reason="steps of the proof of Theorem 4.5 without a number of their own",
    ),
    Row(
        3,
        "Figure 1",
        "both",
        "reproductions/value/figures.py",
        f"{_FIGURES}::test_figure_1_counts_what_is_clipped",
    ),
    Row(
        3,
        "Figures 2 and 3",
        "both",
        "reproductions/value/figures.py",
        f"{_FIGURES}::test_figures_2_and_3_have_every_method",
        "end points",
        "curves over epochs are still to be drawn",
    ),
    Row(3, "Figure 4", "missing", reason="synthetic experiment not run yet"),
    Row(3, "Figure 5", "missing", reason="sweep over sigma and delta not run yet"),
    Row(
        3,
        "Table 2",
        "both",
        "reproductions/value/runtime.py",
        "tests/reproductions/value/test_runtime.py::test_every_method_steps",
        "processor time here, no GPU",
        "no GPU on this machine",
    ),
)
