"""Any clipping rule of `winsor.rules`, by name or as an object, on a linear model.

Slower per step than `flat.py`; the maths is the rule's own. Rules compute with torch.

Guarantee
---------
That of the rule, accounted for by the events its door records.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from winsor.core.contract import ConfigurationError
from winsor.planning.shares import Session
from winsor.tables.linear.task import LinearTask, Method, Solution


@dataclass
class Ruled(Method):
    """Options of descent with a rule: its name (``"automatic"``, ``"quantile"``, ...) with
    ``options``, or a rule object."""

    rule: Any = "automatic"
    options: dict[str, Any] = field(default_factory=dict)
    batch_size: float | None = None
    steps: int | None = None
    epochs: float | None = None
    learning_rate: float | None = None
    decay: bool = True
    tail: float = 0.25

    def solve(self, task: LinearTask, session: Session) -> Solution:
        """Descend with the rule's releases in place of gradients."""
        self._check("batch_size", "learning_rate", "tail")
        with needs_torch(self.rule):
            from winsor.tables.linear.rule_view import solve_with_rule
        return solve_with_rule(self, task, session)


@contextmanager
def needs_torch(method: Any) -> Iterator[None]:
    """Refuse a ``method`` whose modules need torch, where it is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ConfigurationError(
            f"method must be one that needs no torch where it is not installed. Got {method!r} "
            "instead. Install it: pip install 'winsor[torch]'."
        ) from error
