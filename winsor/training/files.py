"""Files that are replaced in one act: a kill or a full disk leaves the old content or the new."""

from __future__ import annotations

import errno
import os
from pathlib import Path

NONSENSE = (
    ArithmeticError, AttributeError, EOFError, LookupError, MemoryError, RuntimeError, TypeError,
    ValueError,
)  # fmt: skip
"""What reading raises when values are not what they should be."""


def unfinished(path: Path) -> Path:
    """Path of the new content of ``path`` until it is whole; a kill may leave it there."""
    return path.with_name(f".{path.name}.new")


def replace_file(path: Path, content: bytes, private: bool = False) -> None:
    """Write ``content``, durably; ``private`` files can be read by their owner only.

    Raises `OSError` if that cannot be done; the old content is then untouched.
    """
    temporary = unfinished(path)
    _refuse_no_file(path)
    try:
        temporary.unlink(missing_ok=True)  # never write through a link that somebody left
        mode = 0o600 if private else 0o644
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        try:
            _write(descriptor, content)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    keep_names(path.parent)


def keep_names(folder: Path) -> None:
    """Make durable which files a folder has."""
    if os.name == "posix":  # elsewhere a folder cannot be opened, nor need it be
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _refuse_no_file(path: Path) -> None:
    """Replacing a device (/dev/null, /dev/full) would take it away from everybody."""
    if path.exists() and not path.is_file():
        kind = errno.EISDIR if path.is_dir() else errno.EINVAL
        raise OSError(kind, "Is a directory" if path.is_dir() else "Not a regular file")


def _write(descriptor: int, content: bytes) -> None:
    """All of it: a single call may write less than it was given."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
