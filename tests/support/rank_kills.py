"""Kill trainings of several ranks with SIGKILL, resume them, on as many ranks or on others.

    python tests/support/rank_kills.py FOLDER --kills 30

prints one JSON object per trial.

The program imports torch once and forks a child for every rank. A trial starts two or three ranks,
kills one of them or all: at a random time, at a system call of rank 0 on the run's files
(`killing.py`), or around a draw of noise of any rank; ends the others as torchrun does, and
resumes. Models are plain, in DDP or sharded by FSDP2, with checkpoints in one file or in shards. On
as many ranks the end must be equal bit by bit to a run that nobody interrupted; on others, where
that cannot be, the run must go on by itself or be refused and go on with new randomness. After
every kill, the ledger on disk must hold every release whose noise any rank has drawn.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from killing import MOMENTS, Kill, Watch
from rank_resumes import arguments
from torch.nn import functional as F

import winsor
from winsor.core.contract import LedgerError
from winsor.core.door import Door
from winsor.core.ledger.ledger import Ledger
from winsor.core.noise import kernel
from winsor.core.noise.source import NoiseSource

PATIENCE = 60
"""Seconds after which ranks that neither end nor are killed count as hanging."""
GRACE = 3.0
"""Seconds that survivors have to end by themselves, before they are killed as torchrun does."""
DRAW = "draw of noise"
CALLS = ("append", "write", "fsync", "replace", "open")
WRAPPERS = ("fsdp in shards", "ddp", "fsdp", "none")
"""Trials take them by turns; one process alone has the plain model, and saves it in one file."""


# ------------------------------------------------------------------------------ inside a rank


def program(folder: Path, rank: int, wrapper: str) -> None:
    """Begin or resume what is in ``folder``, and end it."""
    shards = wrapper == "fsdp in shards"
    given: dict[str, Any] = {"batch_size": 4, "steps": 12, "wrapper": wrapper.split()[0]}
    begun = checkpoint_in(folder)
    checkpoint = folder / ("shards" if shards else "checkpoint.pt")
    if dist.is_initialized():
        dist.barrier()  # all have looked before one writes
    if begun is None:
        private = winsor.make_private(**arguments(folder, "run", rank, **given), resume=True)
        private.save(checkpoint, shards=shards)
    else:
        try:
            private = winsor.resume(begun, **arguments(folder, "run", rank, **given))
        except LedgerError as error:
            if "repeat=False" not in str(error):
                raise
            given["repeat"] = False
            private = winsor.resume(begun, **arguments(folder, "run", rank, **given))
            private.save(checkpoint, shards=shards)
    for x, y in private.batches():
        private.step(F.cross_entropy(private.model(x), y, reduction="none"))
        if private.steps_done % 3 == 0:
            private.save(checkpoint, shards=shards)
    if rank == 0:
        torch.save(private.model.state_dict(), folder / "model.pt")
    private.detach()


def checkpoint_in(folder: Path) -> Path | None:
    """What there is to resume."""
    if (folder / "shards" / "winsor.pt").exists():
        return folder / "shards"
    file = folder / "checkpoint.pt"
    return file if file.exists() else None


def note_draws(path: Path, kill: Kill | None) -> None:
    """Write down every draw of noise before it is made: key and entry. Die at one of them."""
    count = 0
    file, write = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), os.write
    add, use_key = NoiseSource.add_slice, Door.use_key

    def told(self: Door, *rest: Any) -> None:
        use_key(self, *rest)
        for source in (self.noise, getattr(self.noise, "_slices", self.noise)):
            source.told = self.run  # type: ignore[union-attr]

    def noted(self: NoiseSource, entry: int, *rest: Any, **named: Any) -> None:
        nonlocal count
        count += 1
        dies = kill is not None and kill.call == DRAW and kill.nth == count
        write(file, f"{self.told}\t{entry}\n".encode())  # type: ignore[attr-defined]
        if dies and kill is not None and kill.moment == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        add(self, entry, *rest, **named)
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)

    Door.use_key = told  # type: ignore[method-assign]
    NoiseSource.add_slice = noted  # type: ignore[method-assign]


def start(
    folder: Path, rank: int, world: int, wrapper: str, store: Path, kill: Kill | None = None
) -> int:
    """Fork one rank; its process id."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        log = folder.with_suffix(f".{rank}.log")
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        if world > 1:
            dist.init_process_group(
                "gloo", init_method=f"file://{store}", rank=rank, world_size=world,
                timeout=timedelta(seconds=PATIENCE),
            )  # fmt: skip
        note_draws(folder.with_suffix(f".{rank}.draws"), kill)
        Watch(folder, kill)
        program(folder, rank, wrapper if world > 1 else "none")
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


# ------------------------------------------------------------------------------- in the parent


class Together:
    """The ranks of one start."""

    def __init__(
        self,
        folder: Path,
        world: int,
        wrapper: str = "none",
        kill: Kill | None = None,
        who: str = "all",
    ) -> None:
        store = folder.with_suffix(f".store{time.monotonic_ns()}")
        self.alive = {
            start(folder, rank, world, wrapper, store, kill if who == str(rank) else None): rank
            for rank in range(world)
        }
        self.order = list(self.alive)
        self.codes: dict[int, int] = {}

    def look(self) -> None:
        for child in list(self.alive):
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                self.codes[self.alive.pop(child)] = os.waitstatus_to_exitcode(status)

    def wait(self, seconds: float) -> bool:
        """Until all have ended; False if some go on for longer."""
        until = time.monotonic() + seconds
        while self.alive and time.monotonic() < until:
            self.look()
            time.sleep(0.01)
        return not self.alive

    def kill(self, children: list[int]) -> None:
        for child in children:
            if child in self.alive:
                os.kill(child, signal.SIGKILL)

    def end_like_torchrun(self, kill: Kill, who: str) -> bool:
        """Wait for the kill or make it, then end the rest. False if all ended well before it."""
        until = time.monotonic() + (PATIENCE if kill.call else kill.seconds)
        while self.alive and time.monotonic() < until and not any(self.codes.values()):
            self.look()
            time.sleep(0.002)
        if not kill.call:
            self.kill(self.order if who == "all" else [self.order[int(who)]])
        self.wait(GRACE)
        self.kill(self.order)
        self.wait(PATIENCE)
        return any(code == -signal.SIGKILL for code in self.codes.values())


