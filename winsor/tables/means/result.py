"""What a private mean estimator returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from winsor.core.contract import Guarantee
from winsor.core.ledger.ledger import Ledger

if TYPE_CHECKING:
    from winsor.tails.theorems import MeanError

Array = NDArray[np.float64]


@dataclass(frozen=True, repr=False)
class MeanEstimate:
    """A private mean, what it cost, and how far off it may be.

    ``error_bound`` is the paper's bound on the Euclidean error, term by term, holding with
    probability ``1 - beta`` under the moment assumption that was given; None if none was given.
    """

    estimate: Array
    guarantee: Guarantee
    error_bound: MeanError | None
    radius: float
    noise_std: float
    rho: float | None
    """zCDP parameter of the release, where it has one (no sampling, no other release)."""
    ledger: Ledger = field(repr=False)
    group_means: Array | None = field(default=None, repr=False)
    """The noisy means Q_1..Q_k that were released (iterative estimator only)."""
    updates: int | None = None
    """How many updates led to the estimate (iterative combination only)."""

    def __repr__(self) -> str:
        """Two or three lines; the rest is in the fields."""
        noise = f"noise std {self.noise_std:.4g}, radius {self.radius:.4g}"
        lines = [f"MeanEstimate {self._shown()} ({noise})", *self._bound(), str(self.guarantee)]
        return "\n  ".join(lines)

    def _repr_html_(self) -> str:
        from winsor.charts import notebook_html as cards

        values = np.atleast_1d(self.estimate)
        settings = {"noise std": f"{self.noise_std:.4g}", "radius": f"{self.radius:.4g}"}
        rows = [(str(i), f"{value:.6g}") for i, value in enumerate(values)]
        return cards.card(
            f"Private mean {self._shown()}",
            cards.sentence(str(self.guarantee)),
            cards.pairs(settings | dict(bound.split(": ", 1) for bound in self._bound())),
            cards.table("coordinates", ("number", "mean"), rows if len(rows) > 1 else ()),
            cards.folded("what the guarantee rests on", self.guarantee.conditions),
        )

    def _shown(self) -> str:
        values = np.atleast_1d(self.estimate)
        if np.ndim(self.estimate) == 0:
            return f"{float(values[0]):.6g}"
        first = ", ".join(f"{value:.4g}" for value in values[:4])
        return f"[{first}{', ...' if len(values) > 4 else ''}] of {len(values)} coordinates"

    def _bound(self) -> list[str]:
        if self.error_bound is None:
            return []
        terms = ", ".join(f"{name} {x:.3g}" for name, x in self.error_bound._asdict().items())
        return [f"error: at most {self.error_bound.total:.4g}, under the assumption ({terms})"]
