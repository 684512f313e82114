"""Tables 2 and 3 of ModelMix on images made up here."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from winsor_papers.reproductions.cifar import CifarSize
from winsor_papers.reproductions.modelmix import deep as modelmix_deep
from winsor_papers.reproductions.modelmix.deep import (
    MIXING,
    PLAIN,
    QUICK,
    SMALL,
    Deep,
    needed,
    table_2,
    table_2_verdict,
    table_3,
    table_3_verdict,
)
from winsor_papers.reproductions.reproduction import Line, Measured, Request


@pytest.fixture
def folder(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    arrays = {}
    for part, n in (("train", 60), ("test", 20)):
        arrays[f"x_{part}"] = rng.integers(0, 256, (n, 3, 32, 32), dtype=np.uint8)
        arrays[f"y_{part}"] = rng.integers(0, 10, n, dtype=np.uint8)
    np.savez(tmp_path / "cifar10_20k_5k.npz", **arrays)
    tiny = dataclasses.replace(
        QUICK, size=CifarSize(50, 10, 0.4, "cnn"), table_2=(8.0,), table_3=(8.0,)
    )
    monkeypatch.setattr(modelmix_deep, "QUICK", tiny)
    return tmp_path


def test_both_tables_come_from_the_same_runs(folder, monkeypatch):
    request = Request(quick=True, data=folder, seeds=1)
    second = table_2(request)
    assert [line.label["method"] for line in second.lines] == [PLAIN, MIXING, SMALL]
    plain, mixing, small = second.lines
    assert (plain.printed, mixing.printed, small.printed) == ("56.1", "70.4", None)
    assert mixing.published is not None and plain.published is None
    assert all(line.certified_epsilon <= 8.0 for line in second.lines)
    assert mixing.published_certifies > 0
    monkeypatch.setattr(modelmix_deep, "deep_runs", None)  # kept, not run again
    third = table_3(request)
    assert [line.certified.mean for line in third.lines] == [8.0]
    assert set(third.lines[0].extra) == {f"{PLAIN} needs", f"{SMALL} needs"}
    assert "50 rows, 2 steps of 10" in second.notes[0]


def test_the_width_is_the_papers_for_the_account():
    setting = Deep()
    assert setting.width(1500) == 0.15
    assert setting.width(150) * 150 / setting.clip == pytest.approx(11.25)


def test_the_epsilon_an_accuracy_needs():
    curve = [(1.0, 10.0), (10.0, 30.0), (100.0, 20.0)]
    assert needed(curve, 20.0) == pytest.approx((math.sqrt(10),) * 2)
    assert needed(curve, 5.0) == (0.0, 1.0)
    assert needed(curve, 31.0) == (100.0, math.inf)


def lines(plain, mixing, small):
    found = {PLAIN: plain, MIXING: mixing, SMALL: small}
    return [
        Line({"nominal": "8", "method": name}, certified=Measured(value, 0.5, 3),
             published=Measured(value + 1, 0.5, 3))
        for name, value in found.items()
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("accuracies", "word"),
    [
        ((50, 10, 55), "Mixing stays at chance."),
        ((50, 60, 55), "c = 1: Reproduced in 1"),
        ((50, 60, 65), "bound: Reproduced in 1"),
        ((50, 60, 65), "c = 1: Not reproduced at our size in 1"),
        ((50, 40, 65), "bound: Not reproduced at our size in 1"),
    ],
)
def test_the_verdict_of_table_2(accuracies, word):
    assert word in table_2_verdict(lines(*accuracies))


def test_the_verdict_of_table_3():
    low, high = [(4.0, 20.0), (64.0, 40.0)], [(4.0, 30.0), (64.0, 50.0)]
    assert table_3_verdict({MIXING: high, PLAIN: low, SMALL: low}).startswith("Reproduced")
    assert table_3_verdict({MIXING: high, PLAIN: low, SMALL: high}).startswith("Not reproduced")
    assert table_3_verdict({MIXING: low, PLAIN: high, SMALL: high}).startswith("Not reproduced")
    chance = [(4.0, 9.0), (64.0, 11.0)]
    assert table_3_verdict({MIXING: chance, PLAIN: high, SMALL: high}).startswith("Undecided")
