"""Do the files of a run agree with each other? Asked before any of them is believed.

    ledger          the chain of its lines, its header, its events
    config.json     the file that the ledger noted when the run began; budget and noise as in the
                    header
    result.json     the one that the ledger noted at the end; steps, epsilon, delta, relation, noise
                    and the head of the chain, all against the ledger; epsilon is computed anew
    prepared-K      what the ledger counts as spent before it, and noted when the run began
    metrics, model  as result.json names them
    checkpoint.pt   its key and its steps against the ledger
    key files       none may be left once the run is finished

What this proves: that the files were not damaged, and not changed one by one. What it cannot: that
somebody who can write all of them has not written all of them anew. For that, compare the head of
the chain with one that was noted elsewhere (``--head``), or have the run signed (`signing.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from winsor.app.runs import sealing
from winsor.app.runs.config import Config
from winsor.app.runs.directory import RunDirectory, RunError, sense
from winsor.app.runs.prepare import prepared_disagreements
from winsor.core.contract import Neighbouring, WinsorError
from winsor.core.ledger.guarantee import spent_by
from winsor.core.ledger.ledger import Ledger

HOLDS_KEY = ("checkpoint.pt", ".checkpoint.pt.new", "ledger.key", ".ledger.key.new")


def disagreements(path: str | Path, head: str | None = None, leftovers: bool = True) -> list[str]:
    """What does not fit, in words; nothing if all is well. ``leftovers`` are files with the key."""
    found: list[str] = []
    try:
        with sense(path):
            found.extend(_disagreements(RunDirectory(path), head, leftovers))
    except WinsorError as error:  # a file that cannot be read at all, named in the message
        found.append(str(error))
    return found


def refuse_disagreements(path: str | Path, leftovers: bool = True) -> None:
    """Raise if anything does not fit."""
    found = disagreements(path, leftovers=leftovers)
    if found:
        raise RunError(
            f"the files of {path} do not agree: {'; '.join(found)}. Restore them from a copy. "
            "Nothing was changed or deleted."
        )


def _disagreements(run: RunDirectory, head: str | None, leftovers: bool) -> Iterator[str]:
    config, result, checkpoint = run.config(), run.result(), run.load_checkpoint()
    ledger = Ledger.read(run.ledger)  # the last: a run that goes on is ahead of what was read
    if head is not None and ledger.head != head.lower():
        yield f"the ledger's head is {ledger.head}, not {head}"
    yield from _config(run, config, ledger)
    yield from prepared_disagreements(run.path, ledger)
    yield from _checkpoint(checkpoint, ledger)
    if result is None:
        return
    if not isinstance(result, dict):
        yield "result.json: it is not a table"
        return
    yield from _result(result, ledger)
    yield from _sealed(run, result, ledger)
    if leftovers and not config.record.keep_checkpoint:
        for name in HOLDS_KEY:
            if (run.path / name).exists():
                yield f"{name} is left although the run is finished: it holds the noise key"


def _config(run: RunDirectory, config: Config, ledger: Ledger) -> Iterator[str]:
    noted, _ = ledger.notes.get(sealing.CONFIG, (None, 0))
    if noted is None and len(ledger) > 0:
        yield "the ledger does not name config.json, which it does before its first release"
    elif noted not in (None, sealing.of_bytes((run.path / sealing.CONFIG).read_bytes())):
        yield "config.json is not the file that the ledger noted when the run began"
    claims = {
        "delta": config.budget.delta,
        "relation": config.budget.relation,
        "noise_multiplier": config.budget.noise_multiplier,
    }
    for name, value in claims.items():
        if value is not None and ledger.config.get(name) != value:
            theirs = ledger.config.get(name)
            yield f"config.json says {name} = {value!r}, the header of the ledger {theirs!r}"


def _result(result: Mapping[str, Any], ledger: Ledger) -> Iterator[str]:
    claims = {
        "steps": len(ledger),
        "ledger_head": ledger.head,
        "noise_multiplier": ledger.config.get("noise_multiplier"),
        "delta": ledger.config.get("delta"),
        "relation": ledger.config.get("relation"),
    }
    for name, truth in claims.items():
        if result.get(name) != truth:
            yield f"result.json says {name} = {result.get(name)!r}, the ledger says {truth!r}"
            return
    relation = Neighbouring(ledger.config["relation"])
    spent = spent_by(ledger.history(), float(ledger.config["delta"]), relation)
    claimed = result.get("epsilon")
    if not (
        isinstance(claimed, float | int) and math.isclose(claimed, spent.epsilon, rel_tol=1e-6)
    ):
        yield f"result.json says epsilon = {claimed!r}, the ledger spends {spent.epsilon:.6g}"


def _sealed(run: RunDirectory, result: Mapping[str, Any], ledger: Ledger) -> Iterator[str]:
    noted, steps = ledger.notes.get(sealing.RESULT, (None, 0))
    if noted != sealing.of_result(result) or steps != len(ledger):
        yield "result.json is not the one that the ledger noted when the run was finished"
    named = result.get("files")
    for name, digest in sealing.digests(run.metrics(), run.path).items():
        if not isinstance(named, dict) or named.get(name) != digest:
            yield f"{name} is not the file that result.json names"


def _checkpoint(state: dict[str, Any] | None, ledger: Ledger) -> Iterator[str]:
    if state is None:
        return
    private = state["private"]
    key, done = private["key_fingerprint"], int(private["steps_done"]) - int(private["first"])
    if done > ledger.steps(key):
        yield f"checkpoint.pt is at step {done}, the ledger has {ledger.steps(key)} of its key"
