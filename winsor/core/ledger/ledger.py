"""The append-only record of what was released. The accountant reads nothing else.

On disk a ledger is a chained file (`chain.py`) of lines:

    {"winsor_ledger": 2, "config": ..., "hash": ...}      the header: what kind of run this is
    {"kind": 0, "event": ...}                             a kind of event, when it first occurs
    = RUN STEP KIND COUNT DIGEST                          a release: who, which step, what it cost
    {"note": NAME, "digest": ...}                         names a file that belongs to the run

A release is on disk before its noise is drawn, so a crash can lose at most a value that nobody saw;
it can never hide one that somebody did.

A step is known by (key fingerprint, step number), and carries a keyed digest of the value before
noise. A resumed run that repeats a step with the same digest makes the same release again, with the
same noise: it costs nothing. With another digest the same noise would cover another value, and
their difference would come out without any: that is refused (docs/adr/0011-noise-bound-to-sums.md).

A header may say under "before" what other ledgers had spent on the same rows when the run began, as
events with counts. It belongs to every history of this ledger; its steps are the run's own.
"""

from __future__ import annotations

import hashlib
import json
import os
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dp_accounting import dp_event

from winsor.core.accounting import event_from_json, event_to_json
from winsor.core.contract import ConfigurationError, LedgerError
from winsor.core.ledger.chain import EMPTY, ChainedFile, content_of, replay

FORMAT = 2
UNBOUND = "-"
"""The digest of steps that were paid for before their values were known."""
MOST_STEPS = 100_000_000
"""No run is longer; a count beyond it is damage or an attack."""


