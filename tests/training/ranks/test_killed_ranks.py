"""A few kills of ranks; `benchmarks/ranks_durability.py` makes fifty."""

import json
import os
import subprocess
import sys
from pathlib import Path

HARNESS = Path(__file__).parents[2] / "support" / "rank_kills.py"


def test_killed_ranks_go_on_and_every_release_is_in_the_ledger(tmp_path):
    command = [sys.executable, str(HARNESS), str(tmp_path), "--kills", "3"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert sum(row["kills"] for row in rows) >= 3
    for row in rows:
        assert row["well"], row
        assert row["lost"] == 0, row
