"""What a run keeps to be continued: everything but the model and the optimiser (`py`).

A resumed run draws the same batches and the same noise. Steps that were released after the
checkpoint are made again: bit by bit equal, they are the same releases and cost nothing (the ledger
compares digests); otherwise they are refused, because the same noise, and the same draw of the
batch, would serve two values. New randomness is the way out, and is paid for.

A checkpoint from the middle of a logical batch goes back to its start: weights do not change
within one, and the user's random streams are noted before its first fragment. No sum of
gradients that has not been noised is ever written.
"""

from __future__ import annotations

import copy
import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from torch import nn

from winsor.core.arithmetic.slack import most_places, most_rows
from winsor.core.contract import LedgerError, ProtocolError, UnsoundRelease, WinsorError
from winsor.core.door import Door
from winsor.core.ledger.ledger import Ledger
from winsor.core.randomness import HoldsKey, fingerprint, new_key
from winsor.gradients.buffers import with_tensors
from winsor.gradients.view import Engine, View
from winsor.rules.rule import Rule, Sums
from winsor.training.checks.row_checks import RowChecks
from winsor.training.feeding.feed import Feed, Fragment
from winsor.training.feeding.random_states import random_states, set_random_states
from winsor.training.files import keep_names
from winsor.training.grouping import Grouping
from winsor.training.iterates import Ball, Iterates
from winsor.training.ranks.agreement import SAVE, UnevenSteps
from winsor.training.ranks.ranks import Ranks, on_all_ranks
from winsor.training.ranks.shard_files import forget_others, write_shards
from winsor.training.saving.file import (
    FILE,
    PREFIX,
    Stateful,
    apart,
    everything,
    new_name,
    refuse_whole,
    write,
)
from winsor.training.saving.seal import fingerprint_of_rows, refuse_changed, sealed
from winsor.training.saving.settings import Settings, refuse_different, settings_of_optimizer
from winsor.training.tamper_guard import TamperGuard
from winsor.training.update import Update

STATE_FORMAT = 5
ONCE = (
    "its checkpoint was resumed once, with the same loss and settings: without a ledger on disk, "
    "nothing refuses another sum under the same noise"
)

_Value = TypeVar("_Value")


@dataclass(frozen=True)
class StepBudget:
    """How long the run may go on: the planned steps, and the steps a target epsilon allows."""

    delta: float
    planned_steps: int
    epsilon: float | None = None
    allowed_steps: int | None = None


