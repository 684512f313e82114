"""The trials of a running tuning, kept in memory or in files that only their owner may read.

Which trial is best, how many there were and how far the tuning has come are secrets: all of this is
deleted when the tuning ends. What stays is the ledger.
"""

from __future__ import annotations

import os
import pickle
import stat
from collections.abc import Callable
from pathlib import Path

from winsor.core.contract import LedgerError
from winsor.core.randomness import KEY_BYTES
from winsor.tuning.outcome import TrialRow

Rank = tuple[float, int]
"""Score (larger is better) and the trial's coin, which breaks ties without looking at its place."""


class Seal:
    """The trials so far: all of them with ``everything``, else only the best."""

    def __init__(self, folder: Path | None, everything: bool) -> None:
        self._folder = folder
        self._everything = everything
        self._done = 0
        self._best: tuple[Rank, TrialRow] | None = None
        self._rows: list[TrialRow] = []
        if folder is not None:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._load(folder / "trials")

    def key(self, make: Callable[[], bytes]) -> bytes:
        """Return the key of this tuning: the stored one if it was begun before, else a new one."""
        if self._folder is None:
            return make()
        path = self._folder / "key"
        if path.exists():
            key = _read(path)
            if len(key) == KEY_BYTES:
                return key
        key = make()
        _write(path, key)
        return key

    @property
    def done(self) -> int:
        """Number of trials that are done: a secret until the tuning ends."""
        return self._done

    def add(self, rank: Rank, row: TrialRow) -> None:
        """Keep a finished trial, durably: a killed tuning does not run it again."""
        self._done += 1
        if self._best is None or rank > self._best[0]:
            self._best = rank, row
        if self._everything:
            self._rows.append(row)
        if self._folder is not None:
            _write(self._folder / "trials", pickle.dumps((self._done, self._best, self._rows)))

    @property
    def rows(self) -> tuple[TrialRow, ...]:
        """The trials so far, if all are kept; else none."""
        return tuple(self._rows)

    def found(self) -> tuple[TrialRow | None, list[TrialRow] | None]:
        """Return the best trial, and all rows if all are kept."""
        best = None if self._best is None else self._best[1]
        return best, list(self._rows) if self._everything else None

    def destroy(self) -> None:
        """Delete everything that was not released."""
        self._best, self._rows, self._done = None, [], 0
        if self._folder is not None:
            for name in ("trials", "key"):
                (self._folder / name).unlink(missing_ok=True)
                (self._folder / name).with_suffix(".new").unlink(missing_ok=True)
            self._folder.rmdir()

    def _load(self, path: Path) -> None:
        if path.exists():
            self._done, self._best, self._rows = pickle.loads(_read(path))


def _write(path: Path, content: bytes) -> None:
    """Replace a file at once, readable by its owner only, on disk when this returns."""
    fresh = path.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    handle = os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


def _read(path: Path) -> bytes:
    """The content of a sealed file, if nobody else could have written it."""
    found = path.stat()
    if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise LedgerError(
            f"{path} must belong to this user and be readable by nobody else (mode 0600). Got mode "
            f"{stat.S_IMODE(found.st_mode):o} instead. What is in it may not be what a tuning "
            "wrote: delete the folder and tune again, and count both tunings."
        )
    return path.read_bytes()
