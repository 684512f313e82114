"""`winsor plan mix`: both sides of the trade, as numbers, table and JSON."""

from __future__ import annotations

import json
import math

import pytest

from winsor.app.commands.main import main
from winsor.contrib.modelmix.mixed_gaussian import MixedGaussianDpEvent
from winsor.contrib.modelmix.planning import DEFAULT_WIDTHS, solve
from winsor.core.accounting import certify
from winsor.core.contract import ConfigurationError, Neighbouring
from winsor.planning.plan import Question

RUN = {"n": 10_000, "batch_size": 500, "delta": 1e-5, "steps": 200}


def solved(max_grad_norm=2.0, tau_over_lr=(), p=(1, 25, 100), **changes):
    question = Question(**{**RUN, **changes})
    return solve(question, max_grad_norm=max_grad_norm, tau_over_lr=tau_over_lr, p=p)


def test_given_noise_each_cell_is_the_certified_epsilon_of_the_mixed_run():
    answer = solved(noise_multiplier=0.8, tau_over_lr=(0.02, 0.0), p=(25, 1))
    assert [(row.tau_over_lr, row.p) for row in answer.rows] == [
        (0.0, 1), (0.0, 25), (0.02, 1), (0.02, 25),
    ]  # fmt: skip
    clip = 2.0 / 500  # of the averaged gradient
    for row in answer.rows:
        event = MixedGaussianDpEvent(0.05, 0.8, row.tau_over_lr / clip, row.p)
        assert row.epsilon == pytest.approx(certify([(event, 200)], 1e-5).epsilon)
        assert row.gaussian_sd == pytest.approx(0.8 * clip)
        assert row.mixing_sd == pytest.approx(row.tau_over_lr / math.sqrt(12))
        assert row.total_sd == pytest.approx(math.hypot(row.gaussian_sd, row.mixing_sd))
        assert row.epsilon <= answer.plain_epsilon
        assert row.epsilon_as_gaussian <= row.epsilon * (1 + 1e-3)
    assert answer.rows[0].epsilon == answer.plain_epsilon
    assert answer.rows[3].epsilon < answer.rows[2].epsilon < answer.plain_epsilon


def test_given_epsilon_each_cell_spends_it_with_less_gaussian_noise_and_more_in_all():
    answer = solved(epsilon=2.0, tau_over_lr=(0.01,), p=(25,))
    assert 1.99 <= answer.plain_epsilon <= 2.0
    (row,) = answer.rows
    assert 1.99 <= row.epsilon <= 2.0
    assert row.gaussian_sd < answer.plain_sd < row.total_sd
    assert answer.solved_for == "noise_multiplier"


def test_epochs_and_default_widths():
    changes = {"steps": None, "epochs": 10, "noise_multiplier": 1.0, "p": (1,)}
    answer = solved(**changes)
    assert answer.steps == 200
    assert [row.tau_over_lr / answer.plain_sd for row in answer.rows] == pytest.approx(
        list(DEFAULT_WIDTHS)
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "one of noise_multiplier and epsilon"),
        ({"noise_multiplier": 1.0, "epsilon": 1.0}, "one of noise_multiplier and epsilon"),
        ({"epsilon": 1.0, "epochs": 3.0}, "steps and epochs must not both be given"),
        ({"epsilon": 1.0, "steps": None}, "one of steps and epochs"),
        ({"epsilon": 1.0, "relation": Neighbouring.REPLACE_ONE}, "add_or_remove_one"),
        ({"epsilon": 1.0, "max_grad_norm": 0.0}, "max_grad_norm must be a positive"),
        ({"epsilon": 1.0, "steps": 2.5}, "steps must be a positive whole number"),
        ({"epsilon": -1.0}, "epsilon must be a positive finite number"),
        ({"epsilon": 1.0, "batch_size": 1e6}, "batch_size must be at most n"),
        ({"epsilon": 1.0, "tau_over_lr": (-0.1,)}, "tau_over_lr must be at least 0"),
        ({"epsilon": 1.0, "p": (0.5,)}, "p must be at least 1"),
    ],
)
def test_bad_questions_are_refused(changes, message):
    with pytest.raises(ConfigurationError, match=message):
        solved(**changes)


COMMAND = ["--n", "1e4", "--batch-size", "500", "--steps", "200", "--delta", "1e-5"]


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as stopped:
        main(["plan", *arguments])
    return stopped.value.code, capsys.readouterr()


def test_the_command_prints_json(capsys):
    options = ["--noise-multiplier", "0.8", "--max-grad-norm", "2", "--json"]
    cells = ["--tau-over-lr", "0.02", "--tau-over-lr", "0.01", "--p", "25"]
    code, shown = run(capsys, "--mechanism", "modelmix", *COMMAND, *options, *cells)
    assert code == 0
    data = json.loads(shown.out)
    assert data["mechanism"] == "modelmix"
    assert [row["tau_over_lr"] for row in data["rows"]] == [0.01, 0.02]
    expected = solved(noise_multiplier=0.8, tau_over_lr=(0.01, 0.02), p=(25.0,))
    assert data == json.loads(json.dumps(expected.to_json()))


def test_the_command_prints_a_table_and_accepts_the_other_spelling(capsys):
    cells = ["--noise-multiplier", "0.8", "--tau-over-lr", "0.01", "--p", "1"]
    code, shown = run(capsys, "--mechanism=modelmix", *COMMAND, *cells)
    assert code == 0
    assert "Without mixing: epsilon" in shown.out
    assert "tau/lr" in shown.out


def test_the_command_refuses_in_one_line(capsys):
    code, shown = run(capsys, "--mechanism", "cauchy")
    assert (code, shown.out) == (2, "")
    assert shown.err.startswith("winsor: error: mechanism must be one of gaussian, modelmix.")
    code, shown = run(capsys, "run", "--mechanism", "modelmix", *COMMAND)
    assert code == 2 and "Call winsor plan mix" in shown.err
    code, shown = run(capsys, "--mechanism", "modelmix", *COMMAND)
    assert code == 2
    assert "one of noise_multiplier and epsilon must be given" in shown.err
