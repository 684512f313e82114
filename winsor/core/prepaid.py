"""The door for methods whose every step is known beforehand: pay for all of them, then release.

Heavy-tailed means and linear models never learn the size of a step's event from the data: steps,
sensitivity, noise and sampling rate are fixed when the run is planned. So the ledger records all
steps, durably, *before the first draw*, and each release is then one addition of pre-drawn noise.
What is recorded can only be more than what is released (a crash loses value, never honesty), and
the cost per step falls to a few microseconds.

    event = sampler.amplify(Gaussian(nm) at sensitivity S)        recorded ``steps`` times
    release t: value on a grid, plus nm S z_t, z_t ~ N(0, I) on the same grid, for entry t

Guarantee
---------
A `Receipt` releases at most the number of values that were paid for, each of the paid shape, each
with fresh noise of the very standard deviation the recorded event was built from. That a value
moves by at most the stated sensitivity is the caller's proof, carried in `Sensitivity.proof`; what
rounding adds to it (`core/arithmetic/rows.py`) is added here.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from winsor.core.accounting.lattice import on_grid
from winsor.core.arithmetic.rows import slack
from winsor.core.buffers import all_finite
from winsor.core.contract import (
    NOT_FINITE,
    Bounded,
    BudgetExceeded,
    Guarantee,
    Neighbouring,
    Sensitivity,
    UnsoundRelease,
)
from winsor.core.ledger.guarantee import guarantee
from winsor.core.ledger.ledger import Ledger
from winsor.core.noise.gaussian import Gaussian
from winsor.core.noise.source import NoiseSource
from winsor.core.randomness import fingerprint
from winsor.core.sampling.samplers import Sampler

Array = NDArray[np.float64]


class PrepaidDoor:
    """Releases NumPy values of one run under one key, and pays for them in advance."""

    def __init__(self, ledger: Ledger, relation: Neighbouring, key: bytes) -> None:
        ledger.be_about(relation=relation.value)
        self.ledger = ledger
        self.relation = relation
        self.run = fingerprint(key)
        self._noise = NoiseSource(key, prefetch=False)
        self._samplers: list[str] = []
        self._proofs: list[str] = []
        self._slack = 0.0

    def pay(
        self,
        mechanism: Gaussian,
        sampler: Sampler,
        sensitivity: Sensitivity,
        steps: int,
        shape: int | tuple[int, ...],
    ) -> Receipt:
        """Record ``steps`` releases of arrays of ``shape``, and return the right to make them."""
        size = (shape,) if isinstance(shape, int) else shape
        parts = {"value": Bounded(None, sensitivity)}
        event = sampler.amplify(mechanism.event(parts), self.relation)
        rounding = slack(sampler.n, math.prod(size))
        self._slack, more = max(self._slack, rounding), 1 + rounding
        bounds = more * sensitivity.add_remove, more * sensitivity.replace
        charged = Sensitivity(*bounds, sensitivity.proof)
        value = {"value": Bounded(None, charged)}
        std, bits = on_grid(mechanism, value, {"value": math.prod(size)})
        first = self.ledger.record_many(self.run, event, steps)
        self.note(sampler, sensitivity.proof)
        return Receipt(self._noise, first, steps, size, std["value"], bits["value"], charged)

    def note(self, sampler: Sampler, proof: str) -> None:
        """Remember how the guarantee's records were sampled and why they are bounded."""
        for seen, new in ((self._samplers, str(sampler)), (self._proofs, proof)):
            if new not in seen:
                seen.append(new)

    def guarantee(self, delta: float, conditions: tuple[str, ...] = ()) -> Guarantee:
        """The certified account of everything in the ledger, whether released yet or not."""
        rounding = f"noise covers rounding in sums over rows: at most {self._slack:.1e} of a bound"
        reasons = (*self._proofs, *([rounding] if self._slack else []), *conditions)
        return guarantee([self.ledger], delta, self.relation, self._samplers, reasons)


class Receipt:
    """The right to release ``steps`` arrays of one shape. Built by `PrepaidDoor.pay` only."""

    def __init__(
        self,
        noise: NoiseSource,
        first: int,
        steps: int,
        shape: tuple[int, ...],
        std: float,
        bits: int,
        sensitivity: Sensitivity,
    ) -> None:
        self.first = first
        self.std = std
        self.sensitivity = sensitivity  # rounding included
        self._noise = noise
        self._shape = shape
        self._left = steps
        self._next = first
        self._bits = bits

    @property
    def left(self) -> int:
        """How many releases remain."""
        return self._left

    def release(self, value: Array) -> Array:
        """Add this step's noise to ``value`` in place, and return it: it is public from here on."""
        if value.shape != self._shape or value.dtype != np.float64:
            raise UnsoundRelease(
                f"a released value must be float64 of the paid shape {self._shape}. Got "
                f"{value.dtype} {value.shape} instead: noise would be shared between entries."
            )
        if not all_finite(value.ravel()):
            raise UnsoundRelease(NOT_FINITE)
        if self._left == 0:
            raise BudgetExceeded(
                "every release that was paid for has been made. Plan more steps beforehand."
            )
        self._left -= 1
        self._next += 1
        target = value if value.flags.c_contiguous else np.ascontiguousarray(value)
        self._noise.add(self._next - 1, "prepaid", target, self.std, bits=self._bits)
        if target is not value:
            value[...] = target
        return value
