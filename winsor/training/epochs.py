"""Epoch by epoch: `for epoch in private.epochs(): for x, y in epoch: private.step(...)`.

The same steps as `private.batches()`, cut where a pass over the data is full. With batches of a
random size a pass is full when n rows are expected to have been drawn: after the k-th multiple of
n / batch_size steps, rounded up. So a run of ``epochs=5`` has five of them, and their lengths
differ by one step at most.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from winsor.core.contract import ProtocolError

if TYPE_CHECKING:
    from winsor.training.loop import PrivateTraining


def epoch_ends(planned: int, rate: float) -> list[int]:
    """Return the steps after which each epoch ends; the last may be cut short by the plan.

    >>> epoch_ends(10, rate=0.3)
    [4, 7, 10]
    """
    count = max(1, math.ceil(planned * rate - 1e-9))
    ends = [min(planned, max(1, math.ceil(k / rate - 1e-9))) for k in range(1, count + 1)]
    return sorted({*ends, planned})


class Epochs:
    """The epochs that are left of a run. After a resume, the first is what is left of that one.

    ``len()`` is how many will be walked through.
    """

    def __init__(self, private: PrivateTraining) -> None:
        self._private = private
        self._ends = epoch_ends(private.budget.planned_steps, private.sampler.rate)

    def __len__(self) -> int:
        return len(self._ends) - self._done()

    def _done(self) -> int:
        return bisect_right(self._ends, self._private.steps_done)

    def __iter__(self) -> Iterator[Epoch]:
        private = self._private
        if not len(self):  # refused, unless the run was resumed after its last step
            yield from private.batches()
        for number in range(self._done(), len(self._ends)):
            yield Epoch(private, number, self._ends[number])
            if private.steps_done < self._ends[number]:
                raise ProtocolError(
                    f"an epoch must be walked to its end before the next. Got the end of epoch "
                    f"{number + 1} after step {private.steps_done} of {self._ends[number]}. To "
                    "stop early, leave the outer loop too; for a few steps, use "
                    "private.batches(steps)."
                )

    def __repr__(self) -> str:
        return f"{len(self)} of {len(self._ends)} epochs left"


class Epoch:
    """The batches of one pass. ``number`` counts from 0, also in a run that was resumed.

    ``len()`` is the number of logical steps left in it. There may be more batches than that, if
    ``max_physical_batch_size`` cuts them, or fewer, if a random batch comes out empty.
    """

    def __init__(self, private: PrivateTraining, number: int, end: int) -> None:
        self.number = number
        self._private = private
        self._end = end

    def __len__(self) -> int:
        return max(0, self._end - self._private.steps_done)

    def __iter__(self) -> Iterator[Any]:
        if len(self):
            yield from self._private.batches(len(self))

    def __repr__(self) -> str:
        return f"epoch {self.number + 1}, {len(self)} steps left"
