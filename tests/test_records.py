"""The scripts behind docs/records.md: what is computed beside the library, and what the page says.

Every record's whole training is replayed on few rows by `benchmarks/records.py --task audit`.
"""

from __future__ import annotations

import importlib
import json
import lzma
import math
import shutil
from pathlib import Path

import pytest
import torch
from dp_accounting.dp_event import GaussianDpEvent

from winsor.accounting import certify
from winsor.contract import Neighbouring

ROOT = Path(__file__).parents[1]


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module


def test_colours_as_brightness_and_differences(script):
    opponent = script("records_features").opponent
    grey = torch.full((1, 3, 2, 2), 0.3)
    assert torch.allclose(opponent(grey)[0, :, 0, 0], torch.tensor([0.3, 0.5, 0.5]))
    corners = torch.cartesian_prod(*3 * [torch.tensor([0.0, 1.0])])[:, :, None, None]
    found = opponent(corners)[:, :, 0, 0]
    assert found.min() == 0 and found.max() == 1
    assert torch.linalg.matrix_rank(found - found[0]) == 3  # no colour is lost


def test_first_filters_are_waves_of_one_size(script):
    waves = script("records_cnn").oriented(16).flatten(1)
    assert torch.allclose(waves.norm(dim=1), torch.tensor(1 / math.sqrt(3)))
    assert waves.sum(1).abs().max() < 1e-5
    alike = (3 * waves @ waves.T).fill_diagonal_(0)
    assert alike.abs().max() < 0.9


def test_releases_before_a_tuning_leave_less_for_it(script):
    inside = script("records_inside")
    assert inside.left_of(3.0, 1e-5, []) == 3.0
    left = inside.left_of(3.0, 1e-5, [10.0, 5.0, 5.0])
    relation = Neighbouring.ADD_OR_REMOVE_ONE
    before = [(GaussianDpEvent(noise), 1) for noise in (10.0, 5.0, 5.0)]
    spent = inside.calibrate.noise_multiplier(GaussianDpEvent, 1, left, 1e-5, relation)
    both = certify([*before, (GaussianDpEvent(spent), 1)], 1e-5, relation).epsilon
    assert 2.8 < both < 3.0


def test_the_look_at_held_out_rows_learns_and_shrinks_noise(script):
    look = script("records_held_out")
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(400) % 10
    z = torch.nn.functional.one_hot(y, 30).float() + 0.1 * torch.randn(400, 30, generator=generator)
    grid = [(1.0, 1.0), (5.0, 2.0)]
    weights, average = look.descend(z, y, grid, 20, 0.0, 0)
    assert min(look.accuracies(weights, z, y) + look.accuracies(average, z, y)) > 95
    noise = 0.3 * look.in_weights(20)
    noisy, _ = look.descend(torch.zeros(400, 30), y, grid, 20, 0.3, 0)
    assert noisy[:10, :30].std() == pytest.approx(noise, rel=0.2)
    kept = look.shrunk(noisy, grid, noise, torch.ones(30))[:, :30]
    assert kept.norm() < 0.3 * noisy[:, :30].norm()


def test_records_name_what_they_release(script):
    records = script("records")
    for record in records.RECORDS.values():
        noises = script("records_normalised").released_with(record)
        assert len(noises) == (record.axes is not None) + 2 * (record.white is not None)


@pytest.fixture
def cell(script, tmp_path):
    """A small record with every kind of release before its steps, its ledgers packed below
    ``tmp_path / "kept"``."""
    records, ledgers = script("records"), script("records_ledgers")
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(120, 3, 2, 2, generator=generator)
    y = torch.randint(10, (120,), generator=generator)
    small = records.Setting(1.0, 0.5, 40, 4)
    record = records.Record("", 3.0, small, bounds=(2.0, 2.0), white=5.0, axes=(5.0, 0.7))
    name = ledgers.name_of("it", "tuned adjusted", 0)
    place = ledgers.place_for(tmp_path / "work", name)
    trained = records.train(x, y, record, "tuned adjusted", 0, small=small, ledger=place)
    total = records.winsor.total(*trained.spent, delta=1e-5)
    return {
        "accuracy": 1.0, "epsilon": round(total.epsilon, 4), "delta": 1e-5, "rows": 120,
        "releases": total.steps, "guarantee": str(total),
        "ledgers": ledgers.keep(tmp_path / "work", name, tmp_path / "kept"),
    }  # fmt: skip


def test_every_release_of_a_record_is_in_a_ledger_that_its_page_shows(script, cell, tmp_path):
    parts = ["axes.", "counts.", "moments.", "whitening.", ""]
    assert [*cell["ledgers"]] == [f"it-tuned-adjusted-0.{part}ledger" for part in parts]
    shutil.rmtree(tmp_path / "work")  # the machine that made them
    write = script("records_report").write
    (page,) = write({"it | tuned adjusted | 0": cell}, tmp_path / "pages", tmp_path / "kept")
    text = page.read_text()
    assert text.count(f"{cell['epsilon']:.4f}") >= 2  # of the cell, and of the files
    assert "it-tuned-adjusted-0.whitening.ledger, 2 releases" in text


