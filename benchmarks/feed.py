"""What loading a batch costs, in memory and from a file that is larger than memory.

    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/feed.py            # writes and deletes 10 GB
    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/feed.py --gigabytes 1
    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/feed.py --file rows.npy    # made if missing; kept

Writes benchmarks/results/feed.json. Two questions:

1. *In memory.* Processor microseconds per batch of a `TensorDataset`: `tensor[index]`, as it was,
   against `RowBuffers`, which is what the feed does.
2. *On disk.* Poisson batches of `winsor.training.feeding.mapped.MappedRows` over float32 rows of
784 values: megabytes
   per second and the process's peak resident memory, beside reading the file's first gigabyte
   with plain `read` (the disk's speed in sequence), and single pages at random places, read by 32
   threads past the cache (its speed at random, which is what a batch can hope for: a row of 3,136
   bytes lies on 1.77 pages). The file's pages are dropped from the cache before each.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from saving import save

from winsor.training.feeding.feed import RowBuffers

WIDTH = 784
ON_DISK = """
import json, sys, time
import numpy as np
from winsor.training.feeding.mapped import MappedRows
from winsor.core.randomness import stream
from winsor.training.feeding.feed import Feed
from winsor.core.sampling.samplers import Poisson
def peak():  # of this process: ru_maxrss begins with that of the parent
    lines = open("/proc/self/status").read().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1])
rows, rate, steps = MappedRows(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
feed = Feed(rows, Poisson(len(rows), rate), b"0" * 32)
before, start, loaded = peak(), time.perf_counter(), 0
for fragments in feed.steps(0, steps):
    for fragment in fragments:
        loaded += fragment.batch[0].nbytes
seconds = time.perf_counter() - start
print(json.dumps({"rows_per_second": loaded / 3136 / seconds,
                  "megabytes_per_second": loaded / seconds / 1e6, "megabytes": loaded / 1e6,
                  "peak_resident_megabytes": peak() / 1e3, "of_which_imports": before / 1e3}))
"""


def microseconds(function: Callable[[], Any], repeats: int) -> float:
    rounds = []
    for _ in range(7):
        start = time.process_time()
        for _ in range(repeats):
            function()
        rounds.append((time.process_time() - start) / repeats * 1e6)
    return statistics.median(rounds)


def in_memory() -> list[dict[str, Any]]:
    rows = []
    for batch in (128, 256, 4096, 20_000):
        values = torch.randn(60_000, WIDTH)
        chosen = np.sort(np.random.default_rng(0).permutation(len(values))[:batch])
        index, buffers = torch.from_numpy(chosen), RowBuffers()
        repeats = max(3, 50_000 // batch)
        before = microseconds(lambda: values[index], repeats)  # noqa: B023
        now = microseconds(lambda: buffers.rows_of(0, values, index), repeats)  # noqa: B023
        rows.append({"batch": batch, "index": before, "feed": now, "ratio": now / before})
        print(rows[-1], flush=True)
    return rows


def written(path: Path, gigabytes: float) -> None:
    """A file of random rows, piece by piece."""
    count = int(gigabytes * 1e9 / (4 * WIDTH))
    array = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(count, WIDTH))
    piece = np.random.default_rng(0).normal(size=(20_000, WIDTH)).astype(np.float32)
    for first in range(0, count, len(piece)):
        array[first : first + len(piece)] = piece[: count - first]
    array.flush()


def dropped(path: Path) -> None:
    """The file leaves the page cache."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def plain_read(path: Path) -> float:
    """Megabytes per second of reading from the first byte on, a gigabyte at most."""
    buffer, total, start = bytearray(1 << 24), 0, time.perf_counter()
    with path.open("rb", buffering=0) as file:
        while total < 1e9 and (got := file.readinto(buffer)):
            total += got
    return total / (time.perf_counter() - start) / 1e6


PAGE, THREADS = 4096, 32


def scattered_read(path: Path, pages: int = 40_000) -> float:
    """Pages per second at random places, past the page cache, many asked for at once."""
    last = path.stat().st_size // PAGE
    places = np.random.default_rng(0).integers(0, last, pages) * PAGE
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)

    def read(some: np.ndarray) -> None:
        buffer = mmap.mmap(-1, PAGE)  # O_DIRECT wants whole pages in memory, too
        for place in some.tolist():
            os.preadv(descriptor, [buffer], place)

    start = time.perf_counter()
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(read, np.array_split(places, THREADS)))
    seconds = time.perf_counter() - start
    os.close(descriptor)
    return pages / seconds


def on_disk(gigabytes: float, file: Path | None, large: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = file or Path(folder) / "rows.npy"
        if not path.exists():
            written(path, gigabytes)
        count = len(np.load(path, mmap_mode="r"))
        gigabytes = round(path.stat().st_size / 1e9, 2)
        dropped(path)
        found: dict[str, Any] = {"gigabytes": gigabytes, "plain_read": plain_read(path)}
        found["scattered_pages_per_second"] = scattered_read(path)
        for name, rate, steps in (
            ("two in a hundred", 0.02, large),
            ("batches of 256", 256 / count, 10 * large),
        ):
            dropped(path)
            done = subprocess.run(
                [sys.executable, "-c", ON_DISK, str(path), str(rate), str(steps)],
                check=True,
                capture_output=True,
                text=True,
            )
            found[name] = {"rate": rate, "steps": steps, **json.loads(done.stdout)}
            print(name, found[name], flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--gigabytes", type=float, default=10.0)
    parser.add_argument("--file", type=Path, help="a file of rows to read, which is kept")
    parser.add_argument("--steps", type=int, default=10, help="with large batches")
    options = parser.parse_args()
    disk = on_disk(options.gigabytes, options.file, options.steps)
    found = {"in_memory": in_memory(), "on_disk": disk}
    save("feed", {"load": os.getloadavg(), **found})


if __name__ == "__main__":
    main()
