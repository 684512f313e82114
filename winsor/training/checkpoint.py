"""What a run keeps to be continued: everything but the model and the optimiser.

A resumed run draws the same batches and the same noise. Steps that were released after the
checkpoint are made again: bit by bit equal, they are the same releases and cost nothing (the ledger
compares digests); otherwise they are refused, because the same noise, and the same draw of the
batch, would serve two values. New randomness is the way out, and is paid for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from winsor.contract import LedgerError, Update
from winsor.randomness import fingerprint, new_key
from winsor.release.door import Door
from winsor.rules.rule import Rule, State
from winsor.sampling.feed import Feed
from winsor.training.guard import ModelGuard
from winsor.training.iterates import Iterates

STATE_FORMAT = 2


class Resumable:
    """`state_dict` and `load_state_dict` of a training run."""

    steps_done: int
    _first: int
    _is_new: bool
    _rule: Rule
    _rule_state: State
    _door: Door
    _feed: Feed
    _update: Update
    _iterates: Iterates
    _guard: ModelGuard

    def state_dict(self) -> dict[str, Any]:
        """Everything but the model and the optimiser, as plain values.

        It holds the secret key of batches and noise: guard it like the data. A mechanism whose
        privacy rests on its own randomness staying hidden (ModelMix) keeps the key out; resuming
        then needs the same ``seed`` or the ledger's key file.
        """
        return {
            "format": STATE_FORMAT,
            "steps_done": self.steps_done,
            "first": self._first,
            "key": None if self._update.hides_randomness else self._feed.key.hex(),
            "key_fingerprint": self._door.run,
            "ledger": self._door.ledger.state_dict(),
            "rule": dict(self._rule_state),
            "update": self._update.state_dict(),
            "iterates": self._iterates.state_dict(),
            "torch_rng": torch.get_rng_state(),
        }

    def allow_repeat(self) -> None:
        """Say that this run repeats, from its start, one that is in the ledger already."""
        self._is_new = True

    def load_state_dict(self, state: Mapping[str, Any], *, repeat: bool = True) -> None:
        """Continue a run from its checkpoint: same batches, same noise, same account.

        Steps after the checkpoint that are in the ledger are made again, bit by bit, for free; one
        that comes out differently is refused. ``repeat=False`` goes on with new randomness
        instead, and pays for every step from the checkpoint on: for runs that cannot be
        repeated exactly, such as with another learning rate or on another machine.
        """
        if state.get("format") != STATE_FORMAT:
            raise LedgerError(
                f"the checkpoint must have format {STATE_FORMAT}. Got {state.get('format')!r} "
                "instead. Save it with private.state_dict() of this version."
            )
        key = self._feed.key if state["key"] is None else bytes.fromhex(state["key"])
        if fingerprint(key) != state["key_fingerprint"]:
            raise LedgerError(
                "this run's key is not the checkpoint's, so its batches and noise would differ. "
                "Build the run with the same seed, or beside the same ledger and key file."
            )
        self._door.ledger.load_state_dict(state["ledger"])
        self.steps_done = int(state["steps_done"])
        self._first = int(state["first"])
        self._rule_state = dict(state["rule"])
        self._update.load_state_dict(state["update"])
        self._iterates.load_state_dict(state["iterates"])
        torch.set_rng_state(state["torch_rng"])
        if not repeat:
            key, self._first = new_key(), self.steps_done
            self._rule_state = self._rule.with_key(self._rule_state, key)
        self._feed.key = key
        self._door.use_key(key)
        self._update.use_key(key)
        self._is_new = True
        self._guard.adopt()
