"""Three hundred folders that somebody changed, three hundred that nobody did, and canaries.

    .venv/bin/python benchmarks/tampering.py --count 300 --fuzz 150

Honest runs (rules, mechanisms, samplings, kept checkpoints, stopped ones), comparisons and tunings
are made once, copied, and changed: in the ways of tests/support/tampering.py (by somebody who knows
the formats) and of tests/support/sealed_folders.py (any file: deleted, damaged, another's, a pipe,
a link, a pickle). `winsor verify` with the head that was noted must find every change and raise no
alarm for honest folders, each with a seed of its own. Then every format is damaged `--fuzz` times,
half of the times with a ledger that was forged to name it, and replaced by a pickle that would
leave a mark: whatever reads it ends in one line. Writes benchmarks/results/tampering.json.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from saving import save

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

import sealed_folders as sealed
from fuzzing import FAULTS, forge, outcome
from tampering import honest_runs, tampered

from winsor.app.runs.verifying import disagreements


def changed(count: int, folder: Path) -> dict[str, Any]:
    """How many changes are found: in each way, and without the head that was noted."""
    runs, folders = honest_runs(folder / "runs"), sealed.honest_folders(folder / "folders")
    heads = {name: sealed.head_of(path) for name, path in {**runs, **folders}.items()}
    found, headless, missed = collections.Counter(), 0, []
    for number in range(count):
        if number % 3:
            name, way, file, path = sealed.tampered_folder(folders, number, folder / "changed")
        else:
            name, way, path = tampered(runs, number, folder / "changed")
            file = ""
        if disagreements(path, heads[name]):
            found[way] += 1
        else:
            missed.append([number, name, way, file])
        headless += bool(disagreements(path))
        shutil.rmtree(folder / "changed")
    return {
        "changed": count, "found": sum(found.values()), "found_without_head": headless,
        "missed": missed, "by_way": dict(found),
    }  # fmt: skip


def honest(count: int, folder: Path) -> dict[str, Any]:
    """What is said against honest folders."""
    alarms, names = [], sorted(sealed.CONFIGURATIONS)
    for number in range(count):
        path = sealed.make(names[number % len(names)], folder / f"{number}", number)
        alarms += [[path.name, line] for line in disagreements(path, sealed.head_of(path))]
        shutil.rmtree(folder / f"{number}")
    return {"honest": count, "false_alarms": alarms}


def fuzzed(count: int, folder: Path) -> Iterator[dict[str, Any]]:
    """How commands end that read a damaged file or a canary, for each format of each kind."""
    folders, formats = sealed.honest_folders(folder / "folders"), collections.defaultdict(list)
    for name, path in folders.items():
        for file in sealed.files_of(path):
            inside = file.relative_to(path).as_posix()
            if name != "compare" or "/" not in inside:
                formats[f"{name.split(',')[0]} {inside}"].append((name, inside))
    mark, place, ran, found, faults = folder / "ran", folder / "case", 0, {}, []
    canaries = sealed.canary(mark), sealed.canary_of_torch(mark)
    for form, places in formats.items():
        ends: collections.Counter[str] = collections.Counter()
        for number in range(count + 4 * len(places)):
            name, inside = places[number % len(places)]
            lines = sealed.fuzzed_folder(folders, name, inside, number, place)
            if number >= count:
                target = Path(shutil.copytree(folders[name], place / "canary")) / inside
                target.write_bytes(canaries[number // len(places) % 2])
                if number >= count + 2 * len(places):
                    with contextlib.suppress(Exception):
                        forge(target)
                lines = sealed.readers(place / "canary", name)[:4]
            for line in lines if number % 50 == 0 else lines[:4:3] if number % 2 else lines[:2]:
                end, words = outcome(line)
                ends[end] += 1
                if end in FAULTS:
                    faults.append([name, inside, number, line[0], words[-400:]])
            ran += mark.exists()
            shutil.rmtree(place)
        found[form] = dict(ends)
        print(form, dict(ends), flush=True)
        yield {"fuzzed_per_format": count, "ends": found, "faults": faults, "code_executed": ran}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--fuzz", type=int, default=150)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        result = changed(options.count, Path(folder, "a")) | honest(
            options.count, Path(folder, "b")
        )
        print({name: result[name] for name in result if name != "by_way"}, flush=True)
        save("tampering", result)
        for ends in fuzzed(options.fuzz, Path(folder, "c")):
            save("tampering", result | ends)


if __name__ == "__main__":
    main()
