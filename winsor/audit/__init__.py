"""Audits: try to break every privacy claim, and say how far the attempt went.

`curve.py` has the test, `honest.py` every mechanism with its worst adversary, `mutants.py` wrong
mechanisms that the test must catch, `one_run.py` the audit of a user's own training, `replaying/`
the one that compares runs on neighbouring datasets step by step (`replay`). Ideas of
`winsor/contrib` and the claims of `winsor/papers` bring audits of their own. On the command line:
``winsor audit mechanisms | published | mutants | run | replay``.
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
