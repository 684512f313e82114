"""The trials of a running tuning, in memory or in two files that only their owner may read.

    key       the tuning's secret, whose fingerprint the ledger names
    trials    a MAC under that key, a line of JSON, and the bytes of arrays and tensors

Nothing of ``trials`` is looked at before its MAC is right, and none of it is code. Which trial is
best, how many there were and how far the tuning has come are secrets: both files are deleted when
the tuning ends. What stays is the ledger.
"""

from __future__ import annotations

import contextlib
import hmac
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

from winsor.core.contract import ConfigurationError, LedgerError
from winsor.core.ledger.chain import content_of
from winsor.core.randomness import KEY_BYTES
from winsor.training.files import NONSENSE, replace_file, unfinished
from winsor.tuning.outcome import TrialRow

Rank = tuple[float, int]
"""Score (larger is better) and the trial's coin, which breaks ties without looking at its place."""
MAC_BYTES = 32


class Seal:
    """The trials of a running tuning: all of them with ``everything``, else only the best."""

    def __init__(self, folder: Path | None, everything: bool) -> None:
        self._folder = folder
        self._everything = everything
        self._key = b""
        self.fresh = True
        """Whether no trials were stored: then nothing was paid."""
        self._done = 0
        self._best: tuple[Rank, TrialRow] | None = None
        self._rows: list[TrialRow] = []

    def key(self, make: Callable[[], bytes]) -> bytes:
        """Return the key of this tuning: a new one, or the stored one with its trials."""
        if self._folder is None:
            return make()
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not (self._folder / "key").exists():  # trials without it are left of one that ended
            (self._folder / "trials").unlink(missing_ok=True)
            replace_file(self._folder / "key", make(), private=True)
        self._key = _read(self._folder / "key")
        self.fresh = not (self._folder / "trials").exists()
        if self.fresh and len(self._key) == KEY_BYTES:
            return self._key
        stored = _read(self._folder / "trials")
        content = stored[MAC_BYTES:]
        genuine = hmac.compare_digest(stored[:MAC_BYTES], self._mac(content))
        with contextlib.suppress(*NONSENSE):
            if genuine and len(self._key) == KEY_BYTES:
                self._load(content)
                return self._key
        raise LedgerError(
            f"{self._folder} must hold what this tuning wrote under its key. It was changed, or "
            "written by winsor 0.3 or before, in a format that could run code. Finish it with that "
            "version, or delete the folder, tune again and count both tunings."
        )

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
        self.store()

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
            for path in (self._folder / "key", self._folder / "trials"):
                path.unlink(missing_ok=True)
                unfinished(path).unlink(missing_ok=True)
            self._folder.rmdir()

    def _mac(self, content: bytes) -> bytes:
        return hmac.digest(self._key, b"winsor trials" + content, "sha256")

    def store(self) -> None:
        """Write the trials so far, if there is a folder; none before anything is paid."""
        if self._folder is None:
            return
        kept = [] if self._best is None else [self._best[1]]
        rows = self._rows if self._everything else kept
        place = next((i for i, row in enumerate(rows) if row is kept[0]), 0)
        parts: list[bytes] = []
        plain = [_packed([row.setting, row.score, row.model], parts) for row in rows]
        best = None if self._best is None else [*self._best[0], place]
        line = json.dumps({"done": self._done, "best": best, "rows": plain}).encode()
        content = b"".join([line, b"\n", *parts])
        replace_file(self._folder / "trials", self._mac(content) + content, private=True)

    def _load(self, content: bytes) -> None:
        line, _, parts = content.partition(b"\n")
        table, source = json.loads(line), io.BytesIO(parts)
        plain = [_unpacked(row, source) for row in table["rows"]]
        rows = [TrialRow(dict(setting), float(score), model) for setting, score, model in plain]
        self._done, self._rows = int(table["done"]), rows if self._everything else []
        if table["best"] is not None:
            score, coin, place = table["best"]
            self._best = (float(score), int(coin)), rows[place]


def _read(path: Path) -> bytes:
    """The content of a sealed file, if nobody else could have written it."""
    try:
        return content_of(path, owner_only=True)
    except OSError as error:
        raise LedgerError(
            f"{path} must be a file of this user that nobody else can read (mode 0600). "
            f"{error.strerror}. What is in it may not be what a tuning wrote: delete the folder "
            "and tune again, and count both tunings."
        ) from error


def _packed(value: Any, parts: list[bytes]) -> Any:
    """Plain values as JSON; the bytes of arrays and tensors go to ``parts``."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, dict):
        return {"dict": [[_packed(k, parts), _packed(v, parts)] for k, v in value.items()]}
    if isinstance(value, list):
        return [_packed(inner, parts) for inner in value]
    if isinstance(value, tuple):
        return {"tuple": [_packed(inner, parts) for inner in value]}
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        flat = value.detach().cpu().contiguous().reshape(-1)
        parts.append(flat.view(torch.uint8).numpy().tobytes())
        return {"tensor": [str(value.dtype), *value.shape], "size": len(parts[-1])}
    if isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
        file = io.BytesIO()
        np.save(file, value, allow_pickle=False)
        parts.append(file.getvalue())
        return {"array": isinstance(value, np.ndarray), "size": len(parts[-1])}
    raise ConfigurationError(
        "train must return numbers, text, arrays and tensors, in lists, tuples and dicts, as its "
        f"model if tune has a directory. Got {type(value).__name__} instead, which could be loaded "
        "only by running code from a file. Return model.state_dict(), for example, and tune with "
        "the same directory: nothing is paid again."
    )


def _unpacked(value: Any, parts: io.BytesIO) -> Any:
    if isinstance(value, list):
        return [_unpacked(inner, parts) for inner in value]
    if not isinstance(value, dict):
        return value
    if "dict" in value:
        return {_unpacked(k, parts): _unpacked(v, parts) for k, v in value["dict"]}
    if "tensor" in value:
        import torch

        dtype, *shape = value["tensor"]
        content = np.frombuffer(bytearray(parts.read(value["size"])), np.uint8)
        kind = getattr(torch, dtype.removeprefix("torch."))
        return torch.from_numpy(content).view(kind).reshape(shape)
    if "tuple" in value:
        return tuple(_unpacked(value["tuple"], parts))
    found = npy.read_array(io.BytesIO(parts.read(value["size"])), allow_pickle=False)
    return found if value["array"] else found[()]