class RunState(HoldsKey):
    """What a training run is made of, and how it is saved and continued."""

    def __init__(
        self,
        model: nn.Module,
        engine: Engine,
        rule: Rule,
        door: Door,
        feed: Feed,
        update: Update,
        budget: StepBudget,
        iterates: Iterates | None = None,
        ball: Ball | None = None,
        guard: TamperGuard | None = None,
        conditions: tuple[str, ...] = (),
        grouping: Grouping | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        self.model = model
        self.budget = budget
        self.steps_done = 0
        self._engine = engine
        self._rule = rule
        self._door = door
        self._feed = feed
        self._update = update
        update.seal = door.seal
        self._iterates = iterates or Iterates("last")
        self._ball = ball
        self._grouping = grouping
        self._ranks = ranks
        self._uneven = None if ranks is None else UnevenSteps(ranks)
        self._views = 1 if grouping is None else grouping.views
        first = rule.init(dict(update.parameters), door.sampler.expected_size)
        self._rule_state = rule.with_key(first, feed.key)
        self._open: Fragment | None = None
        self._sums: Sums | None = None
        self._held: list[View] = []
        self._is_half_done = False  # rows were added, and an error came before the step was over
        self._neutralised = 0
        self._neutralised_before = 0  # the step that is under way
        self._resumed_at_end = False
        self._first = 0  # the step at which the current key began
        self._most_places = most_places(most_rows(door.sampler.expected_size))
        self._is_new = not door.ledger.steps(door.run)
        self._conditions = [f"rule {rule!r}", *conditions]
        self._guard = guard or TamperGuard(model)
        self._rows = RowChecks(model, engine, feed)
        self._batchnorms = [
            (name, module)
            for name, module in model.named_modules()
            if isinstance(module, nn.modules.batchnorm._BatchNorm)
        ]
        self._iterates.update(0, update.parameters)
        self._process = os.getpid()
        self._rows_named: dict[bytes, str] = {}  # by key
        optimizer, scheduler = (getattr(update, n, None) for n in ("optimizer", "scheduler"))
        # Before training changes learning rates and the like.
        self._built_with = settings_of_optimizer(optimizer, scheduler)
        engine.attach()

    # --------------------------------------------------------------------------- a whole run

    def save(
        self,
        path: str | os.PathLike[str],
        also: Mapping[str, Stateful] | None = None,
        *,
        shards: bool = False,
    ) -> None:
        """Write everything to continue from here into one file: see `winsor.resume`.

        Model, optimiser, scheduler, account, key and random streams; ``also`` names whatever else
        has a ``state_dict``. Call it after any ``private.step``, between the fragments of a logical
        batch too. The file is replaced in one act and readable by its owner only: it holds the key
        of the noise, so guard it like the data.

        Of several ranks all call it, after the same whole steps (decide by ``steps_done``); rank 0
        writes, and all wait until it has. ``shards=True`` is for models of `fully_shard`: ``path``
        is then a folder that all ranks share, into which each writes its part (`py`).
        """
        if shards:
            refuse_whole(self)
        if self._is_half_done:
            self._refuse_half_done()
        if self._open is not None:
            raise ProtocolError(
                "private.save must be called after private.step, or outside the loop. Got a call "
                "while a batch is open: what was drawn for it could not be drawn again. Move it "
                "below private.step(losses)."
            )
        if self._ranks is None or self._uneven is None:
            state = everything(self, also or {}, gathered=not shards)
            self._write(path, state, shards)
            return
        if self._inside_a_step():
            raise ProtocolError(
                "several ranks must save after a whole logical step. Got a call between its "
                "fragments, of which each rank has its own number. Write `if private.step(losses) "
                "and private.steps_done % 10 == 0: private.save(path)`."
            )
        self._uneven.say(SAVE)
        self._save_together(self._ranks, os.fspath(path), also or {}, shards)

    def _save_together(
        self, ranks: Ranks, path: str, also: Mapping[str, Stateful], shards: bool = False
    ) -> None:
        """Save where and how rank 0 says, with the random streams of all."""
        own = {"random": random_states(), "neutralised": self._neutralised}
        ranks.agree(step_to_save=self.steps_done)
        path, shards = ranks.from_first((path, shards))
        state = everything(self, also if ranks.rank == 0 else {}, gathered=not shards)
        state["private"] = sealed(self._feed.key, state["private"] | {"ranks": ranks.from_all(own)})
        self._write(path, state, shards)

    def _write(self, path: str | os.PathLike[str], state: dict[str, Any], shards: bool) -> None:
        """Write one file, by rank 0; or shards by all, and then the file that names them."""
        ranks, writes = self._ranks, self._ranks is None or self._ranks.rank == 0
        key = self._feed.key
        if not shards:
            done = sealed(key, state)
            on_all_ranks(ranks, lambda: write(path, done) if writes else None, "save")
            return
        folder, name = Path(path), new_name(self.steps_done)
        name = name if ranks is None else ranks.from_first(name)
        state, tensors = apart(self, state)
        write_shards(folder / name, tensors)

        def end() -> None:
            keep_names(folder / name)
            keep_names(folder)
            write(folder / FILE, sealed(key, {**state, "shards": name}))
            forget_others(folder, PREFIX, name)

        on_all_ranks(ranks, lambda: end() if writes else None, "save")

    def sealed(self) -> dict[str, Any]:
        """Return everything that continues the run, with its MAC, as `save` writes it."""
        return sealed(self._feed.key, everything(self, {}))

    def _follow_others(self) -> bool:
        """Follow the others after a step without rows here (`UnevenSteps`). False if they leave."""
        ranks, uneven = self._ranks, self._uneven
        assert ranks is not None and uneven is not None
        return uneven.follow(self._feed.drawn, lambda: self._save_together(ranks, os.devnull, {}))

    def _refuse_half_done(self) -> NoReturn:
        """Refuse to go on after a step that failed half-way: rows could be added twice, or the
        noise of its entry cover another sum."""
        raise ProtocolError(
            f"a step must be done as a whole. Got an error in the middle of step "
            f"{self.steps_done + 1} before: its rows, its entry in the ledger and the weights "
            "no longer agree. Continue from the last checkpoint with winsor.resume."
        )

    def _inside_a_step(self) -> bool:
        return self._sums is not None or bool(self._held)

    # ------------------------------------------------------------------- the private part of it

    def state_dict(self) -> dict[str, Any]:
        """Return everything but the model and the optimiser, as plain values: the part in `save`.

        It holds the secret key of batches and noise: guard it like the data. A mechanism whose
        privacy rests on its own randomness staying hidden (ModelMix) keeps the key out; resuming
        then needs the same ``seed`` or the ledger's key file.
        """
        inside, key = self._inside_a_step(), self._feed.key
        if key not in self._rows_named:
            self._rows_named = {key: fingerprint_of_rows(self._feed, key)}
        state = {
            "format": STATE_FORMAT,
            "settings": self.settings(),
            "steps_done": self.steps_done,
            "first": self._first,
            "key": None if self._update.hides_randomness else self._feed.key.hex(),
            "key_fingerprint": self._door.run,
            "ledger": self._door.ledger.state_dict(),
            "rule": copy.deepcopy(dict(self._rule_state)),
            "update": self._update.state_dict(),
            "iterates": self._iterates.state_dict(),
            "noise": with_tensors(self._door.noise_state()),
            "conditions": list(self._conditions),
            "neutralised": self._neutralised_before if inside else self._neutralised,
            "random": self._feed.random_at_start if inside else random_states(),
            "world": 1 if self._ranks is None else self._ranks.world,
            "rows": self._rows_named[key],
        }
        return sealed(key, state)

    def settings(self) -> Settings:
        """Return what privacy rests on, and what exactness does; see `settings.py` for the rest."""
        found: Settings = {}
        for name, value in self._door.ledger.config.items():
            if name == "unit":  # older checkpoints lack it; their ledger's header is compared
                continue
            parts = value if isinstance(value, Mapping) else {"": value}
            found |= {f"{name}.{key}" if key else name: str(part) for key, part in parts.items()}
        return found | {
            "epsilon": str(self.budget.epsilon),
            "max_physical_batch_size": str(self._feed.limit),
            "engine": type(self._engine).__name__,
            "iterate": self._iterates.kind,
            "ball": str(None if self._ball is None else self._ball.radius),
        }

    def allow_repeat(self) -> None:
        """Say that this run repeats, from its start, one that is in the ledger already."""
        self._is_new = True

    def load_state_dict(self, state: Mapping[str, Any], *, repeat: bool = True) -> None:
        """Continue a run from its checkpoint: same batches, same noise, same account.

        Steps after the checkpoint that are in the ledger are made again, bit by bit, for free; one
        that comes out differently is refused. ``repeat=False`` goes on with new randomness
        instead, and pays for every step from the checkpoint on: for runs that cannot be
        repeated exactly, such as with another learning rate, on another machine, or on another
        number of ranks.

        All of it is loaded, or nothing: what is refused changes nothing.
        """
        if self._process != os.getpid():
            raise UnsoundRelease(
                "a run must be resumed in the process that built it. Got a forked process, whose "
                "parent could draw the same noise. Build the run in this process."
            )
        on_disk = self._door.ledger.path is not None
        fresh = None if repeat else new_key()
        if self._ranks is not None:
            on_disk = self._ranks.from_first(on_disk)
            fresh = None if fresh is None else self._ranks.shared_key(fresh)
        key = on_all_ranks(self._ranks, lambda: self._checked(state, fresh, on_disk), "resume")
        before = self.state_dict()
        before |= {"random": random_states(), "neutralised": self._neutralised}
        old_key = self._feed.key
        try:
            adopt = functools.partial(self._adopt, state, key, fresh)
            on_all_ranks(self._ranks, lambda: _intact(adopt), "resume")
            conditions = [*self._conditions, *_intact(lambda: [*map(str, state["conditions"])])]
            self._door.ledger.load_state_dict(state["ledger"])  # last: on disk, it stays
        except BaseException:
            self._take_over(before, old_key, before["noise"])
            raise
        conditions += [] if on_disk or not repeat else [ONCE]
        self._conditions = list(dict.fromkeys(conditions))
        self._update.use_key(self._feed.key)
        self._sums, self._held, self._is_half_done = None, [], False
        self._resumed_at_end = self.steps_done >= self.budget.planned_steps
        self._is_new = True
        self._guard.accept()

    def _checked(self, state: Mapping[str, Any], fresh: bytes | None, on_disk: bool) -> bytes:
        """Return the checkpoint's key, if the checkpoint fits this run."""
        if state.get("format") != STATE_FORMAT:
            raise LedgerError(
                f"the checkpoint must have format {STATE_FORMAT}. Got {state.get('format')!r} "
                "instead. Save it with private.save(path) of this version."
            )
        refuse_different(_intact(lambda: dict(state["settings"])), self.settings())
        key = _intact(lambda: self._key_of(state))
        if fingerprint(key) != state.get("key_fingerprint"):
            raise LedgerError(
                "this run's key is not the checkpoint's, so its batches and noise would differ. "
                "Build the run with the same seed, or beside the same ledger and key file."
            )
        if fresh is None:
            self._refuse_other_world(state, on_disk)
        self._refuse_other_account(state)
        if fingerprint_of_rows(self._feed, key) != state.get("rows"):
            raise LedgerError(
                "a run must be resumed on the rows that it began with. Got others: its account "
                "speaks of those rows, and the same noise would cover two sums. Give the dataset "
                "as it was, or begin a run with make_private(after=[...])."
            )
        refuse_changed(key, state)
        return key

    def _refuse_other_world(self, state: Mapping[str, Any], on_disk: bool) -> None:
        """Refuse another number of ranks: it adds up in another order, and can repeat no step."""
        saved = _intact(lambda: int(state.get("world", 1)))
        here = 1 if self._ranks is None else self._ranks.world
        done = _intact(lambda: int(state["steps_done"]) - int(state["first"]))
        later = self._door.ledger.steps(str(state["key_fingerprint"])) - done
        if saved != here and (later > 0 or not on_disk):
            found = f"{later} steps after the checkpoint" if on_disk else "no ledger on disk to ask"
            raise LedgerError(
                f"a checkpoint of {saved} ranks continues on {here} only if nothing was released "
                f"after it: repeated steps would differ in rounding. Got {found}. Resume on "
                f"{saved} ranks, or with repeat=False, which goes on with new randomness and pays "
                "for it."
            )

    def _key_of(self, state: Mapping[str, Any]) -> bytes:
        return self._feed.key if state["key"] is None else bytes.fromhex(state["key"])

    def _refuse_other_account(self, state: Mapping[str, Any]) -> None:
        """Refuse a checkpoint whose account does not fit this ledger, before it is added."""
        trial = Ledger(self._door.ledger.config)
        trial.load_state_dict(self._door.ledger.state_dict())
        _intact(lambda: trial.load_state_dict(state["ledger"]))

    def _adopt(self, state: Mapping[str, Any], key: bytes, fresh: bytes | None) -> None:
        state = {**state, **self._of_this_rank(state)}
        if fresh is None:
            self._take_over(state, key, state["noise"])
        else:
            self._take_over(state, fresh, None)
            self._first = self.steps_done
            self._rule_state = self._rule.with_key(self._rule_state, fresh)

    def _of_this_rank(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return random streams and counts that each rank has for itself."""
        kept = state.get("ranks")
        rank, world = (0, 1) if self._ranks is None else (self._ranks.rank, self._ranks.world)
        if not kept:
            return {}
        if world == len(kept):
            return dict(kept[rank])
        total = sum(int(one["neutralised"]) for one in kept) if rank == 0 else 0
        random = kept[rank]["random"] if rank < len(kept) else random_states()
        return {"random": random, "neutralised": total}

    def _take_over(self, state: Mapping[str, Any], key: bytes, noise: Any) -> None:
        """Be in memory what ``state`` says. May fail in the middle."""
        self.steps_done, self._first = int(state["steps_done"]), int(state["first"])
        self._neutralised = self._neutralised_before = int(state["neutralised"])
        self._rule_state = copy.deepcopy(dict(state["rule"]))
        self._update.load_state_dict(state["update"])
        self._iterates.load_state_dict(state["iterates"])
        set_random_states(state["random"])
        self._feed.key = key
        self._door.use_key(key, noise)


def _intact(read: Callable[[], _Value]) -> _Value:
    """Run ``read()``; whatever a damaged checkpoint makes it raise becomes one typed error."""
    try:
        return read()
    except WinsorError:
        raise
    except Exception as error:  # other shapes, other types, names that are missing
        raise LedgerError(
            f"the checkpoint is damaged: {type(error).__name__}: {error}. Nothing was changed. "
            "Use an intact copy."
        ) from error
