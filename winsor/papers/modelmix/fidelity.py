"""Where the algorithms, tables and figures of paper 5 are; its theorems are in `winsor.theory`."""

from __future__ import annotations

from winsor.theory.fidelity import Row

_UPDATE = "winsor.contrib.modelmix.update.MixingUpdate"
_UPDATE_TESTS = "tests/contrib/modelmix/test_update.py"
_CLAIM_TESTS = "tests/papers/modelmix/test_claim.py"
_LINES = "tests/reproductions/modelmix/test_lines.py"
_DEEP = "tests/reproductions/modelmix/test_deep.py"
_NO_SVHN = "SVHN cannot be had on this machine"

FIDELITY = (
    Row(
        5,
        "Algorithm 1, line 3 (batches, clipping)",
        "certified",
        "winsor.rules.flat.Flat",
        "tests/rules/test_clip.py::test_no_row_is_longer_than_the_threshold",
    ),
    Row(
        5,
        "Algorithm 1, lines 5-9 (mixing)",
        "both",
        _UPDATE,
        f"{_UPDATE_TESTS}::test_equal_iterates_are_pushed_apart_by_tau",
        "tau as a multiple of the learning rate; w_-1 = w_0",
        "the account needs tau/eta; an absolute tau and a given w_-1 are still to be offered",
    ),
    Row(
        5,
        "Algorithm 1, line 10, eq. (9)",
        "both",
        _UPDATE,
        f"{_UPDATE_TESTS}::"
        "test_the_gradient_is_divided_by_the_expected_size_and_scaled_by_the_rate",
    ),
    Row(
        5,
        "eq. (10) (proximal reading)",
        "missing",
        reason="a remark about the expectation of (9); nothing to run",
    ),
    Row(
        5,
        "Theorem 3.1 (average of states)",
        "missing",
        reason="the average over (w_{k-1} + w_{k-2})/2, with w_-1 and without w_T, is not offered; "
        "iterate='averaged' is the mean of the released states",
    ),
    Row(
        5,
        "Algorithm 2",
        "both",
        "winsor.rules.linf.LInf",
        "tests/rules/test_linf.py::test_algorithm_2_by_hand",
    ),
    Row(
        5,
        "Theorem 4.1",
        "both",
        "winsor.papers.modelmix.claim.modelmix_claim",
        f"{_CLAIM_TESTS}::test_the_formula_at_one_order_by_hand",
        "published with fractional orders",
        "whole orders do not give the figure's numbers",
    ),
    Row(
        5,
        "Corollary 4.1",
        "published",
        "winsor.papers.modelmix.claim.composed_claim",
        f"{_CLAIM_TESTS}::test_the_corollary_with_p_one_coordinate_each_agrees_with_the_theorem",
        "a - 1 for 1 - a, and the factor T",
        "as printed epsilon is negative",
    ),
    Row(
        5,
        "Theorem 4.1, Corollary 4.1 (certified)",
        "certified",
        "winsor.accounting.widened.gaussian.MixedGaussianDpEvent",
        f"{_UPDATE_TESTS}::test_mixing_never_costs_more_and_without_width_costs_the_same",
        "the worst allocation of a gradient is bounded, not assumed",
        "the convexity behind the paper's worst case is stated, not proven",
    ),
    Row(
        5,
        "Theorem 4.2 (Laplace mechanism)",
        "certified",
        "winsor.contrib.modelmix.laplace.MixedLaplace",
        "tests/contrib/modelmix/test_audit_worlds.py::"
        "test_densities_of_widened_noise_are_those_of_a_sum",
    ),
    Row(
        5,
        "Lemma D.1",
        "missing",
        reason="orders with unnamed constants; its condition is checked by "
        "winsor.theory.gaussian_mixing_order",
    ),
    Row(5, "Figure 1 (sketch)", "missing", reason="an illustration without data"),
    Row(5, "Figure 2 (a, b)", "missing", reason=f"non-private mixing not run yet; {_NO_SVHN}"),
    Row(
        5,
        "Figure 2 (c, d)",
        "both",
        "reproductions/modelmix/figure2.py",
        f"{_LINES}::test_figure_2",
        "CIFAR-10 only",
        _NO_SVHN,
    ),
    Row(
        5,
        "Figure 3, section 4.3",
        "both",
        "reproductions/modelmix/section43.py",
        f"{_LINES}::test_section_43",
        "q = 0.02 at T = 5000",
        "q = 0.04 and curves over T are still to be run",
    ),
    Row(
        5,
        "Table 1",
        "both",
        "reproductions/modelmix/table1.py",
        f"{_LINES}::test_table_1_at_equal_nominal_epsilon",
        "not on CIFAR-10",
        "still to be run",
    ),
    Row(
        5,
        "Table 2",
        "both",
        "reproductions/modelmix/deep.py",
        f"{_DEEP}::test_both_tables_come_from_the_same_runs",
        "no SVHN",
        _NO_SVHN,
    ),
    Row(
        5,
        "Table 3",
        "both",
        "reproductions/modelmix/deep.py",
        f"{_DEEP}::test_the_epsilon_an_accuracy_needs",
        "no SVHN",
        _NO_SVHN,
    ),
    Row(
        5,
        "Section 5.2 (public gradients)",
        "both",
        "winsor.rules.embedding.Embedding",
        "tests/reproductions/modelmix/test_section43.py::"
        "test_the_embedding_helps_and_mixing_combines_with_it",
    ),
    Row(
        5,
        "Section 5.3",
        "both",
        "reproductions/modelmix/lines.py",
        f"{_LINES}::test_section_53",
        "local features, no SimCLR",
        "no pre-trained SimCLR weights on this machine",
    ),
)
