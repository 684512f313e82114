"""Trainings on a file system that runs full: is every release that was applied on disk?

    sudo .venv/bin/python benchmarks/full_disk.py        # mounts a tmpfs of 80 kB, a minute

A tmpfs grows by pages, so the page that does not come any more cuts a line of the ledger in two.
A note of another length moves the cut by a byte: over the trials it falls on every byte of a line.
Each training must stop with a `LedgerError` before the noise of that step is drawn; the file must
be readable and hold exactly the updates that were applied. Then room is made, the same run goes on,
and its ledger ends whole. Writes benchmarks/results/full_disk.json.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch
from saving import save
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import winsor
from winsor.core.contract import LedgerError
from winsor.core.ledger.ledger import Ledger

PAGE = 4096
SIZE, FILLER, STEPS = 20 * PAGE, 15 * PAGE, 600


class Counting(torch.optim.SGD):
    """Counts the updates that were applied."""

    applied = 0

    def step(self, closure: Any = None) -> Any:
        self.applied += 1
        return super().step(closure)


def trial(folder: Path, pad: int) -> dict[str, Any]:
    """One training into a full disk, and on when there is room."""
    filler = folder / "filler"
    filler.write_bytes(b"." * FILLER)
    torch.manual_seed(pad)
    model = torch.nn.Linear(2, 2)
    x = torch.randn(64, 2)
    optimizer = Counting(model.parameters(), lr=0.1)
    path = folder / "run.ledger"
    private = winsor.make_private(
        model=model, optimizer=optimizer, dataset=TensorDataset(x, (x[:, 0] > 0).long()),
        rule=winsor.rules.Flat(1.0), noise_multiplier=1.0, delta=1e-5, steps=STEPS, batch_size=8,
        ledger=path, seed=pad,
    )  # fmt: skip
    private.ledger.note("n" * (1 + pad), "0" * 32)
    stopped, at_the_stop, torn = 0, None, 0
    batches = private.batches()
    while True:
        try:
            for rows, labels in batches:
                private.step(F.cross_entropy(model(rows), labels, reduction="none"))
            break
        except LedgerError:
            stopped += 1
            at_the_stop = [len(Ledger.read(path)), optimizer.applied]
            if stopped > 1:
                break
            torn = PAGE - path.stat().st_size % PAGE  # bytes of the next line that found room
            filler.unlink()  # room again
            batches = private.batches()
    applied, known = optimizer.applied, len(Ledger.read(path))
    private.detach()
    return {
        "stopped": stopped,
        "on_disk_and_applied": at_the_stop,
        "bytes_of_the_cut_line": torn,
        "on_disk_and_applied_at_the_end": [known, applied],
    }


def good(row: dict[str, Any]) -> bool:
    held, ended = row["on_disk_and_applied"], row["on_disk_and_applied_at_the_end"]
    return row["stopped"] == 1 and held[0] == held[1] and ended == [STEPS, STEPS]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=100)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for pad in range(options.trials):
        with tempfile.TemporaryDirectory() as name:
            size = f"size={SIZE}"
            subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", name], check=True)
            try:
                rows.append(trial(Path(name), pad))
            finally:
                subprocess.run(["umount", name], check=True)
    result = {
        "trials": len(rows),
        "good": sum(good(row) for row in rows),
        "bad": [row for row in rows if not good(row)],
        "bytes_of_the_cut_line": sorted({row["bytes_of_the_cut_line"] for row in rows}),
    }
    print(result)
    save("full_disk", result)


if __name__ == "__main__":
    main()
