"""Reading ledgers without touching them."""

from __future__ import annotations

import pytest
from dp_accounting.dp_event import GaussianDpEvent, PoissonSampledDpEvent

from winsor.core.accounting import certify, certify_delta
from winsor.core.contract import LedgerError, Neighbouring
from winsor.core.ledger.guarantee import delta_by, guarantee, spent_by, together
from winsor.core.ledger.ledger import Ledger

RELATION = Neighbouring.ADD_OR_REMOVE_ONE
STEP = PoissonSampledDpEvent(0.1, GaussianDpEvent(1.0))
OTHER = GaussianDpEvent(5.0)


def make(path, events, key="key"):
    ledger = Ledger({"n": 10}, path)
    for step, event in enumerate(events):
        ledger.record(key, step, event)
    return ledger


def test_a_ledger_in_use_can_be_read(tmp_path):
    path = tmp_path / "ledger.jsonl"
    writer = make(path, [STEP, STEP, OTHER])
    with path.open("ab") as file:
        file.write(b'{"run":"key","st')  # being written
    content = path.read_bytes()
    reader = Ledger.read(path)
    assert path.read_bytes() == content
    assert len(reader) == 3 and reader.digest() == writer.digest()
    writer.close()


def test_runs_compose(tmp_path):
    one, two = make(None, [STEP, STEP]), make(None, [STEP, OTHER], "other key")
    spent = spent_by(together([one, two]), 1e-4, RELATION)
    assert spent == certify([(STEP, 3), (OTHER, 1)], 1e-4)
    assert delta_by(one.history(), 0.5, RELATION) == certify_delta([(STEP, 2)], 0.5)


@pytest.mark.parametrize("content", [b"", b"{}\n", b"text\n", b"[1]\n"])
def test_files_that_are_no_ledger(tmp_path, content):
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(LedgerError, match="header of a ledger"):
        Ledger.read(tmp_path / "x")
    with pytest.raises(LedgerError, match="cannot read the ledger"):
        Ledger.read(tmp_path / "y")


def test_several_ledgers_make_one_guarantee():
    one, two = make(None, [STEP, STEP]), make(None, [STEP, OTHER], "other key")
    found = guarantee([one, two], 1e-4, RELATION, ["a", "b", "a"], ["x", "y", "x"])
    spent = certify([(STEP, 3), (OTHER, 1)], 1e-4)
    assert (found.epsilon, found.accountant) == (spent.epsilon, spent.accountant)
    assert (found.delta, found.relation, found.steps) == (1e-4, RELATION, 4)
    assert found.sampler == "a, b" and found.conditions == ("x", "y")


def test_ledgers_that_share_a_key_do_not_add_up():
    one, two = make(None, [STEP]), make(None, [OTHER])
    with pytest.raises(LedgerError, match="keys of their own"):
        guarantee([one, two], 1e-4, RELATION)
