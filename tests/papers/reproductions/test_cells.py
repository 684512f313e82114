"""Cells are kept when they are finished, found again, planned and probed; torn lines are left."""

from __future__ import annotations

import json
import math
import time

import pytest
import torch
from winsor_papers.reproductions import cells
from winsor_papers.reproductions.cells import (
    Book,
    OutOfTime,
    Wanted,
    cell,
    data_name,
    described,
    kept,
    read_journal,
)


class Work:
    """Counts how often it is done."""

    def __init__(self, value=1.0):
        self.done, self.parts, self.value = 0, [], value

    def wanted(self, seed=1, kind="toy", steps=100):
        return Wanted(kind, {"seed": seed}, self, {"x": 0.5}, steps, self.parts.append)

    def __call__(self):
        self.done += 1
        return {"x": self.value, "curve": [1.0, math.inf]}


def test_without_a_book_nothing_is_kept():
    work = Work()
    assert cell(work.wanted()) == cell(work.wanted())
    assert work.done == 2


def test_a_finished_cell_is_not_done_again(tmp_path):
    work = Work(math.nan)
    with kept(Book(tmp_path, "p", "a", commit="abc")):
        first = cell(work.wanted())
    with kept(Book(tmp_path, "p", "a")):
        again = cell(work.wanted())
        cell(work.wanted(seed=2))
    assert work.done == 2
    assert math.isnan(first["x"]) and math.isnan(again["x"]) and again["curve"] == [1.0, math.inf]
    records = read_journal(tmp_path / "p-a.jsonl")
    assert [record["settings"]["seed"] for record in records] == [1, 2]
    assert records[0]["commit"] == "abc" and records[0]["processor_seconds"] >= 0


def test_tables_of_a_paper_share_cells_and_papers_do_not(tmp_path):
    work = Work()
    for paper, table in (("p", "a"), ("p", "b"), ("q", "a")):
        with kept(Book(tmp_path, paper, table)):
            cell(work.wanted())
    assert work.done == 2


@pytest.mark.parametrize("cut", [1, 20, 60])
def test_an_interruption_costs_one_cell(tmp_path, cut):
    """Wherever the last line was torn, the cells before it stay and new ones can be added."""
    work = Work()
    with kept(Book(tmp_path, "p", "a")):
        cell(work.wanted(1))
        cell(work.wanted(2))
    path = tmp_path / "p-a.jsonl"
    path.write_bytes(path.read_bytes()[:-cut])
    with kept(Book(tmp_path, "p", "a")):
        cell(work.wanted(1))
        cell(work.wanted(2))
        cell(work.wanted(3))
    again = 3 if cut == 1 else 4  # without its last line feed only, a line is whole
    assert work.done == again
    assert {record["settings"]["seed"] for record in read_journal(path)} == {1, 2, 3}


def test_a_plan_does_no_work_but_knows_what_was_done(tmp_path):
    work = Work(7.0)
    with kept(Book(tmp_path, "p", "a")):
        cell(work.wanted(1))
    with kept(book := Book(tmp_path, "p", "a", mode="plan")):
        assert cell(work.wanted(1))["x"] == 7.0
        assert cell(work.wanted(2)) == {"x": 0.5}
    assert work.done == 1
    assert [asked.done for asked in book.asked] == [True, False]


def test_a_probe_begins_each_unknown_kind_once(tmp_path):
    work = Work()
    with kept(book := Book(tmp_path, "p", "a", mode="probe")):
        cell(work.wanted(1))
        cell(work.wanted(2))
        cell(work.wanted(1, kind="other"))
    assert work.done == 0 and work.parts == [1, 1, 9, 100] * 2  # too short to be seen
    assert set(book.probed) == {"toy", "other"}
    assert not (tmp_path / "p-a.jsonl").exists()


def test_a_dear_probe_is_not_repeated(tmp_path, monkeypatch):
    """One step of a large network may take a minute: its own time is the estimate."""
    monkeypatch.setattr(cells, "DEAR", 0.0)
    work = Work()
    with kept(book := Book(tmp_path, "p", "a", mode="probe")):
        cell(work.wanted(1))
    assert work.parts == [1]
    assert book.probed["toy"] > 0


def test_a_probe_keeps_a_cell_that_cannot_be_cut(tmp_path):
    work = Work(7.0)
    whole = [Wanted("whole", {"seed": seed}, work, {"x": 0.5}) for seed in (1, 2)]
    with kept(Book(tmp_path, "p", "a", mode="probe")):
        assert [cell(wanted)["x"] for wanted in whole] == [7.0, 0.5]
    assert work.done == len(read_journal(tmp_path / "p-a.jsonl")) == 1


def test_no_cell_is_begun_after_the_deadline(tmp_path):
    work = Work()
    with kept(Book(tmp_path, "p", "a")):
        cell(work.wanted(1))
    with kept(Book(tmp_path, "p", "a", deadline=time.monotonic() - 1)):
        assert cell(work.wanted(1))["x"] == 1.0  # what is there is still read
        with pytest.raises(OutOfTime):
            cell(work.wanted(2))
    assert work.done == 1


def test_names_follow_the_content():
    rows = torch.arange(12.0).reshape(6, 2)
    assert data_name(rows) == data_name(rows.clone())
    changed = rows.clone()
    changed[3, 1] += 1
    assert len({data_name(rows), data_name(changed), data_name(rows[:5])}) == 3
    assert described(object()) == "<object object>"
    one, other = Work().wanted(1), Work().wanted(2)
    assert one.name != other.name and json.dumps(one.settings)


def test_a_cell_is_found_again_on_a_processor_that_rounds_elsewhere(tmp_path):
    def wanted(noise, rate=0.25):
        settings = {"noise": noise, "descent": {"lr": rate}, "rows": [1, 0.1]}
        return Wanted("a run", settings, lambda: {"x": noise}, {"x": 0.0})

    here, there = 0.726124265353069, 0.726124265353095
    assert Book(tmp_path, "one", "a").take(wanted(here)) == {"x": here}
    again = Book(tmp_path, "one", "a")
    assert again.take(wanted(there)) == {"x": here}
    assert again.take(wanted(0.7261243)) == {"x": 0.7261243}  # another noise
    assert again.take(wanted(here, 0.5)) == {"x": here}  # another run
    assert len(read_journal(tmp_path / "one-a.jsonl")) == 3
