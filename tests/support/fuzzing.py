"""Damaged and hostile files for every format that winsor reads, and what it says to each.

A case is a number: the same number damages the same bytes in the same way. The file goes through
the command line's own entry point, in this process. What is allowed: to be accepted, to be refused
in one line that begins with "winsor: error:", or to be reported as DISAGREES. Anything else (a
traceback, a hang, a death, gigabytes) is a fault.
"""

from __future__ import annotations

import contextlib
import hmac
import io
import json
import os
import random
import re
import shutil
import signal
import struct
import traceback
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tiny_runs import table

from winsor.app.commands.main import main
from winsor.app.runs.config import from_table
from winsor.app.runs.directory import ComparisonFolder
from winsor.app.runs.execute import Execution, execute
from winsor.app.runs.folder import last_line, of_bytes
from winsor.app.runs.progress import Quiet
from winsor.core.ledger.chain import DIGITS, EMPTY, link
from winsor.core.ledger.ledger import Ledger

SECONDS = 60
NONSENSE = (
    b"1e400 -1e400 nan inf -inf 0 -1 1e-400 1e308 1e-308 2000000000 100000 99999999999999999999 "
    b'NaN -Infinity 1.5 true null "" "x" [] {} [0] [[]] 1_0 0x10 ../.. os:system \xff \x00'
).split(b" ")


class Accepted(Exception):
    """The run has made its first step: it is believed."""


class Hang(BaseException):
    """It took too long."""


# ------------------------------------------------------------------------------------- damaging


def damaged(content: bytes, chance: random.Random) -> bytes:
    """The bytes with one to four changes, from a flipped bit to a doubled middle."""
    if chance.random() < 0.4 and b"\x00" not in content:  # text that stays readable goes deeper
        return _word(content, chance)
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        content = chance.choice(_WAYS)(content, chance)
    return content


def _flip(content: bytes, chance: random.Random) -> bytes:
    if not content:
        return b"\x00"
    place = chance.randrange(len(content))
    changed = bytes([content[place] ^ (1 << chance.randrange(8))])
    return content[:place] + changed + content[place + 1 :]


def _cut(content: bytes, chance: random.Random) -> bytes:
    return content[: chance.randrange(len(content) + 1)]


def _drop(content: bytes, chance: random.Random) -> bytes:
    place = chance.randrange(len(content) + 1)
    return content[:place] + content[place + chance.randrange(1, 40) :]


def _double(content: bytes, chance: random.Random) -> bytes:
    place = chance.randrange(len(content) + 1)
    piece = content[place : place + chance.randrange(1, 200)]
    return content[:place] + piece * chance.choice((2, 3, 50)) + content[place + len(piece) :]


def _noise(content: bytes, chance: random.Random) -> bytes:
    place = chance.randrange(len(content) + 1)
    return content[:place] + chance.randbytes(chance.randrange(1, 16)) + content[place:]


def _word(content: bytes, chance: random.Random) -> bytes:
    """A number (or a word in quotes) becomes nonsense."""
    places = list(re.finditer(rb'-?\d+(?:\.\d+)?(?:e-?\d+)?|"[^"\n]*"|true|false|null', content))
    if not places:
        return _flip(content, chance)
    chosen = chance.choice(places)
    return content[: chosen.start()] + chance.choice(NONSENSE) + content[chosen.end() :]


def _machine_word(content: bytes, chance: random.Random) -> bytes:
    """Eight bytes become a large or a negative whole number, as headers have them."""
    place = chance.randrange(len(content) + 1)
    value = chance.choice((0, -1, 2**31, 2**40, 2**62, 1))
    return content[:place] + struct.pack("<q", value) + content[place + 8 :]


_WAYS = (_flip, _flip, _cut, _drop, _double, _noise, _word, _word, _word, _machine_word)


def rechained(content: bytes) -> bytes:
    """A ledger whose every line fits again: the work of somebody who knows the format."""
    head, lines = EMPTY, []
    for line in content.split(b"\n")[:-1]:
        text = line[: -DIGITS - 1]
        head = link(head, text)
        lines.append(text + b" " + head.encode() + b"\n")
    return b"".join(lines)


def hostile_npz(chance: random.Random) -> bytes:
    """A sound archive around a header that says what it likes, or a bomb."""
    shape = chance.choice(("(240, 5)", "(240, 10000000000)", "(-1, 5)", "(0, 5)", "(240, 0)", "()"))
    kind = chance.choice(("'<f8'", "'|O'", "'<U9'", "'<M8[s]'", "'<c16'", "'>f8'", "[('a', 'f8')]"))
    header = f"{{'descr': {kind}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    members = {
        "x.npy": b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(9600),
        "y.npy": _npy(np.arange(240) % 3),
    }
    if chance.random() < 0.2:
        members["x.npy"] += bytes(400_000_000)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return out.getvalue()


