"""The synthetic problems of paper 4, short enough for tests."""

from __future__ import annotations

from typing import Any

import pytest
from winsor_papers.reproductions.aclip import tables as aclip_tables
from winsor_papers.reproductions.aclip.fits import ConvexRows

ROWS = 2000


def shorten(monkeypatch: pytest.MonkeyPatch, *modules: Any) -> None:
    """Have ``modules`` see ``ROWS`` rows of each problem instead of 100,000."""
    whole = aclip_tables.problem

    def problem(data: str, task: str, directory: Any, seed: int) -> ConvexRows:
        rows = whole(data, task, directory, seed)
        parts = (rows.x, rows.y, rows.x_test, rows.y_test)
        return ConvexRows(*(part[:ROWS] for part in parts))

    for module in modules:
        monkeypatch.setattr(module, "problem", problem)
