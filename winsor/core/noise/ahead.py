"""Noise drawn ahead, in the background: a slab to draw, and a thread that draws it.

A request owns its buffer from the moment it is asked for until it is taken; nobody else touches it.
"""

from __future__ import annotations

import os
import threading
from queue import SimpleQueue
from typing import Any, NamedTuple

import numpy as np

from winsor.core.noise.laws import LAWS


class Slab(NamedTuple):
    """What a slab holds: consecutive entries from ``entry`` on, ``size`` values each."""

    key: bytes
    law: str
    bits: int
    entry: int
    entries: int
    size: int


class Request:
    """A slab to draw, and the buffer to draw it into, which nobody else may touch until `take`.

    Whoever claims it first draws it, so a busy machine never waits for a thread that has not begun.
    """

    def __init__(self, what: Slab, buffer: np.ndarray, draw: Any) -> None:
        self.what = what
        self._buffer = buffer
        self._draw = draw
        self._claim = threading.Lock()
        self._done = threading.Event()
        self._error: BaseException | None = None

    def take(self) -> np.ndarray:
        """The buffer, drawn: it belongs to the caller from now on."""
        if self._claim.acquire(blocking=False):
            fill(self._draw, self.what, self._buffer)
        else:
            self._done.wait()
            if self._error is not None:
                raise self._error
        return self._buffer

    def serve(self) -> None:
        """In the background."""
        if self._claim.acquire(blocking=False):
            try:
                fill(self._draw, self.what, self._buffer)
            except BaseException as error:  # told to whoever waits for it
                self._error = error
            self._done.set()


class Worker:
    """A thread that serves requests until told to stop. It does not know the source."""

    def __init__(self) -> None:
        self._requests: SimpleQueue[Request | None] = SimpleQueue()
        self._process = os.getpid()
        self._thread = threading.Thread(
            target=_work, args=(self._requests,), name="winsor-noise", daemon=True
        )
        self._thread.start()

    def ask(self, request: Request) -> Request:
        """Queue a request, and return it."""
        self._requests.put(request)
        return request

    def stop(self) -> None:
        """Also at the end of the interpreter, where a thread must not be left inside numpy."""
        if self._process != os.getpid():
            return
        self._requests.put(None)
        if self._thread is not threading.current_thread():
            self._thread.join()


def _work(requests: SimpleQueue[Request | None]) -> None:
    while (request := requests.get()) is not None:
        request.serve()
        del request


def fill(draw: Any, what: Slab, out: np.ndarray) -> None:
    """Draw a slab into its buffer."""
    law = LAWS[what.law]()
    draw.draw(law, what.key, what.entry, 0, what.size, what.bits, out, what.entries)