def config_hash(config: Mapping[str, Any]) -> str:
    """Names a configuration; two ledgers with the same hash come from the same kind of run."""
    text = json.dumps(config, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


ABOUT = ("unit", "relation")
"""What the numbers of a guarantee are about; headers of older ledgers may not say it."""


def agree(known: Mapping[str, str], said: Mapping[str, str]) -> dict[str, str]:
    """Return what is known and what is said of a guarantee; refuse what differs, by name."""
    if differ := [name for name in said if known.get(name, said[name]) != said[name]]:
        raise ConfigurationError(
            "releases that are added up must be about one unit, one neighbouring relation and the "
            f"same public settings. Got another {', another '.join(differ)} instead. Report each "
            "by itself, or fit anew."
        )
    return {**known, **said}


class Steps:
    """The steps of one key, in order: of which kind each was, and the digest of its value.

    Steps that were paid for together stay one entry, however many they are: a line of a received
    ledger that speaks of a hundred million steps takes as little room as one of a single step.

    >>> steps = Steps()
    >>> steps.add(0, "a"), steps.add(1, "b", 3), len(steps)
    (None, None, 4)
    >>> steps.at(0), steps.at(3)
    ((0, 'a'), (1, 'b'))
    """

    def __init__(self) -> None:
        self._kinds: list[int] = []  # one item for each entry, as below
        self._digests: list[str] = []
        self._firsts: list[int] | None = None  # the entries' first steps, unless all are single
        self.length = 0

    def __len__(self) -> int:
        return self.length

    def add(self, kind: int, digest: str, count: int = 1) -> None:
        """Add ``count`` steps of one kind and digest."""
        if not 1 <= count <= MOST_STEPS - self.length:
            raise ValueError(f"a count of {count} after {self.length} steps")
        if count > 1 and self._firsts is None:
            self._firsts = list(range(self.length))
        if self._firsts is not None:
            self._firsts.append(self.length)
        self._kinds.append(kind)
        self._digests.append(digest)
        self.length += count

    def extend(self, kinds: list[int], digests: list[str]) -> None:
        """Add single steps."""
        if len(kinds) > MOST_STEPS - self.length:
            raise ValueError(f"more than {MOST_STEPS} steps")
        if self._firsts is not None:
            self._firsts.extend(range(self.length, self.length + len(kinds)))
        self._kinds += kinds
        self._digests += digests
        self.length += len(kinds)

    def at(self, step: int) -> tuple[int, str]:
        """Kind and digest of a step that is recorded."""
        entry = step if self._firsts is None else bisect_right(self._firsts, step) - 1
        return self._kinds[entry], self._digests[entry]

    def entries(self) -> Iterator[tuple[int, str, int]]:
        """Kind, digest and count of every entry."""
        if self._firsts is None:
            counts = [1] * len(self._kinds)
        else:
            lasts = [*self._firsts[1:], self.length]
            counts = [last - first for first, last in zip(self._firsts, lasts, strict=True)]
        return zip(self._kinds, self._digests, counts, strict=True)


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
        self.before = [_earlier(*pair) for pair in self.config.get("before", ())]
        self._about = {name: str(self.config[name]) for name in ABOUT if name in self.config}
        if "rows_per_unit" in self.config:
            self._about["unit"] = "person"
        self._kinds: list[dp_event.DpEvent] = []
        self._counts: list[int] = []
        self._runs: dict[str, Steps] = {}  # by key fingerprint
        self.notes: dict[str, tuple[str, int]] = {}
        """The latest note of each name: its digest, and the steps recorded before it."""
        self._head = EMPTY
        self._file: ChainedFile | None = None
        if self.path is not None:
            self._file = ChainedFile(self.path)
            self._file.load(self._replay, self._replay_alike)
        if self._file is not None and self._file.head == EMPTY:
            header = {"winsor_ledger": FORMAT, "config": self.config, "hash": self.hash}
            self._write(json.dumps(header, separators=(",", ":")).encode())

    # ----------------------------------------------------------------------------- reading

    @staticmethod
    def read(path: str | os.PathLike[str]) -> Ledger:
        """A ledger from disk, without locking or writing: the run may still be going on."""
        try:
            content = content_of(path)
        except OSError as error:
            raise LedgerError(f"cannot read the ledger {path}: {error.strerror}.") from error
        try:
            header = content.split(b"\n", 1)[0][:-17]
            config = json.loads(header)["config"]
            ledger = Ledger(config)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise LedgerError(
                f"{path} must begin with the header of a ledger of format {FORMAT}. It does not."
            ) from error
        ledger.path = Path(path)
        ledger._head, _ = replay(
            content, ledger._replay, f"the ledger {path}", ledger._replay_alike
        )
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

    @property
    def about(self) -> dict[str, str]:
        """The unit and the relation of its guarantee; the unit is a row unless another is named."""
        return {"unit": "row"} | {name: self._about[name] for name in ABOUT if name in self._about}

    def be_about(self, **said: str) -> None:
        """Refuse releases of another unit, relation or settings than those that it has."""
        self._about = agree(self._about | (self.about if len(self) else {}), said)

    def steps(self, run: str) -> int:
        """Steps recorded under one key."""
        return len(self._runs[run]) if run in self._runs else 0

    def history(self) -> list[tuple[dp_event.DpEvent, int]]:
        """Every kind of event with how often it happened: all the accountant needs."""
        own = [(e, c) for e, c in zip(self._kinds, self._counts, strict=True) if c]
        return [*self.before, *own]

    def history_until(self, steps: int) -> list[tuple[dp_event.DpEvent, int]]:
        """The history of the first ``steps`` steps, key by key."""
        counts = [0] * len(self._kinds)
        for run in self._runs.values():
            for kind, _, count in run.entries():
                counts[kind] += min(count, steps)
                steps -= min(count, steps)
                if steps == 0:
                    break
        return [*self.before, *((e, c) for e, c in zip(self._kinds, counts, strict=True) if c)]

    # ----------------------------------------------------------------------------- writing

    def record(self, run: str, step: int, event: dp_event.DpEvent, digest: str = UNBOUND) -> int:
        """Write that ``step`` spends ``event``, durably, and return its entry number.

        A step already recorded under the same key must bring the same event and the same digest;
        it is then the same release again, and costs nothing more.
        """
        kind = self._kind(event)
        steps = self._steps_of(run)
        known = steps.length
        if step < known:
            if steps.at(step) != (kind, digest):
                self._refuse_repeat(steps.at(step), step, kind, digest)
            return step
        if step > known:
            raise LedgerError(
                f"step {step} cannot follow step {known - 1}: the checkpoint is ahead of the "
                f"ledger {self.path}. Use the ledger that belongs to the checkpoint."
            )
        self._write(f"= {run} {step} {kind} 1 {digest}".encode())
        steps.add(kind, digest)
        self._counts[kind] += 1
        return step

    def pay_once(self, run: str, event: dp_event.DpEvent) -> None:
        """Write that ``run`` as a whole spends ``event``; the same again costs nothing."""
        self.record(run, 0, event)

    def record_many(self, run: str, event: dp_event.DpEvent, count: int) -> int:
        """Write, durably and as one line, that the next ``count`` steps of ``run`` each spend
        ``event``; return the first of them. For runs whose every event is known beforehand."""
        first = self.steps(run)
        if not (isinstance(count, int) and 1 <= count <= MOST_STEPS - first):
            raise LedgerError(
                f"count must be a positive whole number up to {MOST_STEPS - first}. Got {count!r} "
                "instead."
            )
        kind = self._kind(event)
        steps = self._steps_of(run)
        self._write(f"= {run} {first} {kind} {count} {UNBOUND}".encode())
        steps.add(kind, UNBOUND, count)
        self._counts[kind] += count
        return first

    def _steps_of(self, run: str) -> Steps:
        if run not in self._runs:
            self._runs[run] = Steps()
        return self._runs[run]

    def note(self, name: str, digest: str) -> None:
        """Bind a file to this point of the chain by its digest; once is enough."""
        if self.notes.get(name) == (digest, len(self)):
            return
        line = {"note": name, "digest": digest}
        self._write(json.dumps(line, separators=(",", ":")).encode())
        self.notes[name] = (digest, len(self))

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

    def _replay_alike(self, texts: list[bytes]) -> bool:
        """Take many lines at once, if all are single steps of one key in order: the usual case."""
        words = b" \n ".join(texts).decode("latin-1").split(" ")  # no line has a newline inside
        if len(words) != 7 * len(texts) - 1 or set(words[6::7]) - {"\n"}:
            return False
        runs, counts, kinds = dict.fromkeys(words[1::7]), words[4::7], words[3::7]
        if set(words[0::7]) != {"="} or len(runs) != 1 or counts.count("1") != len(texts):
            return False
        (run,) = runs
        first, known = self.steps(run), {str(kind): kind for kind in range(len(self._kinds))}
        in_order = words[2::7] == list(map(str, range(first, first + len(texts))))
        if not in_order or not set(kinds) <= known.keys():
            return False
        for kind in set(kinds):
            self._counts[known[kind]] += kinds.count(kind)
        self._steps_of(run).extend([known[kind] for kind in kinds], words[5::7])
        return True

    def _replay(self, text: bytes) -> None:
        if text[:2] == b"= ":
            run, step, kind, count, digest = text[2:].decode().rsplit(" ", 4)
            if int(step) != self.steps(run):
                raise ValueError("steps out of order")
            if not 0 <= int(kind) < len(self._kinds):
                raise ValueError(f"the kind {kind}")
            if count != "1" and digest != UNBOUND:
                raise ValueError(f"a count of {count} for one value")
            self._steps_of(run).add(int(kind), digest, int(count))
            self._counts[int(kind)] += int(count)
            return
        line = json.loads(text)
        if "winsor_ledger" in line:
            self._check_header(line)
        elif "note" in line:
            self.notes[str(line["note"])] = (str(line["digest"]), len(self))
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
            if theirs.get(key) != self.config.get(key) and (key in theirs or key not in ABOUT)
        ]
        if not differences:
            return
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
            "runs": {run: _columns(steps) for run, steps in self._runs.items()},
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
            step = 0
            entries = zip(steps["kinds"], steps["digests"], steps["counts"], strict=True)
            for kind, digest, count in entries:
                if count > 1 and digest != UNBOUND:
                    raise LedgerError(
                        f"the checkpoint must have a digest for each value. Got one for {count} "
                        "steps instead: it is damaged. Use an intact copy."
                    )
                if count > 1 and step == self.steps(run):
                    self.record_many(run, events[kind], count)
                else:
                    for each in range(step, step + count):
                        self.record(run, each, events[kind], digest)
                step += count

    def close(self) -> None:
        """Close the file; the ledger can be read on."""
        if self._file is not None:
            self._head = self._file.head
            self._file.close()
            self._file = None


def _columns(steps: Steps) -> dict[str, list[Any]]:
    """The entries as plain lists, for checkpoints."""
    kinds, digests, counts = zip(*steps.entries(), strict=True) if len(steps) else ((), (), ())
    return {"kinds": list(kinds), "digests": list(digests), "counts": list(counts)}


def _earlier(event: Any, count: Any) -> tuple[dp_event.DpEvent, int]:
    """What a header says was spent before."""
    if not (isinstance(count, int) and 1 <= count <= MOST_STEPS):
        raise ValueError(f"the count {count!r} of an event that was spent before")
    return event_from_json(event), count
