"""The taps on winsor's doors, and on what holds weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from winsor.audit.replaying.rows import Rows, patched
from winsor.audit.replaying.transcript import Claim, Transcript, part_of
from winsor.core.contract import Bounded
from winsor.core.door import Door
from winsor.core.noise.laplace import Laplace
from winsor.core.noise.protocol import Correlated
from winsor.core.prepaid import PrepaidDoor, Receipt
from winsor.tables.linear.base import PrivateLinearModel
from winsor.training.loop import PrivateTraining


class Taps:
    """What happens at the doors of one run."""

    def __init__(self, transcript: Transcript, rows: Rows) -> None:
        self._transcript, self._rows = transcript, rows
        self._paid: list[tuple[Receipt, Claim, Any]] = []
        self._absent: set[int] = set()  # doors and receipts whose values lack the row
        self._fresh = False
        rows.on_held_back.append(self._held_back)

    def _held_back(self) -> None:
        self._fresh = True
        self._absent |= {id(receipt) for receipt, _, _ in self._paid if receipt.left}

    def _see_ledger(self, ledger: Any, sampler: Any) -> None:
        if not any(ledger is known for known in self._transcript.ledgers):
            self._transcript.ledgers.append(ledger)
        if not any(sampler is known for known, _ in self._transcript.samplers_paid):
            self._transcript.samplers_paid.append((sampler, ledger))

    # ----------------------------------------------------------------------------- the doors

    def release(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap `Door.release`."""

        def release(door: Door, step: int, parts: Mapping[str, Bounded]) -> Any:
            if not all(isinstance(part, Bounded) for part in parts.values()):
                return original(door, step, parts)  # which refuses them
            if self._fresh:
                self._absent.add(id(door))
            self._fresh = False
            self._see_ledger(door.ledger, door.sampler)
            laplace = isinstance(door.mechanism, Laplace)
            own = not isinstance(door.mechanism, Correlated)
            copies = {
                name: part_of(
                    part.value,
                    Claim(part.sensitivity, door.relation, laplace, part.coordinate_bound, own),
                )
                for name, part in parts.items()
            }
            facts = {
                name: f"{part.sensitivity}, share {part.share}" for name, part in parts.items()
            }
            facts |= {"sampler": str(door.sampler), "relation": str(door.relation)}
            absent = id(door) in self._absent
            first = self._transcript.passing("Door", step, copies, facts, absent, door.sampler)
            released = original(door, step, parts)
            if first is not None:
                _overwrite(released.values, first.noisy)
            self._transcript.passed(_copied(released.values), dict(released.std))
            return released

        return release

    def pay(self, original: Callable[..., Receipt]) -> Callable[..., Receipt]:
        """Wrap `PrepaidDoor.pay`."""

        def pay(
            door: PrepaidDoor, mechanism: Any, sampler: Any, sensitivity: Any, *rest: Any
        ) -> Receipt:
            receipt = original(door, mechanism, sampler, sensitivity, *rest)
            self._see_ledger(door.ledger, sampler)
            claim = Claim(receipt.sensitivity, door.relation)
            self._paid.append((receipt, claim, sampler))
            steps_and_shape = ", ".join(map(str, rest))
            facts = {"payment": f"{steps_and_shape}, {sensitivity}, {sampler}, {receipt.std}"}
            self._transcript.passing("PrepaidDoor.pay", receipt.first, {}, facts, False)
            self._transcript.passed(None, {})
            return receipt

        return pay

    def spend(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap `Receipt.release`."""

        def release(receipt: Receipt, value: Any) -> Any:
            known = [claim for paid, claim, _ in self._paid if paid is receipt]
            if not known or not isinstance(value, np.ndarray):
                return original(receipt, value)
            parts = {"value": part_of(value, known[0])}
            absent = id(receipt) in self._absent
            first = self._transcript.passing(
                "Receipt", len(self._transcript.passages), parts, {}, absent
            )
            released = original(receipt, value)
            if first is not None:
                released[...] = first.noisy
            self._transcript.passed(released.copy(), {"value": receipt.std})
            return released

        return release

    def seen(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Note every training and every estimator, returned or not."""

        def call(witness: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(witness, *args, **kwargs)
            if not any(witness is known for known in self._transcript.witnesses):
                self._transcript.witnesses.append(witness)
            return result

        return call


def tapped(taps: Taps) -> AbstractContextManager[None]:
    """Let ``taps`` see every release."""
    return patched(
        [
            (Door, "release", taps.release),
            (PrepaidDoor, "pay", taps.pay),
            (Receipt, "release", taps.spend),
            (PrivateTraining, "__init__", taps.seen),
            (PrivateLinearModel, "_fit", taps.seen),
        ]
    )


def _copied(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _copied(value) if isinstance(value, Mapping) else torch.as_tensor(value).clone()
        for name, value in values.items()
    }


def _overwrite(values: Mapping[str, Any], first: Mapping[str, Any]) -> None:
    """Put what the first run released into the tensors of the second."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            _overwrite(value, first[name])
        elif isinstance(value, Tensor):
            value.copy_(first[name])
