"""Samplers whose steps are paid for in blocks: an epoch, or a round of groups. No torch here.

    steps     0 1 2 ... t-1 | t t+1 ...
    ledger    E . .      .  | E .           E: what the whole block costs;  .: nothing more

A row takes part in one step of each block at most, and what that costs is known for the block as a
whole. It is recorded with the block's *first* step, before any of its noise is drawn: whenever a
run ends, is killed or is resumed, the ledger has paid for every block that was begun.

Guarantee
---------
For every T, the events of steps 0 .. T-1 certify these T steps, provided that the event given the
batch is the same at each step of a block (`UnsoundRelease` is raised by who releases otherwise).
"""

from __future__ import annotations

from abc import abstractmethod

from dp_accounting import dp_event

from winsor.core.contract import Neighbouring
from winsor.core.noise.protocol import LocalEvent
from winsor.core.sampling.samplers import Sampler


class BlockSampler(Sampler):
    """A sampler whose `amplify` gives the event of ``block`` consecutive steps together."""

    @property
    @abstractmethod
    def block(self) -> int:
        """Steps that are paid for together."""

    @property
    def rate(self) -> float:
        """The average share of the steps that a given row takes part in."""
        return 1 / self.block

    def event(self, local: LocalEvent, relation: Neighbouring, step: int) -> dp_event.DpEvent:
        """What the ledger records at ``step``."""
        paid = self.amplify(local, relation)  # asked for at every step: what is refused, is always
        return paid if step % self.block == 0 else dp_event.NoOpDpEvent()

    def alike(self, step: int) -> range:
        """The steps around ``step`` for which `event` is the same."""
        first = step - step % self.block
        if step == first:
            return range(step, step + 1)
        return range(first + 1, first + self.block)

    def history(
        self, local: LocalEvent, relation: Neighbouring, steps: int
    ) -> list[tuple[dp_event.DpEvent, int]]:
        """What ``steps`` steps from the first on cost: all blocks that were begun."""
        return [(self.amplify(local, relation), -(-steps // self.block))]
