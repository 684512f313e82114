"""What a replay found."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Finding:
    """One thing that one record must not have changed, or not so much."""

    kind: str
    """"shift", "control flow", "claim", "unsampled step", "around the door", "left behind", "noise"
    or "sampling"."""
    detail: str
    neighbour: str = ""
    row: int | None = None
    step: int | None = None
    part: str = ""
    measured: float | None = None
    claimed: float | None = None

    def __str__(self) -> str:
        where = [] if self.step is None else [f"step {self.step}"]
        where += [self.part] if self.part else []
        where += [f"row {self.row}: {self.neighbour}"] if self.neighbour else []
        moved = ""
        if self.measured is not None and self.claimed is not None:
            moved = f" (moved by {self.measured:.6g}, claimed {self.claimed:.6g})"
        return f"{self.kind}{' at ' if where else ''}{', '.join(where)}: {self.detail}{moved}"


@dataclass(frozen=True)
class ReplayReport:
    """The verdict of a replay and what it rests on."""

    findings: tuple[Finding, ...]
    neighbours: tuple[str, ...]
    rows: tuple[int, ...]
    releases: int
    largest_share: float
    """The largest measured shift over its claim: 1 means that a claim was attained."""
    slack: float
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return not self.findings

    @property
    def verdict(self) -> str:
        return "passed" if self.passed else "VIOLATED"

    def assert_passed(self) -> None:
        """Raise AssertionError with the whole report unless nothing was found."""
        if not self.passed:
            raise AssertionError(str(self))

    def as_dict(self) -> dict[str, Any]:
        return {"verdict": self.verdict, **asdict(self)}

    def __str__(self) -> str:
        lines = [
            f"replay {self.verdict}: {self.releases} releases, rows {list(self.rows)}, "
            f"{len(self.neighbours)} kinds of neighbour ({', '.join(self.neighbours)}); largest "
            f"shift {self.largest_share:.4g} of its claim (slack {self.slack:g})"
        ]
        lines += [f"  {finding}" for finding in self.findings]
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines)
