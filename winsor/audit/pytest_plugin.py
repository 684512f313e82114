"""The pytest fixture ``replay``: `winsor.audit.replay` that fails the test if anything is found.

    def test_my_training_is_private(replay):
        replay(train, dataset)

It takes the arguments of `winsor.audit.replay` and returns its report. The plugin is registered by
the entry point ``winsor`` of the group ``pytest11``; winsor itself does not need pytest.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any


def checked_replay(*args: Any, **options: Any) -> Any:
    """Run `winsor.audit.replay`, and raise AssertionError with its report if it did not pass."""
    from winsor.audit.replaying.session import replay  # torch loads when a test asks for it

    report = replay(*args, **options)
    report.assert_passed()
    return report


def _replay() -> Callable[..., Any]:
    """Run a training on neighbouring datasets under the same coins; fail if a record shows."""
    return checked_replay


replay = import_module("pytest").fixture(name="replay")(_replay)
