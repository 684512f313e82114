"""The E2E table with a language model, in small: a tiny model in its place, a few rows."""

from __future__ import annotations

import csv
import gzip
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny_llama
import torch
from winsor_papers.reproductions.cells import Book, kept
from winsor_papers.reproductions.dc_dpsgd import e2e_smollm2 as table
from winsor_papers.reproductions.dc_dpsgd import e2e_smollm2_runs as runs
from winsor_papers.reproductions.dc_dpsgd.e2e_smollm2_runs import (
    ByLength,
    Corpus,
    Size,
    Way,
    kept_states,
    loss_of,
    prepare,
    trained,
)
from winsor_papers.reproductions.dc_dpsgd.methods import DC, DC_NORM, DcSetting
from winsor_papers.reproductions.reproduction import Line, Measured, Request

from winsor.core.randomness import new_key
from winsor.core.sampling.samplers import Poisson
from winsor.rules.flat import Flat

KINDS, AREAS = ("pub", "inn"), ("riverside", "centre")
ROWS = [
    (f"name[Inn {i}], eatType[{KINDS[i % 2]}]", f"Inn {i} is a {KINDS[i % 2]} ." + " Good ." * i)
    for i in range(40)
]
SIZE = Size(
    layers=1, rank=4, frequent=5, batch_size=8, steps=3, looked_at=10, prompts=4, rates=(0.01, 0.1)
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """E2E's files, and beside them the features folder with a model."""
    for part in ("train", "dev", "test_w_refs"):
        with gzip.open(tmp_path / f"e2e_{part}.csv.gz", "wt", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("mr", "ref"), *ROWS])
    features = tmp_path / "features"
    tiny_llama.write(features / "smollm2-135m", ROWS, layers=2)
    monkeypatch.setenv("WINSOR_FEATURES", str(features))
    return tmp_path


def test_the_table_from_files_to_verdict(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "QUICK", SIZE)
    request = Request(quick=True, data=folder, seeds=2)
    with kept(Book(folder / "cells", "dc-dpsgd", "e2e-smollm2")) as book:
        result = table.e2e_smollm2(request)
    assert book is not None
    kinds = [record["kind"].split(", ")[2] for record in book.known.values()]
    assert kinds.count("run") == 5 * 2 and kinds.count("trial") >= 5 * 2  # of five ways
    assert [line.label["method"] for line in result.lines] == list(table.METHODS)
    for line in result.lines[:-1]:
        assert line.certified is not None and 0 <= line.certified.mean <= 100
        assert line.certified_epsilon is not None and 7.5 < line.certified_epsilon <= 8
        assert line.extra["rates tried, certified"].count(":") >= 2
    dc, plain = result.lines[1], result.lines[-1]
    assert dc.published is not None and dc.published_certifies not in (None, dc.certified_epsilon)
    assert plain.certified is None and plain.published is not None
    assert plain.extra["loss per word, published"] != "0"
    assert "0.6 passes over 40 rows" in result.notes[0]
    with kept(Book(folder / "cells", "dc-dpsgd", "e2e-smollm2")) as again:
        assert table.e2e_smollm2(request).lines == result.lines
    assert again is not None and all(one.done for one in again.asked)


@pytest.mark.parametrize(
    ("losses", "chosen"),
    [
        ({0.01: 2.0, 0.1: 1.0, 1.0: 1.5}, 0.1),  # the longest helped: one more is tried
        ({0.01: 2.0, 0.1: 1.0, 1.0: 0.5, 10.0: 0.7}, 1.0),
        ({0.01: 1.0, 0.1: 2.0}, 0.01),
    ],
)
def test_rates_are_tried_as_long_as_longer_ones_help(
    folder: Path, monkeypatch: pytest.MonkeyPatch, losses: dict[float, float], chosen: float
) -> None:
    asked: list[float] = []

    def trial(corpus: Corpus, way: Way, rate: float) -> float:
        asked.append(round(rate, 6))
        return losses[asked[-1]]

    def run(corpus: Corpus, way: Way, rate: float, seed: int, guessed: bool) -> dict[str, float]:
        return {"bleu": rate, "loss": 1.0, "epsilon": 1.0}

    monkeypatch.setattr(table, "trial", trial)
    monkeypatch.setattr(table, "run", run)
    found = table.runs(prepare(folder, SIZE), Way("plain", None), (1, 2))
    assert asked == list(losses) and found.bleu.mean == pytest.approx(chosen)
    assert found.curve.count(":") == len(losses)


