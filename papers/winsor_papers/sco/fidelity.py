"""Where the algorithms of paper 2 are; its theorems are in `winsor_papers.theory`."""

from __future__ import annotations

from winsor_papers.theory.fidelity import Row

_MEANS = "tests/tables/means/test_iterative.py"
_UPDATING = "tests/tables/means/test_updating.py"
_PUBLISHED = "tests/papers/sco/test_published.py"

FIDELITY = (
    Row(
        2,
        "Algorithm 1, eqs. (5), (6)",
        "both",
        "winsor.tables.linear.simple.Simple",
        f"{_PUBLISHED}::test_algorithms_1_and_2_line_by_line",
        "projection on a ball about the origin; noise from the exact Gaussian profile unless rho= "
        "asks for the printed one",
        "the paper's W is any bounded set; (12) adds more noise than epsilon needs",
    ),
    Row(
        2,
        "Algorithm 2, eq. (10)",
        "both",
        "winsor.tables.means.clipped.clipped_mean",
        "tests/tables/means/test_clipped.py::test_rho_gives_exactly_the_papers_noise",
        "with rho= exactly the printed noise; else calibrated to epsilon",
        "an exact account needs less noise",
    ),
    Row(
        2,
        "Lemma 2",
        "certified",
        "winsor.core.noise.gaussian.Gaussian",
        "tests/tables/means/test_clipped.py::test_the_certified_epsilon_is_the_target",
    ),
    Row(
        2,
        "Lemma 4",
        "certified",
        "winsor.tables.means.clipped.mean_sensitivity",
        "tests/tables/means/test_clipped.py::test_the_replace_bound_is_attained",
    ),
    Row(
        2,
        "Algorithm 3, lines 1-4, eq. (19)",
        "both",
        "winsor.tables.means.groups.Groups",
        f"{_UPDATING}::test_the_printed_noise_of_line_3",
        "also Poisson groups",
        "they amplify, which a partition does not",
    ),
    Row(
        2,
        "Algorithm 3, lines 1-4 (sensitivity)",
        "certified",
        "winsor.tables.means.groups.Groups.sensitivity",
        f"{_MEANS}::test_one_replaced_record_touches_one_group_by_no_more_than_its_bound",
    ),
    Row(
        2,
        "Algorithm 3, lines 5-10",
        "both",
        "winsor.tables.means.updating.iterative_centre",
        f"{_UPDATING}::test_algorithm_3_line_by_line",
        "c_1 is a corner of the box around the group means (in winsor.tables.linear the origin), "
        "or given; t_c is Lemma 8's with r_0 read off the group means, at least 10, or given",
        "the paper leaves c_1 open and r_0 has an unnamed constant; all of it is post-processing",
    ),
    Row(
        2,
        "Algorithm 3 (number of updates)",
        "both",
        "winsor.tables.means.result.MeanEstimate",
        f"{_UPDATING}::test_updates_are_made_by_default",
    ),
    Row(
        2,
        "Algorithm 3 (against the geometric median)",
        "certified",
        "winsor.tables.means.updating.combined",
        f"{_UPDATING}::"
        "test_it_ends_at_the_edge_of_the_bulk_where_the_geometric_median_is_in_its_middle",
    ),
    Row(
        2,
        "eq. (23)",
        "both",
        "winsor.tables.means.updating.distance_and_direction",
        f"{_UPDATING}::test_algorithm_3_line_by_line",
        "exact below 20 groups; a local search from several starts above",
        "the exact problem is a mixed-integer one",
    ),
    Row(
        2,
        "Lemma 7, eqs. (24), (25)",
        "certified",
        "winsor.tables.means.updating.distance_and_direction",
        "tests/tables/means/test_direction.py::test_lemma_7_on_a_clean_cloud",
    ),
    Row(
        2,
        "Theorem 6, eq. (20)",
        "published",
        "winsor_papers.sco.published.theorem_6_mean",
        f"{_PUBLISHED}::test_theorem_6_runs_by_its_name_and_keeps_its_two_accounts_apart",
        "certified runs account a partition or Poisson groups",
        "unsound: shuffling needs randomisers that protect a whole group",
    ),
    Row(
        2,
        "Theorem 6 (claim)",
        "published",
        "winsor_papers.sco.claim.theorem_6_claim",
        "tests/papers/sco/test_claim.py::test_theorem_6_at_its_largest_epsilon",
    ),
    Row(
        2,
        "Theorem 6 (refutation)",
        "certified",
        "winsor_papers.sco.attacks",
        "tests/papers/reproductions/sco/test_tables.py::"
        "test_theorem_6_is_false_for_many_groups_and_useless_for_few",
    ),
    Row(
        2,
        "Theorem 7 (method)",
        "both",
        "winsor.tables.linear.simple.Iterative",
        f"{_PUBLISHED}::test_r_and_t_at_twenty_thousand_rows",
        "20 groups, not those of Lemma 6",
        "T rounds of 800 ln(1/beta) groups are slow, and every group costs noise",
    ),
    Row(
        2,
        "Theorem 7, eq. (27) (T-step run as published)",
        "published",
        "winsor_papers.sco.published.Theorem7",
        f"{_PUBLISHED}::test_algorithms_1_and_3_line_by_line",
    ),
    Row(
        2,
        "Theorem 3 (T-step run as published)",
        "published",
        "winsor_papers.sco.published.Theorem3",
        f"{_PUBLISHED}::test_what_the_noise_of_theorem_3_certifies",
    ),
    Row(
        2,
        "Rates in n (Theorems 4 and 7)",
        "both",
        "papers/winsor_papers/reproductions/sco/rates.py",
        "tests/papers/reproductions/sco/test_rates.py::test_iterative_updating_updates_at_every_dimension",
        "measured; the paper has no experiments",
        "worst case over the size of the signal, on the losses of the lower bound",
    ),
)
