"""Comparisons: variants and seeds, checked before the first run, resumable, summed up honestly."""

from __future__ import annotations

import json

import pytest
from tiny_runs import table

from winsor.app.runs import compare as module
from winsor.app.runs.compare import Comparison
from winsor.app.runs.folder import RunError
from winsor.core.accounting import certify
from winsor.core.contract import ConfigurationError
from winsor.core.ledger.ledger import Ledger

VARIANTS = [
    {"name": "flat 1"},
    {"name": "auto", "rule": {"name": "automatic"}},
    {"name": "slow", "optimizer": {"lr": 0.01}},
]


def comparison(tmp_path, seeds=(3, 5), variants=VARIANTS, **changes):
    found = table(**changes)
    found["compare"] = {"seeds": list(seeds), "variants": variants}
    return Comparison.from_table(found, tmp_path)


def test_a_variant_changes_what_it_says(tmp_path):
    found = comparison(tmp_path).variants
    assert list(found) == ["flat 1", "auto", "slow"]
    assert found["flat 1"][3].rule.options == {"max_grad_norm": 1.0}
    assert found["auto"][3].rule.options == {}  # a rule named anew forgets the old options
    assert found["slow"][5].optimizer.to_table() == {"name": "sgd", "lr": 0.01, "momentum": 0.9}
    assert (found["slow"][3].seed, found["slow"][5].seed) == (3, 5)
    assert found["slow"][3].name == "slow"


def test_folders_are_safe_and_different(tmp_path):
    variants = [{"name": name} for name in ("a b", "a/b", "../x", "a-b", "...")]
    folders = comparison(tmp_path, variants=variants).folders(tmp_path).values()
    assert [folder.name for folder in folders] == ["a-b", "a-b-2", "x", "a-b-3", "variant"]
    assert all(folder.parent == tmp_path for folder in folders)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"variants": [{"name": "a"}, {"name": "a"}]}, r"variants\[1\].name must differ"),
        ({"variants": [{"rule": "flat"}]}, r"compare.variants\[0\].name must be given"),
        ({"variants": [{"name": "a", "rule": "flta"}]}, "variant 'a': rule.name must be one of"),
        ({"variants": [{"name": "a", "seed": 3}]}, r"variants\[0\].seed must be left out"),
        ({"seeds": [1, 1]}, "compare.seeds must be a list of different whole numbers"),
        ({"seeds": []}, "compare.seeds must be a list of different"),
    ],
)
def test_mistakes_show_before_the_first_run(tmp_path, changes, message):
    with pytest.raises(ConfigurationError, match=message):
        comparison(tmp_path, **changes)
    with pytest.raises(ConfigurationError, match="compare must be given"):
        Comparison.from_table(table(), tmp_path)


def test_every_run_is_done_once_and_summed_up(tmp_path, monkeypatch, capsys):
    found = comparison(tmp_path)
    path = tmp_path / "all"
    loads = []
    real = module.load_data
    monkeypatch.setattr(module, "load_data", lambda s: loads.append(s) or real(s))
    summary = found.execute(path, True, False, "text")
    assert len(loads) == 1  # the same rows are read once
    assert json.loads((path / "summary.json").read_text()) == summary
    assert (path / "compare.toml").read_text() == "text"
    ledgers = [Ledger.read(p) for p in sorted(path.glob("*/seed-*/ledger.jsonl"))]
    assert len(ledgers) == 6
    ((event, count),) = ledgers[0].history()
    assert summary["together"]["epsilon"] == certify([(event, 6 * count)], 1e-3).epsilon
    assert summary["together"]["epsilon"] > summary["variants"]["auto"]["epsilon"]
    accuracy = summary["variants"]["slow"]["metrics"]["accuracy"]
    assert accuracy["count"] == 2 and accuracy["half"] is not None
    assert summary["variants"]["slow"]["difference"]["accuracy"]["count"] == 2
    assert summary["variants"]["flat 1"]["difference"] == {}

    monkeypatch.setattr(module, "load_data", lambda s: pytest.fail("no run is left to do"))
    again = found.execute(path, True, False, "text")
    assert again == summary
    module.show(summary, quiet=False, as_json=False)
    assert "flat 1" in capsys.readouterr().out
    with pytest.raises(RunError, match=r"holds a comparison of another configuration \(seeds: "):
        comparison(tmp_path, seeds=(1,)).execute(path, True, False, "text")
