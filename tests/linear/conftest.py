"""Tests share tables; no test should be warned of what another one fitted."""

from __future__ import annotations

import pytest

from winsor.linear import surroundings


@pytest.fixture(autouse=True)
def _no_rows_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surroundings, "_SEEN", [])
