"""Ways to change a run's directory after the fact, by somebody who knows the formats but one thing:
that the head of the chain was noted elsewhere. Each must be found by `winsor verify`."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fuzzing import rechained, unfinished
from tiny_runs import table

from winsor.app.runs.config import from_table
from winsor.app.runs.execute import execute
from winsor.app.runs.progress import Quiet

KINDS: dict[str, dict[str, Any]] = {
    "flat": {},
    "calibrated": {"budget": {"epsilon": 4.0}},
    "quantile": {"rule": {"name": "quantile", "max_grad_norm": 1.0}},
    "kept checkpoint": {"record": {"keep_checkpoint": True}},
    "monitored": {"record": {"monitor": "private"}},
    "full batch": {"training": {"sampling": "full", "batch_size": None, "steps": 5}},
    "secret noise": {"reproducible_noise": False},
    "modelmix": {
        "reproducible_noise": False,
        "mechanism": {"name": "modelmix", "tau_over_lr": 0.1},
        "optimizer": {"name": "sgd", "lr": 0.5},
    },
    "two models": {"model": {"name": "mlp", "hidden": [4]}},
}
UNFINISHED = ("flat", "quantile")


def honest_runs(folder: Path, names: list[str] | None = None) -> dict[str, Path]:
    """A finished run of each kind, and a stopped one of some."""
    found = {}
    for name in KINDS if names is None else names:
        settings = table(**KINDS[name])
        settings["training"] = {k: v for k, v in settings["training"].items() if v is not None}
        found[name] = folder / name
        execute(from_table(settings), found[name], Quiet())
        if name in UNFINISHED:
            found[f"{name}, stopped"] = folder / f"{name} stopped"
            unfinished(settings | {"seed": 1}, found[f"{name}, stopped"])
    return found


# ------------------------------------------------------------------------------------ tampering


def _lines(run: Path) -> list[bytes]:
    return (run / "ledger.jsonl").read_bytes().splitlines(keepends=True)


def _write(run: Path, lines: list[bytes]) -> None:
    (run / "ledger.jsonl").write_bytes(b"".join(lines))


def _entries(lines: list[bytes]) -> list[int]:
    return [place for place, line in enumerate(lines) if line.startswith(b"= ")]


def remove_lines(run: Path, chance: random.Random, others: list[Path]) -> None:
    lines = _lines(run)
    first = chance.choice(_entries(lines))
    del lines[first : first + chance.randrange(1, 5)]
    _write(run, lines)


def remove_the_end(run: Path, chance: random.Random, others: list[Path]) -> None:
    lines = _lines(run)
    _write(run, lines[: -chance.randrange(1, len(_entries(lines)))])


def truncate(run: Path, chance: random.Random, others: list[Path]) -> None:
    content = (run / "ledger.jsonl").read_bytes()
    (run / "ledger.jsonl").write_bytes(content[: chance.randrange(len(content) * 3 // 4)])


def swap_lines(run: Path, chance: random.Random, others: list[Path]) -> None:
    lines = _lines(run)
    one, two = chance.sample(range(len(lines)), 2)
    lines[one], lines[two] = lines[two], lines[one]
    _write(run, lines)


def double_a_line(run: Path, chance: random.Random, others: list[Path]) -> None:
    lines = _lines(run)
    place = chance.choice(_entries(lines))
    _write(run, [*lines[: place + 1], *lines[place:]])


def flip_a_bit(run: Path, chance: random.Random, others: list[Path]) -> None:
    content = bytearray((run / "ledger.jsonl").read_bytes())
    content[chance.randrange(len(content) - 1)] ^= 1 << chance.randrange(7)
    (run / "ledger.jsonl").write_bytes(content)


def replace_the_event(run: Path, chance: random.Random, others: list[Path]) -> None:
    """More noise than there was, in every event, and the chain made to fit again."""
    content = (run / "ledger.jsonl").read_bytes()
    changed = content.replace(b'"noise_multiplier":', b'"noise_multiplier":9')
    (run / "ledger.jsonl").write_bytes(rechained(changed) if chance.random() < 0.5 else changed)


def edit_a_count(run: Path, chance: random.Random, others: list[Path]) -> None:
    lines = _lines(run)
    place = chance.choice(_entries(lines))
    words = lines[place].split(b" ")
    words[4] = str(chance.choice((0, 2, 40, 2_000_000_000))).encode()
    lines[place] = b" ".join(words)
    _write(run, lines)
    if chance.random() < 0.5:
        (run / "ledger.jsonl").write_bytes(rechained(b"".join(lines)))


def edit_the_header(run: Path, chance: random.Random, others: list[Path]) -> None:
    lines = _lines(run)
    name = chance.choice((b'"n":', b'"delta":', b'"relation":"', b'"rule":"', b'"hash":"'))
    lines[0] = lines[0].replace(name, name + b"1", 1)
    _write(run, lines)
    if chance.random() < 0.5:
        (run / "ledger.jsonl").write_bytes(rechained(b"".join(lines)))


def another_ledger(run: Path, chance: random.Random, others: list[Path]) -> None:
    shutil.copy(chance.choice(others) / "ledger.jsonl", run / "ledger.jsonl")


def forge_fewer_steps(run: Path, chance: random.Random, others: list[Path]) -> None:
    """The last releases are taken out, and the rest is chained anew."""
    lines = _lines(run)
    for place in reversed(_entries(lines)[-chance.randrange(1, 3) :]):
        del lines[place]
    (run / "ledger.jsonl").write_bytes(rechained(b"".join(lines)))


def edit_the_config(run: Path, chance: random.Random, others: list[Path]) -> None:
    path = run / "config.json"
    settings = json.loads(path.read_text())
    section, name, value = chance.choice(
        (
            ("budget", "delta", 1e-9),
            ("budget", "relation", "replace_one"),
            ("training", "max_physical_batch_size", 3),
            ("record", "monitor", "debug"),
            ("data", "seed", 77),
            (None, "reproducible_noise", not settings["reproducible_noise"]),
            (None, "name", "a better one"),
        )
    )
    (settings if section is None else settings[section])[name] = value
    path.write_text(json.dumps(settings, indent=1) + "\n")


def edit_the_result(run: Path, chance: random.Random, others: list[Path]) -> None:
    path = run / "result.json"
    result = json.loads(path.read_text())
    name = chance.choice(sorted(set(result) - {"seconds"}))
    value = result[name]
    result[name] = value * 0.9 if isinstance(value, float) else f"not {value}"
    path.write_text(json.dumps(result, indent=1) + "\n")


def edit_epsilon(run: Path, chance: random.Random, others: list[Path]) -> None:
    path = run / "result.json"
    result = json.loads(path.read_text())
    result["epsilon"] *= chance.choice((0.1, 0.99, 0.9999, 1.0001, 2.0))
    path.write_text(json.dumps(result, indent=1) + "\n")


def another_result(run: Path, chance: random.Random, others: list[Path]) -> None:
    shutil.copy(chance.choice(others) / "result.json", run / "result.json")


def edit_the_metrics(run: Path, chance: random.Random, others: list[Path]) -> None:
    path = run / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    place = chance.randrange(len(lines))
    row = json.loads(lines[place])
    row["epoch"] += 1.0
    lines[place] = json.dumps(row) + "\n"
    path.write_text("".join(lines))


def another_model(run: Path, chance: random.Random, others: list[Path]) -> None:
    content = bytearray((run / "model.pt").read_bytes())
    content[chance.randrange(len(content))] ^= 1
    (run / "model.pt").write_bytes(content)


def leave_a_key(run: Path, chance: random.Random, others: list[Path]) -> None:
    names = (".checkpoint.pt.new", "ledger.key", ".ledger.key.new")
    (run / chance.choice(names)).write_bytes(b"key")


Tampering = Callable[[Path, random.Random, list[Path]], None]
OF_LEDGERS: tuple[Tampering, ...] = (
    remove_lines, swap_lines, double_a_line, flip_a_bit, edit_the_header, edit_the_config,
    another_ledger, edit_a_count,
)  # fmt: skip
"""Found in every run; a stopped one has no result that could tell of a shorter ledger."""
OF_FINISHED: tuple[Tampering, ...] = (
    *OF_LEDGERS, remove_the_end, truncate, replace_the_event, forge_fewer_steps, edit_the_result,
    edit_epsilon, another_result, edit_the_metrics, another_model, leave_a_key,
)  # fmt: skip


def tampered(runs: dict[str, Path], number: int, folder: Path) -> tuple[str, str, Path]:
    """A copy of an honest run with one thing changed: which run, which change, where it is."""
    chance = random.Random(number)
    name = sorted(runs)[number % len(runs)]
    kept = name == "kept checkpoint"
    ways = [way for way in OF_FINISHED if not (kept and way is leave_a_key)]
    way = chance.choice(OF_LEDGERS if name.endswith("stopped") else ways)
    copy = Path(shutil.copytree(runs[name], folder / f"run-{number}"))
    others = [path for other, path in runs.items() if (path / "result.json").exists()]
    way(copy, chance, [path for path in others if path != runs[name]])
    return name, way.__name__, copy
