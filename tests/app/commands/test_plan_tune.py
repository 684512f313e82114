"""`winsor plan --tune`: the price of tuning, and when the recipe is better."""

from __future__ import annotations

import json

import pytest

from winsor.app.commands.main import main

PLAN = ("plan", "--n", "6e4", "--sampling", "full", "--steps", "20", "--delta", "1e-5")


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    out, err = capsys.readouterr()
    return stop.value.code or 0, " ".join(out.split()), err


def test_it_shows_the_price_and_says_when_the_recipe_is_better(capsys):
    code, out, err = run(capsys, *PLAN, "--epsilon", "3", "--tune", "20", "--points", "0")
    assert (code, err) == (0, "")
    assert "mean number of trials 20" in out and "noise if all were released" in out
    assert "the untuned recipe (winsor.tuning.recipe) is better" in out


def test_as_json_and_with_a_private_score(capsys):
    words = (*PLAN, "--epsilon", "3", "--tune", "20", "--points", "0", "--json")
    free, scored = (
        json.loads(run(capsys, *words, *more)[1])["tuning"]["options"][0]["noise_multiplier"]
        for more in ((), ("--score-noise-multiplier", "10"))
    )
    assert free < scored


def test_a_narrower_law_seldom_draws_one_trial_only(capsys):
    words = (*PLAN, "--epsilon", "3", "--points", "0")
    code, wide, _ = run(capsys, *words, "--tune", "10")
    assert code == 0 and "there will be a single trial" in wide
    code, narrow, _ = run(capsys, *words, "--tune", "5", "--tune-eta", "4")
    assert code == 0 and "settings that beat the winner 22%" in narrow
    assert "there will be a single trial" not in narrow
    code, _, err = run(capsys, *words, "--tune-eta", "4")
    assert code == 2 and "--tune-eta must be given with --tune" in err


def test_a_score_without_a_tuning_is_refused(capsys):
    code, _, err = run(capsys, *PLAN, "--epsilon", "3", "--score-noise-multiplier", "10")
    assert code == 2 and "--tune" in err
    code, _, err = run(capsys, *PLAN, "--noise-multiplier", "3", "--tune", "10")
    assert code == 2 and "number to compute" in err
