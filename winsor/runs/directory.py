"""A run's directory: everything needed to resume, to report and to reproduce it.

    config.toml       the configuration, as it was given
    config.json       the same with every default filled in
    environment.json  versions, machine, and when it was started and resumed
    ledger.jsonl      what was released; the accountant reads nothing else
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
import io
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
from winsor.contract import WinsorError
from winsor.runs.config import Config, differences, from_table

Row = dict[str, Any]
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

    # ------------------------------------------------------------------------------- records

    def note_environment(self, session: Mapping[str, Any]) -> None:
        """Add what this start (or resumption) runs on."""
        sessions = [*self.environment(), dict(session)]
        self._replace("environment.json", _json({"sessions": sessions}))

    def environment(self) -> list[dict[str, Any]]:
        path = self.path / "environment.json"
        return self._read("environment.json")["sessions"] if path.exists() else []

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
        *lines, _torn = path.read_text(encoding="utf-8").split("\n")
        try:
            return [json.loads(line) for line in lines]
        except ValueError as error:
            raise RunError(
                f"{path} is damaged: {error}. Restore it, or start a new run."
            ) from error

    def result(self) -> dict[str, Any] | None:
        """The result, if the run is finished."""
        return self._read("result.json") if (self.path / "result.json").exists() else None

    def finish(self, result: Mapping[str, Any], model: Mapping[str, Any], keep_key: bool) -> None:
        """Write the model, then the result, then destroy the key."""
        self._replace("model.pt", _torch_bytes(model))
        self._replace("result.json", _json(result))
        self.close()
        if not keep_key:
            self.destroy_key()

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
        self._replace("checkpoint.pt", _torch_bytes(state), private=True)

    def load_checkpoint(self) -> dict[str, Any] | None:
        path = self.path / "checkpoint.pt"
        if not path.exists():
            return None
        try:
            state: dict[str, Any] = torch.load(path, weights_only=True)
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
        except (OSError, ValueError) as error:
            raise RunError(f"cannot read {path}: {error}.") from error

    def _replace(self, name: str, content: bytes, private: bool = False) -> None:
        replace_file(self.path / name, content, private)


def replace_file(path: Path, content: bytes, private: bool = False) -> None:
    """Write a file such that a kill or a full disk leaves the old content or the new."""
    temporary = path.with_name(f".{path.name}.new")
    with writing(path):
        try:
            mode = 0o600 if private else 0o644
            temporary.unlink(missing_ok=True)  # never write through a link that somebody left
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        if os.name == "posix":  # elsewhere a folder cannot be opened, nor need it be
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)


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


def _torch_bytes(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()