def test_a_plan_needs_no_model(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WINSOR_FEATURES", str(tmp_path / "nothing"))
    monkeypatch.setattr("winsor_papers.reproductions.language_model.PACKAGE", "no_such_package")
    monkeypatch.setattr(table, "FULL", replace(table.FULL, batch_size=8))
    with kept(Book(tmp_path / "cells", "dc-dpsgd", "e2e-smollm2", mode="gather")) as book:
        table.e2e_smollm2(Request(data=folder))
    assert book is not None and len(book.asked) == 1 + 5 * (3 + 3)
    assert len(book.missing) == 1 + 5 * 3  # runs wait for the rates that trials will choose


def test_private_and_plain_training_learn(folder: Path) -> None:
    corpus = prepare(folder, replace(SIZE, steps=12, batch_size=20))
    before = loss_of(corpus, corpus.model())
    model, epsilon = trained(corpus, Way("plain", None), 0.1, seed=1, steps=12)
    assert loss_of(corpus, model) < before - 0.05 and epsilon == 0
    ways = [Way("flat", Flat(0.1), noise) for noise in (1.0, 1.0, 3.0)]
    found = [trained(corpus, way, 0.03, seed=1, steps=12) for way in ways]
    losses = [loss_of(corpus, model) for model, _ in found]
    assert losses[0] == losses[1] != losses[2]
    assert found[0][1] == found[1][1] > found[2][1] > 0


def test_batches_by_length_are_poisson_batches() -> None:
    """The same rows in another order, and the same events."""
    key, plain, sorted_ = new_key(0), Poisson(500, 0.1), ByLength(500, 0.1)
    for step in range(5):
        rows = sorted_.indices(key, step)
        assert np.array_equal(rows, np.sort(plain.indices(key, step)))
    assert sorted_.rate == plain.rate and sorted_.expected_size == plain.expected_size


def test_fragments_are_narrow(folder: Path) -> None:
    rows = prepare(folder, SIZE).rows
    lengths = [len(rows[i][0]) for i in range(len(rows))]
    assert lengths == sorted(lengths) and lengths[0] < lengths[-1]


def test_states_are_kept_in_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = prepare(folder, SIZE)
    texts = [corpus.speaker.text(pair.mr, pair.ref) for pair in corpus.train]
    once = kept_states(corpus.speaker, texts, 1, "one-file")
    monkeypatch.setattr(runs, "SHARD", 16)
    found = kept_states(corpus.speaker, texts, 1, "files")
    paths = sorted((folder / "features").glob("files-*.pt"))
    assert len(paths) == 3
    for one, other, text in zip(once, found, texts, strict=True):
        assert len(one) == len(text.tokens)
        torch.testing.assert_close(one, other, rtol=0.02, atol=0.02)  # padded to other lengths
    written = [path.stat().st_mtime_ns for path in paths]
    kept_states(corpus.speaker, texts, 1, "files")
    assert [path.stat().st_mtime_ns for path in paths] == written
    others = [corpus.speaker.text(pair.mr, f"Now {pair.ref}") for pair in corpus.train]
    kept_states(corpus.speaker, others, 1, "files")  # as many, but not the same
    assert len(list((folder / "features").glob("files-*.pt"))) == 6


def test_cells_are_named_by_their_texts(folder: Path) -> None:
    corpus = prepare(folder, SIZE)
    fewer = Corpus(SIZE, corpus.train[:-1], corpus.dev, corpus.prompts, corpus.references)
    longer = prepare(folder, replace(SIZE, steps=4))
    names = [str(each.identity) for each in (corpus, prepare(folder, SIZE), fewer, longer)]
    assert names[0] == names[1] and len(set(names)) == 3


def _lines(dc: float, published: float, norm: float) -> list[Line]:
    def measured(mean: float) -> Measured:
        return Measured(mean, 0.2, 3)

    flat, rank, own = ({"loss per word, certified": f"{loss} ± 0.01"} for loss in (1.6, 2.0, 1.5))
    return [
        Line({"method": "DP-SGD"}, "63.389", certified=measured(50.0), extra=flat),
        Line({"method": DC}, "64.150", measured(published), measured(dc), 8.0, 14.6, rank),
        Line({"method": DC_NORM}, certified=measured(norm), extra=own),
    ]


def test_the_verdict_follows_the_numbers() -> None:
    start = {"bleu": 5.0, "loss": 2.8}
    ahead = table.verdict(_lines(53.0, 45.0, 52.0), start)
    certified, published, own = ahead.split(";", 1)[0], ahead.split("paper's account")[1], ahead
    assert "Reproduced in 1 of 1" in certified
    assert "Not reproduced at our size in 1 of 1" in published.split("By norm")[0]
    assert "certifies epsilon 14.6" in published and "claimed +0.761" in published
    assert "Ahead in 1" in own.split("By norm")[1]
    assert "from 5.0 to 53.0 at best" in own
    rank, norm = own.split("In loss per word")[1].split("; by norm")
    assert "by rank: Behind in 1 of 1 tunings (measured -0.4" in rank
    assert "Ahead in 1 of 1 tunings (measured +0.1" in norm
    behind = table.verdict(_lines(45.0, 45.0, 45.0), start)
    assert "ahead of flat clipping when certified: Not reproduced" in behind
    assert "Behind in 1" in behind.split("By norm")[1]
    assert table.verdict([], start).startswith("No verdict")


def test_the_printed_bounds_are_used() -> None:
    setting = DcSetting()
    assert (setting.c1, setting.c2, setting.epsilon) == (1.0, 0.1, 8.0)
    assert math.isclose(table.FULL.batch_size * table.FULL.steps / 42_061, 0.243, abs_tol=0.01)
