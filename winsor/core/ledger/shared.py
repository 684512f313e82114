"""One ledger for all ranks: rank 0 keeps the file, and all know what is in it.

    1  rank 0 writes the entry to disk (of sums that are sharded, one digest of all parts is made
       before)
    2  every rank shows the digest of what it is about to cover, and rank 0 with it whether the
       entry is written: digests must be equal
    3  the others note the same; only then is noise drawn, on any rank

So the ranks of a step wait for each other once before the noise, and the write of rank 0 is under
way while others still come to it. Where digests differ, the entry stays, paid for and not released.

Guarantee
---------
Whichever rank dies, and whenever: what any rank released is in the file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from dp_accounting import dp_event

from winsor.core.contract import LedgerError
from winsor.core.ledger.ledger import UNBOUND, Ledger


class Peers(Protocol):
    """What a ledger asks of the processes of a run (`winsor/training/ranks/ranks.py`)."""

    rank: int

    def from_first(self, value: Any) -> Any:
        """Return what rank 0 gave."""

    def all_well(self, well: bool) -> bool:
        """Return whether every rank says so."""

    def digest_of_all(self, digest: str) -> str:
        """Return one digest for what all ranks are about to cover."""

    def same_release(self, run: str, step: int, digest: str, well: bool) -> bool:
        """Refuse unless all ranks show the same; return whether every rank says it is well."""


class SharedLedger(Ledger):
    """The ledger of rank 0, with a copy in the memory of every other."""

    def __init__(
        self, config: Mapping[str, Any], path: str | os.PathLike[str] | None, ranks: Peers
    ) -> None:
        self._ranks = ranks
        self._copying = False
        own = path if ranks.rank == 0 else None
        self._first_of_all(lambda: super(SharedLedger, self).__init__(config, own), "open it")
        if ranks.rank != 0:
            super().__init__(config)
        self._copy_first()

    def record(self, run: str, step: int, event: dp_event.DpEvent, digest: str = UNBOUND) -> int:
        """As `Ledger.record`, on every rank, once rank 0 has it on disk."""
        if self._copying:
            return super().record(run, step, event, digest)
        digest = self._ranks.digest_of_all(digest)
        write = super().record
        self._first_of_all(
            lambda: write(run, step, event, digest), f"record step {step}",
            lambda well: self._ranks.same_release(run, step, digest, well),
        )  # fmt: skip
        return step if self._ranks.rank == 0 else write(run, step, event, digest)

    def record_many(self, run: str, event: dp_event.DpEvent, count: int) -> int:
        """As `Ledger.record_many`, on every rank, once rank 0 has it on disk."""
        if self._copying:
            return super().record_many(run, event, count)
        write, first = super().record_many, self.steps(run)
        self._first_of_all(
            lambda: write(run, event, count), f"record {count} steps",
            lambda well: self._ranks.same_release(run, first, f"{count} steps", well),
        )  # fmt: skip
        return first if self._ranks.rank == 0 else write(run, event, count)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Adopt a checkpoint's record; a file that knows more tells every rank."""
        self._first_of_all(lambda: self._copy(state), "adopt the checkpoint's record")
        self._copy_first()

    def _copy_first(self) -> None:
        """Know all that rank 0 knows."""
        state = self._ranks.from_first(self.state_dict() if self._ranks.rank == 0 else None)
        if self._ranks.rank != 0:
            self._copy(state)

    def _copy(self, state: Mapping[str, Any]) -> None:
        """Take over a record by itself: no other rank is asked about what has happened already."""
        self._copying = True
        try:
            super().load_state_dict(state)
        finally:
            self._copying = False

    def _first_of_all(
        self, write: Callable[[], Any], what: str, tell: Callable[[bool], bool] | None = None
    ) -> None:
        """Rank 0 writes, and every rank learns by ``tell`` whether it could."""
        failure: Exception | None = None
        if self._ranks.rank == 0:
            try:
                write()
            except Exception as error:
                failure = error
        well = (tell or self._ranks.all_well)(failure is None)
        if failure is not None:
            raise failure
        if not well:
            raise LedgerError(
                f"rank 0 must keep the ledger ({what}) before any rank draws noise. Got an error "
                "there, which it reports."
            )
