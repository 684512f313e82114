"""Random numbers that rules attach to records: coins, bins, keys that break ties.

A view knows rows by position only, so draws are attached to positions of the logical batch (rules
that draw join fragments first). The order of a batch carries no information about who is in it:
independent draws attached to positions have the same joint law as independent draws attached to
records. So the released value has the law it would have if every record carried its own draw,
and a proof may fix the draws of all common records and compare batches that differ by one record
(docs/privacy.md, F1). For the same reason the record in question may be imagined in the last
position, where taking it away leaves every other draw in place; draws of n - 1 rows are a prefix
of the draws of n rows.

That argument averages over the draws: they must stay secret, like the noise. With ``seed=None``
they come from a fresh secret key; a given seed is for tests and reproductions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from winsor.core.randomness import new_key, stream, subkey
from winsor.rules.rule import State


def start(seed: int | None) -> State:
    """Return the state of the draws of all steps. It is as sensitive as the run's own key."""
    return {"key": new_key(seed).hex(), "step": 0}


def keyed(state: State, seed: int | None, key: bytes) -> State:
    """Return a state that, without a seed, follows the run's key and so resumes with it."""
    return state if seed is not None else {**state, "key": f"{subkey(key, 'rule'):032x}"}


def uniforms(state: State, n: int) -> Tensor:
    """Return (n,) independent uniforms on [0, 1) in float64, for the rows of this step."""
    generator = stream(bytes.fromhex(state["key"]), "rule", state["step"])
    return torch.from_numpy(generator.random(n))


def advance(state: State) -> State:
    """Return the state whose draws are those of the next step."""
    return {**state, "step": state["step"] + 1}
