"""Cells: the pieces of work a table is made of, each kept as soon as it is finished.

A cell is one training, one fit, one measured risk. Tables do not know about files: they call
`cell`, and whoever runs them decides what that means (`Book`):

    no book       the work is done, nothing is kept
    keep          what the journal holds is not done again; what it lacks is done and appended
    gather        nothing is done: what the journal lacks is noted, and answers with its stand-in
    plan          nothing is done: a cell that was never measured answers with its stand-in
    probe         like plan, but each unknown kind of cell is begun, to learn what one costs

A journal is a file of lines, one per finished cell: settings, values, processor seconds, commit. A
line is written at once and flushed to the disk; a last line that was torn by an interruption is not
read. The name of a cell is a digest of its settings, so a table whose settings change asks for
other cells, and two tables of a paper that need the same run share it. Several processes may work
for one table: a cell that is being worked for is taken (`Book.taken`).
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import torch
from filelock import FileLock
from torch import Tensor

Values = dict[str, Any]
"""What a cell yields: numbers, text, lists of them; infinities are kept as text."""

Mode = Literal["keep", "gather", "plan", "probe"]
PROBE = (9, 150)
"""Steps of the runs from which the cost of a step is read, beside runs of one step, the first of
which warms up: the second only where the first was too short."""
CLEAR = 0.2
"""Seconds by which a run must be longer than one of a single step."""
DEAR = 5.0
"""Seconds: a first short run that takes longer is not followed by another; all of it counts."""
DIGITS = 9
"""Of numbers that name a cell."""


class OutOfTime(Exception):
    """The time that was given is over; everything finished so far is kept."""


class WantsCompany(Exception):
    """A cell is missing that is better worked for together with others."""


@dataclass(frozen=True)
class Asked:
    """A cell that a table has asked for, in its order."""

    name: str
    kind: str
    done: bool


@dataclass
class Book:
    """The cells of one table of one paper, and how to treat those that are not there yet."""

    folder: Path
    paper: str
    table: str
    mode: Mode = "keep"
    commit: str = "unknown"
    deadline: float = math.inf
    """In seconds of `time.monotonic`; no cell is begun after it."""
    in_teams: bool = False
    """Whether somebody will gather what can be worked for together."""
    asked: list[Asked] = field(default_factory=list)
    known: dict[str, dict[str, Any]] = field(default_factory=dict)
    probed: dict[str, float] = field(default_factory=dict)
    """Estimated processor seconds of the kinds that were begun."""
    missing: dict[str, Wanted] = field(default_factory=dict)
    """What was gathered, by name."""
    guesses: int = 0
    """How often a stand-in was the answer."""

    def __post_init__(self) -> None:
        self.read()

    def read(self) -> None:
        """The journals, with what another process may have kept meanwhile."""
        for path in sorted(self.folder.glob(f"{self.paper}-*.jsonl")):
            self.known |= {record["name"]: record for record in read_journal(path)}

    @property
    def journal(self) -> Path:
        return self.folder / f"{self.paper}-{self.table}.jsonl"

    def take(self, wanted: Wanted) -> Values:
        """The values of a cell: known, worked for, or a stand-in."""
        name = wanted.name
        found = self.known.get(name)
        self.asked.append(Asked(name, wanted.kind, found is not None))
        if found is not None:
            return _from_text(found["values"])
        if self.mode in ("plan", "gather"):
            self.guesses += 1
            if not wanted.guessed:
                self.missing[name] = wanted
            return dict(wanted.stand_in)
        if time.monotonic() > self.deadline:
            raise OutOfTime
        if self.mode == "probe":
            return self._probe(wanted)
        if self.in_teams and wanted.together is not None:
            raise WantsCompany
        return self._work(wanted)

    def _work(self, wanted: Wanted) -> Values:
        with self.taken([wanted]):
            if wanted.name not in self.known:
                begun = time.process_time()
                values = wanted.work()
                self._keep(wanted, values, time.process_time() - begun)
        return _from_text(self.known[wanted.name]["values"])

    @contextmanager
    def taken(self, team: Sequence[Wanted], wait: bool = True) -> Iterator[None]:
        """No other process works for these cells meanwhile, and what it has kept is known.

        `Timeout` if one does, and it shall not be waited for. The lock of a process that dies is
        free at once.
        """
        names = [str(self.folder.resolve()), *(wanted.name for wanted in team)]
        digest = hashlib.blake2b(repr(names).encode(), digest_size=10).hexdigest()
        with FileLock(_locks() / f"{digest}.lock", timeout=-1 if wait else 0):
            self.read()
            yield

    def _keep(self, wanted: Wanted, values: Values, seconds: float, **more: Any) -> None:
        record = {
            "name": wanted.name,
            "kind": wanted.kind,
            "processor_seconds": round(seconds, 3),
            "commit": self.commit,
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "settings": wanted.settings,
            "values": _to_text(values),
            **more,
        }
        append(self.journal, record)
        self.known[wanted.name] = record

    def work_together(self, team: Sequence[Wanted]) -> None:
        """Cells of one `Together`; the time is shared out equally, and the journal says so."""
        if time.monotonic() > self.deadline:
            raise OutOfTime
        shared = team[0].together
        assert shared is not None
        begun = time.process_time()
        found = shared.work([wanted.together.member for wanted in team if wanted.together])
        seconds = (time.process_time() - begun) / len(team)
        for wanted, values in zip(team, found, strict=True):
            self._keep(wanted, values, seconds, together=len(team))

    def _probe(self, wanted: Wanted) -> Values:
        """The cost of an unknown kind; a cell that has no parts is done, and then kept."""
        known = {record["kind"] for record in self.known.values()}
        if wanted.kind in known or wanted.kind in self.probed:
            return dict(wanted.stand_in)
        if wanted.part is None:
            return self._work(wanted)
        short = _seconds(wanted.part, 1)
        if short > DEAR:
            self.probed[wanted.kind] = wanted.scale * short * wanted.steps
            return dict(wanted.stand_in)
        short = _seconds(wanted.part, 1)
        for longer in PROBE:
            steps = max(2, min(longer, wanted.steps))
            more = max(0.0, _seconds(wanted.part, steps) - short)
            if more > CLEAR:
                break
        self.probed[wanted.kind] = short + wanted.scale * more / (steps - 1) * (wanted.steps - 1)
        return dict(wanted.stand_in)


def _locks() -> Path:
    """Of cells that are being worked for; outside any repository."""
    folder = Path(tempfile.gettempdir()) / f"winsor-reproduce-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def _seconds(part: Callable[[int], object], steps: int) -> float:
    """Processor time of a short run."""
    begun = time.process_time()
    part(steps)
    return time.process_time() - begun


@dataclass(frozen=True)
class Wanted:
    """A cell: what identifies it, what it costs like, and how to work for it."""

    kind: str
    """Cells of one kind cost about the same: what it says leaves out seeds and rates."""
    settings: Mapping[str, Any]
    work: Callable[[], Values]
    stand_in: Mapping[str, Any]
    steps: int = 1
    part: Callable[[int], object] | None = None
    """The same work for so many steps only; None if it cannot be cut."""
    scale: float = 1.0
    """What a step costs over a step of ``part``, whose batches may be smaller."""
    together: Together | None = None
    """How to work for it in company; None if it is always alone."""
    guessed: bool = False
    """Whether its settings follow from a stand-in: then it is not what the table will ask for."""

    @property
    def name(self) -> str:
        return name_of(self.kind, self.settings)


def name_of(kind: str, settings: Mapping[str, Any]) -> str:
    """A digest of what identifies a cell, its numbers to `DIGITS` digits.

    A calibrated noise differs between processors in its last digits; the cell is the same.
    """
    plain = json.loads(json.dumps({"kind": kind, **settings}, default=str))
    text = json.dumps(_rounded(plain), sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=10).hexdigest()


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {key: _rounded(part) for key, part in value.items()}
    return [_rounded(part) for part in value] if isinstance(value, list) else value


@dataclass(frozen=True)
class Together:
    """Cells of one ``key`` can be worked for in one go, for less than one after the other."""

    key: str
    member: Any
    work: Callable[[Sequence[Any]], Sequence[Values]]
    """From the members of a team to the values of each; the same for all of a key."""
    most: int = 1000
    """Members of a team: few where each takes long and little is shared, so that much is kept."""


_BOOK: ContextVar[Book | None] = ContextVar("book", default=None)


@contextmanager
def kept(book: Book | None) -> Iterator[Book | None]:
    """Cells inside are those of ``book``."""
    token = _BOOK.set(book)
    try:
        yield book
    finally:
        _BOOK.reset(token)


def cell(wanted: Wanted) -> Values:
    """The values of a cell, by whatever book is open."""
    book = _BOOK.get()
    return wanted.work() if book is None else book.take(wanted)


def planning() -> bool:
    """Is a table gone through only to see what it would ask for?

    Then `like_rows` may stand for features that take minutes to compute: cells are counted by kind,
    and a step costs the same whatever its rows are.
    """
    book = _BOOK.get()
    return book is not None and book.mode in ("plan", "probe")


def guesses() -> int:
    """How many stand-ins the open book has answered with so far."""
    book = _BOOK.get()
    return 0 if book is None else book.guesses


def like_rows(count: int, *shape: int) -> Tensor:
    """Rows of this shape and length 1, all the same: no memory, for a plan only."""
    one = torch.ones(1, *shape)
    return (one / one.norm()).expand(count, *shape)


# --------------------------------------------------------------------------------------- journals


def append(path: Path, record: Mapping[str, Any]) -> None:
    """One line, on the disk when this returns; a torn line before it is ended first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps(record, sort_keys=True, default=str, ensure_ascii=False) + "\n"
    with open(path, "ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                line = "\n" + line
        file.write(line.encode())
        file.flush()
        os.fsync(file.fileno())


def read_journal(path: Path) -> list[dict[str, Any]]:
    """The finished cells, by today's names; lines that were torn are left out."""
    records = []
    for line in path.read_text().splitlines() if path.is_file() else ():
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(record, dict) and "name" in record:
            if "settings" in record:
                record["name"] = name_of(record["kind"], record["settings"])
            records.append(record)
    return records


def _to_text(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return {"number": str(value)}
    if isinstance(value, dict):
        return {key: _to_text(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_to_text(part) for part in value]
    return value


def _from_text(value: Any) -> Any:
    if isinstance(value, dict):
        if set(value) == {"number"}:
            return float(value["number"])
        return {key: _from_text(part) for key, part in value.items()}
    return [_from_text(part) for part in value] if isinstance(value, list) else value


# ------------------------------------------------------------------------------------ identities


def data_name(*tensors: Tensor) -> str:
    """A short digest of rows: their shape, their sum, and every so many of them."""
    content = hashlib.blake2b(digest_size=6)
    for tensor in tensors:
        rows = tensor[:: max(1, len(tensor) // 512)].contiguous()
        total = _total(tensor)
        content.update(f"{tuple(tensor.shape)} {tensor.dtype} {total!r}".encode())
        content.update(rows.numpy().tobytes())
    return content.hexdigest()


_TOTALS: dict[int, tuple[weakref.ref[Tensor], int, float]] = {}
"""By the identity of a tensor that still is what it was: a hundred cells are on the same rows."""


def _total(tensor: Tensor) -> float:
    """The sum of all numbers, in double precision."""
    found = _TOTALS.get(id(tensor))
    if found is None or found[0]() is not tensor or found[1] != tensor._version:
        total = float(tensor.sum(dtype=torch.float64))
        found = _TOTALS[id(tensor)] = weakref.ref(tensor), tensor._version, total
    return found[2]


def model_name(make: Callable[[], torch.nn.Module]) -> str:
    """What a model prints, in a line."""
    return " ".join(str(make()).split())


def described(thing: object) -> str:
    """What it prints, without addresses in memory, which differ from run to run."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(thing))
