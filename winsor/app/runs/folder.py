"""The folder of a run, a comparison or a tuning: claimed by a configuration, sealed by a result.

    config.toml, compare.toml or tune.toml    the configuration, as it was given
    config.json, compare.json or tune.json    the same with every default filled in; its presence
                                              means "claimed"
    ledger.jsonl                              the chain: it names every other file by its digest
    result.json, of a comparison summary.json its presence means "finished"

Every file is replaced in one act: a kill or a full disk leaves the old content or the new. The
ledger names the new content before that, under the name that it has until then (.NAME.new), and
after it under its own: so what a kill leaves is always named. What is named no more has the digest
`GONE`. The last that a finished ledger names is the result, without its own last line, the head of
the chain. So whoever knows the head knows every file; and nothing is parsed or loaded before its
bytes were compared with the ledger.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from winsor.app.runs.config import differences
from winsor.core.contract import LedgerError, Neighbouring, WinsorError
from winsor.core.ledger.chain import content_of
from winsor.core.ledger.guarantee import spent_by
from winsor.core.ledger.ledger import Ledger
from winsor.training import files
from winsor.training.files import NONSENSE

KINDS = {"config.json": "a run", "compare.json": "a comparison", "tune.json": "a tuning"}
"""What a folder holds, by the name of its record."""
BEGUN = (
    *(f"{kind}.{end}" for kind in ("config", "compare", "tune") for end in ("toml", "json")),
    "prepared-*.jsonl", "prepared-*.pt",
)  # fmt: skip
"""Files that are there before the ledger, and never change."""
LATE = ("held_out.jsonl", "*/seed-*/ledger.jsonl")
"""Files that the ledger names when they are finished."""
NAMED = (
    "environment.json", "metrics.jsonl", "checkpoint.pt", "model.pt", "held_out.json",
    "trials.json", "result.json", "summary.json",
)  # fmt: skip
"""Files that the ledger names before they are there. winsor reads no others."""
GONE = "-"
"""What the ledger notes of a file that it named and that is there no more."""


class RunError(WinsorError, RuntimeError):
    """The directory of a run cannot be written, read or resumed."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn refusals of the system into one clear line."""
    try:
        yield
    except OSError as error:
        raise RunError(
            f"cannot write {path}: {error.strerror or error}. Make room or choose a writable "
            "directory with --run; a run that was started can be resumed."
        ) from error


@contextmanager
def sense(path: object) -> Iterator[None]:
    """Turn what received values do to a program that expects others into one clear line."""
    try:
        yield
    except WinsorError:
        raise
    except NONSENSE as error:
        raise RunError(
            f"{path} is damaged: its values make no sense ({type(error).__name__}: {error}). "
            "Restore it from a copy."
        ) from error


def replace_file(path: Path, content: bytes, private: bool = False) -> None:
    """Write a file such that a kill or a full disk leaves the old content or the new."""
    with writing(path):
        files.replace_file(path, content, private)


def json_bytes(value: Any, sort_keys: bool = False) -> bytes:
    """The text of a JSON file in the folder of a run."""
    return (json.dumps(value, indent=1, sort_keys=sort_keys) + "\n").encode()


def of_bytes(content: bytes) -> str:
    """The digest of a file's content."""
    return hashlib.blake2b(content, digest_size=32).hexdigest()


def changed(path: Path) -> LedgerError:
    """The refusal of a file that the ledger does not name."""
    return LedgerError(
        f"{path} must be the file that the ledger beside it names. It was changed, or written by "
        "winsor 0.3 or before. Restore it from a copy, or start anew in another directory."
    )


def last_line(head: str) -> bytes:
    """The end of a sealed result."""
    return f',\n "ledger_head": "{head}"\n}}\n'.encode()


