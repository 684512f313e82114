"""The kept ledgers of the records bear out every figure, and the check finds what does not."""

from __future__ import annotations

import importlib
import json
import lzma
import shutil
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import winsor
from winsor.core.ledger.ledger import Ledger
from winsor.features import PrivateAxes, PrivateNorm, PrivateWhitening
from winsor.training.losses import released_counts

ROOT = Path(__file__).parents[1]
CELL = "it-tuned-adjusted-0"


@pytest.fixture
def records(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("records")


def trained(x: torch.Tensor, y: torch.Tensor, folder: Path) -> list[object]:
    """A small record with every kind of release before its steps; each has a ledger of its own."""

    def kept(part: str) -> dict[str, object]:
        path = folder / f"{CELL}.{part}ledger"
        return {"delta": 1e-5, "seed": 0, "allow_large_delta": True, "ledger": path}

    bounds = {"mean_bound": 2.0, "square_bound": 2.0}
    moments = PrivateNorm(**bounds, noise_multiplier=10.0, **kept("moments.")).fit(x)
    axes = PrivateAxes(noise_multiplier=5.0, power=0.7, **kept("axes.")).fit(moments(x).half())
    maps = axes(moments(x)).flatten(1)
    white = PrivateWhitening(noise_multiplier=5.0, **kept("whitening.")).fit(maps.half())
    counts = released_counts(y, 10, noise_multiplier=10.0, **kept("counts."))
    rows = white(maps)
    model = torch.nn.Linear(rows.shape[1], 10)
    spent = [moments, axes, white, counts]
    private = winsor.make_private(
        model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
        dataset=TensorDataset(rows, y), rule=winsor.rules.Flat(1.0), batch_size=40, steps=4,
        epsilon=3.0, after=spent, **kept(""),
    )  # fmt: skip
    for batch, labels in private.batches():
        private.step(F.cross_entropy(model(batch), labels, reduction="none"))
    private.detach()
    return [*spent, private]


@pytest.fixture
def cell(tmp_path):
    """The cell of such a record, its ledgers packed below ``tmp_path / "kept"``."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(120, 3, 2, 2, generator=generator)
    y = torch.randint(10, (120,), generator=generator)
    work, kept = tmp_path / "work", tmp_path / "kept"
    work.mkdir()
    kept.mkdir()
    total = winsor.total(*trained(x, y, work), delta=1e-5)
    heads = {path.name: Ledger.read(path).head for path in sorted(work.glob("*.ledger"))}
    for name in heads:
        (kept / f"{name}.xz").write_bytes(lzma.compress((work / name).read_bytes()))
    return {
        "accuracy": 1.0, "epsilon": round(total.epsilon, 4), "delta": 1e-5, "rows": 120,
        "releases": total.steps, "guarantee": str(total), "ledgers": heads,
    }  # fmt: skip


def test_every_release_of_a_record_is_in_a_ledger_that_its_page_shows(records, cell, tmp_path):
    parts = ["axes.", "counts.", "", "moments.", "whitening."]
    assert [*cell["ledgers"]] == [f"{CELL}.{part}ledger" for part in parts]
    shutil.rmtree(tmp_path / "work")  # the machine that made them
    (page,) = records.write({"it | tuned adjusted | 0": cell}, tmp_path / "p", tmp_path / "kept")
    text = page.read_text()
    assert text.count(f"{cell['epsilon']:.4f}") >= 2  # of the cell, and of the files
    assert f"{CELL}.whitening.ledger, 2 releases" in text


def test_a_cell_that_its_ledgers_do_not_bear_out_is_found(records, cell, tmp_path):
    kept = tmp_path / "kept"
    results = {"it | tuned adjusted | 0": cell, "it | blind | 0": {}, "audit": {}}
    assert records.verify(results, kept) == ([], ["it | blind | 0"])
    for name, value in (("epsilon", cell["epsilon"] - 0.0001), ("releases", 3), ("rows", 60)):
        (wrong,) = records.disagreements({**cell, name: value}, kept)
        assert wrong.startswith(name)
    counts = f"{CELL}.counts.ledger"
    fewer = {name: head for name, head in cell["ledgers"].items() if name != counts}
    less = {**cell, "ledgers": fewer}
    wrong, _ = records.verify({"it | tuned adjusted | 0": less}, kept)
    assert [line.split(": ")[1] for line in wrong[:2]] == ["releases", "epsilon"]
    assert wrong[2] == f"{counts}.xz: no cell names it"
    other = {**cell, "ledgers": {**cell["ledgers"], counts: "0" * 16}}
    assert records.disagreements(other, kept)[0].startswith("ledgers")
    packed = kept / f"{counts}.xz"
    packed.write_bytes(
        lzma.compress(lzma.decompress(packed.read_bytes()).replace(b"10.0", b"99.0"))
    )
    assert "does not fit" in records.disagreements(cell, kept)[0]
    packed.unlink()
    assert not records.is_kept(cell, kept) and records.disagreements(cell, kept)


def test_every_kept_ledger_bears_out_its_cell(records):
    """Seeds of a record spend alike, so the account of the first serves all."""
    results = json.loads((ROOT / "benchmarks" / "results" / "records.json").read_text())
    wrong, _ = records.verify(results)
    assert not wrong
    kept = [cell for cell in results.values() if "ledgers" in cell]
    assert kept and not [cell["commit"] for cell in kept if cell["commit"].endswith("+")]


def test_the_check_on_the_command_line_fails_where_something_disagrees(
    records, monkeypatch, tmp_path, capsys
):
    (tmp_path / "records.json").write_text('{"audit": {}, "it | blind | 0": {}}')
    monkeypatch.setattr(records, "FOLDER", tmp_path)
    monkeypatch.setattr("sys.argv", ["records.py", "--verify"])
    with pytest.raises(SystemExit, match=r"mnist-blind-0.*no cell names it"):
        records.main()
    assert "0 cells checked" in capsys.readouterr().out
