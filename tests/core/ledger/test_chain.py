"""On disk before released, always: short writes, full disks, torn ends, forks, links."""

from __future__ import annotations

import errno
import os
import resource

import pytest
from dp_accounting.dp_event import GaussianDpEvent

from winsor.core.contract import LedgerError
from winsor.core.ledger.chain import BLOCK, DIGITS, EMPTY, ChainedFile, link, replay
from winsor.core.ledger.ledger import Ledger

EVENT = GaussianDpEvent(1.0)


def started(path, steps=2):
    ledger = Ledger({"n": 10}, path)
    for step in range(steps):
        ledger.record("run", step, EVENT, "d" * 32)
    return ledger


@pytest.mark.parametrize("how", ["short", "full", "fsync"])
def test_a_write_that_fails_leaves_no_trace_and_releases_nothing(tmp_path, monkeypatch, how):
    path = tmp_path / "ledger"
    ledger = started(path)
    before = path.read_bytes()
    real, line = os.pwrite, 60
    for count in range(0, line, 7):  # torn at many places

        def short(file, data, place, count=count):
            written = real(file, data[:count], place)
            if how == "full":
                raise OSError(errno.ENOSPC, "No space left on device")
            return written

        with monkeypatch.context() as patch:
            if how == "fsync":
                patch.setattr(os, "fsync", lambda file: (_ for _ in ()).throw(OSError("gone")))
            else:
                patch.setattr(os, "pwrite", short)
            with pytest.raises(LedgerError, match="Nothing was released"):
                ledger.record("run", 2, EVENT, "e" * 32)
        assert path.read_bytes() == before
        assert len(ledger) == 2
    assert ledger.record("run", 2, EVENT, "e" * 32) == 2  # room was made
    ledger.close()
    assert len(Ledger.read(path)) == 3


def test_a_tear_at_every_byte_is_cut_off_on_opening(tmp_path):
    path = tmp_path / "ledger"
    started(path, 1).close()
    whole = path.read_bytes()
    started(path, 1).close()  # reopening changes nothing
    assert path.read_bytes() == whole
    last = whole.rstrip(b"\n").rfind(b"\n") + 1
    for cut in range(last + 1, len(whole)):
        path.write_bytes(whole[:cut])
        ledger = Ledger({"n": 10}, path)
        assert len(ledger) == 0
        ledger.close()
        assert path.read_bytes() == whole[:last]


def test_lines_are_chained_to_all_before(tmp_path):
    path = tmp_path / "ledger"
    ledger = started(path, 5)
    head = EMPTY
    for line in path.read_bytes().splitlines():
        head = link(head, line[: -DIGITS - 1])
        assert line[-DIGITS:] == head.encode()
    assert ledger.head == head
    ledger.close()
    assert Ledger.read(path).head == head


def test_a_changed_line_is_refused_by_number(tmp_path):
    path = tmp_path / "ledger"
    started(path, 5).close()
    lines = path.read_bytes().split(b"\n")
    lines[3] = lines[3].replace(b" 1 ", b" 2 ", 1)
    with pytest.raises(LedgerError, match="line 4"):
        replay(b"\n".join(lines), lambda text: None, "it")


def test_a_forked_process_must_not_write(tmp_path, monkeypatch):
    file = ChainedFile(tmp_path / "ledger")
    file.append(b"parent")
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(LedgerError, match="another process"):
        file.append(b"child")


def test_a_link_is_not_followed(tmp_path):
    target = tmp_path / "precious"
    target.write_text("keep me")
    (tmp_path / "ledger").symlink_to(target)
    with pytest.raises(LedgerError, match="cannot open"):
        Ledger({}, tmp_path / "ledger")
    assert target.read_text() == "keep me"


