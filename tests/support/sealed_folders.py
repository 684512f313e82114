"""Folders of train, compare and tune, and what a stranger may do to any file of theirs.

Each change must be found by `winsor verify` with the head that was noted before, and nothing that
is read may run code: a canary, a pickle that leaves a mark, is put in the place of every file.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import random
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tomli_w
import torch
from fuzzing import Accepted, damaged, forge, unfinished
from tiny_runs import table

from winsor.app.commands.main import main
from winsor.app.runs.config import without_none
from winsor.app.tuning import configured
from winsor.core.ledger.ledger import Ledger

SPACE = {"optimizer.lr": {"log_uniform": [0.05, 5.0]}}
KEPT = {"record": {"keep_checkpoint": True}}


def tuning(**tune: Any) -> dict[str, Any]:
    """The configuration of a small tuning."""
    budget = {"epsilon": 5.0, "delta": 1e-3, "noise_multiplier": None}
    found = table(budget=budget, training={"steps": 3})
    return without_none({**found, "tune": {"space": SPACE, "trials": 3, "score_std": 0.1} | tune})


def comparison() -> dict[str, Any]:
    """The configuration of a comparison of two variants."""
    variants = [{"name": "one"}, {"name": "two", "optimizer": {"lr": 0.1}}]
    return {**table(training={"steps": 3}, **KEPT), "compare": {"seeds": [0], "variants": variants}}


CONFIGURATIONS: dict[str, tuple[str, Callable[[], dict[str, Any]]]] = {
    "train": ("train", lambda: table(training={"steps": 3})),
    "train, kept": ("train", lambda: table(training={"steps": 3}, **KEPT)),
    "train, looks": ("train", lambda: table(training={"steps": 3}, record={"held_out_epsilon": 1})),
    "compare": ("compare", comparison),
    "tune": ("tune", tuning),
    "tune, all": ("tune", lambda: tuning(release="all", score="public")),
}


def command(*arguments: object) -> tuple[int, str]:
    """Exit code and words of a command, in this process."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            main([str(one) for one in arguments])
        except SystemExit as stop:
            return int(stop.code or 0), out.getvalue()
    return 0, out.getvalue()


