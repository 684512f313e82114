"""Tables 2 and B1 of paper 4: printed, with the published noise, and certified.

    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/aclip_tables.py [--data ../shared/data]

The real data run the paper's full 30 epochs. The synthetic sets run ``--epochs`` (20) of the
paper's 400, so their errors are not comparable with the printed ones; the three readings of one
row are comparable with each other. Writes benchmarks/results/aclip_tables.json.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from winsor.papers.aclip_printed import DATA
from winsor.papers.aclip_tables import cells

RESULTS = Path(__file__).parent / "results" / "aclip_tables.json"
REAL = ("diabetes", "adult")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", default="../shared/data")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=20)
    options = parser.parse_args()
    found = []
    print(f"{'':38}{'printed':>9}{'published':>11}{'certified':>11}{'really':>9}{'s':>8}")
    for task in ("logistic", "ridge"):
        for name in DATA:
            epochs = None if name in REAL else options.epochs
            for cell in cells(task, options.data, data=(name,), seeds=options.seeds, epochs=epochs):
                row = asdict(cell)
                row["claim"] = None if cell.claim is None else str(cell.claim)
                row["epochs"] = 30 if epochs is None else epochs
                found.append(row)
                print(
                    f"{task:9}{name:12}{cell.method:8}epsilon {cell.epsilon:<4g} "
                    f"{cell.printed_error:8.4f}{cell.published_error:11.4f}"
                    f"{cell.certified_error:11.4f}{cell.published_noise_certifies:9.2f}"
                    f"{cell.seconds:8.2f}",
                    flush=True,
                )
            RESULTS.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
