"""Kill runs with SIGKILL, resume them, and compare with a run that was never interrupted.

    python tests/support/killing.py FOLDER --kills 30 --runs train compare

prints one JSON object per trial.

The program imports torch once and forks a child for every start of a run, so a trial costs a
fraction of a second. A child is killed

    at a random time       by its parent
    at a system call       by itself: before or after the n-th open, write, fsync, replace, unlink
                           or truncate of a file in its folder, or with half of a write written

and then resumed, in a new child, until it ends. The end must be equal bit by bit: weights, ledger
with every digest, metrics. After every kill, the ledger on disk must hold every release whose noise
was drawn: children note draws in a file beside the run, by a system call before each.
"""

from __future__ import annotations

import argparse
import builtins
import contextlib
import hashlib
import importlib
import io
import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from killed_runs import RUNS, Command, Loop

from winsor.app.runs.verifying import disagreements
from winsor.core.door import Door
from winsor.core.ledger.ledger import Ledger
from winsor.core.noise import kernel
from winsor.core.noise.source import NoiseSource

CALLS = {
    "open": (os, "open"), "open file": (io, "open"), "write": (os, "write"),
    "append": (os, "pwrite"), "fsync": (os, "fsync"), "replace": (os, "replace"),
    "unlink": (os, "unlink"), "truncate": (os, "ftruncate"),
}  # fmt: skip
MOMENTS = ("before", "half", "after")


@dataclass(frozen=True)
class Kill:
    """When a child dies: at the ``nth`` call of a kind, or ``seconds`` after its start."""

    call: str = ""
    nth: int = 0
    moment: str = "before"
    seconds: float = 0.0


# ----------------------------------------------------------------------------- inside a child


