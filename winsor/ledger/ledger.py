"""The append-only record of what was released. The accountant reads nothing else.

On disk a ledger is a chained file (`chain.py`) of lines:

    {"winsor_ledger": 2, "config": ..., "hash": ...}      the header: what kind of run this is
    {"kind": 0, "event": ...}                             a kind of event, when it first occurs
    = RUN STEP KIND COUNT DIGEST                          a release: who, which step, what it cost

A release is on disk before its noise is drawn, so a crash can lose at most a value that nobody saw;
it can never hide one that somebody did.

A step is known by (key fingerprint, step number), and carries a keyed digest of the value before
noise. A resumed run that repeats a step with the same digest makes the same release again, with the
same noise: it costs nothing. With another digest the same noise would cover another value, and
their difference would come out without any: that is refused (docs/adr/0011-noise-bound-to-sums.md).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dp_accounting import dp_event

from winsor.accounting import event_from_json, event_to_json
from winsor.contract import LedgerError
from winsor.ledger.chain import EMPTY, ChainedFile, replay

FORMAT = 2
UNBOUND = "-"
"""The digest of steps that were paid for before their values were known."""
MOST_STEPS = 100_000_000
"""No run is longer; a count beyond it is damage or an attack."""


def config_hash(config: Mapping[str, Any]) -> str:
    """Names a configuration; two ledgers with the same hash come from the same kind of run."""
    text = json.dumps(config, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


class Ledger:
    """Events of a run, in memory and, if ``path`` is given, on disk.

    Opening an existing file continues it; a file of another configuration is refused.

    >>> from dp_accounting.dp_event import GaussianDpEvent
    >>> ledger = Ledger({"n": 100})
    >>> ledger.record("key", 0, GaussianDpEvent(1.0)), ledger.record("key", 1, GaussianDpEvent(1.0))
    (0, 1)
    >>> ledger.history()
    [(GaussianDpEvent(noise_multiplier=1.0), 2)]
    """

    def __init__(self, config: Mapping[str, Any], path: str | os.PathLike[str] | None = None):
        self.config = dict(config)
        self.hash = config_hash(self.config)
        self.path = Path(path) if path is not None else None
        self._kinds: list[dp_event.DpEvent] = []
        self._counts: list[int] = []
        self._runs: dict[str, list[tuple[int, str]]] = {}  # fingerprint -> (kind, digest) by step
        self._head = EMPTY
        self._file: ChainedFile | None = None
        if self.path is not None:
            self._file = ChainedFile(self.path)
            self._file.load(self._replay)
        if self._file is not None and self._file.head == EMPTY:
            header = {"winsor_ledger": FORMAT, "config": self.config, "hash": self.hash}
            self._write(json.dumps(header, separators=(",", ":")).encode())

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
            header = content.split(b"\n", 1)[0][:-17]
            config = json.loads(header)["config"]
            ledger = Ledger(config)
        except (ValueError, KeyError, TypeError) as error:
            raise LedgerError(
                f"{path} must begin with the header of a ledger of format {FORMAT}. It does not."
            ) from error
        ledger.path = Path(path)
        ledger._head, _ = replay(content, ledger._replay, f"the ledger {path}")
        return ledger

    def __len__(self) -> int:
        """Number of recorded steps, of all keys."""
        return sum(self._counts)

    @property
    def head(self) -> str:
        """The end of the chain on disk: names everything in this ledger in 16 digits."""
        return self._head if self._file is None else self._file.head

    @property
    def runs(self) -> dict[str, int]:
        """Key fingerprints, each with the steps recorded under it."""
        return {run: len(steps) for run, steps in self._runs.items()}

    def steps(self, run: str) -> int:
        """Steps recorded under one key."""
        return len(self._runs.get(run, ()))

    def history(self) -> list[tuple[dp_event.DpEvent, int]]:
        """Every kind of event with how often it happened: all the accountant needs."""
        return [(e, c) for e, c in zip(self._kinds, self._counts, strict=True) if c]

    # ----------------------------------------------------------------------------- writing

    def record(self, run: str, step: int, event: dp_event.DpEvent, digest: str = UNBOUND) -> int:
        """Write that ``step`` spends ``event``, durably, and return its entry number.

        A step already recorded under the same key must bring the same event and the same digest;
        it is then the same release again, and costs nothing more.
        """
        kind = self._kind(event)
        steps = self._runs.setdefault(run, [])
        if step < len(steps):
            if steps[step] != (kind, digest):
                self._refuse_repeat(steps[step], step, kind, digest)
            return step
        if step > len(steps):
            raise LedgerError(
                f"step {step} cannot follow step {len(steps) - 1}: the checkpoint is ahead of the "
                f"ledger {self.path}. Use the ledger that belongs to the checkpoint."
            )
        self._write(f"= {run} {step} {kind} 1 {digest}".encode())
        steps.append((kind, digest))
        self._counts[kind] += 1
        return step

    def record_many(
        self, run: str, event: dp_event.DpEvent, count: int, digest: str = UNBOUND
    ) -> int:
        """Write, durably and as one line, that the next ``count`` steps of ``run`` each spend
        ``event``; return the first of them. For runs whose every event is known beforehand."""
        if not (isinstance(count, int) and 1 <= count <= MOST_STEPS):
            raise LedgerError(
                f"count must be a positive whole number up to {MOST_STEPS}. Got {count!r} instead."
            )
        kind = self._kind(event)
        steps = self._runs.setdefault(run, [])
        first = len(steps)
        self._write(f"= {run} {first} {kind} {count} {digest}".encode())
        steps.extend([(kind, digest)] * count)
        self._counts[kind] += count
        return first

    def _refuse_repeat(self, known: tuple[int, str], step: int, kind: int, digest: str) -> None:
        if known[0] != kind:
            raise LedgerError(
                f"step {step} is in the ledger with the event {self._kinds[known[0]]}, but the "
                f"resumed run wants to spend {self._kinds[kind]}. The run must not change between "
                "a checkpoint and its resumption; start a new run with a new ledger."
            )
        raise LedgerError(
            f"step {step} was already released, for another value: data, learning rate, "
            "augmentation or rounding differ from the run that is in the ledger. The same noise on "
            "two values would cancel in their difference. Continue exactly as before, or with new "
            "randomness that is paid for anew: load_state_dict(state, repeat=False)."
        )

    def _kind(self, event: dp_event.DpEvent) -> int:
        known = self._kinds[-1] if self._kinds else None
        if known is event or known == event:  # the usual case: every step is alike
            return len(self._kinds) - 1
        if event in self._kinds:
            return self._kinds.index(event)
        encoded = event_to_json(event)  # an unknown event raises here, before anything is drawn
        line = {"kind": len(self._kinds), "event": encoded}
        self._write(json.dumps(line, separators=(",", ":")).encode())
        self._kinds.append(event)
        self._counts.append(0)
        return len(self._kinds) - 1

    def _write(self, text: bytes) -> None:
        if self._file is not None:
            self._file.append(text)

    # ----------------------------------------------------------------------------- replaying

    def _replay(self, text: bytes) -> None:
        if text.startswith(b"= "):
            _, run, step, kind, count, digest = text.decode().split(" ")
            steps = self._runs.setdefault(run, [])
            if int(step) != len(steps):
                raise ValueError("steps out of order")
            if not 1 <= int(count) <= MOST_STEPS:
                raise ValueError(f"a count of {count}")
            self._counts[int(kind)] += int(count)
            if count == "1":
                steps.append((int(kind), digest))
            else:
                steps.extend([(int(kind), digest)] * int(count))
            return
        line = json.loads(text)
        if "winsor_ledger" in line:
            self._check_header(line)
        else:
            if line["kind"] != len(self._kinds):
                raise ValueError("events out of order")
            self._kinds.append(event_from_json(line["event"]))
            self._counts.append(0)

    def _check_header(self, header: dict[str, Any]) -> None:
        if header["winsor_ledger"] != FORMAT:
            raise LedgerError(
                f"the ledger {self.path} must have format {FORMAT}. Got "
                f"{header['winsor_ledger']!r} instead: it was written by another version."
            )
        if config_hash(header["config"]) != header["hash"]:
            raise ValueError("the header's configuration is not the one its hash names")
        if header["hash"] == self.hash:
            return
        theirs = header["config"]
        differences = [
            f"{key}: ledger {theirs.get(key)!r}, run {self.config.get(key)!r}"
            for key in sorted(set(theirs) | set(self.config))
            if theirs.get(key) != self.config.get(key)
        ]
        raise LedgerError(
            f"the ledger {self.path} belongs to another configuration ({'; '.join(differences)}). "
            "Give this run a ledger of its own, or resume with the configuration it was made with."
        )

    def digest(self) -> str:
        """SHA-256 of what was spent, however it was written down."""
        lines = [
            {"config": self.config},
            [[event_to_json(e), c] for e, c in self.history()],
            self.runs,
        ]
        return hashlib.sha256(json.dumps(lines, sort_keys=True).encode()).hexdigest()

    # --------------------------------------------------------------------------- checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Plain values only, for checkpoints."""
        return {
            "config": json.dumps(self.config, sort_keys=True),
            "kinds": [json.dumps(event_to_json(event)) for event in self._kinds],
            "runs": {
                run: {"kinds": [k for k, _ in steps], "digests": [d for _, d in steps]}
                for run, steps in self._runs.items()
            },
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Adopt a checkpoint's record. A file on disk that knows more keeps what it knows."""
        config = json.loads(state["config"])
        if config_hash(config) != self.hash:
            self._check_header(
                {"winsor_ledger": FORMAT, "config": config, "hash": config_hash(config)}
            )
        events = [event_from_json(json.loads(text)) for text in state["kinds"]]
        for run, steps in state["runs"].items():
            pairs = zip(steps["kinds"], steps["digests"], strict=True)
            for step, (kind, digest) in enumerate(pairs):
                self.record(run, step, events[kind], digest)

    def close(self) -> None:
        if self._file is not None:
            self._head = self._file.head
            self._file.close()
            self._file = None