@contextlib.contextmanager
def dying_trials(after: int) -> Iterator[None]:
    """Trials of `winsor tune` die once so many have begun."""
    real, left = configured._trained, [after]

    def mortal(*arguments: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise Accepted
        return real(*arguments)

    configured._trained = mortal
    try:
        with contextlib.suppress(Accepted):
            yield
    finally:
        configured._trained = real


def make(name: str, folder: Path, seed: int = 0) -> Path:
    """One honest folder; finished."""
    kind, settings = CONFIGURATIONS[name]
    file, path = folder / f"{name}.toml", folder / name
    folder.mkdir(parents=True, exist_ok=True)
    file.write_text(tomli_w.dumps({**without_none(settings()), "name": f"{name} {seed}"}))
    code, words = command(kind, file, "--run", path, "--quiet")
    assert code == 0, words
    return path


def honest_folders(folder: Path) -> dict[str, Path]:
    """A finished folder of each kind, and stopped ones."""
    found = {name: make(name, folder) for name in CONFIGURATIONS}
    unfinished(table(training={"steps": 6}), folder / "train, stopped")
    with dying_trials(2):
        make("tune, all", folder / "stopped")
    found["tune, stopped"] = (folder / "stopped" / "tune, all").rename(folder / "tune, stopped")
    return found | {"train, stopped": folder / "train, stopped"}


def head_of(path: Path) -> str:
    """The head of the chain, as it would be noted elsewhere."""
    return Ledger.read(path / "ledger.jsonl").head


def files_of(path: Path) -> list[Path]:
    """Every file that winsor wrote there and reads."""
    return sorted(p for p in path.rglob("*") if p.is_file() and p.suffix != ".lock")


# ------------------------------------------------------------------------------ changes of a file

Change = Callable[[Path, random.Random, list[Path]], None]


def flip(file: Path, chance: random.Random, others: list[Path]) -> None:
    content = bytearray(file.read_bytes())
    content[chance.randrange(len(content) - 1)] ^= 1 << chance.randrange(8)
    file.write_bytes(content)


def cut(file: Path, chance: random.Random, others: list[Path]) -> None:
    content = file.read_bytes()
    lines = content[:-1].rfind(b"\n") + 1 if file.name == "ledger.jsonl" else len(content) - 1
    file.write_bytes(content[: chance.randrange(max(1, lines))])


def insert(file: Path, chance: random.Random, others: list[Path]) -> None:
    content = file.read_bytes()
    place = chance.randrange(len(content) - 1)
    file.write_bytes(content[:place] + chance.randbytes(9) + content[place:])


def delete(file: Path, chance: random.Random, others: list[Path]) -> None:
    file.unlink()


def lay_out_anew(file: Path, chance: random.Random, others: list[Path]) -> None:
    """The same values, written otherwise; what is no JSON gets a line more at its beginning."""
    content = file.read_bytes()
    with contextlib.suppress(ValueError):
        file.write_text(json.dumps(json.loads(content), indent=3))
        return
    file.write_bytes(b"\n" + content)


def of_another(file: Path, chance: random.Random, others: list[Path]) -> None:
    """The file of that name from another honest folder, or one of its neighbours."""
    content = file.read_bytes()
    same = [o for o in others if o.name == file.name and o.read_bytes() != content] or others
    file.write_bytes(chance.choice([o for o in same if o.read_bytes() != content]).read_bytes())


def pipe(file: Path, chance: random.Random, others: list[Path]) -> None:
    file.unlink()
    os.mkfifo(file)


def link(file: Path, chance: random.Random, others: list[Path]) -> None:
    """The honest file, but elsewhere: whoever has it changes it later."""
    elsewhere = file.parent.parent / f"{file.name} elsewhere"
    file.replace(elsewhere)
    file.symlink_to(elsewhere)


def listen(file: Path, chance: random.Random, others: list[Path]) -> None:
    file.unlink()
    here = os.getcwd()
    os.chdir(file.parent)  # a socket's name is short
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(file.name)
    os.chdir(here)


def directory(file: Path, chance: random.Random, others: list[Path]) -> None:
    file.unlink()
    file.mkdir()


def plant(file: Path, chance: random.Random, others: list[Path]) -> None:
    """A pickle that would run code."""
    file.write_bytes(canary(file.parent / "ran"))


CHANGES: tuple[Change, ...] = (
    flip, flip, cut, insert, delete, lay_out_anew, of_another, pipe, link, listen, directory, plant
)  # fmt: skip


def without_result(path: Path) -> None:
    """The case of the issue: the result deleted, the model replaced."""
    for result in [*path.rglob("result.json"), *path.rglob("summary.json")]:
        result.unlink()
    for model in path.rglob("model.pt"):
        torch.save({"weight": torch.zeros(2)}, model)


def add_a_file(path: Path, chance: random.Random) -> None:
    """A file that winsor would read, where there was none."""
    names = ("result.json", "model.pt", "trials.json", "environment.json", "prepared-0.jsonl",
             "summary.json", "held_out.json", "metrics.jsonl", "prepared-0.pt")  # fmt: skip
    absent = [path / name for name in names if not (path / name).exists()]
    chance.choice(absent).write_bytes(b"{}\n")


def tampered_folder(
    folders: dict[str, Path], number: int, place: Path
) -> tuple[str, str, str, Path]:
    """A copy with one thing changed: which folder, which way, which file, where it is."""
    chance = random.Random(f"folder {number}")
    name = sorted(folders)[number % len(folders)]
    copy = Path(shutil.copytree(folders[name], place / f"{number}" / "folder"))
    if chance.random() < 0.06:
        if name.endswith("stopped") or chance.random() < 0.5:
            add_a_file(copy, chance)
            return name, "add a file", "", copy
        without_result(copy)
        return name, "without result", "", copy
    file, way = chance.choice(files_of(copy)), chance.choice(CHANGES)
    others = [one for path in folders.values() for one in files_of(path)]
    way(file, chance, others)
    return name, way.__name__, file.relative_to(copy).as_posix(), copy


# ------------------------------------------------------------------------ canaries and forgeries


class _Canary:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


def canary(mark: Path) -> bytes:
    """A pickle that makes a folder when it is loaded."""
    return pickle.dumps((1, ((0.5, 3), _Canary(mark)), []))


def canary_of_torch(mark: Path) -> bytes:
    """The same in the format of `torch.save`."""
    buffer = io.BytesIO()
    torch.save({"model": _Canary(mark)}, buffer)
    return buffer.getvalue()


def readers(path: Path, name: str) -> list[list[str]]:
    """The command lines that read a folder."""
    kind, _, _ = name.partition(", ")
    found = [["verify", str(path)]]
    if kind == "tune":
        return [*found, ["tune", "--run", str(path), "--quiet"]]
    found += [["report", str(path)]]
    if kind == "train":
        found += [["train", "--run", str(path), "--quiet"], ["tails", str(path)]]
        return [*found, ["audit", "run", str(path), "--canaries", "10", "--json"]]
    return [*found, ["compare", str(path / "compare.toml"), "--run", str(path), "--quiet"]]


def fuzzed_folder(
    folders: dict[str, Path], name: str, file: str, number: int, place: Path
) -> list[list[str]]:
    """A copy with one file damaged, in half of the cases forged; the commands that read it."""
    chance = random.Random(f"{name} {file} {number}")
    copy = Path(shutil.copytree(folders[name], place / "folder"))
    target = copy / file
    target.write_bytes(damaged(target.read_bytes(), chance))
    if chance.random() < 0.5:
        with contextlib.suppress(Exception):  # what is damaged may not be forged any more
            forge(target)
    return readers(copy, name)
