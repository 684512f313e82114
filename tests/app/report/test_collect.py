"""Runs and comparisons from disk, finished or not."""

from __future__ import annotations

import json

import pytest
from finished_runs import EVENT, make_run

from winsor.app.report.collect import collect, epsilon_by_step, read_run
from winsor.app.runs.folder import RunError
from winsor.core.accounting import certify
from winsor.core.ledger.ledger import Ledger


def comparison(path, variants=("flat", "auto"), seeds=(1, 2)):
    path.mkdir()
    (path / "compare.json").write_text(json.dumps({"name": "both", "folders": list(variants)}))
    for k, name in enumerate(variants):
        for seed in seeds:
            rule = {"name": "flat", "max_grad_norm": 1.0 + k}
            make_run(path / name / f"seed-{seed}", name=name, seed=seed, rule=rule)
    return path


def test_one_run(tmp_path):
    report = collect([make_run(tmp_path / "run")])
    assert report.title == "tiny" and report.together is None
    assert report.main_metric == "accuracy" and len(report.variants) == 1
    assert report.variants[0].metrics["accuracy"].half is None


def test_the_curve_is_certified_and_rises(tmp_path):
    run = read_run(make_run(tmp_path / "run", steps=40))
    steps, epsilons = zip(*run.curve, strict=True)
    assert steps[0] == 0 and steps[-1] == 40 and len(steps) == 17
    assert list(epsilons) == sorted(epsilons)
    for step, epsilon in run.curve[1:]:
        assert epsilon == pytest.approx(certify([(EVENT, step)], 1e-3).epsilon, rel=1e-6)


def test_the_curve_gives_way_when_accounting_is_slow(tmp_path, monkeypatch):
    from winsor.app.report import collect as module

    monkeypatch.setattr(module, "CURVE_SECONDS", -1.0)
    path = make_run(tmp_path / "run", steps=40)
    run = read_run(path)
    assert [step for step, _ in run.curve] == [0, 40]
    monkeypatch.setattr(module, "CURVE_SECONDS", 100.0)
    assert len(epsilon_by_step(Ledger.read(path / "ledger.jsonl"), run.config)) == 17


def test_a_comparison(tmp_path):
    report = collect([comparison(tmp_path / "all")])
    assert report.title == "both"
    assert [variant.label for variant in report.variants] == ["flat", "auto"]
    assert [run.config.seed for run in report.runs] == [1, 2, 1, 2]
    assert report.variants[0].metrics["accuracy"].count == 2
    assert report.variants[0].differences == {}
    assert report.variants[1].differences["accuracy"].mean == pytest.approx(0.0)
    assert report.together["epsilon"] == certify([(EVENT, 48)], 1e-3).epsilon


def test_runs_of_one_name_and_different_settings_stay_apart(tmp_path):
    one = make_run(tmp_path / "one")
    two = make_run(tmp_path / "two", optimizer={"lr": 0.1})
    labels = [variant.label for variant in collect([one, two]).variants]
    assert labels == [f"tiny ({one})", f"tiny ({two})"]


def test_other_data_are_not_added_up(tmp_path):
    one = make_run(tmp_path / "one")
    two = make_run(tmp_path / "two", data={"source": "digits", "options": {}})
    assert collect([one, two]).together is None


def test_the_best_comes_first(tmp_path):
    one, two = make_run(tmp_path / "one", seed=1), make_run(tmp_path / "two", seed=3, name="better")
    assert [v.label for v in collect([one, two]).ranked()] == ["better", "tiny"]


def test_an_unfinished_run_has_its_latest_metrics(tmp_path):
    run = read_run(make_run(tmp_path / "run", finished=False))
    assert run.result is None and run.held_out["loss"] == pytest.approx(2 / 12)


def test_directories_that_hold_no_run(tmp_path):
    with pytest.raises(RunError, match=r"without config.json or compare.json"):
        collect([tmp_path])
    (tmp_path / "compare.json").write_text('{"name": "a", "folders": ["x"]}')
    with pytest.raises(RunError, match="no run has started yet"):
        collect([tmp_path])
    (tmp_path / "compare.json").write_text("{}")
    with pytest.raises(RunError, match="cannot read"):
        collect([tmp_path])
    with pytest.raises(RunError, match="nothing to report"):
        collect([make_nothing(tmp_path / "empty")])


def make_nothing(path):
    make_run(path, steps=1, finished=False)
    header = (path / "ledger.jsonl").read_text().splitlines()[0]
    (path / "ledger.jsonl").write_text(header + "\n")
    return path
