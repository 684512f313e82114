"""The ledger: append-only, durable, repairable where that is safe, and refused where it is not."""

from __future__ import annotations

import json

import pytest
from dp_accounting.dp_event import GaussianDpEvent, UnsupportedDpEvent

from winsor.core.contract import LedgerError, UnsupportedEvent
from winsor.core.ledger.chain import DIGITS
from winsor.core.ledger.ledger import Ledger

CONFIG = {"rule": "Flat(1.0)", "n": 100}
EVENT = GaussianDpEvent(1.0)


def written(path, steps):
    ledger = Ledger(CONFIG, path)
    for step in range(steps):
        ledger.record("run", step, EVENT)
    ledger.close()


def test_a_reopened_ledger_knows_what_was_spent(tmp_path):
    path = tmp_path / "deep" / "ledger.jsonl"
    written(path, 3)
    ledger = Ledger(CONFIG, path)
    assert len(ledger) == 3
    assert ledger.history() == [(EVENT, 3)]
    first, *rest = path.read_text().splitlines()
    assert json.loads(first[: -DIGITS - 1])["config"] == CONFIG
    assert sum(line.startswith("= run ") for line in rest) == 3


def test_every_step_is_on_disk_when_record_returns(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(CONFIG, path)
    for step in range(4):
        ledger.record("run", step, EVENT)
        steps = [line for line in path.read_text().splitlines() if line.startswith("= ")]
        assert len(steps) == step + 1


def test_a_torn_last_line_is_repaired_and_costs_nothing_hidden(tmp_path):
    path = tmp_path / "ledger.jsonl"
    written(path, 3)
    intact = path.read_bytes()
    for cut in range(1, len(intact.splitlines()[-1]) + 1):
        path.write_bytes(intact[:-cut])
        ledger = Ledger(CONFIG, path)
        assert len(ledger) == 2
        ledger.record("run", 2, EVENT)
        ledger.close()
        assert path.read_bytes() == intact


def test_a_tear_at_any_byte_never_loses_a_complete_step(tmp_path):
    path = tmp_path / "ledger.jsonl"
    written(path, 2)
    intact = path.read_bytes()
    for cut in range(len(intact)):
        path.write_bytes(intact[:cut])
        complete = [line for line in intact[:cut].split(b"\n")[:-1] if line.startswith(b"= ")]
        ledger = Ledger(CONFIG, path)
        assert len(ledger) == len(complete)
        ledger.close()


def test_damage_in_the_middle_is_refused(tmp_path):
    path = tmp_path / "ledger.jsonl"
    written(path, 3)
    lines = path.read_text().splitlines()
    lines[2] = lines[2][:-4]
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(LedgerError, match="line 3"):
        Ledger(CONFIG, path)


def test_a_missing_step_in_the_middle_is_refused(tmp_path):
    path = tmp_path / "ledger.jsonl"
    written(path, 4)
    lines = path.read_text().splitlines()
    del lines[3]
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(LedgerError, match="does not fit the lines before it"):
        Ledger(CONFIG, path)


def test_another_configuration_is_refused_and_the_difference_named(tmp_path):
    path = tmp_path / "ledger.jsonl"
    written(path, 1)
    with pytest.raises(LedgerError, match=r"n: ledger 100, run 200"):
        Ledger({**CONFIG, "n": 200}, path)


def test_two_processes_cannot_share_a_ledger(tmp_path):
    path = tmp_path / "ledger.jsonl"
    first = Ledger(CONFIG, path)
    with pytest.raises(LedgerError, match="in use"):
        Ledger(CONFIG, path)
    first.close()
    Ledger(CONFIG, path).close()


def test_a_repeated_step_costs_once_a_changed_one_is_refused():
    ledger = Ledger(CONFIG)
    ledger.record("run", 0, EVENT)
    ledger.record("run", 0, EVENT)
    assert len(ledger) == 1
    with pytest.raises(LedgerError, match="must not change"):
        ledger.record("run", 0, GaussianDpEvent(2.0))
    with pytest.raises(LedgerError, match="cannot follow"):
        ledger.record("run", 2, EVENT)


def test_a_new_key_pays_anew(tmp_path):
    path = tmp_path / "ledger.jsonl"
    written(path, 3)
    ledger = Ledger(CONFIG, path)
    ledger.record("another key", 0, EVENT)
    assert ledger.history() == [(EVENT, 4)]


def test_an_unknown_event_is_refused_before_anything_is_written(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(CONFIG, path)
    before = path.read_bytes()
    with pytest.raises(UnsupportedEvent):
        ledger.record("run", 0, UnsupportedDpEvent())
    assert path.read_bytes() == before
    assert len(ledger) == 0


def test_a_checkpoint_never_forgets_what_the_disk_knows(tmp_path):
    path = tmp_path / "ledger.jsonl"
    early = Ledger(CONFIG)
    for step in range(2):
        early.record("run", step, EVENT)
    written(path, 5)
    resumed = Ledger(CONFIG, path)
    resumed.load_state_dict(early.state_dict())
    assert len(resumed) == 5


def test_an_unwritable_path_is_one_clear_error(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    with pytest.raises(LedgerError, match="cannot open"):
        Ledger(CONFIG, blocked / "ledger.jsonl")


def test_digest_changes_with_content():
    one, two = Ledger(CONFIG), Ledger(CONFIG)
    assert one.digest() == two.digest()
    one.record("run", 0, EVENT)
    assert one.digest() != two.digest()