class Watch:
    """Counts the system calls on files of ``folder``, and kills this process at one of them."""

    def __init__(self, folder: Path, kill: Kill | None) -> None:
        self.folder, self.kill = str(folder), kill
        self.counts: Counter[str] = Counter()
        self.process = os.getpid()
        for name, (module, attribute) in CALLS.items():
            original = getattr(module, attribute)
            watched = self.watched(name, original)
            setattr(module, attribute, watched)
            if original is builtins.open:
                builtins.open = watched

    def watched(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(target: Any, *rest: Any, **named: Any) -> Any:
            if os.getpid() != self.process or not self.inside(target):
                return original(target, *rest, **named)
            self.counts[name] += 1
            kill = self.kill
            if kill is None or kill.call != name or kill.nth != self.counts[name]:
                return original(target, *rest, **named)
            if kill.moment == "half" and name in ("write", "append"):
                content, *where = rest
                original(target, bytes(content)[: len(content) // 2], *where)
            elif kill.moment == "after":
                original(target, *rest, **named)
            os.kill(self.process, signal.SIGKILL)
            raise AssertionError("unreachable")

        return call

    def inside(self, target: Any) -> bool:
        if isinstance(target, int):
            try:
                target = os.readlink(f"/proc/self/fd/{target}")
            except OSError:
                return False
        return os.fspath(target).startswith(self.folder)


def note_draws(path: Path) -> None:
    """Write down every draw of noise before it is made: ledger, key and entry."""
    file, write = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), os.write
    add, use_key = NoiseSource.add_slice, Door.use_key

    def told(self: Door, *arguments: Any) -> None:
        use_key(self, *arguments)
        self.noise.told = f"{self.ledger.path}\t{self.run}"  # type: ignore[attr-defined]

    def noted(self: NoiseSource, entry: int, *rest: Any, **named: Any) -> None:
        write(file, f"{self.told}\t{entry}\n".encode())  # type: ignore[attr-defined]
        add(self, entry, *rest, **named)

    Door.use_key = told  # type: ignore[method-assign]
    NoiseSource.add_slice = noted  # type: ignore[method-assign]


def start(run: Loop | Command, folder: Path, kill: Kill | None = None) -> int:
    """Fork a child that begins or resumes the run in ``folder``; its process id."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        log = os.open(folder.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        note_draws(folder.with_suffix(".draws"))
        watch = Watch(folder, kill)
        run(folder)
        code = 0
        noted = {"calls": watch.counts, "modules": sorted(sys.modules)}
        folder.with_suffix(".calls").write_text(json.dumps(noted))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


# ------------------------------------------------------------------------------- in the parent


def wait(child: int) -> int:
    """The exit code; minus the number of the signal if it died of one."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def killed(child: int, kill: Kill) -> bool:
    """Wait for the child, or kill it when its time is over. False if it ended before."""
    if not kill.call:
        time.sleep(kill.seconds)
        os.kill(child, signal.SIGKILL)
    code = wait(child)
    if code not in (0, -signal.SIGKILL):
        raise RuntimeError(f"ended with {code}")
    return code == -signal.SIGKILL


def lost_entries(folder: Path) -> int:
    """Draws of noise that no ledger knows of."""
    drawn: dict[tuple[str, str], int] = {}
    path = folder.with_suffix(".draws")
    for line in path.read_text().split("\n")[:-1] if path.exists() else ():
        ledger, run, entry = line.split("\t")
        drawn[ledger, run] = max(drawn.get((ledger, run), 0), int(entry) + 1)
    return sum(max(0, count - Ledger.read(at).steps(run)) for (at, run), count in drawn.items())


def outcome(folder: Path) -> dict[str, Any]:
    """All that must be the same however often the run was killed."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.name == "model.pt":
            found[name] = _digest(torch.load(path, weights_only=True))
        elif path.name == "ledger.jsonl":
            ledger = Ledger.read(path)
            found[name] = hashlib.sha256(repr(ledger.state_dict()).encode()).hexdigest()
            found[f"{name}, entries"] = len(ledger)
        elif path.name in ("result.json", "summary.json"):
            found[name] = _without_times(json.loads(path.read_text()))
        elif path.name == "metrics.jsonl":
            found[name] = [_without_times(json.loads(row)) for row in path.read_text().splitlines()]
        if path.name == "result.json":
            found[f"{path.parent.name}, disagreements"] = disagreements(path.parent)
    return found


def _digest(weights: dict[str, torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for name, value in weights.items():
        digest.update(name.encode() + value.numpy().tobytes())
    return digest.hexdigest()


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        times = ("seconds", "ledger_head")  # the head chains lines that may stand in other places
        return {k: _without_times(v) for k, v in value.items() if k not in times}
    return [_without_times(v) for v in value] if isinstance(value, list) else value


class Campaign:
    """Trials over all runs, each a function of its number."""

    def __init__(self, folder: Path, names: Sequence[str] = ()) -> None:
        self.folder, self.names = folder, list(names or RUNS)
        self._whole: dict[str, tuple[dict[str, Any], dict[str, int], float]] = {}

    def whole(self, name: str) -> tuple[dict[str, Any], dict[str, int], float]:
        """The uninterrupted run: how it ends, its system calls, and how long it takes."""
        if name not in self._whole:
            self._undisturbed(name)  # what it imports on the way, later children find imported
            self._whole[name] = self._undisturbed(name)
        return self._whole[name]

    def _undisturbed(self, name: str) -> tuple[dict[str, Any], dict[str, int], float]:
        folder = self._fresh(name, "whole")
        begun = time.perf_counter()
        code = wait(start(RUNS[name], folder))
        seconds = time.perf_counter() - begun
        if code or lost_entries(folder):
            raise RuntimeError(f"{name} fails undisturbed: {_log(folder)}")
        noted = json.loads(folder.with_suffix(".calls").read_text())
        for module in noted["modules"]:
            if module not in sys.modules and module.startswith(("torch.", "winsor.", "numpy.")):
                with contextlib.suppress(Exception):  # some can be imported by their package only
                    importlib.import_module(module)
        return outcome(folder), noted["calls"], seconds

    def trial(self, number: int) -> dict[str, Any]:
        """Kill one run once or twice, resume it, and compare."""
        chance = random.Random(number)
        name = self.names[number % len(self.names)]
        expected, calls, seconds = self.whole(name)
        folder = self._fresh(name, "trial")
        row: dict[str, Any] = {"run": name, "kills": [], "lost": 0, "equal": False, "error": ""}
        try:
            for kill in _drawn(chance, calls, seconds):
                if killed(start(RUNS[name], folder, kill), kill):
                    row["kills"].append(asdict(kill))
                    row["lost"] += lost_entries(folder)
            code = wait(start(RUNS[name], folder))
            row["lost"] += lost_entries(folder)
            if code:
                row["error"] = f"ended with {code}: {_log(folder)}"
            else:
                found = outcome(folder)
                row["equal"] = found == expected
                differ = [k for k in {*found, *expected} if found.get(k) != expected.get(k)]
                row["error"] = f"other: {sorted(differ)}" if differ else ""
        except Exception as error:
            row["error"] = f"{type(error).__name__}: {error}: {_log(folder)}"
        return row

    def _fresh(self, name: str, called: str) -> Path:
        """An empty folder, or for secret keys one with the first checkpoint of all."""
        run, folder = RUNS[name], self.folder / called
        for leftover in (folder.with_suffix(end) for end in (".draws", ".log", ".calls")):
            leftover.unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        first = self.folder / f"first {name}"
        if not first.exists():
            first.mkdir(parents=True)
            if isinstance(run, Command):
                run.prepare(first)
            elif run.secret and wait(start(run.begin, first)):  # type: ignore[arg-type]
                raise RuntimeError(f"{name} cannot begin: {_log(first)}")
        shutil.copytree(first, folder)
        return folder


def _drawn(chance: random.Random, calls: dict[str, int], seconds: float) -> Iterator[Kill]:
    """One or two kills: a third at random times, the others at system calls, all kinds alike.

    A torn line of a ledger is cut off by the next start: that is a moment to be killed at, too.
    """
    kill = Kill()
    for _ in range(chance.choice((1, 1, 2))):
        if chance.random() < 1 / 3:
            kill = Kill(seconds=chance.uniform(0, seconds))
        else:
            call = chance.choice(sorted(calls))
            kill = Kill(call, chance.randint(1, calls[call]), chance.choice(MOMENTS))
        yield kill
    if (kill.call, kill.moment) == ("append", "half"):
        yield Kill("truncate", 1, chance.choice(("before", "after")))


def _log(folder: Path) -> str:
    path = folder.with_suffix(".log")
    return path.read_text()[-1500:] if path.exists() else ""


def trials(
    folder: Path, kills: int, first: int = 0, names: Sequence[str] = ()
) -> Iterator[dict[str, Any]]:
    """Trials from number ``first`` on, until so many processes have been killed."""
    torch.set_num_threads(1)
    kernel.load()  # once, before any fork
    campaign, number, done = Campaign(folder, names), first, 0
    while done < kills:
        row = campaign.trial(number)
        done += len(row["kills"])
        number += 1
        yield row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--runs", nargs="*", choices=RUNS, default=())
    options = parser.parse_args()
    for row in trials(options.folder, options.kills, options.first, options.runs):
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