@pytest.mark.parametrize("count", ["2000000000000", "0", "-1", "x"])
def test_absurd_counts_are_refused(tmp_path, count):
    path = tmp_path / "ledger"
    started(path, 0).close()
    ledger = Ledger({"n": 10}, path)
    ledger.record("run", 0, EVENT)
    ledger.close()
    lines = path.read_bytes().splitlines()[:-1]
    head = lines[-1][-DIGITS:].decode()
    forged = f"= run 0 0 {count} -".encode()
    lines.append(forged + b" " + link(head, forged).encode())
    path.write_bytes(b"\n".join(lines) + b"\n")
    with pytest.raises(LedgerError, match="damaged"):
        Ledger.read(path)


def test_the_lock_is_gone_after_closing(tmp_path):
    ledger = started(tmp_path / "ledger")
    with pytest.raises(LedgerError, match="in use"):
        started(tmp_path / "ledger")
    ledger.close()
    assert [file.name for file in tmp_path.iterdir()] == ["ledger"]


def test_a_full_disk_at_every_byte_of_an_entry_loses_nothing(tmp_path):
    """The system itself cuts the write short: the file may not grow beyond the limit."""
    path = tmp_path / "ledger"
    ledger = started(path)
    before = path.read_bytes()
    line = len(before.splitlines(keepends=True)[-1])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for room in range(line):
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + room, hard))
        try:
            with pytest.raises(LedgerError, match="Nothing was released"):
                ledger.record("run", 2, EVENT, "e" * 32)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert path.read_bytes() == before
    assert ledger.record("run", 2, EVENT, "e" * 32) == 2  # room was made
    ledger.close()
    assert len(Ledger.read(path)) == 3


@pytest.mark.parametrize("count", [2_000_000_000, 100_000_001])
def test_a_count_beyond_every_run_is_refused_without_room_for_it(tmp_path, count):
    path = tmp_path / "ledger"
    started(path, 1).close()
    lines = path.read_bytes().splitlines()
    forged = f"= run 1 0 {count} -".encode()
    lines.append(forged + b" " + link(lines[-1][-DIGITS:].decode(), forged).encode())
    path.write_bytes(b"\n".join(lines) + b"\n")
    with pytest.raises(LedgerError, match=f"a count of {count}"):
        Ledger.read(path)


def test_many_steps_in_one_line_take_the_room_of_one(tmp_path):
    ledger = Ledger({"n": 10}, tmp_path / "ledger")
    ledger.record_many("run", EVENT, 50_000_000)
    ledger.record("run", 50_000_000, EVENT, "d")
    with pytest.raises(LedgerError, match="count must be"):
        ledger.record_many("run", EVENT, 60_000_000)
    ledger.close()
    found = Ledger.read(tmp_path / "ledger")
    assert len(found) == 50_000_001 == found.steps("run")
    assert found.history_until(7) == [(EVENT, 7)]
    assert Ledger({"n": 10}).state_dict()["runs"] == {}
    copy = Ledger({"n": 10})
    copy.load_state_dict(found.state_dict())
    assert copy.runs == found.runs


def test_a_block_of_alike_lines_is_read_as_line_by_line(tmp_path):
    """Many lines are taken at once where they are alike; the rest one by one, with the same end."""
    path = tmp_path / "ledger"
    ledger = Ledger({"n": 10}, path)
    other = GaussianDpEvent(2.0)
    for step in range(3 * BLOCK):
        ledger.record("run", step, other if step % 7 == 0 else EVENT, f"{step:032x}")
    ledger.record_many("second", EVENT, 5)
    ledger.note("a file", "its digest")
    ledger.close()
    quick, slow = Ledger.read(path), Ledger({"n": 10})
    replay(path.read_bytes(), slow._replay, "it")
    assert quick.state_dict() == slow.state_dict() == ledger.state_dict()
    assert quick.history() == slow.history() == ledger.history()
    assert quick.notes == slow.notes == {"a file": ("its digest", 3 * BLOCK + 5)}
    for place in (BLOCK + 7, 2 * BLOCK + 1):
        lines = path.read_bytes().splitlines(keepends=True)
        lines[place] = lines[place].replace(b" 1 ", b" 2 ", 1)
        fresh = Ledger({"n": 10})
        with pytest.raises(LedgerError, match=f"line {place + 1} "):
            replay(b"".join(lines), fresh._replay, "it", fresh._replay_alike)
