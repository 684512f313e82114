"""`winsor plan`: any missing number, the same events as a run, and polite errors."""

import dataclasses
import json
import math
import subprocess
import sys

import dp_accounting
import pytest
from dp_accounting.dp_event import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from winsor import FixedSize, FullBatch, Poisson, __version__
from winsor.app.commands.main import COMMANDS, main
from winsor.core.accounting import account, certify
from winsor.core.contract import (
    CalibrationError,
    ConfigurationError,
    Neighbouring,
    Sensitivity,
    UnsupportedRelation,
)
from winsor.core.events.joint import GaussianEvent
from winsor.planning.plan import Question, solve

ADD, REPLACE = Neighbouring.ADD_OR_REMOVE_ONE, Neighbouring.REPLACE_ONE
KEYS = {"epsilon", "delta", "noise_multiplier", "sampling_rate", "steps", "relation", "accountant"}
FULL = Question(
    n=60_000, batch_size=600, steps=1000, noise_multiplier=1.0, epsilon=1.83, delta=1e-5
)


def run(capsys, *arguments):
    """Call the command line; returns exit code, stdout, stderr."""
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return stop.value.code or 0, out, err


# ---------------------------------------------------------------------------- the missing number


@pytest.mark.parametrize(
    "unknown", ["epsilon", "noise_multiplier", "steps", "delta", "batch_size", "n"]
)
def test_each_number_can_be_the_missing_one(unknown):
    question = dataclasses.replace(FULL, **{unknown: None})
    answer = solve(question, points=3)
    assert answer.solved_for == unknown
    assert answer.epsilon <= 1.83
    # All six are one consistent run, so that the answer is close to what was left out.
    known = getattr(FULL, unknown)
    assert getattr(answer, unknown) == pytest.approx(known, rel=0.03)
    event = PoissonSampledDpEvent(answer.sampling_rate, GaussianDpEvent(answer.noise_multiplier))
    certified = account([(event, answer.steps)], answer.delta).epsilon
    assert certified <= answer.epsilon * 1.002


@pytest.mark.parametrize("unknown", ["noise_multiplier", "batch_size", "n"])
def test_epochs_set_the_steps(unknown):
    question = dataclasses.replace(FULL, steps=None, epochs=10.0, **{unknown: None})
    answer = solve(question, points=1)
    assert answer.epsilon <= 1.83
    assert answer.steps == math.ceil(10 / answer.sampling_rate - 1e-9)
    assert getattr(answer, unknown) == pytest.approx(getattr(FULL, unknown), rel=0.03)


@pytest.mark.parametrize("relation", [ADD, REPLACE])
@pytest.mark.parametrize("sampling", ["poisson", "fixed", "full"])
def test_the_planned_event_is_the_one_a_run_records(sampling, relation):
    if sampling == "fixed" and relation is ADD:
        return
    n, size = 1000, 50
    sampler = {
        "poisson": Poisson.of_batch_size(n, size),
        "fixed": FixedSize(n, size),
        "full": FullBatch(n),
    }[sampling]
    bound = Sensitivity.per_sample(1.0, "test")
    local = GaussianEvent(1.5 / bound.add_remove, 1.5 / bound.replace)
    question = Question(
        n=n,
        batch_size=None if sampling == "full" else size,
        steps=20,
        noise_multiplier=1.5,
        delta=1e-5,
        relation=relation,
        sampling=sampling,
    )
    recorded = sampler.amplify(local, relation)
    assert question.run().history(1.5) == [(recorded, 20)]
    assert solve(question, points=0).epsilon == certify([(recorded, 20)], 1e-5, relation).epsilon


GRID = [  # q, noise multiplier, T, an interval at which dp-accounting has converged
    (1e-3, 2.0, 1000, 3e-5),
    (1e-2, 1.0, 100, 1e-3),
    (1e-2, 20.0, 10_000, 3e-5),
    (0.1, 5.0, 1000, 5e-4),
    (1.0, 10.0, 100, 1e-3),
]


