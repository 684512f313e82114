"""Steps in which some ranks have no rows: they take part in what the others do after them.

A rank without rows in a step does not come to the user's loop for it, so it cannot be told there to
save. Every rank knows who has no rows. Those wait for the word of rank 0, which has rows whenever
any rank has:

    SAVE     a checkpoint is made; another word follows
    GO_ON    the others draw their next batch
    STOP     they have left the loop
"""

from __future__ import annotations

from collections.abc import Callable

from winsor.core.contract import ProtocolError
from winsor.training.ranks.ranks import Ranks

SAVE, GO_ON, STOP = "save", "go on", "stop"


class UnevenSteps:
    """Who says what after a step that not every rank had rows for. Other steps cost nothing."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._due = False

    def begins(self, drawn: int) -> None:
        """A step of ``drawn`` rows in all, of which this rank has some."""
        self._due = drawn < self._ranks.world

    def say(self, word: str) -> None:
        """Tell the ranks without rows in the current step what those with rows do."""
        if not self._due:
            return
        heard = self._ranks.from_first(word)
        if heard != word:
            raise ProtocolError(
                "all ranks must save, go on and leave the loop after the same steps. Got "
                f"{word!r} on rank {self._ranks.rank} and {heard!r} on rank 0 instead. Decide by "
                "private.steps_done, not by counting batches."
            )
        self._due = word == SAVE

    def follow(self, drawn: int, save: Callable[[], None]) -> bool:
        """After a step without rows here: do as the others do. False if they leave the loop."""
        if drawn == 0:
            return True  # nobody came to the loop
        while (word := self._ranks.from_first(None)) == SAVE:
            save()
        return bool(word == GO_ON)
