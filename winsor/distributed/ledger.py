"""One ledger for all ranks: rank 0 keeps the file, and all know what is in it.

    1  every rank shows the digest of what it is about to cover: they must be equal
    2  rank 0 writes the entry to disk
    3  it tells the others, who note the same; only then is noise drawn, on any rank

Guarantee
---------
Whichever rank dies, and whenever: what any rank released is in the file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from dp_accounting import dp_event

from winsor.contract import LedgerError, WinsorError
from winsor.distributed.ranks import Ranks
from winsor.ledger.ledger import UNBOUND, Ledger


class SharedLedger(Ledger):
    """The ledger of rank 0, with a copy in the memory of every other."""

    def __init__(
        self, config: Mapping[str, Any], path: str | os.PathLike[str] | None, ranks: Ranks
    ) -> None:
        self._ranks = ranks
        failure: WinsorError | None = None
        try:
            super().__init__(config, path if ranks.rank == 0 else None)
        except WinsorError as error:
            failure = error
        self._all_or_none(failure, "open the ledger")
        self._copy_first()

    def record(self, run: str, step: int, event: dp_event.DpEvent, digest: str = UNBOUND) -> int:
        """As `Ledger.record`, on every rank, once rank 0 has it on disk."""
        self._ranks.same_digest(digest)
        failure: WinsorError | None = None
        entry = step
        if self._ranks.rank == 0:
            try:
                entry = super().record(run, step, event, digest)
            except WinsorError as error:
                failure = error
        self._all_or_none(failure, f"record step {step}")
        return entry if self._ranks.rank == 0 else super().record(run, step, event, digest)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Adopt a checkpoint's record; a file that knows more tells every rank."""
        super().load_state_dict(state)
        self._copy_first()

    def _copy_first(self) -> None:
        """Know all that rank 0 knows."""
        state = self._ranks.from_first(self.state_dict() if self._ranks.rank == 0 else None)
        if self._ranks.rank != 0:
            super().load_state_dict(state)

    def _all_or_none(self, failure: WinsorError | None, what: str) -> None:
        well = self._ranks.all_well(failure is None)
        if failure is not None:
            raise failure
        if not well:
            raise LedgerError(
                f"rank 0 must {what} before any rank draws noise. Got an error there, which it "
                "reports."
            )
