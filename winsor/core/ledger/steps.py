"""The steps of one key, in order: of which kind each was, and the digest of its value.

Steps that were paid for together stay one entry, however many they are: a line of a received ledger
that speaks of a hundred million steps takes as little room as one of a single step.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

MOST_STEPS = 100_000_000
"""No run is longer; a count beyond it is damage or an attack."""


class Steps:
    """Entries of (kind, digest, count).

    >>> steps = Steps()
    >>> steps.add(0, "a"), steps.add(1, "b", 3), len(steps)
    (None, None, 4)
    >>> steps.at(0), steps.at(3)
    ((0, 'a'), (1, 'b'))
    """

    def __init__(self) -> None:
        self._kinds: list[int] = []  # one item for each entry, as below
        self._digests: list[str] = []
        self._firsts: list[int] | None = None  # the entries' first steps, unless all are single
        self.length = 0

    def __len__(self) -> int:
        return self.length

    def add(self, kind: int, digest: str, count: int = 1) -> None:
        """Add ``count`` steps of one kind and digest."""
        if not 1 <= count <= MOST_STEPS - self.length:
            raise ValueError(f"a count of {count} after {self.length} steps")
        if count > 1 and self._firsts is None:
            self._firsts = list(range(self.length))
        if self._firsts is not None:
            self._firsts.append(self.length)
        self._kinds.append(kind)
        self._digests.append(digest)
        self.length += count

    def extend(self, kinds: list[int], digests: list[str]) -> None:
        """Add single steps."""
        if len(kinds) > MOST_STEPS - self.length:
            raise ValueError(f"more than {MOST_STEPS} steps")
        if self._firsts is not None:
            self._firsts.extend(range(self.length, self.length + len(kinds)))
        self._kinds += kinds
        self._digests += digests
        self.length += len(kinds)

    def at(self, step: int) -> tuple[int, str]:
        """Kind and digest of a step that is recorded."""
        entry = step if self._firsts is None else bisect_right(self._firsts, step) - 1
        return self._kinds[entry], self._digests[entry]

    def entries(self) -> Iterator[tuple[int, str, int]]:
        """Kind, digest and count of every entry."""
        if self._firsts is None:
            counts = [1] * len(self._kinds)
        else:
            lasts = [*self._firsts[1:], self.length]
            counts = [last - first for first, last in zip(self._firsts, lasts, strict=True)]
        return zip(self._kinds, self._digests, counts, strict=True)
