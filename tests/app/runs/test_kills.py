"""A few kills of a few runs; `benchmarks/durability.py` makes five hundred of nineteen."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

HARNESS = Path(__file__).parents[2] / "support" / "killing.py"
RUNS = (
    "loop, Adam, augmentation, quantile",
    "loop, workers, augmentation",
    "loop, ModelMix, secret key",
    "train, workers",
    "compare",
)


def test_killed_runs_end_as_if_nothing_had_happened(tmp_path):
    command = [sys.executable, str(HARNESS), str(tmp_path), "--kills", "12", "--runs", *RUNS]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert sum(len(row["kills"]) for row in rows) >= 12
    assert {row["run"] for row in rows} == set(RUNS)
    for row in rows:
        assert row["equal"], row
        assert row["lost"] == 0, row
