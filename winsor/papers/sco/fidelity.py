"""Where the algorithms of paper 2 are; its theorems are in `winsor.theory`."""

from __future__ import annotations

from winsor.theory.fidelity import Row

_MEANS = "tests/means/test_iterative.py"
_METHODS = "tests/linear/test_methods.py"

FIDELITY = (
    Row(
        2,
        "Algorithm 1, eqs. (5), (6)",
        "certified",
        "winsor.linear.simple.Simple",
        f"{_METHODS}::test_descend_follows_its_schedule",
        "projection on a ball about the origin; noise from the exact Gaussian profile",
        "the paper's W is any bounded set; (12) adds more noise than epsilon needs",
    ),
    Row(
        2,
        "Algorithm 2, eq. (10)",
        "both",
        "winsor.means.clipped.clipped_mean",
        "tests/means/test_clipped.py::test_rho_gives_exactly_the_papers_noise",
        "with rho= exactly the printed noise; else calibrated to epsilon",
        "an exact account needs less noise",
    ),
    Row(
        2,
        "Lemma 2",
        "certified",
        "winsor.mechanisms.gaussian.Gaussian",
        "tests/means/test_clipped.py::test_the_certified_epsilon_is_the_target",
    ),
    Row(
        2,
        "Lemma 4",
        "certified",
        "winsor.means.clipped.mean_sensitivity",
        "tests/means/test_clipped.py::test_the_replace_bound_is_attained",
    ),
    Row(
        2,
        "Algorithm 3, lines 1-4, eq. (19)",
        "certified",
        "winsor.means.groups.Groups",
        f"{_MEANS}::test_one_replaced_record_touches_one_group_by_no_more_than_its_bound",
        "also Poisson groups",
        "they amplify, which a partition does not",
    ),
    Row(
        2,
        "Algorithm 3, lines 5-10",
        "certified",
        "winsor.means.iterative.iterative_centre",
        "tests/means/test_direction.py::test_the_iteration_walks_from_a_bad_start",
        "c_1 is the geometric median, t_c = 40",
        "the paper leaves c_1 open; from the median (23) often stops at once, so that the result "
        "is the median: a start outside and t_c of Lemma 8 are still to be offered",
    ),
    Row(
        2,
        "eq. (23)",
        "certified",
        "winsor.means.direction.distance_and_direction",
        "tests/means/test_direction.py::test_the_answer_is_feasible_and_beats_its_starts",
        "a local search from several starts",
        "the exact problem is a mixed-integer one",
    ),
    Row(
        2,
        "Lemma 7, eqs. (24), (25)",
        "certified",
        "winsor.means.direction.distance_and_direction",
        "tests/means/test_direction.py::test_lemma_7_on_a_clean_cloud",
    ),
    Row(
        2,
        "Theorem 6, eq. (20)",
        "published",
        "winsor.papers.sco.claim.theorem_6_claim",
        "tests/papers/sco/test_claim.py::test_theorem_6_at_its_largest_epsilon",
        "the claim is computed; certified runs account a partition or Poisson groups",
        "unsound: shuffling needs randomisers that protect a whole group",
    ),
    Row(
        2,
        "Theorem 6 (refutation)",
        "certified",
        "winsor.papers.sco.attacks",
        "tests/reproductions/sco/test_tables.py::"
        "test_theorem_6_is_false_for_many_groups_and_useless_for_few",
    ),
    Row(
        2,
        "Theorem 7 (method)",
        "certified",
        "winsor.linear.iterative.Iterative",
        f"{_METHODS}::test_theorem_parameters_are_used_and_overridden_one_by_one",
        "R, T and eta of Theorem 4",
        "to be changed to winsor.theory.iterative_updating, which has Theorem 7's",
    ),
    Row(
        2,
        "eq. (28)",
        "missing",
        reason="(18) at the per-step budget (27): call winsor.theory.iterative_mean_rate with it",
    ),
    Row(
        2,
        "Rates in n (Theorems 4 and 7)",
        "both",
        "reproductions/sco/rates.py",
        "tests/reproductions/sco/test_rates.py::"
        "test_the_risk_of_simple_clipping_falls_at_the_theorys_rate",
        "measured; the paper has no experiments",
        "worst case over the size of the signal, on the losses of the lower bound",
    ),
)
