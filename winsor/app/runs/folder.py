"""The folder of a run, a comparison or a tuning: claimed by a configuration, finished by a result.

    config.toml, compare.toml or tune.toml    the configuration, as it was given
    config.json, compare.json or tune.json    the same with every default filled in; its presence
                                              means "claimed"
    result.json                               its presence means "finished"

Every file is replaced in one act: a kill or a full disk leaves the old content or the new.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from winsor.app.runs.config import differences
from winsor.core.contract import WinsorError
from winsor.training import files

KINDS = {"config.json": "a run", "compare.json": "a comparison", "tune.json": "a tuning"}
"""What a folder holds, by the name of its record."""
NONSENSE = (
    ArithmeticError, AttributeError, LookupError, RecursionError, RuntimeError, TypeError,
    ValueError, MemoryError,
)  # fmt: skip
"""What reading raises when values are not what they should be."""


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


class RunFolder:
    """Files that belong to one configuration. Nothing is created before `claim`."""

    record = "config.json"
    sorted_record = False

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.ledger = self.path / "ledger.jsonl"

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
        return dict(self.read(self.record))

    def source(self) -> str:
        """The text of the configuration that the folder was claimed for."""
        name = Path(self.record).with_suffix(".toml").name
        self._require(name)
        return (self.path / name).read_text(encoding="utf-8")

    def claim(self, settings: Mapping[str, Any], source: str) -> None:
        """Make the folder, or check that it was made for the same settings."""
        if self.exists:
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

    def result(self) -> dict[str, Any] | None:
        """The result, if there is one."""
        return self.read("result.json") if (self.path / "result.json").exists() else None

    def read(self, name: str) -> Any:
        """The content of a JSON file of the folder."""
        path = self.path / name
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise RunError(f"cannot read {path}: {error}.") from error

    def replace(self, name: str, content: bytes, private: bool = False) -> None:
        """Write a file of the folder in one act; a ``private`` one is the owner's to read."""
        replace_file(self.path / name, content, private)

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
        except WinsorError as error:  # a file that cannot be read at all, named in the message
            found.append(str(error))
        return found

    def refuse_disagreements(self, leftovers: bool = True) -> None:
        """Raise if anything does not fit."""
        found = self.disagreements(leftovers=leftovers)
        if found:
            raise RunError(
                f"the files of {self.path} do not agree: {'; '.join(found)}. Restore them from a "
                "copy. Nothing was changed or deleted."
            )

    def _disagreements(self, head: str | None, leftovers: bool) -> Iterator[str]:
        return iter(())