@pytest.mark.parametrize("q, nm, steps, interval", GRID)
@pytest.mark.parametrize("n", [1000, 10**6])
def test_plan_agrees_with_dp_accounting(q, nm, steps, interval, n):
    accountant = PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE, interval)
    accountant.compose(PoissonSampledDpEvent(q, GaussianDpEvent(nm)), steps)
    for delta in (1e-3, 1e-10):
        question = Question(
            n=n,
            batch_size=q * n,
            steps=steps,
            noise_multiplier=nm,
            delta=delta,
            allow_large_delta=True,
        )
        reference = accountant.get_epsilon(delta)
        assert solve(question, points=0).epsilon == pytest.approx(reference, rel=2e-3, abs=1e-7)


# ------------------------------------------------------------------------------------- the curve


@settings(max_examples=15)
@given(st.integers(1, 400), st.sampled_from([1.0, 0.25, 0.01]), st.integers(1, 12))
def test_the_curve_rises_to_the_answer(steps, q, points):
    question = Question(n=100, batch_size=100 * q, steps=steps, noise_multiplier=2.0, delta=1e-3)
    answer = solve(question, points)
    counts = [point["steps"] for point in answer.curve]
    epsilons = [point["epsilon"] for point in answer.curve]
    assert 1 <= len(counts) <= points
    assert counts == sorted(set(counts))
    assert counts[0] >= 1
    assert epsilons == sorted(epsilons)
    assert (counts[-1], epsilons[-1]) == (steps, answer.epsilon)


def test_the_curve_is_by_epoch():
    answer = solve(dataclasses.replace(FULL, epsilon=None), points=10)
    assert [point["epoch"] for point in answer.curve] == list(range(1, 11))
    assert solve(dataclasses.replace(FULL, epsilon=None), points=0).curve == ()


# --------------------------------------------------------------------------------- bad questions


@pytest.mark.parametrize(
    "changes, message",
    [
        ({}, "Got nothing missing instead"),
        ({"epsilon": None, "delta": None}, "Got epsilon, delta missing instead"),
        ({"n": None, "batch_size": None}, "Got batch_size, n missing"),
        ({"epsilon": None, "delta": 1.5}, "delta must be strictly between 0 and 1"),
        ({"epsilon": None, "delta": math.nan}, "delta must be strictly between 0 and 1"),
        ({"epsilon": -1.0}, "epsilon must be a positive finite number. Got -1.0"),
        ({"noise_multiplier": 0.0}, "noise_multiplier must be a positive finite number"),
        ({"batch_size": 70_000}, "batch_size must be at most n = 60000. Got 70000"),
        ({"epochs": 3.0}, "steps and epochs must not both be given"),
        ({"n": 0}, "n must be a positive whole number"),
        ({"steps": 1.5}, "steps must be a positive whole number"),
        ({"sampling": "shuffled"}, "sampling must be one of poisson, fixed, full"),
        ({"sampling": "full"}, "batch_size must be left out with full batches"),
        ({"sampling": "fixed", "relation": REPLACE, "batch_size": 0.5}, "must be a whole number"),
    ],
)
def test_bad_questions_say_what_and_why(changes, message):
    with pytest.raises(ConfigurationError, match=message):
        solve(dataclasses.replace(FULL, **changes))


def test_fixed_batches_need_replace_one():
    with pytest.raises(UnsupportedRelation, match="--relation replace_one"):
        dataclasses.replace(FULL, epsilon=None, sampling="fixed")


def test_what_cannot_be_reached_is_said():
    with pytest.raises(CalibrationError, match="Raise epsilon or delta"):
        solve(dataclasses.replace(FULL, steps=None, epsilon=1e-3))
    with pytest.raises(CalibrationError, match="have epsilon computed"):
        solve(Question(sampling="full", steps=10, noise_multiplier=0.001, epsilon=0.1))


def test_a_large_delta_is_noted():
    quiet = solve(dataclasses.replace(FULL, epsilon=None), points=0)
    large = dataclasses.replace(FULL, epsilon=None, delta=1e-3)
    loud = solve(dataclasses.replace(large, allow_large_delta=True), points=0)
    assert quiet.notes == ()
    assert "not below 1/n" in loud.notes[0]


def test_a_large_delta_must_be_said():
    for changes in ({"epsilon": None, "delta": 1e-3}, {"n": None, "epsilon": 0.05}):
        with pytest.raises(ConfigurationError, match="allow_large_delta=True"):
            solve(dataclasses.replace(FULL, **changes), points=0)


