"""Theorems speak to the user: values, assumptions and warnings in `winsor promises`."""

from __future__ import annotations

import json

import numpy as np
import pytest

from winsor.app.commands import main as cli

PLAN = ("--n", "6e4", "--batch-size", "600", "--epochs", "1", "--delta", "1e-6",
        "--noise-multiplier", "2")  # fmt: skip


def run(capsys, *arguments: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as stop:
        cli.main(list(arguments))
    captured = capsys.readouterr()
    return int(stop.value.code or 0), captured.out + captured.err


@pytest.fixture
def heavy(tmp_path):
    path = tmp_path / "norms.npy"
    np.save(path, np.random.default_rng(0).weibull(1 / 1.5, size=3000))
    return str(path)


def test_tails_warns_where_c2_is_above_c1(heavy, capsys):
    code, out = run(capsys, "tails", heavy, "--n", "60000", "--d", "1000")
    assert code == 0
    assert "warning: the constants put c2 above c1 here: keep c2 <= c1" in out
    assert "assumes: gradient noise sub-Weibull" in out
    assert out.endswith("winsor promises prints the rates that the papers' theorems promise for "
                        "such numbers.\n")  # fmt: skip
    assert "DP-SGD, one threshold" not in out


def test_promises_of_a_tail(heavy, capsys):
    code, out = run(capsys, "promises", heavy, "--n", "60000", "--d", "1000")
    assert code == 0
    assert "DP-SGD, one threshold: 42.74  (paper 1, Theorem 4.1)" in out
    assert "paper 2, Theorem 4, (17)" in out
    assert "warning: epsilon = 3 is above 1, where (12) is not proved" in out
    for paper in range(1, 6):
        assert f"paper {paper} assumes: " in out


def test_machines_get_the_rates_too(heavy, capsys):
    _, out = run(capsys, "promises", heavy, "--n", "60000", "--d", "1000", "--json")
    rates = json.loads(out)["rates"]
    assert len(rates) == 9
    assert rates["simple clipping, full batch"]["warnings"]


def test_too_few_moments_are_a_refusal_that_is_shown(tmp_path, capsys):
    path = tmp_path / "norms.npy"
    np.save(path, np.abs(np.random.default_rng(2).standard_t(1.2, 3000)))
    code, out = run(capsys, "promises", str(path), "--n", "60000", "--d", "1000")
    assert code == 0
    assert "simple clipping, full batch: does not apply. p must be at least 2" in out


def test_promises_of_a_plan(capsys):
    code, plain = run(capsys, "plan", *PLAN)
    assert code == 0 and "DP-SGD, one threshold" not in plain
    assert "winsor promises prints the rates" in plain
    code, out = run(capsys, "promises", *PLAN, "--d", "1000", "--theta", "1.5")
    assert code == 0
    assert "DP-SGD, one threshold: 20.42  (paper 1, Theorem 4.1)" in out
    assert "paper 5 assumes: " in out
    _, text = run(capsys, "promises", *PLAN, "--d", "1000", "--json")
    found = json.loads(text)
    assert found["rates"]["lower bound for any method"]["value"] > 0
    _, text = run(capsys, "plan", *PLAN, "--json")
    assert "rates" not in json.loads(text)


def test_rates_need_rows(capsys):
    code, out = run(
        capsys, "promises", "--sampling", "full", "--steps", "10", "--noise-multiplier", "5",
        "--delta", "1e-5", "--d", "10",
    )  # fmt: skip
    assert code != 0 and "n must be given" in out


def test_what_does_not_go_together_is_refused(heavy, capsys):
    code, out = run(capsys, "promises", *PLAN)
    assert code == 2 and "d must be given" in out
    code, out = run(capsys, "promises", heavy, "--d", "10")
    assert code == 2 and "n must be given" in out
    code, out = run(capsys, "promises", heavy, "--n", "100", "--d", "10", "--theta", "1")
    assert code == 2 and "--theta must be left out with FILE" in out
    code, out = run(capsys, "promises", *PLAN, "--d", "10", "--key", "norms")
    assert code == 2 and "--key must be given with FILE" in out