def test_a_cell_that_its_ledgers_do_not_bear_out_is_found(script, cell, tmp_path):
    ledgers, kept = script("records_ledgers"), tmp_path / "kept"
    results = {"it | tuned adjusted | 0": cell, "it | blind | 0": {}, "audit": {}}
    assert ledgers.verify(results, kept) == ([], ["it | blind | 0"])
    for name, value in (("epsilon", cell["epsilon"] - 0.0001), ("releases", 3), ("rows", 60)):
        (wrong,) = ledgers.disagreements({**cell, name: value}, kept)
        assert wrong.startswith(name)
    counts = "it-tuned-adjusted-0.counts.ledger"
    fewer = {name: head for name, head in cell["ledgers"].items() if name != counts}
    less = {**cell, "ledgers": fewer}
    wrong, _ = ledgers.verify({"it | tuned adjusted | 0": less}, kept)
    assert [line.split(": ")[1] for line in wrong[:2]] == ["releases", "epsilon"]
    assert wrong[2] == f"{counts}.xz: no cell names it"
    other = {**cell, "ledgers": {**cell["ledgers"], counts: "0" * 16}}
    assert ledgers.disagreements(other, kept)[0].startswith("ledgers")
    packed = kept / f"{counts}.xz"
    packed.write_bytes(
        lzma.compress(lzma.decompress(packed.read_bytes()).replace(b"10.0", b"99.0"))
    )
    assert "does not fit" in ledgers.disagreements(cell, kept)[0]
    packed.unlink()
    assert not ledgers.is_kept(cell, kept) and ledgers.disagreements(cell, kept)


def test_every_kept_ledger_bears_out_its_cell(script):
    """Seeds of a record spend alike, so the account of the first serves all."""
    ledgers = script("records_ledgers")
    results = json.loads((ROOT / "benchmarks" / "results" / "records.json").read_text())
    wrong, _ = ledgers.verify(results)
    assert not wrong
    kept = [cell for cell in results.values() if "ledgers" in cell]
    assert kept and not [cell["commit"] for cell in kept if cell["commit"].endswith("+")]


def test_a_tuning_that_ended_is_not_paid_for_twice_in_one_file(script, tmp_path):
    place_for = script("records_ledgers").place_for
    tuning = place_for(tmp_path, "it").with_suffix(".tuning")
    (tuning / "sealed").mkdir(parents=True)
    place_for(tmp_path, "it")
    assert tuning.is_dir()  # killed: it goes on
    (tuning / "sealed").rmdir()
    place_for(tmp_path, "it")
    assert not tuning.exists()


def test_the_long_tailed_look_judges_by_rows_that_no_model_is_trained_on(script):
    look = script("records_long_tailed")
    y = torch.arange(60_000) % 10
    train, judges = look.split(y)
    assert not set(train.tolist()) & set(judges.tolist())
    assert torch.bincount(y[judges]).tolist() == 10 * [look.EACH]
    assert (y[train] == 0).sum() == 6000 - look.EACH and (y[train] == 9).sum() == 60


def test_the_look_at_the_recipe_follows_the_quantile_and_learns(script):
    look = script("records_recipe")
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(2000) % 10
    z = torch.nn.functional.one_hot(y, 20).float() + 0.1 * torch.randn(
        2000, 20, generator=generator
    )
    plans = [look.Plan.of("quantile:0.9:0.5:60:0.1"), look.Plan.of("threshold:0.5:0.5:60:0.2")]
    last, average, cut = look.descend(z, y, plans, [0.0, 0.0], 0)
    assert min(look.accuracies(last, z, y) + look.accuracies(average, z, y)) > 95
    assert cut[0] < 0.5 and cut[1] == 0.5  # rows are fitted, their norms fall, one follows
    quiet, loud = (plans[1].noise(50_000, epsilon) for epsilon in (3.0, 1.0))
    assert quiet < loud


def test_the_classes_of_the_network_see_what_its_setting_says(script):
    cnn = script("records_cnn")
    images = torch.randn(2, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    sizes = {}
    for hidden, seen in ((32, "last"), (0, "last"), (0, "both")):
        model = cnn.Network(cnn.Setting(hidden=hidden, seen=seen))
        assert model(images).shape == (2, 10)
        sizes[hidden, seen] = sum(p.numel() for p in model.parameters())
    assert sizes == {(32, "last"): 26_010, (0, "last"): 14_394, (0, "both"): 16_954}
