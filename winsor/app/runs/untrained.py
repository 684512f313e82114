"""The run of a `winsor train` directory, built anew and not trained, for a one-run audit.

Only the configuration is read from the directory, and the data from where it says. Nothing is
written there: the run that the audit builds keeps its ledger elsewhere and in the end throws it
away.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from winsor.app.runs.data import load_data
from winsor.app.runs.directory import RunDirectory
from winsor.app.runs.execute import assemble
from winsor.training.loop import PrivateTraining


def build(path: Path | str) -> tuple[PrivateTraining, Any]:
    """(the training that the directory's configuration describes, its loss)."""
    config = RunDirectory(path).config()
    data = load_data(config.data)
    with tempfile.TemporaryDirectory() as elsewhere:
        run = assemble(config, RunDirectory(elsewhere), data)
    return run.private, run.task.losses
