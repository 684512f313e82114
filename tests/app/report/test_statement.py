"""The statement says what the ledger holds, rounds up, and hides nothing."""

from __future__ import annotations

import re

import pytest
from finished_runs import EVENT, make_run

from winsor.app.report.collect import read_run
from winsor.app.runs import parts
from winsor.core.accounting import account_delta, certify


def statement(tmp_path, **changes):
    return read_run(make_run(tmp_path / "run", **changes)).statement


def test_the_numbers_are_the_accountants(tmp_path):
    found = statement(tmp_path)
    deltas = [pair["delta"] for pair in found.epsilons]
    assert deltas == pytest.approx([1e-3, 1e-4, 1e-5, 1e-6])
    for pair in found.epsilons:
        truth = certify([(EVENT, 12)], pair["delta"]).epsilon
        assert pair["epsilon"] == truth
        assert truth <= float(pair["shown"]) <= 1.01 * truth
    assert f"({found.epsilons[0]['shown']}, 0.001)" in found.promise
    assert "12 recorded steps" in found.promise and found.steps == 12


def test_the_game_is_bounded_by_the_total_variation(tmp_path):
    found = statement(tmp_path)
    percent = float(re.search(r"more often than ([\d.]+) %", found.meaning).group(1))
    truth = 50 * (1 + account_delta([(EVENT, 12)], 0.0).delta)
    assert truth <= percent <= truth + 0.1


def test_unit_relation_sampling_noise_and_ledger_are_named(tmp_path):
    found = statement(tmp_path)
    assert "one row" in found.unit and "200 rows" in found.unit
    assert found.relation == "adding or removing one row"
    assert "Poisson" in found.sampler and "0.2" in found.sampler
    assert found.mechanism == "Gaussian noise, noise multiplier 1.5"
    assert "dp-accounting 0.6" in found.accountant and "winsor" in found.accountant
    assert re.fullmatch("[0-9a-f]{64}", found.ledger_sha256)


def test_other_steps_another_ledger(tmp_path):
    one = read_run(make_run(tmp_path / "one")).statement
    two = read_run(make_run(tmp_path / "two", steps=13)).statement
    assert one.ledger_sha256 != two.ledger_sha256


def test_held_out_rows_are_declared_unprotected(tmp_path):
    assert any("40 held-out rows" in item for item in statement(tmp_path).not_covered)


@pytest.mark.parametrize(
    ("rule", "covered"),
    [
        ({"name": "flat", "max_grad_norm": 1.0}, False),
        ({"name": "quantile"}, True),
        ({"name": "discriminative", "c1": 1.0, "c2": 0.1}, False),
        ({"name": "discriminative", "c1": 1.0, "c2": 0.1, "tracker": {"target": 0.9}}, True),
    ],
    ids=["flat", "quantile", "discriminative", "discriminative with a tracker"],
)
def test_thresholds_are_covered_when_the_rule_releases_them(tmp_path, rule, covered):
    found = statement(tmp_path, rule=rule).covered
    words = "the rule's adaptive thresholds, which are released with the gradients"
    assert (words in found) == covered
    assert not any("not known here" in item for item in found)


def test_a_rule_that_was_archived_is_not_said_to_release_nothing(tmp_path):
    found = statement(tmp_path, rule={"name": "scaled", "max_grad_norm": 1.0}).covered
    assert any("what else the rule scaled released" in item for item in found)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"reproducible_noise": True}, "noise was derived from the seed"),
        ({"monitor": "debug"}, "NOT PRIVATE"),
        ({"finished": False}, "not finished"),
        ({"budget": {"allow_large_delta": True}}, "delta was allowed to reach 1/n"),
    ],
)
def test_warnings_come_when_they_must(tmp_path, changes, words):
    base = {"reproducible_noise": False}
    assert not any(words in warning for warning in statement(tmp_path / "a", **base).warnings)
    found = statement(tmp_path / "b", **{**base, **changes}).warnings
    assert any(words in warning for warning in found)


def test_replacing_a_row_is_another_game(tmp_path):
    found = statement(tmp_path, budget={"relation": "replace_one"})
    assert found.relation == "replacing one row by any other"
    assert "which of two given rows" in found.meaning
    plain = statement(tmp_path / "plain")
    assert found.epsilons[0]["epsilon"] > plain.epsilons[0]["epsilon"]


# ------------------------------------------------------------------- what else a rule releases


class Voting:
    """A rule that releases votes beside its gradient."""

    releases_state = "votes of all rows"


@pytest.mark.parametrize(("rule", "said"), [(Voting(), True), (object(), False)])
def test_the_rule_says_what_else_it_releases(tmp_path, monkeypatch, rule, said):
    """Also a rule that this page has never heard of, or one that releases gradients only."""
    monkeypatch.setattr(parts, "build_rule", lambda part: rule)
    covered = statement(tmp_path).covered
    assert ("votes of all rows, which are released with the gradients" in covered) == said
    assert any("released in 12 steps" in item for item in covered)
