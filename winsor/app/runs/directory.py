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
lead up to it; later metrics are dropped on resuming and come again.

The other files are bound to the ledger: when the run begins, the ledger notes the digests of
config.json and of what was prepared; when it is finished, result.json names the digests of metrics
and model, and the ledger notes that of the result after its last entry. Whoever knows the head of
the ledger's chain knows them all. What differs between repetitions of one run (seconds, and the
head itself) is left out, so a run that was killed and resumed ends with the same seal.
"""

from __future__ import annotations

import datetime
import hashlib
import importlib.metadata
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
from winsor.app.runs.folder import RunError, RunFolder, json_bytes, sense, writing
from winsor.core.contract import ConfigurationError, LedgerError
from winsor.core.ledger.ledger import Ledger
from winsor.planning.optional import needing_torch

Row = dict[str, Any]
MADE = ("config.toml", "config.json", "environment.json", "metrics.jsonl", "checkpoint.pt")
"""What a run has in its directory before its first release, beside its ledger."""
PACKAGES = ("torch", "numpy", "scipy", "scikit-learn", "dp-accounting")
CONFIG, RESULT = "config.json", "result.json"
VARIES = ("seconds", "ledger_head")


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
        self.replace("environment.json", json_bytes({"sessions": sessions}))

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
        lines = "".join(json.dumps(row) + "\n" for row in kept)
        path = self.path / "metrics.jsonl"
        with writing(path):
            if not path.exists() or path.read_text() != lines:
                self.replace("metrics.jsonl", lines.encode())
            self._metrics = path.open("a", encoding="utf-8")

    def add_metrics(self, row: Row) -> None:
        """Append a line; `keep_metrics_until` opens the file."""
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

    def finish(
        self,
        result: Mapping[str, Any],
        model: Mapping[str, Any],
        keep_key: bool,
        ledger: Ledger | None = None,
    ) -> dict[str, Any]:
        """Write the model, seal the ledger, write the result, then destroy the key."""
        from winsor.training.saving.file import as_bytes

        self.replace("model.pt", as_bytes(model))
        self.close()
        if ledger is not None:
            sealed = {**result, "files": self.sealed_digests()}
            ledger.note(RESULT, of_result(sealed))
            result = {**sealed, "ledger_head": ledger.head}
        self.replace("result.json", json_bytes(result))
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
        """Write what is needed to resume, after the metrics that lead up to it."""
        from winsor.training.saving.file import as_bytes

        if self._metrics is not None:
            with writing(self.path / "metrics.jsonl"):
                os.fsync(self._metrics.fileno())
        self.replace("checkpoint.pt", as_bytes(state), private=True)

    def load_checkpoint(self) -> dict[str, Any] | None:
        """What was saved last, if there is a checkpoint."""
        path = self.path / "checkpoint.pt"
        if not path.exists():
            return None
        with needing_torch(f"reading {path}"):
            import torch
        try:
            _refuse_packed(path)
            state: dict[str, Any] = dict(torch.load(path, weights_only=True))
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

    def bind(self, ledger: Ledger) -> None:
        """Note the files that a run begins with in its ledger; a resumed run must have the same."""
        digest = of_bytes((self.path / CONFIG).read_bytes())
        if CONFIG in ledger.notes and ledger.notes[CONFIG][0] != digest:
            raise LedgerError(
                f"{self.path / CONFIG} must be the file that the run began with. It was changed: "
                "the ledger names another. Restore it from a copy, or start a new run."
            )
        for name, found in {CONFIG: digest, **self.prepared_digests()}.items():
            if name not in ledger.notes:
                ledger.note(name, found)

    def prepared_digests(self) -> dict[str, str]:
        """Digests of the ledgers and numbers of what was released before the training."""
        files = [*self.path.glob("prepared-*.jsonl"), *self.path.glob("prepared-*.pt")]
        return {one.name: of_bytes(one.read_bytes()) for one in sorted(files)}

    def sealed_digests(self) -> dict[str, str | None]:
        """Digests of the metrics, without their times, and of the model, if there is one."""
        model = self.path / "model.pt"
        return {
            "metrics.jsonl": of_table([_steady(row) for row in self.metrics()]),
            "model.pt": of_bytes(model.read_bytes()) if model.exists() else None,
        }

    def _disagreements(self, head: str | None, leftovers: bool) -> Iterator[str]:
        from winsor.app.runs.verifying import run_disagreements

        return run_disagreements(self, head, leftovers)


def of_result(result: Mapping[str, Any]) -> str:
    """The digest of a result, without what varies between repetitions."""
    return of_table(_steady(result))


def of_table(table: Any) -> str:
    """The digest of plain values."""
    return of_bytes(json.dumps(table, sort_keys=True).encode())


def of_bytes(content: bytes) -> str:
    """The digest of a file's content."""
    return hashlib.blake2b(content, digest_size=32).hexdigest()


def _steady(table: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in table.items() if name not in VARIES}


def _refuse_packed(path: Path) -> None:
    """Refuse a compressed checkpoint: torch stores tensors as they are."""
    with zipfile.ZipFile(path) as archive:
        total = sum(info.file_size for info in archive.infolist())
    if total > path.stat().st_size:
        raise ConfigurationError(
            f"{path} must not be compressed. Its content says {total:,} bytes, the file has "
            f"{path.stat().st_size:,}."
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
