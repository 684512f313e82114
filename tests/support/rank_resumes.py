"""Trainings of several ranks that are saved, stopped and resumed, and what they leave behind."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import rank_jobs as jobs
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

import winsor
from winsor import rules

STEPS = 10


def arguments(folder: Path, name: str, rank: int, wrapper: str = "none", **more: Any) -> Any:
    """A model with dropout, whose masks differ between ranks, and a ledger on disk."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.2), nn.Tanh(), nn.Linear(16, 3))
    shown = jobs.wrapped(model, wrapper)
    torch.manual_seed(100 + rank)
    plain = "mechanism" in more
    optimizer = torch.optim.SGD(shown.parameters(), lr=0.3)
    return {
        "model": shown,
        "optimizer": optimizer if plain else torch.optim.Adam(shown.parameters(), lr=0.05),
        "rule": rules.Flat(0.5), "noise_multiplier": 0.8, "seed": 5, "batch_size": 8,
        "dataset": jobs.rows(), "delta": 1e-4, "steps": STEPS,
        "ledger": folder / f"{name}.ledger", **more,
    }  # fmt: skip


def go_on(private: Any, steps: int | None = None) -> None:
    for x, y in private.batches(steps):
        private.step(F.cross_entropy(private.model(x), y, reduction="none"))


def ended(private: Any) -> dict[str, Any]:
    """Weights and account of a run; its ledger is closed."""
    result = {
        "weights": {name: p.detach().clone() for name, p in private.model.named_parameters()},
        "entries": len(private.ledger),
        "runs": private.ledger.runs,
        "random": torch.get_rng_state(),
    }
    private.detach()
    return result


def error_of(act: Any) -> str:
    try:
        act()
    except winsor.core.contract.WinsorError as error:
        return f"{type(error).__name__}: {error}"
    return "accepted"


def resumes(rank: int, folder: str) -> dict[str, Any]:
    """Whole and interrupted runs on these ranks, plain, with hidden keys, and sharded."""
    at = Path(folder)
    found: dict[str, Any] = {}
    for name, more in {
        "plain": {},
        "hidden": {"mechanism": winsor.ModelMix(0.1), "seed": None},
        "fsdp": {"wrapper": "fsdp"},
    }.items():
        found[name] = _whole_and_interrupted(at, name, rank, more)
    with_shards = {"wrapper": "fsdp"}
    found["shards"] = _whole_and_interrupted(at, "shards", rank, with_shards, shards=True)
    found["refused shards"] = _refused_shards(at, rank)
    found["fresh"] = _with_new_randomness(at, rank)
    found["uneven"] = _saved_when_some_have_no_rows(at, "uneven", rank)
    found["uneven shards"] = _saved_when_some_have_no_rows(at, "parts", rank, shards=True)
    found["inside"] = _saved_between_fragments(at, rank)
    found["from one"] = _from_one_process(at, rank)
    return found


def _whole_and_interrupted(
    at: Path, name: str, rank: int, more: dict[str, Any], shards: bool = False
) -> Any:
    path = at / f"{name}.pt"
    private = winsor.make_private(**arguments(at, name, rank, **more))
    go_on(private, 2)
    if shards:
        with nothing_gathered():
            private.save(path, shards=True)
    go_on(private, 2)
    private.save(path, shards=shards)
    go_on(private)
    whole = ended(private)
    resumed = winsor.resume(path, **arguments(at, name, rank, **more))
    at_step = resumed.steps_done
    go_on(resumed)
    return {"whole": whole, "resumed": ended(resumed), "at": at_step}


@contextmanager
def nothing_gathered() -> Iterator[None]:
    """No rank may make a whole tensor of the shards of all."""

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a sharded tensor is gathered")

    full_tensor, DTensor.full_tensor = DTensor.full_tensor, refuse
    try:
        yield
    finally:
        DTensor.full_tensor = full_tensor


