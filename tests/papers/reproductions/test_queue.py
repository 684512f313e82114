"""The queue: plan, cost, order, stop and go on; on two toy tables."""

from __future__ import annotations

import json
import math

import pytest
from winsor_papers.reproductions import queue
from winsor_papers.reproductions.cells import Book, Together, Wanted, cell
from winsor_papers.reproductions.reproduction import Line, Measured, Reproduced, Request

KEY = ("one", "a")


def table(seeds, kind="quick kind", log=None):
    """A table of one line whose seeds are its cells."""

    def run(request):
        values = []
        for seed in range(seeds):
            wanted = Wanted(
                kind, {"seed": seed}, lambda seed=seed: _work(seed, log), {"x": 0.0}, 10,
                lambda steps: None,
            )  # fmt: skip
            values.append(cell(wanted)["x"])
        return Reproduced("T", "x", (Line({}, certified=Measured.of(values)),), "v", {})

    return run


def _work(seed, log):
    if log is not None:
        log.append(seed)
        if len(log) == 3:
            raise KeyboardInterrupt
    return {"x": float(seed)}


def test_a_stopped_table_goes_on_where_it_was(tmp_path):
    log = []
    with pytest.raises(KeyboardInterrupt):
        queue.run_table(tmp_path, KEY, table(4, log=log), Request(), math.inf)
    result = queue.run_table(tmp_path, KEY, table(4, log=log), Request(), math.inf)
    assert log == [0, 1, 2, 2, 3]  # only the cell that was interrupted is done again
    assert result.lines[0].certified.mean == 1.5
    assert queue.spent_on(tmp_path, KEY) >= 0


def test_out_of_time_is_no_result(tmp_path):
    assert queue.run_table(tmp_path, KEY, table(2), Request(), deadline=-1.0) is None


def test_progress_from_plan_and_journal(tmp_path):
    runs = {KEY: table(4), ("one", "b"): table(2, "unknown kind")}
    queue.plan_all(tmp_path, runs, Request())
    queue.run_table(tmp_path, KEY, table(1), Request(), math.inf)
    a, b = queue.progress(tmp_path, runs)
    assert (a.planned, a.done, a.finished) == (4, 1, False)
    assert a.left == pytest.approx(3 * queue.costs(tmp_path)["quick kind"])
    assert b.left is None and "unknown kind" in b.why
    queue.plan_all(tmp_path, runs, Request(), "probe")
    a, b = queue.progress(tmp_path, runs)
    assert b.left is not None  # begun, so its cost is estimated
    assert {row[2] for row in queue.status_lines([a, b])} == {"1/4", "0/2"}


def test_cells_of_another_table_of_the_paper_are_not_left(tmp_path):
    runs = {KEY: table(3), ("one", "b"): table(5)}
    queue.run_table(tmp_path, KEY, table(3), Request(), math.inf)
    queue.plan_all(tmp_path, runs, Request())
    _, b = queue.progress(tmp_path, runs)
    assert (b.planned, b.done) == (2, 0)  # the other three were paid for by the first table
    assert b.left == pytest.approx(2 * queue.costs(tmp_path)["quick kind"])


def test_finished_tables_leave_the_queue_and_the_cheapest_is_first(tmp_path):
    (tmp_path / "one-a.json").write_text(json.dumps({"quick": False, "processor_seconds": 7.0}))
    (tmp_path / "one-b.json").write_text(json.dumps({"quick": True, "processor_seconds": 7.0}))
    found = queue.progress(tmp_path, [KEY, ("one", "b"), ("one", "c")])
    assert [one.finished for one in found] == [True, False, False]  # a smoke run finishes nothing
    assert found[0].spent == 7.0
    cheap = queue.Progress("p", "cheap", 1, 0, 0.0, 1.0, False)
    dear = queue.Progress("p", "dear", 1, 0, 0.0, 9.0, False)
    order = queue.in_order([found[1], dear, found[0], cheap])
    assert [one.table for one in order] == ["cheap", "dear", "b"]


def test_a_table_that_a_stand_in_misleads_says_so(tmp_path):
    def run(request):
        table(2)(request)
        raise ZeroDivisionError("no spread")

    queue.plan_all(tmp_path, {KEY: run}, Request())
    entry = queue.read_plan(tmp_path)["one-a"]
    assert entry["kinds"] == {"quick kind": 2} and entry["why"] == "ZeroDivisionError: no spread"


# ------------------------------------------------------------------------------ several processes


def of_team(name, work):
    together = Together(name, name, lambda members: [work(name) for _ in members])
    return Wanted("kind", {"of": name}, lambda: work(name), {"x": 0.0}, together=together)


@pytest.mark.parametrize("other_finishes", [True, False])
def test_what_another_process_works_for_is_left_for_last(tmp_path, other_finishes):
    log = []
    other = Book(queue.cells_folder(tmp_path), *KEY, in_teams=True)
    theirs = of_team("theirs", lambda name: {"x": 5.0})
    held = other.taken([theirs])
    held.__enter__()

    def work(name):
        log.append(name)
        if name == "ours":  # meanwhile the other one ends, with or without a result
            if other_finishes:
                other.work_together([theirs])
            held.__exit__(None, None, None)
        return {"x": 1.0}

    def run(request):
        values = [cell(of_team(name, work))["x"] for name in ("theirs", "ours")]
        return Reproduced("T", "x", (Line({}, certified=Measured.of(values)),), "v", {})

    result = queue.run_table(tmp_path, KEY, run, Request(), math.inf)
    assert log == (["ours"] if other_finishes else ["ours", "theirs"])
    assert result.lines[0].certified.mean == (3.0 if other_finishes else 1.0)


def test_a_cell_that_another_process_has_kept_is_not_worked_for(tmp_path):
    log = []
    wanted = Wanted("kind", {"of": "alone"}, lambda: _work(0, log), {"x": 0.0})
    ours, theirs = (Book(queue.cells_folder(tmp_path), *KEY) for _ in range(2))
    assert theirs.take(wanted) == ours.take(wanted) == {"x": 0.0}
    assert log == [0]
