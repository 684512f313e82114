"""Audits: try to break a privacy claim, and say how far the attempt went.

Curve test     `curve.py`, on two neighbouring datasets; `suite.py` makes it a row of a table
One run        `one_run.py` plants canaries in a training of one's own
Replay         `replaying/` compares runs on neighbouring datasets step by step

winsor's own mechanisms, and mistakes that must be found, are audited by `tests/support/selfaudit`
in a clone; published claims by winsor-papers, which also has the pairs of datasets that hurt a rule
(`winsor_papers.neighbouring`). On the command line: ``winsor audit mechanisms |
published | mutants | run | replay``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from winsor.audit.replaying.session import replay
    from winsor.audit.replaying.transcript import Finding, ReplayReport

__all__ = ["Finding", "ReplayReport", "replay"]

_HOMES = {
    "Finding": "winsor.audit.replaying.transcript",
    "ReplayReport": "winsor.audit.replaying.transcript",
    "replay": "winsor.audit.replaying.session",
}

if not TYPE_CHECKING:  # names load on first use: `winsor.audit` itself stays light

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_HOMES[name]), name)