def _refused_shards(at: Path, rank: int) -> dict[str, str]:
    """Shards that are gone, changed or made into code; and a model that has none."""
    given = arguments(at, "shards", rank, wrapper="fsdp")
    (places,) = (at / "shards.pt").glob("shards-*/.metadata")
    kept = places.read_bytes()
    found = {}
    for name, content in {"code": pickle.dumps(Code(at)), "damaged": kept[:40]}.items():
        _on_rank_0(rank, partial(places.write_bytes, content))
        found[name] = error_of(lambda: winsor.resume(at / "shards.pt", **given))
    _on_rank_0(rank, places.unlink)
    found["gone"] = error_of(lambda: winsor.resume(at / "shards.pt", **given))
    _on_rank_0(rank, partial(places.write_bytes, kept))
    plain = winsor.make_private(**arguments(at, "unsharded", rank))
    found["plain"] = error_of(lambda: plain.save(at / "unsharded.pt", shards=True))
    return found


class Code:
    """A pickle that makes a file when it is read."""

    def __init__(self, at: Path) -> None:
        self.at = at

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.at / "code was run"),)


def _on_rank_0(rank: int, act: Callable[[], Any]) -> None:
    dist.barrier()
    if rank == 0:
        act()
    dist.barrier()


def _with_new_randomness(at: Path, rank: int) -> dict[str, Any]:
    """The plain run once more, from its checkpoint on, under another key."""
    given = arguments(at, "plain", rank)
    private = winsor.resume(at / "plain.pt", **given, repeat=False)
    go_on(private)
    return ended(private)


def _saved_when_some_have_no_rows(
    at: Path, name: str, rank: int, shards: bool = False
) -> dict[str, Any]:
    """Saved after every step, of which rank 1 has no rows in many; left in the middle."""
    path = at / f"{name}.pt"
    given = {"batch_size": 1, "steps": 30, "wrapper": "fsdp" if shards else "none"}
    private = winsor.make_private(**arguments(at, name, rank, **given))
    seen = 0
    for x, y in private.batches():
        seen += 1
        private.step(F.cross_entropy(private.model(x), y, reduction="none"))
        private.save(path, shards=shards)
        if private.steps_done >= 15:
            break
    stopped = private.steps_done
    private.save(path, shards=shards)
    go_on(private, 30 - private.steps_done)
    whole = ended(private)
    resumed = winsor.resume(path, **arguments(at, name, rank, **given))
    at_step = resumed.steps_done
    go_on(resumed)
    return {
        "whole": whole, "resumed": ended(resumed), "stopped": stopped, "at": at_step, "seen": seen,
    }  # fmt: skip


def _saved_between_fragments(at: Path, rank: int) -> str:
    given = {"max_physical_batch_size": 2, "batch_size": 32}
    private = winsor.make_private(**arguments(at, "inside", rank, **given))
    batches = private.batches()
    x, y = next(batches)
    private.step(F.cross_entropy(private.model(x), y, reduction="none"))
    return error_of(lambda: private.save(at / "inside.pt"))


def _from_one_process(at: Path, rank: int) -> dict[str, Any]:
    """Checkpoints of one process: the ledger of the first ends there, that of the second not."""
    private = winsor.resume(at / "one.pt", **arguments(at, "one", rank))
    go_on(private)
    given = arguments(at, "later", rank)
    refused = error_of(lambda: winsor.resume(at / "later.pt", **given))
    given = arguments(at, "later", rank, ledger=None)
    unknown = error_of(lambda: winsor.resume(at / "later.pt", **given))
    return {"ended": ended(private), "refused": refused, "unknown": unknown}


def prepare_one_process(at: Path) -> None:
    """What `_from_one_process` finds."""
    for name, more in {"one": 0, "later": 2}.items():
        private = winsor.make_private(**arguments(at, name, 0))
        go_on(private, 4)
        private.save(at / f"{name}.pt")
        if more:
            go_on(private, more)
        private.detach()


def mode_of(path: Path) -> int:
    return os.stat(path).st_mode & 0o777
