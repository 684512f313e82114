"""Where the algorithms, tables and figures of paper 4 are; its theorems are in
`winsor_papers.theory`."""

from __future__ import annotations

from winsor_papers.theory.fidelity import Row

_RULE_TESTS = "tests/rules/test_averaged.py"
_CLAIM_TESTS = "tests/papers/aclip/test_claim.py"
_TABLES = "tests/papers/reproductions/aclip/test_tables.py"
_FIGURES = "tests/papers/reproductions/aclip/test_figures.py"
_ALGORITHMS = "tests/papers/aclip/test_algorithms.py"
_MEANS = "tests/tables/means/test_averaged.py"
_LINEAR = "tests/tables/linear/test_paper_4.py"

FIDELITY = (
    Row(
        4,
        "eq. (2) (AClip)",
        "both",
        "winsor.rules.averaged.Averaged",
        f"{_RULE_TESTS}::test_the_mean_is_clipped_once_in_units_of_the_sum",
        "the mean divides by the expected batch size",
        "the realised size would couple rows",
    ),
    Row(
        4,
        "eq. (4) (DP-SGD, the rival)",
        "certified",
        "winsor.tables.linear.flat.FlatDescent.plain",
        f"{_ALGORITHMS}::test_the_rival_is_equation_4",
        "the answer is the average of the iterates, in every table",
        "the paper does not say; the methods it is compared with return averages",
    ),
    Row(
        4,
        "eq. (7) (private mean estimator)",
        "certified",
        "winsor.tables.means.averaged.averaged_mean",
        f"{_MEANS}::test_the_estimator_is_the_papers_with_injected_noise",
        "noise for sensitivity 2 lambda",
        "two clipped averages can be 2 lambda apart",
    ),
    Row(
        4,
        "eq. (7) (its printed noise)",
        "published",
        "winsor_papers.aclip.estimator.estimator_7_std",
        f"{_MEANS}::test_the_published_noise_is_the_printed_one_and_too_little",
        "c from Definition 6 unless it is named",
        "the paper hides c in an order",
    ),
    Row(
        4,
        "Algorithm 1 (as printed)",
        "published",
        "winsor_papers.aclip.algorithms.PrintedAclip",
        f"{_ALGORITHMS}::test_algorithm_1_as_printed",
    ),
    Row(
        4,
        "Algorithm 2 (as printed)",
        "published",
        "winsor_papers.aclip.algorithms.restarted_answers",
        f"{_ALGORITHMS}::test_algorithm_2_as_printed",
    ),
    Row(
        4,
        "Algorithm 2, line 2 (noise)",
        "published",
        "winsor_papers.aclip.algorithms.algorithm_2_stds",
        f"{_ALGORITHMS}::test_the_published_noise_is_the_printed_one",
    ),
    Row(
        4,
        "Algorithm 1",
        "certified",
        "winsor.tables.linear.averaged.AveragedDescent",
        f"{_ALGORITHMS}::test_algorithm_1_certified",
        "noise for sensitivity 2 lambda; the ball is about the origin",
        "two clipped means can be 2 lambda apart; the optimum is unknown",
    ),
    Row(
        4,
        "Algorithm 2",
        "certified",
        "winsor.tables.linear.averaged.Restarted",
        f"{_ALGORITHMS}::test_algorithm_2_certified",
        "all runs in one account",
        "advanced composition (Theorem 5) costs more",
    ),
    Row(
        4,
        "Theorem 2 (claim)",
        "published",
        "winsor_papers.aclip.claim.AclipRun.claim",
        f"{_CLAIM_TESTS}::test_the_cifar_claims_and_their_certified_cost",
        "accounted by PLD for sensitivity lambda",
        "c is not named; this is the reading most favourable to the paper",
    ),
    Row(
        4,
        "Theorem 2, eq. (9) (of a run)",
        "published",
        "winsor_papers.aclip.claim.theorem_2_std",
        f"{_CLAIM_TESTS}::test_equation_9_by_hand",
        "N for the printed T",
        "T is not defined",
    ),
    Row(
        4,
        "Theorem 2 (refutation)",
        "certified",
        "winsor_papers.aclip.attacks",
        f"{_CLAIM_TESTS}::test_one_step_with_noise_lambda",
    ),
    Row(
        4,
        "Theorem 5 (budget of a run)",
        "published",
        "winsor.tails.theorems.averaged.aclip_restarts",
        "tests/papers/theory/test_theorems.py::test_theorem_6_schedule_meets_its_conditions",
    ),
    Row(
        4,
        "Theorem 6 (usable settings)",
        "certified",
        "winsor.tables.linear.averaged.Restarted",
        f"{_LINEAR}::test_the_refusal_says_what_is_affordable",
        'above most_steps = 200,000 refused with what is affordable; runs="affordable" takes that',
        "768 L/mu ln N0 steps per run are many; every run halves the risk, so fewer are a start",
    ),
    Row(
        4,
        "Theorem 7 (non-smooth losses)",
        "certified",
        "winsor.tables.linear.classifiers",
        f"{_LINEAR}::test_theorem_7_takes_the_exponent_of_the_loss",
    ),
    Row(
        4,
        "Table 2",
        "both",
        "papers/winsor_papers/reproductions/aclip/convex.py",
        f"{_TABLES}::test_every_method_in_three_readings",
        "20 seeds; the logistic loss as meant, not as printed, which the table says",
        "300 runs cost too much; the printed loss learns the opposite label",
    ),
    Row(
        4,
        "Table 3",
        "both",
        "papers/winsor_papers/reproductions/aclip/table3.py",
        "tests/papers/reproductions/aclip/test_table3.py::"
        "test_the_table_has_printed_published_certified_and_tuned_lines",
        "GroupNorm; a small network when quick",
        "batch statistics mix rows; ResNet-18 takes days on two cores",
    ),
    Row(
        4,
        "Table 3, figure 2 (on public features)",
        "both",
        "papers/winsor_papers/reproductions/aclip/features.py",
        "tests/papers/reproductions/aclip/test_features.py::"
        "test_every_method_is_tuned_alike_and_the_published_noise_leaks",
        "a linear layer on public features in place of ResNet-18; bound, radius and steps of ours",
        "ResNet-18 takes months on two cores; lambda = 30 clips nothing; the paper gives no radius",
    ),
    Row(
        4,
        "Table B1",
        "both",
        "papers/winsor_papers/reproductions/aclip/convex.py",
        f"{_TABLES}::test_settings_are_those_of_appendix_b",
        "half the printed squared loss, which the table says",
        "winsor minimises half the squared residual; errors are relative to the start",
    ),
    Row(
        4,
        "Figures 1 and 3",
        "both",
        "papers/winsor_papers/reproductions/aclip/figures.py",
        f"{_FIGURES}::test_every_method_is_a_curve_beside_the_baseline",
        "20 seeds",
        "300 runs cost too much",
    ),
    Row(
        4,
        "Figure 2",
        "both",
        "papers/winsor_papers/reproductions/aclip/figure2.py",
        "tests/papers/reproductions/aclip/test_table3.py::"
        "test_figure_2_has_a_curve_for_every_method_and_a_baseline",
        "GroupNorm; a small network when quick",
        "batch statistics mix rows; ResNet-18 takes days on two cores",
    ),
    Row(
        4,
        "Figures B1-B4",
        "both",
        "papers/winsor_papers/reproductions/aclip/figures.py",
        f"{_FIGURES}::test_deviations_are_drawn_in_b3_and_b4",
        "20 seeds",
        "300 runs cost too much",
    ),
    Row(
        4,
        "Section 5 (non-private baseline)",
        "published",
        "winsor_papers.aclip.algorithms.PrintedAclip",
        f"{_ALGORITHMS}::test_without_noise_it_is_the_baseline_and_learns",
    ),
    Row(
        4,
        "DP-GD (Wang et al. 2020), the rival",
        "certified",
        "winsor.tables.linear.robust_gd.RobustGD",
        "tests/tables/linear/test_robust_gd.py::test_the_closed_form_is_the_expectation",
    ),
)