class RunFolder:
    """Files that belong to one configuration. Nothing is created before `claim`."""

    record = "config.json"
    result_name = "result.json"
    sorted_record = False

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.ledger = self.path / "ledger.jsonl"
        self.chain: Ledger | None = None

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return str(self.path)

    @property
    def kind(self) -> str:
        """ "a run", "a comparison" or "a tuning"."""
        return KINDS[self.record]

    @property
    def exists(self) -> bool:
        """Return whether the folder was claimed."""
        return (self.path / self.record).exists()

    def recorded(self) -> dict[str, Any]:
        """The settings that the folder was claimed for."""
        self._require(self.record)
        with sense(self.path / self.record):
            return dict(self.read(self.record))

    def source(self) -> str:
        """The text of the configuration that the folder was claimed for."""
        name = Path(self.record).with_suffix(".toml").name
        self._require(name)
        with sense(self.path / name):
            return self.content(name).decode()

    def claim(self, settings: Mapping[str, Any], source: str) -> None:
        """Make the folder, or check that it was made for the same settings."""
        if self.exists:
            for line in self._odd():
                raise RunError(f"{self.path} must hold files and folders only: {line}.")
            different = self._differences(settings)
            if different:
                raise RunError(
                    f"{self.path} holds {self.kind} of another configuration "
                    f"({'; '.join(different)}). Choose another directory with --run, or restore "
                    "the configuration to resume."
                )
            return
        for name, other in KINDS.items():
            if (self.path / name).exists():
                raise RunError(
                    f"{self.path} must be a new directory or that of {self.kind}. Got that of "
                    f"{other} instead. Choose another one with --run."
                )
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        self.replace(Path(self.record).with_suffix(".toml").name, source.encode())
        self.replace(self.record, json_bytes(settings, self.sorted_record))

    def _differences(self, settings: Mapping[str, Any]) -> list[str]:
        return differences(self.recorded(), json.loads(json.dumps(settings)))

    @property
    def finished(self) -> bool:
        """Return whether there is a result."""
        return (self.path / self.result_name).exists()

    def result(self) -> dict[str, Any] | None:
        """The result, if there is one."""
        return self.read(self.result_name) if self.finished else None

    def read(self, name: str) -> Any:
        """The content of a JSON file of the folder."""
        try:
            return json.loads(self.content(name))
        except (ValueError, RecursionError) as error:
            raise RunError(f"cannot read {self.path / name}: {error}.") from error

    def content(self, name: str, always_named: bool = False) -> bytes:
        """The bytes of a file that the ledger names; of one that grows, those at its beginning."""
        try:
            content = content_of(self.path / name)
        except OSError as error:
            raise RunError(f"cannot read {self.path / name}: {error.strerror or error}.") from error
        begun = self.ledger.exists() and b"\n" in content_of(self.ledger)  # killed before: no
        chain = self.chain or (Ledger.read(self.ledger) if begun else Ledger({}))
        allowed = _allowed(chain, name)
        found = self._digests(name, content, chain)
        lengths = [length for digest, length in found.items() if digest in allowed]
        if (always_named or allowed) and not lengths:
            raise changed(self.path / name)
        return content[: max(lengths, default=None)]

    def replace(self, name: str, content: bytes, private: bool = False) -> None:
        """Write a file of the folder in one act; a ``private`` one is the owner's to read."""
        replace_file(self.path / name, content, private)

    # ------------------------------------------------------------------------------- the seal

    def bind(self, ledger: Ledger) -> None:
        """Let ``ledger`` name what the folder begins with; what goes on must have what it left."""
        problems = list(self._strangers(ledger, resuming=True))
        if problems:
            raise self._refusal(problems)
        self.chain = ledger
        for name in self._present(BEGUN):
            if name not in ledger.notes:
                self.name(name)
        if self._sealed(ledger):  # killed before the result was there
            ledger.note(self.result_name, GONE)

    def name(self, name: str, digest: str = "") -> None:
        """Let the ledger name a file as it is on disk, or by another ``digest``."""
        assert self.chain is not None, "the folder is bound to its ledger"
        self.chain.note(name, digest or of_bytes(content_of(self.path / name)))

    def seal(self, name: str, content: bytes, private: bool = False) -> None:
        """Write a file that the ledger names."""
        self.name(files.unfinished(Path(name)).name, of_bytes(content))
        self.replace(name, content, private)
        self.name(name, of_bytes(content))

    def seal_result(self, result: Mapping[str, Any]) -> dict[str, Any]:
        """Write the result, the last that the ledger names; return it with the chain's head."""
        content = json_bytes(result).removesuffix(b"\n}\n")
        self.name(self.result_name, of_bytes(content))
        head = self.chain.head  # type: ignore[union-attr]
        self.replace(self.result_name, content + last_line(head))
        return {**result, "ledger_head": head}

    def _sealed(self, ledger: Ledger) -> bool:
        return ledger.notes.get(self.result_name, (GONE,))[0] != GONE

    @property
    def _resumable(self) -> bool:
        """Whether there is what a kill just before the result would have left."""
        return True

    def _present(self, patterns: tuple[str, ...]) -> list[str]:
        found = {file for pattern in patterns for file in self.path.glob(pattern)}
        return sorted(file.relative_to(self.path).as_posix() for file in found)

    def _digests(self, name: str, content: bytes, ledger: Ledger) -> dict[str, int]:
        """What the ledger may call a file with this content, and how much of it that is."""
        line = last_line(ledger.head) if name == self.result_name else b""
        return (
            {of_bytes(content.removesuffix(line)): len(content)} if content.endswith(line) else {}
        )

    def _odd(self) -> Iterator[str]:
        """Links, pipes, sockets and devices, none of which is opened."""
        for name in self._present(("*", "sealed/*", "*/seed-*")):
            mode = (self.path / name).lstat().st_mode
            if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                yield f"{name} is neither a file nor a folder"

    def _strangers(self, ledger: Ledger, resuming: bool = False) -> Iterator[str]:
        """Files that are not what the ledger names, or are missing."""
        sealed, present, unnamed = self._sealed(ledger), self._present((*BEGUN, *LATE, *NAMED)), []
        bound = len(ledger) or not ledger.notes.keys() <= {*self._present(BEGUN)}
        may_wait = () if sealed else self._present(LATE if bound else (*LATE, *BEGUN))
        for name in sorted({*present, *(name for name in ledger.notes if name[0] != ".")}):
            allowed, result = _allowed(ledger, name), name == self.result_name
            gone = GONE in allowed and (sealed or result)
            if name in present and not allowed:
                unnamed += [name] if name not in may_wait else []
            elif name in present:
                content = content_of(self.path / name)
                if not allowed & self._digests(name, content, ledger).keys():
                    yield f"{name} is not the file that the ledger names"
            elif not gone and not (resuming and result and self._resumable):
                yield f"{name} is missing, although the ledger names it"
        if unnamed and (ledger.notes or len(ledger)):
            names = ", ".join(unnamed)
            yield f"the ledger does not name {names}: winsor 0.3 and before did not, or it is new"

    def _require(self, name: str) -> None:
        if not (self.path / name).exists():
            raise RunError(
                f"{self.path} must be the directory of {self.kind}. Got one without {name} instead."
            )

    # ------------------------------------------------------------------------------- checking

    def disagreements(self, head: str | None = None, leftovers: bool = True) -> list[str]:
        """What does not fit between the files, in words; nothing if all is well.

        ``head`` is the head of the ledger's chain, as it was noted elsewhere. ``leftovers`` counts
        files that hold the noise key of a finished run.
        """
        found: list[str] = []
        try:
            with sense(self.path):
                found.extend(self._disagreements(head, leftovers))
        except (OSError, WinsorError) as error:  # a file that cannot be read at all
            found.append(str(error))
        return found

    def refuse_disagreements(self, leftovers: bool = True) -> None:
        """Raise if anything does not fit."""
        found = self.disagreements(leftovers=leftovers)
        if found:
            raise self._refusal(found)

    def _refusal(self, found: list[str]) -> RunError:
        return RunError(
            f"the files of {self.path} do not agree: {'; '.join(found)}. Restore them from a copy, "
            "or start anew in another directory. Nothing was changed or deleted."
        )

    def _disagreements(self, head: str | None, leftovers: bool) -> Iterator[str]:
        ledger = Ledger.read(self.ledger)
        found = list(self._odd()) or list(self._strangers(ledger))
        if found and Ledger.read(self.ledger).head != ledger.head:  # it goes on meanwhile
            ledger = Ledger.read(self.ledger)
            found = list(self._strangers(ledger))
        if head is not None and ledger.head != head.lower():
            yield f"the ledger's head is {ledger.head}, not {head}"
        yield from found or self._claims(ledger, leftovers)

    def _claims(self, ledger: Ledger, leftovers: bool) -> Iterator[str]:
        """What the files say that the ledger does not; they are those that it names."""
        return iter(())


def result_claims(
    result: Mapping[str, Any], ledger: Ledger, delta: Any, relation: Any
) -> Iterator[str]:
    """What a result says of its guarantee that the ledger does not; epsilon is computed anew."""
    for name, truth in {"delta": delta, "relation": relation}.items():
        if result.get(name) != truth:
            yield f"result.json says {name} = {result.get(name)!r}, not {truth!r}"
            return
    spent = spent_by(ledger.history(), float(delta), Neighbouring(relation)).epsilon
    claimed = result.get("epsilon")
    if not isinstance(claimed, float | int) or not math.isclose(claimed, spent, rel_tol=1e-6):
        yield f"result.json says epsilon = {claimed!r}, the ledger spends {spent:.6g}"


def _allowed(ledger: Ledger, name: str) -> set[str]:
    """The digests that a file may have: the one it has, and the one it is about to have."""
    names = (name, files.unfinished(Path(name)).name)
    return {ledger.notes[each][0] for each in names if each in ledger.notes}
