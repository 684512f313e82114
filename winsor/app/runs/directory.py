"""A run's directory: everything needed to resume, to report and to reproduce it.

    config.toml       the configuration, as it was given
    config.json       the same with every default filled in
    environment.json  versions, machine, and when it was started and resumed
    ledger.jsonl      what was released; the accountant reads nothing else
    prepared-K.jsonl  the ledger of what was released before the training, prepared-K.pt its numbers
    metrics.jsonl     one line per recorded step
    checkpoint.pt     to resume; holds the key of the noise, so guard it like the data
    model.pt          the released model, when the run is finished
    result.json       the guarantee and the final metrics; its presence means "finished"

Every file but the two logs is replaced in one act: a kill leaves the old one or the new one. The
checkpoint is written after the metrics that lead up to it; later metrics are dropped on resuming
and come again.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import torch

import winsor
from winsor.app.runs.archives import check_checkpoint
from winsor.app.runs.config import Config, differences, from_table
from winsor.app.runs.sealing import seal
from winsor.core.contract import WinsorError
from winsor.core.ledger.ledger import Ledger
from winsor.training import files
from winsor.training.saving import as_bytes

Row = dict[str, Any]
NONSENSE = (
    ArithmeticError, AttributeError, LookupError, RecursionError, RuntimeError, TypeError,
    ValueError, MemoryError,
)  # fmt: skip
"""What reading raises when values are not what they should be."""
MADE = ("config.toml", "config.json", "environment.json", "metrics.jsonl", "checkpoint.pt")
"""What a run has in its directory before its first release, beside its ledger."""
PACKAGES = ("torch", "numpy", "scipy", "scikit-learn", "dp-accounting")


class RunError(WinsorError, RuntimeError):
    """A run directory that cannot be written, read or resumed."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn the system's refusals into one clear line."""
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


