"""A file to which whole lines are added, each chained to all before it, on disk before it counts.

    line      text, a space, and 16 hexadecimal digits: BLAKE2b(digest of the line before, text)
    append    one write, its length checked, then fsync; what fails is cut off again
    open      replays the chain; an end without its newline was being written when the process
              died: it is cut off, nothing rested on it

The digest is checksum and chain in one: a line that was changed, removed, added or moved in the
middle breaks every digest from there on. `head` names the whole content in 16 digits.

What this cannot show: that somebody who can write the file has not written all of it anew. Compare
the head with one that was noted elsewhere, or sign it (`winsor verify`).
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
import weakref
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock, Timeout

from winsor.core.contract import LedgerError

DIGITS = 16
EMPTY = "0" * DIGITS
"""The head of a file without lines."""
BLOCK = 4096
"""Lines that are looked at together."""


_new_digest = hashlib.blake2b(digest_size=DIGITS // 2).copy  # quicker than making one anew


def content_of(path: str | os.PathLike[str], owner_only: bool = False) -> bytes:
    """Read a regular file; links, pipes and devices are refused without waiting for them."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    with open(os.open(path, flags), "rb") as file:
        found, kind = os.fstat(file.fileno()), "regular file" + " of mode 0600" * owner_only
        alone = not owner_only or (found.st_uid == os.getuid() and not found.st_mode & 0o077)
        if not (stat.S_ISREG(found.st_mode) and alone):
            raise OSError(errno.EINVAL, f"Not a {kind}", str(path))
        return file.read()


def link(head: str, text: bytes) -> str:
    """The digest of a line, given the one before it."""
    digest = _new_digest()
    digest.update(head.encode() + text)
    return digest.hexdigest()


def replay(
    content: bytes,
    take: Callable[[bytes], None],
    name: object,
    take_alike: Callable[[list[bytes]], bool] = lambda texts: False,
) -> tuple[str, int]:
    """Give the text of every intact line to ``take``; return the head and the intact length.

    A line that does not fit is refused, with its number; an end without newline is not a line.
    ``take_alike`` is offered many lines at a time, and may say no.
    """
    *lines, torn = content.split(b"\n")
    head = EMPTY.encode()
    for first in range(0, len(lines), BLOCK):
        texts, head = _fitting(lines[first : first + BLOCK], head, first, name)
        if take_alike(texts):
            continue
        for number, text in enumerate(texts, start=first + 1):
            try:
                take(text)
            except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
                raise LedgerError(
                    f"line {number} of {name} is damaged ({error}). Restore the file; what was "
                    "spent cannot be known without it."
                ) from error
    return head.decode(), len(content) - len(torn)


def _fitting(
    lines: list[bytes], head: bytes, before: int, name: object
) -> tuple[list[bytes], bytes]:
    """The texts of the lines, and the digest of the last, if each fits those before it."""
    texts: list[bytes] = []
    for line in lines:
        text = line[: -DIGITS - 1]
        digest = _new_digest()
        digest.update(head + text)
        head = digest.hexdigest().encode()
        if not line.endswith(b" " + head):
            raise LedgerError(
                f"line {before + len(texts) + 1} of {name} does not fit the lines before it: the "
                "file was changed or damaged. What was spent cannot be known without it: restore "
                "the file."
            )
        texts.append(text)
    return texts, head


class ChainedFile:
    """An append-only file that one process at a time may write."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.head = EMPTY
        self._end = 0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = FileLock(f"{path}.lock", timeout=0, mode=0o600)
            self._lock.acquire()
            flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
            self._file = os.open(path, flags | getattr(os, "O_CLOEXEC", 0), 0o644)
        except Timeout as error:
            raise LedgerError(
                f"the ledger {path} is in use by another process. Two runs cannot share a ledger."
            ) from error
        except OSError as error:
            raise LedgerError(
                f"cannot open the ledger {path}: {error}. Give a path in a writable directory."
            ) from error
        self._owner = os.getpid()
        self.close = weakref.finalize(self, _close, self._file, self._lock, self._owner)

    def load(
        self, take: Callable[[bytes], None], take_alike: Callable[[list[bytes]], bool]
    ) -> None:
        """Replay what is there, and cut off a torn end."""
        content = content_of(self.path)
        self.head, self._end = replay(content, take, f"the ledger {self.path}", take_alike)
        if self._end < len(content):
            os.ftruncate(self._file, self._end)
            os.fsync(self._file)

    def append(self, text: bytes) -> None:
        """Add one line, durably. Nothing may be released before this returns."""
        if os.getpid() != self._owner:
            raise LedgerError(
                f"the ledger {self.path} belongs to another process. A forked process must not "
                "release under its parent's ledger: build a run of its own."
            )
        head = link(self.head, text)
        line = b"%b %b\n" % (text, head.encode())
        try:
            written = os.pwrite(self._file, line, self._end)
            if written != len(line):
                raise OSError(f"only {written} of {len(line)} bytes could be written")
            os.fsync(self._file)
        except (OSError, ValueError) as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._end)
            raise LedgerError(
                f"cannot write the ledger {self.path}: {error}. Nothing was released. Make room or "
                "give a writable path, then resume."
            ) from error
        self.head, self._end = head, self._end + len(line)


def _close(file: int, lock: FileLock, owner: int) -> None:
    """Let go of file and lock. A forked child holds copies of both, which it must not release."""
    with contextlib.suppress(OSError):
        os.close(file)
    if os.getpid() == owner:
        with contextlib.suppress(OSError):
            os.unlink(lock.lock_file)  # nobody waits for it: whoever comes next makes a new one
        lock.release()
