"""The append-only record of what was released. The accountant reads nothing else.

On disk a ledger is JSON lines: one header, then one line per new kind of event and one short line
per step. A step's line is on disk (fsync) before its noise is added, so a crash can lose at most a
value that nobody saw; it can never hide one that somebody did.

A step is known by (key fingerprint, step number). A resumed run repeats the steps after its last
checkpoint with the same batches and the same noise: the same values again, hence no new entry.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from dp_accounting import dp_event

from winsor.accounting import event_from_json, event_to_json
from winsor.contract import LedgerError

FORMAT = 1


def config_hash(config: Mapping[str, Any]) -> str:
    """Names a configuration; two ledgers with the same hash come from the same kind of run."""
    text = json.dumps(config, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


class Ledger:
    """Events of a run, in memory and, if ``path`` is given, on disk.

    Opening an existing file continues it; a file of another configuration is refused.
    """

    def __init__(self, config: Mapping[str, Any], path: str | os.PathLike[str] | None = None):
        self.config = dict(config)
        self.hash = config_hash(self.config)
        self.path = Path(path) if path is not None else None
        self._kinds: list[dp_event.DpEvent] = []
        self._counts: list[int] = []
        self._runs: dict[str, list[int]] = {}  # key fingerprint -> kind of each step, in order
        self._file: BinaryIO | None = None
        if self.path is not None:
            self._file = self._open(self.path)

    # ----------------------------------------------------------------------------- reading

    @staticmethod
    def read(path: str | os.PathLike[str]) -> Ledger:
        """A ledger from disk, without locking or writing: the run may still be going on."""
        try:
            content = Path(path).read_bytes()
        except OSError as error:
            raise LedgerError(
                f"cannot read the ledger {path}: {error.strerror or error}."
            ) from error
        try:
            config = json.loads(content.split(b"\n", 1)[0])["config"]
        except (ValueError, KeyError, TypeError) as error:
            raise LedgerError(
                f"{path} must begin with the header of a ledger. It does not."
            ) from error
        ledger = Ledger(config)
        ledger.path = Path(path)
        ledger._load(content)
        return ledger

    def __len__(self) -> int:
        """Number of recorded steps, of all keys."""
        return sum(self._counts)

    def steps(self, run: str) -> int:
        """Steps recorded under one key."""
        return len(self._runs.get(run, ()))

    def history(self) -> list[tuple[dp_event.DpEvent, int]]:
        """Every kind of event with how often it happened: all the accountant needs."""
        return [(e, c) for e, c in zip(self._kinds, self._counts, strict=True) if c]

    def has(self, run: str, step: int) -> bool:
        return 0 <= step < self.steps(run)

    # ----------------------------------------------------------------------------- writing

    def record(self, run: str, step: int, event: dp_event.DpEvent) -> int:
        """Write that ``step`` spends ``event``, durably, and return its entry number.

        A step already recorded under the same key must bring the same event; it is then a repeat
        of a step whose value is a function of the same key, and costs nothing more.
        """
        kind = self._kind(event)
        steps = self._runs.setdefault(run, [])
        if step < len(steps):
            if steps[step] != kind:
                raise LedgerError(
                    f"step {step} is in the ledger with the event {self._kinds[steps[step]]}, but "
                    f"the resumed run wants to spend {event}. The run must not change between a "
                    "checkpoint and its resumption; start a new run with a new ledger."
                )
            return step
        if step > len(steps):
            raise LedgerError(
                f"step {step} cannot follow step {len(steps) - 1}: the checkpoint is ahead of the "
                f"ledger {self.path}. Use the ledger that belongs to the checkpoint."
            )
        self._write({"run": run, "step": step, "kind": kind})
        steps.append(kind)
        self._counts[kind] += 1
        return step

    def record_many(self, run: str, event: dp_event.DpEvent, count: int) -> int:
        """Write, durably and as one line, that the next ``count`` steps of ``run`` each spend
        ``event``; return the first of them. For runs whose every event is known beforehand."""
        if not (isinstance(count, int) and count >= 1):
            raise LedgerError(f"count must be a positive whole number. Got {count!r} instead.")
        kind = self._kind(event)
        steps = self._runs.setdefault(run, [])
        first = len(steps)
        self._write({"run": run, "step": first, "kind": kind, "count": count})
        steps.extend([kind] * count)
        self._counts[kind] += count
        return first

    def _kind(self, event: dp_event.DpEvent) -> int:
        known = self._kinds[-1] if self._kinds else None
        if known is event or known == event:  # the usual case: every step is alike
            return len(self._kinds) - 1
        if event in self._kinds:
            return self._kinds.index(event)
        encoded = event_to_json(event)  # an unknown event raises here, before anything is drawn
        self._write({"kind": len(self._kinds), "event": encoded}, durable=False)
        self._kinds.append(event)
        self._counts.append(0)
        return len(self._kinds) - 1

    def _write(self, line: Mapping[str, Any], durable: bool = True) -> None:
        if self._file is None:
            return
        try:
            self._file.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")
            self._file.flush()
            if durable:
                os.fsync(self._file.fileno())
        except OSError as error:
            raise LedgerError(
                f"cannot write the ledger {self.path}: {error}. Nothing was released. Make room or "
                "give a writable path, then resume."
            ) from error

    # ----------------------------------------------------------------------------- opening

    def _open(self, path: Path) -> BinaryIO:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle = path.open("a+b", buffering=0)
        except OSError as error:
            raise LedgerError(
                f"cannot open the ledger {path}: {error}. Give a path in a writable directory."
            ) from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            handle.close()
            raise LedgerError(
                f"the ledger {path} is in use by another process. Two runs cannot share a ledger."
            ) from error
        weakref.finalize(self, handle.close)  # also when the file is refused below
        handle.seek(0)
        has_header, intact = self._load(handle.read())
        handle.truncate(intact)
        self._file = handle
        if not has_header:
            self._write({"winsor_ledger": FORMAT, "config": self.config, "hash": self.hash})
        return handle

    def _load(self, content: bytes) -> tuple[bool, int]:
        """Replay a file's lines; return whether there was a header, and the intact length."""
        *lines, torn = content.split(b"\n")
        # A last line without its newline was being written when the process died. The noise is
        # drawn only after the write, so nothing was released for it: drop it.
        for number, line in enumerate(lines, start=1):
            try:
                self._replay(json.loads(line))
            except (ValueError, KeyError, TypeError, IndexError) as error:
                raise LedgerError(
                    f"line {number} of the ledger {self.path} is damaged ({error}). Restore the "
                    "file; what was spent cannot be known without it."
                ) from error
        return bool(lines), len(content) - len(torn)

    def _replay(self, line: dict[str, Any]) -> None:
        if "winsor_ledger" in line:
            self._check_header(line)
        elif "event" in line:
            if line["kind"] != len(self._kinds):
                raise ValueError("events out of order")
            self._kinds.append(event_from_json(line["event"]))
            self._counts.append(0)
        else:
            steps = self._runs.setdefault(line["run"], [])
            if line["step"] != len(steps):
                raise ValueError("steps out of order")
            count = line.get("count", 1)
            if not (isinstance(count, int) and count >= 1):
                raise ValueError("a count below 1")
            self._counts[line["kind"]] += count
            steps.extend([line["kind"]] * count)

    def _check_header(self, header: dict[str, Any]) -> None:
        if header["hash"] == self.hash:
            return
        theirs = header["config"]
        keys = sorted(set(theirs) | set(self.config))
        differences = [
            f"{key}: ledger {theirs.get(key)!r}, run {self.config.get(key)!r}"
            for key in keys
            if theirs.get(key) != self.config.get(key)
        ]
        raise LedgerError(
            f"the ledger {self.path} belongs to another configuration ({'; '.join(differences)}). "
            "Give this run a ledger of its own, or resume with the configuration it was made with."
        )

    def digest(self) -> str:
        """SHA-256 of the ledger's content, for reports."""
        lines = [
            {"config": self.config},
            [[event_to_json(e), c] for e, c in self.history()],
            {run: len(steps) for run, steps in self._runs.items()},
        ]
        return hashlib.sha256(json.dumps(lines, sort_keys=True).encode()).hexdigest()

    def state_dict(self) -> dict[str, Any]:
        """Plain values only, for checkpoints."""
        return {
            "hash": self.hash,
            "kinds": [json.dumps(event_to_json(event)) for event in self._kinds],
            "runs": {run: list(steps) for run, steps in self._runs.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Adopt a checkpoint's record. A file on disk that knows more keeps what it knows."""
        if state["hash"] != self.hash:
            raise LedgerError(
                f"the checkpoint's ledger has configuration {state['hash']}, this run has "
                f"{self.hash}. Resume with the rule, sampler, noise, delta and dataset size that "
                "the checkpoint was made with."
            )
        events = [event_from_json(json.loads(text)) for text in state["kinds"]]
        for run, steps in state["runs"].items():
            for step, kind in enumerate(steps):
                self.record(run, step, events[kind])

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