def test_a_large_delta_that_was_asked_about_is_an_answer_with_a_note():
    answer = solve(dataclasses.replace(FULL, epsilon=1.0, delta=None), points=0)
    assert answer.delta > 1 / FULL.n
    assert "must say allow_large_delta" in answer.notes[0]


# --------------------------------------------------------------------------------- the command line

USUAL = ("plan", "--n", "6e4", "--batch-size", 600, "--delta", "1e-5")


def test_json(capsys):
    code, out, err = run(capsys, *USUAL, "--epochs", 10, "--epsilon", 3, "--json", "--points", 2)
    answer = json.loads(out)
    assert (code, err) == (0, "")
    assert set(answer) >= KEYS
    assert (answer["steps"], answer["sampling_rate"], answer["delta"]) == (1000, 0.01, 1e-5)
    assert (answer["relation"], answer["accountant"]) == ("add_or_remove_one", "pld")
    assert 0.995 * 3 <= answer["epsilon"] <= 3
    assert [point["steps"] for point in answer["curve"]] == [500, 1000]


def test_text(capsys):
    code, out, err = run(
        capsys, *USUAL, "--steps", 100, "--noise-multiplier", 1, "--relation", "replace-one"
    )
    assert (code, err) == (0, "")
    assert "replace_one" in out
    assert "computed" in out
    assert "epsilon along the run" in out
    assert len([line for line in out.splitlines() if line.strip()]) > 12


@pytest.mark.parametrize(
    "arguments",
    [
        ("plan",),
        ("plan", "--bogus", 1),
        ("plan", "--n", "many"),
        ("plan", "--n", 1.5),
        (*USUAL, "--epochs", 10, "--epsilon", -1),
        (*USUAL, "--epochs", 10, "--epsilon", "nan"),
        (*USUAL, "--epochs", 10, "--epsilon", 1, "--relation", "cousins"),
        (*USUAL, "--epochs", 10, "--epsilon", 1, "--sampling", "fixed"),
        (*USUAL, "--noise-multiplier", 0.5, "--epsilon", 0.001),
        ("conquer",),
    ],
)
def test_bad_input_is_one_line_and_code_two(capsys, arguments):
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("winsor: error: ")
    assert err.count("\n") == 1


def test_version_and_help(capsys):
    assert run(capsys, "--version") == (0, f"winsor {__version__}\n", "")
    code, out, _ = run(capsys, "--help")
    assert code == 0
    assert all(name in out for name in COMMANDS)


def test_planning_never_loads_torch():
    code = (
        "import sys; from winsor.app.commands.main import main\n"
        "try: main(['plan','--sampling','full','--steps','3','--epsilon','1','--delta','1e-5'])\n"
        "except SystemExit as stop: assert not stop.code, stop.code\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
    module = [sys.executable, "-m", "winsor", "--version"]
    assert subprocess.run(module, check=True, capture_output=True).stdout.startswith(b"winsor")


@pytest.mark.parametrize(
    ("sampling", "relation"),
    [("poisson", ADD), ("poisson", REPLACE), ("fixed", REPLACE), ("full", ADD), ("full", REPLACE)],
)
def test_a_real_run_records_the_planned_event(sampling, relation):
    import torch
    from torch.utils.data import TensorDataset

    from winsor import make_private
    from winsor.rules import Flat

    n, size = 40, None if sampling == "full" else 8
    model = torch.nn.Linear(3, 1)
    private = make_private(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        dataset=TensorDataset(torch.ones(n, 3)),
        rule=Flat(0.7),
        batch_size=size or n,
        noise_multiplier=1.3,
        delta=1e-3,
        steps=3,
        sampling=sampling,
        relation=relation,
        seed=0,
    )
    for (x,) in private.batches():
        private.step(model(x).squeeze(1))
    question = Question(
        n=n,
        batch_size=size,
        steps=3,
        noise_multiplier=1.3,
        delta=1e-3,
        relation=relation,
        sampling=sampling,
    )
    (recorded,) = {repr(event) for event, _ in private.ledger.history()}
    ((planned, _),) = question.run().history(1.3)
    assert recorded == repr(planned)
    assert private.spent().epsilon == solve(question, points=0).epsilon