def _npy(array: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


# --------------------------------------------------------------------------------------- formats


@dataclass(frozen=True)
class Format:
    """What is damaged, and which commands then meet it."""

    name: str
    commands: Callable[[Path, random.Random], list[list[str]]]
    """Writes the damaged file below the folder; the command lines that read it."""


class Material:
    """Honest files of every kind, made once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        rows = np.random.default_rng(0).standard_normal((240, 5)).astype(np.float32)
        labels = np.arange(240) % 3
        np.savez(folder / "plain.npz", x=rows, y=labels)
        np.savez_compressed(folder / "packed.npz", x=rows, y=labels)
        lines = ["a,b,c,d,e,y"]
        lines += [
            ",".join([*map(str, row), str(label)]) for row, label in zip(rows, labels, strict=True)
        ]
        (folder / "rows.csv").write_text("\n".join(lines) + "\n")
        import pyarrow
        from pyarrow import parquet

        columns = {name: rows[:, place] for place, name in enumerate("abcde")} | {"y": labels}
        parquet.write_table(pyarrow.table(columns), folder / "rows.parquet")
        norms = np.abs(np.random.default_rng(1).standard_t(3, 400))
        np.save(folder / "norms.npy", norms)
        settings = table(training={"steps": 6}, record={"monitor": "private"})
        execute(from_table(settings), folder / "finished", Quiet())
        unfinished(settings, folder / "unfinished")

    def read(self, name: str) -> bytes:
        return (self.folder / name).read_bytes()

    def configuration(self, source: str) -> str:
        data = {"source": source, "classes": 3}
        return from_table(table(data=data | {"name": ""}) | {"data": data}).to_toml()

    def formats(self) -> dict[str, Format]:
        found = [
            Format("toml", self._toml),
            *(Format(name, self._rows(file)) for name, file in ROWS.items()),
            Format("npy (tails)", self._norms),
            Format("ledger", self._ledger),
            Format("checkpoint", self._checkpoint),
            *(Format(name, self._of_report(name)) for name in REPORTED),
            Format("compare.json", self._compare),
        ]
        return {each.name: each for each in found}

    # ------------------------------------------------------------------------------- each format

    def _toml(self, folder: Path, chance: random.Random) -> list[list[str]]:
        changes = chance.choice(
            (
                {},
                {"training": {"threads": 1, "num_workers": 0, "sampling": "fixed"}},
                {"model": {"name": "mlp", "hidden": [8, 4]}, "budget": {"epsilon": 3.0}},
                {"rule": {"name": "quantile", "max_grad_norm": 1.0}},
                {"optimizer": {"name": "adam", "lr": 0.01, "betas": [0.9, 0.99]}},
            )
        )
        text = from_table(table(**changes)).to_toml().encode()
        (folder / "c.toml").write_bytes(damaged(text, chance))
        return [_train(folder)]

    def _rows(self, file: str) -> Callable[[Path, random.Random], list[list[str]]]:
        def commands(folder: Path, chance: random.Random) -> list[list[str]]:
            content = damaged(self.read(file), chance)
            if file == "packed.npz" and chance.random() < 0.3:
                content = hostile_npz(chance)
            (folder / Path(file).name).write_bytes(content)
            (folder / "c.toml").write_text(self.configuration(Path(file).name))
            return [_train(folder)]

        return commands

    def _norms(self, folder: Path, chance: random.Random) -> list[list[str]]:
        (folder / "norms.npy").write_bytes(damaged(self.read("norms.npy"), chance))
        return [["tails", str(folder / "norms.npy"), "--json"]]

    def _run(self, folder: Path, kind: str) -> Path:
        return Path(shutil.copytree(self.folder / kind, folder / "run"))

    def _ledger(self, folder: Path, chance: random.Random) -> list[list[str]]:
        run = self._run(folder, chance.choice(("finished", "unfinished")))
        content = damaged((run / "ledger.jsonl").read_bytes(), chance)
        if chance.random() < 0.5:
            content = rechained(content)
        (run / "ledger.jsonl").write_bytes(content)
        return [["verify", str(run)], ["report", str(run)]]

    def _checkpoint(self, folder: Path, chance: random.Random) -> list[list[str]]:
        run = self._run(folder, "unfinished")
        path = run / "checkpoint.pt"
        content = path.read_bytes()
        if chance.random() < 0.5:
            path.write_bytes(damaged(content, chance))
        else:
            state = torch.load(path, weights_only=True)
            _spoil(state, chance)
            torch.save(state, path)
        if chance.random() < 0.8:
            forge(path)
        return [["verify", str(run)], ["train", "--run", str(run), "--quiet"]]

    def _of_report(self, name: str) -> Callable[[Path, random.Random], list[list[str]]]:
        def commands(folder: Path, chance: random.Random) -> list[list[str]]:
            kind = "finished" if name == "result.json" else "unfinished"
            run = self._run(folder, kind)
            path = run / name
            path.write_bytes(damaged(path.read_bytes(), chance))
            if chance.random() < 0.5:  # as somebody would who knows the format
                forge(path)
            also = [["tails", str(run)]] if name == "metrics.jsonl" else []
            return [["report", str(run)], *also]

        return commands

    def _compare(self, folder: Path, chance: random.Random) -> list[list[str]]:
        path = folder / "both"
        shutil.copytree(self.folder / "finished", path / "one" / "seed-0")
        text = json.dumps({"name": "both", "folders": {"one": "one"}, "seeds": [0]})
        (path / "compare.json").write_bytes(damaged(text.encode(), chance))
        ledger = Ledger({"method": "comparison"}, path / "ledger.jsonl")
        ComparisonFolder(path).bind(ledger)
        ledger.close()
        return [["report", str(path)]]


ROWS = {
    "csv": "rows.csv",
    "npz": "plain.npz",
    "compressed npz": "packed.npz",
    "parquet": "rows.parquet",
}
REPORTED = ("config.json", "result.json", "metrics.jsonl", "environment.json")


def unfinished(settings: dict[str, Any], path: Path) -> None:
    """A run that was stopped after three steps."""
    whole, seen = Execution._after_step, []

    def stop(self: Execution, before: int) -> None:
        whole(self, before)
        seen.append(before)
        if len(seen) == 3:
            self._checkpoint()
            raise Accepted

    Execution._after_step = stop  # type: ignore[method-assign]
    try:
        with contextlib.suppress(Accepted):
            execute(from_table(settings), path, Quiet())
    finally:
        Execution._after_step = whole  # type: ignore[method-assign]


def _train(folder: Path) -> list[str]:
    return ["train", str(folder / "c.toml"), "--run", str(folder / "run"), "--quiet"]


def forge(file: Path) -> None:
    """Let the ledger beside ``file`` name it as it is now, and chain it anew: the work of somebody
    who knows the format, and does not know that the head was noted."""
    ledger = file.parent / "ledger.jsonl"
    if file.parent.name == "sealed":
        key, content = (file.parent / "key").read_bytes(), file.read_bytes()[32:]
        if file.name == "trials":
            file.write_bytes(hmac.digest(key, b"winsor trials" + content, "sha256") + content)
        return
    if file == ledger:
        ledger.write_bytes(rechained(ledger.read_bytes()))
        return
    content, result = file.read_bytes(), file.parent / "result.json"
    result = result if result.exists() else file.parent / "summary.json"
    old = Ledger.read(ledger).head
    if file == result:
        content = content.removesuffix(last_line(old))
    lines = []
    for line in ledger.read_bytes().splitlines():
        text, names = line[:-17], (file.name, f".{file.name}.new")
        with contextlib.suppress(ValueError):
            note = json.loads(text)
            if note.get("note") in names:
                text = json.dumps({**note, "digest": of_bytes(content)}).encode()
        lines.append(text + b" " + b"0" * 16 + b"\n")
    ledger.write_bytes(rechained(b"".join(lines)))
    if result.exists() and result.read_bytes().endswith(last_line(old)):
        kept = result.read_bytes().removesuffix(last_line(old))
        result.write_bytes(kept + last_line(Ledger.read(ledger).head))


def _spoil(state: Any, chance: random.Random) -> None:
    """One value somewhere in a checkpoint becomes another thing."""
    while True:
        keys = list(state) if isinstance(state, dict) else list(range(len(state)))
        if not keys:
            return
        key = chance.choice(keys)
        inner = state[key]
        if isinstance(inner, dict | list) and len(inner) and chance.random() < 0.8:
            state = inner
            continue
        if isinstance(state, dict) and chance.random() < 0.3:
            del state[key]
            return
        nonsense = (None, -1, 2**62, "x", float("nan"), [], {}, torch.zeros(3), torch.ones(()), b"")
        state[key] = chance.choice(nonsense)
        return


# ---------------------------------------------------------------------------------------- asking


@contextlib.contextmanager
def _one_step_only() -> Iterator[None]:
    whole = Execution._after_step

    def stop(self: Execution, before: int) -> None:
        raise Accepted

    Execution._after_step = stop  # type: ignore[method-assign]
    try:
        yield
    finally:
        Execution._after_step = whole  # type: ignore[method-assign]
        torch.set_num_threads(1)


def outcome(command: list[str]) -> tuple[str, str]:
    """How the command ends, and its words: accepted, refused, disagrees, or a fault."""

    def ring(number: int, frame: Any) -> None:
        raise Hang

    out, err = io.StringIO(), io.StringIO()
    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(SECONDS)
    code: Any = None
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), _one_step_only():
            main(command)
    except Accepted:
        return "accepted", ""
    except Hang:
        return "hang", " ".join(command)
    except SystemExit as stop:
        code = stop.code
    except BaseException:
        return "traceback", traceback.format_exc()
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    said = err.getvalue()
    if code in (0, None):
        return "accepted", ""
    if code == 2 and said.startswith("winsor: error: ") and said.count("\n") == 1:
        return "refused", said
    if code == 1 and "DISAGREES" in out.getvalue():
        return "disagrees", out.getvalue()
    return "other", f"code {code}: {said} {out.getvalue()}"


def meet(form: Format, number: int, folder: Path) -> list[tuple[str, str]]:
    """The outcomes of one case."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    chance = random.Random(f"{form.name} {number}")
    found = []
    here = os.getcwd()
    os.chdir(folder)
    try:
        for command in form.commands(folder, chance):
            found.append(outcome(command))
    finally:
        os.chdir(here)
    return found


FAULTS = ("traceback", "hang", "other")