class RunDirectory:
    """The files of one run. Nothing is created before `create`."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.ledger = self.path / "ledger.jsonl"
        self.key = self.ledger.with_suffix(".key")
        self._metrics: TextIO | None = None

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return str(self.path)

    # ------------------------------------------------------------------------- configuration

    @property
    def exists(self) -> bool:
        return (self.path / "config.json").exists()

    @property
    def empty(self) -> bool:
        """Whether nothing is there yet, so that whatever is there later is the run's."""
        return not self.path.exists() or (self.path.is_dir() and not any(self.path.iterdir()))

    def config(self) -> Config:
        """The configuration this directory was made with."""
        if not self.exists:
            raise RunError(
                f"{self.path} must be the directory of a run. Got one without config.json instead."
            )
        return from_table(self._read("config.json"))

    def create(self, config: Config, source: str | None = None) -> None:
        """Make the directory, or check that it belongs to the same configuration."""
        if self.exists:
            different = differences(self.config(), config)
            if different:
                raise RunError(
                    f"{self.path} holds a run of another configuration ({'; '.join(different)}). "
                    "Choose another directory with --run, or restore the configuration to resume."
                )
            return
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        text = config.to_toml() if source is None else source
        self._replace("config.toml", text.encode())
        self._replace("config.json", _json(config.to_table()))

    def withdraw(self) -> None:
        """Take back a run that ended in a mistake before its first release, as if it had never
        been: the corrected configuration may use its directory. What was spent stays."""
        for ledger in (self.ledger, *self.path.glob("prepared-*.jsonl")):
            if ledger.exists() and len(Ledger.read(ledger)):
                return
        with writing(self.path):
            for name in (*MADE, self.ledger.name, self.key.name):
                (self.path / name).unlink(missing_ok=True)
            if not any(self.path.iterdir()):
                self.path.rmdir()

    # ------------------------------------------------------------------------------- records

    def note_environment(self, session: Mapping[str, Any]) -> None:
        """Add what this start (or resumption) runs on."""
        sessions = [*self.environment(), dict(session)]
        self._replace("environment.json", _json({"sessions": sessions}))

    def environment(self) -> list[dict[str, Any]]:
        path = self.path / "environment.json"
        if not path.exists():
            return []
        with sense(path):
            return [dict(session) for session in self._read("environment.json")["sessions"]]

    def keep_metrics_until(self, step: int) -> None:
        """Drop the lines after ``step``, and one torn by a kill; then open for appending."""
        kept = [row for row in self.metrics() if row["step"] <= step]
        lines = "".join(json.dumps(row) + "\n" for row in kept)
        path = self.path / "metrics.jsonl"
        with writing(path):
            if not path.exists() or path.read_text() != lines:
                self._replace("metrics.jsonl", lines.encode())
            self._metrics = path.open("a", encoding="utf-8")

    def add_metrics(self, row: Row) -> None:
        assert self._metrics is not None, "keep_metrics_until opens the file"
        with writing(self.path / "metrics.jsonl"):
            self._metrics.write(json.dumps(row) + "\n")
            self._metrics.flush()

    def metrics(self) -> list[Row]:
        """All complete lines."""
        path = self.path / "metrics.jsonl"
        if not path.exists():
            return []
        with sense(path):
            *lines, _torn = path.read_text(encoding="utf-8").split("\n")
            rows = [dict(json.loads(line)) for line in lines]
            if not all(isinstance(row["step"], int) for row in rows):
                raise ValueError("a step must be a whole number")
            return rows

    def result(self) -> dict[str, Any] | None:
        """The result, if the run is finished."""
        return self._read("result.json") if (self.path / "result.json").exists() else None

    def finish(
        self,
        result: Mapping[str, Any],
        model: Mapping[str, Any],
        keep_key: bool,
        ledger: Ledger | None = None,
    ) -> dict[str, Any]:
        """Write the model, seal the ledger, write the result, then destroy the key."""
        self._replace("model.pt", as_bytes(model))
        self.close()
        if ledger is not None:
            result = seal(result, self.metrics(), self.path, ledger)
        self._replace("result.json", _json(result))
        if not keep_key:
            self.destroy_key()
        return dict(result)

    def destroy_key(self) -> None:
        """Without the checkpoint (and ModelMix's key file) nobody can subtract the noise."""
        with writing(self.path):
            for name in ("checkpoint.pt", ".checkpoint.pt.new", f".{self.key.name}.new"):
                (self.path / name).unlink(missing_ok=True)  # a kill may leave a half-written one
            self.key.unlink(missing_ok=True)

    # --------------------------------------------------------------------------- checkpoints

    def save_checkpoint(self, state: Mapping[str, Any]) -> None:
        if self._metrics is not None:
            with writing(self.path / "metrics.jsonl"):
                os.fsync(self._metrics.fileno())
        self._replace("checkpoint.pt", as_bytes(state), private=True)

    def load_checkpoint(self) -> dict[str, Any] | None:
        path = self.path / "checkpoint.pt"
        if not path.exists():
            return None
        try:
            check_checkpoint(path)
            state: dict[str, Any] = dict(torch.load(path, weights_only=True))
        except Exception as error:  # torch raises many kinds for damaged files
            raise RunError(
                f"{path} cannot be read ({type(error).__name__}). Restore it from a copy; without "
                "it this run cannot go on."
            ) from error
        return state

    def close(self) -> None:
        if self._metrics is not None:
            self._metrics.close()
            self._metrics = None

    # --------------------------------------------------------------------------------- files

    def _read(self, name: str) -> Any:
        path = self.path / name
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise RunError(f"cannot read {path}: {error}.") from error

    def _replace(self, name: str, content: bytes, private: bool = False) -> None:
        replace_file(self.path / name, content, private)


def replace_file(path: Path, content: bytes, private: bool = False) -> None:
    """Write a file such that a kill or a full disk leaves the old content or the new."""
    with writing(path):
        files.replace_file(path, content, private)


def describe_session() -> dict[str, Any]:
    """Versions and machine, without names of people or hosts."""
    return {
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "winsor": winsor.__version__,
        "python": platform.python_version(),
        "packages": {name: importlib.metadata.version(name) for name in PACKAGES},
        "system": f"{platform.system()} {platform.machine()}",
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "command": [os.path.basename(sys.argv[0]), *sys.argv[1:]],
    }


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=1) + "\n").encode()
