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

Every file but the two logs is replaced in one act. The checkpoint is written after the metrics that
lead up to it; later metrics are dropped on resuming and come again. How the ledger names the other
files stands in `folder.py`; of the metrics of a run that goes on it names the first lines.
"""

from __future__ import annotations

import datetime
import hashlib
import importlib.metadata
import io
import json
import os
import platform
import sys
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

import winsor
from winsor.app.runs.config import Config, from_table
from winsor.app.runs.folder import (
    GONE,
    LATE,
    RunError,
    RunFolder,
    json_bytes,
    of_bytes,
    sense,
    writing,
)
from winsor.core.contract import ConfigurationError
from winsor.core.ledger.chain import content_of
from winsor.core.ledger.ledger import Ledger
from winsor.planning.optional import needing_torch
from winsor.training.files import unfinished

Row = dict[str, Any]
MADE = ("config.toml", "config.json", "environment.json", "metrics.jsonl", "checkpoint.pt")
"""What a run has in its directory before its first release, beside its ledger."""
PACKAGES = ("torch", "numpy", "scipy", "scikit-learn", "dp-accounting")
METRICS = "metrics.jsonl"


class RunDirectory(RunFolder):
    """The files of one run of `winsor train`."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        self.key = self.ledger.with_suffix(".key")
        self._metrics: TextIO | None = None

    # ------------------------------------------------------------------------- configuration

    @property
    def empty(self) -> bool:
        """Return whether the folder is absent or empty: all that is there later is the run's."""
        return not self.path.exists() or (self.path.is_dir() and not any(self.path.iterdir()))

    def config(self) -> Config:
        """The configuration this directory was made with."""
        return from_table(super().recorded())

    def recorded(self) -> dict[str, Any]:
        """The settings this directory was made with, with every default of this version."""
        return self.config().to_table()

    def create(self, config: Config, source: str | None = None) -> None:
        """Make the directory, or check that it belongs to the same configuration."""
        self.claim(config.to_table(), config.to_toml() if source is None else source)

    def withdraw(self) -> None:
        """Remove the files of a run that ended in a mistake before its first release.

        The corrected configuration may then use the directory. What was spent stays.
        """
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
        self.seal("environment.json", json_bytes({"sessions": sessions}))

    def environment(self) -> list[dict[str, Any]]:
        """What each start and resumption ran on."""
        path = self.path / "environment.json"
        if not path.exists():
            return []
        with sense(path):
            return [dict(session) for session in self.read("environment.json")["sessions"]]

    def keep_metrics_until(self, step: int) -> None:
        """Drop the lines after ``step``, and one torn by a kill; then open for appending."""
        kept = [row for row in self.metrics() if row["step"] <= step]
        lines = "".join(json.dumps(row) + "\n" for row in kept).encode()
        path = self.path / METRICS
        if not path.exists() or content_of(path) != lines:
            self.seal(METRICS, lines)
        with writing(path):
            self._metrics = path.open("a", encoding="utf-8")

    def add_metrics(self, row: Row) -> None:
        """Append a line; `keep_metrics_until` opens the file."""
        assert self._metrics is not None, "keep_metrics_until opens the file"
        with writing(self.path / "metrics.jsonl"):
            self._metrics.write(json.dumps(row) + "\n")
            self._metrics.flush()

    def metrics(self) -> list[Row]:
        """All complete lines."""
        path = self.path / METRICS
        if not path.exists():
            return []
        with sense(path):
            *lines, _torn = self.content(METRICS).decode().split("\n")
            rows = [dict(json.loads(line)) for line in lines]
            if not all(isinstance(row["step"], int) for row in rows):
                raise ValueError("a step must be a whole number")
            return rows

    def _name_metrics(self) -> None:
        """Let the ledger name the lines so far, once they are on disk."""
        if self._metrics is not None:
            with writing(self.path / METRICS):
                os.fsync(self._metrics.fileno())
            digest = of_bytes(content_of(self.path / METRICS))
            for name in (unfinished(Path(METRICS)).name, METRICS):
                self.name(name, digest)

    def _digests(self, name: str, content: bytes, ledger: Ledger) -> dict[str, int]:
        if name != METRICS or self._sealed(ledger):
            return super()._digests(name, content, ledger)
        so_far, length = hashlib.blake2b(digest_size=32), 0
        found = {so_far.hexdigest(): 0}
        for line in io.BytesIO(content):
            so_far.update(line)
            length += len(line)
            found[so_far.hexdigest()] = length
        return found

    def finish(
        self, result: Mapping[str, Any], model: Mapping[str, Any], keep_key: bool
    ) -> dict[str, Any]:
        """Write the model and the result, seal both, then destroy the key."""
        from winsor.training.saving.file import as_bytes

        self.seal("model.pt", as_bytes(model))
        self._name_metrics()
        self.close()
        for name in self._present(LATE):
            self.name(name)
        if keep_key:
            return self.seal_result(result)
        self.name("checkpoint.pt", GONE)
        sealed = self.seal_result(result)
        self.destroy_key()
        return sealed

    def destroy_key(self) -> None:
        """Without the checkpoint (and ModelMix's key file) nobody can subtract the noise."""
        with writing(self.path):
            for name in ("checkpoint.pt", ".checkpoint.pt.new", f".{self.key.name}.new"):
                (self.path / name).unlink(missing_ok=True)  # a kill may leave a half-written one
            self.key.unlink(missing_ok=True)

    # --------------------------------------------------------------------------- checkpoints

    def save_checkpoint(self, state: Mapping[str, Any]) -> None:
        """Write what is needed to resume, after the metrics that lead up to it."""
        from winsor.training.saving.file import as_bytes

        self._name_metrics()
        self.seal("checkpoint.pt", as_bytes(state), private=True)

    def load_checkpoint(self) -> dict[str, Any] | None:
        """What was saved last, if there is a checkpoint."""
        path = self.path / "checkpoint.pt"
        if not path.exists():
            return None
        with needing_torch(f"reading {path}"):
            import torch
        content = self.content(path.name, always_named=True)
        try:
            _refuse_packed(path, content)
            state: dict[str, Any] = dict(torch.load(io.BytesIO(content), weights_only=True))
        except Exception as error:  # torch raises many kinds for damaged files
            raise RunError(
                f"{path} cannot be read ({type(error).__name__}). Restore it from a copy; without "
                "it this run cannot go on."
            ) from error
        return state

    def close(self) -> None:
        """Close the metrics."""
        if self._metrics is not None:
            self._metrics.close()
            self._metrics = None

    # -------------------------------------------------------------------------------- the seal

    @property
    def _resumable(self) -> bool:
        return (self.path / "checkpoint.pt").exists()

    def _claims(self, ledger: Ledger, leftovers: bool) -> Iterator[str]:
        from winsor.app.runs.verifying import run_claims

        return run_claims(self, ledger, leftovers)


class ComparisonFolder(RunFolder):
    """The files of one comparison. Its ledger releases nothing: it names files."""

    record = "compare.json"
    result_name = "summary.json"

    def _claims(self, ledger: Ledger, leftovers: bool) -> Iterator[str]:
        for name in self._present(("*/seed-*",)):
            found = RunDirectory(self.path / name).disagreements(leftovers=leftovers)
            yield from (f"{name}: {line}" for line in found)


def _refuse_packed(path: Path, content: bytes) -> None:
    """Refuse a compressed checkpoint: torch stores tensors as they are."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        total = sum(info.file_size for info in archive.infolist())
    if total > len(content):
        raise ConfigurationError(
            f"{path} must not be compressed. Its content says {total:,} bytes, the file has "
            f"{len(content):,}."
        )


def describe_session() -> dict[str, Any]:
    """Versions and machine, without names of people or hosts."""
    with needing_torch("a run"):
        import torch
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
