"""What an entry of the ledger costs, and how long a ledger of a million entries takes to read.

    .venv/bin/python benchmarks/ledger.py

Processor time, on a file system in memory: the disk's own time is the disk's. Bounds: 30
microseconds for each entry, 2 seconds to open and 5 seconds to verify a million. Verifying is the
whole of what `winsor verify` asks of a run's ledger: chain, header, counts and epsilon. Writes
benchmarks/results/ledger.json.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dp_accounting.dp_event import GaussianDpEvent, PoissonSampledDpEvent
from saving import save

from winsor.core.contract import Neighbouring
from winsor.core.ledger.guarantee import spent_by
from winsor.core.ledger.ledger import Ledger

CONFIG = {"rule": "Flat(max_grad_norm=1.0)", "n": 60_000, "delta": 1e-5}
EVENT = PoissonSampledDpEvent(1e-4, GaussianDpEvent(2.0))
RUN, DIGESTS = "0123456789abcdef", [f"{7**k % 2**128:032x}" for k in range(1000)]
BOUNDS = {"entry_microseconds": 30.0, "open_seconds": 2.0, "verify_seconds": 5.0}


def seconds(action: Callable[[], Any]) -> float:
    begun = time.process_time()
    action()
    return time.process_time() - begun


def written(path: Path, entries: int) -> float:
    """Microseconds for each entry."""
    ledger = Ledger(CONFIG, path)

    def write() -> None:
        for step in range(entries):
            ledger.record(RUN, step, EVENT, DIGESTS[step % 1000])

    spent = seconds(write)
    ledger.close()
    return 1e6 * spent / entries


def verify(path: Path) -> None:
    ledger = Ledger.read(path)
    spent_by(ledger.history(), CONFIG["delta"], Neighbouring.ADD_OR_REMOVE_ONE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        path = Path(folder, "ledger.jsonl")
        found = {"entry_microseconds": [written(path, options.entries)]}
        times = range(options.repeats)
        found["open_seconds"] = [seconds(lambda: Ledger(CONFIG, path).close()) for _ in times]
        found["verify_seconds"] = [seconds(lambda: verify(path)) for _ in times]
        megabytes = path.stat().st_size / 1e6
    result = {
        name: {
            "median": round(statistics.median(values), 3),
            "all": [round(value, 3) for value in values],
            "bound": BOUNDS[name],
            "reached": statistics.median(values) <= BOUNDS[name],
        }
        for name, values in found.items()
    }
    for name, row in result.items():
        print(name, row)
    save("ledger", {"entries": options.entries, "megabytes": round(megabytes, 1), **result})


if __name__ == "__main__":
    main()
