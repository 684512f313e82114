"""Ctrl-C and SIGTERM: stop after the next physical batch, with a checkpoint. Twice: at once."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

from winsor.core.contract import WinsorError


class Interrupted(WinsorError):
    """A signal stopped the run; it can be resumed."""

    def __init__(self, command: str, step: int, number: int) -> None:
        super().__init__(f"stopped after step {step}. Resume with: {command}")
        self.step, self.number = step, number
        self.exit_code = 128 + number

    def instead(self, command: str) -> Interrupted:
        """The same with another command to resume."""
        return Interrupted(command, self.step, self.number)


class StopRequest:
    """While entered, remembers the first signal instead of dying of it."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.number: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            for number in self.SIGNALS:
                self._before[number] = signal.signal(number, self._remember)
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self.number = number
        self._restore()  # a second signal is not kept waiting

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