def lost_entries(folder: Path) -> int:
    """Draws of noise, on any rank, that the ledger does not know of."""
    drawn: dict[str, int] = {}
    for path in folder.parent.glob(f"{folder.name}.*.draws"):
        for line in path.read_text().split("\n")[:-1]:
            run, entry = line.split("\t")
            drawn[run] = max(drawn.get(run, 0), int(entry) + 1)
    if not drawn:
        return 0
    ledger = Ledger.read(folder / "run.ledger")
    return sum(max(0, count - ledger.steps(run)) for run, count in drawn.items())


class Campaign:
    """Trials, each a function of its number."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._whole: dict[tuple[int, str], tuple[dict[str, torch.Tensor], float]] = {}

    def whole(self, world: int, wrapper: str) -> tuple[dict[str, torch.Tensor], float]:
        """The weights of a run that nobody interrupts, and how long it takes."""
        known = (world, wrapper)
        if known not in self._whole:
            if not self._whole:
                self._undisturbed(*known)  # warms up: kills are drawn in the time of the second
            self._whole[known] = self._undisturbed(*known)
        return self._whole[known]

    def _undisturbed(self, world: int, wrapper: str) -> tuple[dict[str, torch.Tensor], float]:
        folder = self._fresh("whole")
        begun = time.monotonic()
        ranks = Together(folder, world, wrapper)
        if not ranks.wait(2 * PATIENCE) or any(ranks.codes.values()):
            ranks.kill(ranks.order)
            raise RuntimeError(f"{world} ranks fail undisturbed: {self._logs(folder)}")
        seconds = time.monotonic() - begun
        return torch.load(folder / "model.pt", weights_only=True), seconds

    def trial(self, number: int) -> dict[str, Any]:
        chance = random.Random(number)
        world = chance.choice((2, 2, 3))
        after = (
            world if chance.random() < 0.6 else chance.choice([w for w in (1, 2, 3) if w != world])
        )
        who = chance.choice(("all", *map(str, range(world))))
        wrapper = WRAPPERS[number % len(WRAPPERS)]
        expected, seconds = self.whole(world, wrapper)
        kill = Kill(seconds=chance.uniform(0.1, 1.0) * seconds)
        way = chance.random()
        if way < 1 / 3:
            kill = Kill(chance.choice(CALLS), chance.randint(1, 8), chance.choice(MOMENTS))
            who = "0"
        elif way < 2 / 3:
            kill = Kill(DRAW, chance.randint(1, 12), chance.choice(("before", "after")))
            who = str(chance.randrange(world))
        row: dict[str, Any] = {
            "world": world, "after": after, "wrapper": wrapper, "who": who,
            "at": kill.call or "random time",
            "moment": kill.moment if kill.call else "", "kills": 0, "entries": 0, "lost": 0,
            "well": False, "repeated": True, "error": "",
        }  # fmt: skip
        folder = self._fresh("trial")
        try:
            ranks = Together(folder, world, wrapper, kill, who)
            row["kills"] = int(ranks.end_like_torchrun(kill, who))
            row["lost"] += lost_entries(folder)
            if checkpoint_in(folder) is not None:
                row["entries"] = len(Ledger.read(folder / "run.ledger"))
            resumed = Together(folder, after, wrapper)
            if not resumed.wait(2 * PATIENCE):
                resumed.kill(resumed.order)
                resumed.wait(PATIENCE)
            row["lost"] += lost_entries(folder)
            if any(resumed.codes.values()):
                row["error"] = f"ended with {resumed.codes}: {self._logs(folder)}"
            else:
                self._judge(row, folder, expected)
        except Exception as error:
            row["error"] = f"{type(error).__name__}: {error}: {self._logs(folder)}"
        return row

    def _judge(self, row: dict[str, Any], folder: Path, expected: dict[str, torch.Tensor]) -> None:
        runs = Ledger.read(folder / "run.ledger").runs
        row["repeated"] = len(runs) == 1
        found = torch.load(folder / "model.pt", weights_only=True)
        equal = all(torch.equal(found[name], weight) for name, weight in expected.items())
        same = row["world"] == row["after"]
        row["well"] = (equal and row["repeated"]) if same else max(runs.values()) > 0
        row["error"] = "" if row["well"] else "ended otherwise than the run that nobody interrupted"

    def _fresh(self, called: str) -> Path:
        folder = self.folder / called
        for leftover in self.folder.glob(f"{called}.*"):
            leftover.unlink()
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder

    def _logs(self, folder: Path) -> str:
        found = sorted(folder.parent.glob(f"{folder.name}.*.log"))
        return " | ".join(path.read_text()[-700:] for path in found)


def trials(folder: Path, kills: int, first: int = 0) -> Iterator[dict[str, Any]]:
    """Trials from number ``first`` on, until so many starts have been killed."""
    torch.set_num_threads(1)
    kernel.load()  # once, before any fork
    campaign, number, done = Campaign(folder), first, 0
    while done < kills:
        row = {"number": number, **campaign.trial(number)}
        done += row["kills"]
        number += 1
        yield row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    for row in trials(options.folder, options.kills, options.first):
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
