"""PyTorch is an optional dependency: what to say where it is needed and missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from winsor.core.contract import WinsorError


class TorchMissing(WinsorError, ImportError):
    """Something needs PyTorch, which is an optional dependency and is not installed."""


@contextmanager
def needing_torch(what: str) -> Iterator[None]:
    """Say how to install PyTorch if an import inside the block fails for want of it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "torch":
            raise
        raise TorchMissing(
            f"{what} needs PyTorch. It is not installed. Install it with: "
            "pip install 'winsor[torch]'."
        ) from error
