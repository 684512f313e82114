"""Every release of a run, and how a second run is held against the first.

The second run receives what the first released, so that at every step both have the same history:
whatever then differs is the record's doing at that step, and has a bound to keep.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from winsor.audit.replaying.coins import Coins, coupled
from winsor.audit.replaying.reachable import Leaf, difference, weights_of
from winsor.audit.replaying.rows import Rows
from winsor.core.contract import Neighbouring, Sensitivity

Array = NDArray[np.float64]
MOST_FINDINGS = 4  # of one run: the rest follows from them


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
        """Return whether the replay found nothing."""
        return not self.findings

    @property
    def verdict(self) -> str:
        """The outcome as a word."""
        return "passed" if self.passed else "VIOLATED"

    def assert_passed(self) -> None:
        """Raise AssertionError with the whole report unless nothing was found."""
        if not self.passed:
            raise AssertionError(str(self))

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain values."""
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


class Diverged(BaseException):
    """The second run left the path of the first. Not an Exception: user code must not catch it."""


class Claim(NamedTuple):
    """How far one record may move a part."""

    sensitivity: Sensitivity
    relation: Neighbouring
    laplace: bool = False
    coordinate: float | None = None
    independent: bool = False
    """Whether the noise of each value is known to be its own, over parts and steps."""

    def bounds(self, removed: bool) -> list[tuple[str, float, float]]:
        """Return (name, order, bound) of every norm that the noise or the event rests on."""
        claimed = self.sensitivity
        twice = 1 if removed else 2
        if removed or self.relation is Neighbouring.ADD_OR_REMOVE_ONE:
            found = [("L2", 2.0, twice * claimed.add_remove)]
        else:
            found = [("L2", 2.0, claimed.replace)]
        if self.laplace and claimed.l1 is not None:
            found = [("L1", 1.0, twice * claimed.l1)]
        if self.coordinate is not None:
            found.append(("largest coordinate", math.inf, twice * self.coordinate))
        return found


class Part(NamedTuple):
    """One part of a release before its noise."""

    value: Array
    shapes: str
    precision: float
    claim: Claim


@dataclass
class Passage:
    """One release, or one payment (which has no parts)."""

    door: str
    step: int
    parts: dict[str, Part]
    facts: dict[str, str]
    """What must not depend on any record, in words."""
    weights: dict[str, Leaf]
    coins: tuple[bytes, list[int]]
    absent: bool = False
    """Whether the row was held back from it."""
    noisy: Any = None
    std: dict[str, float] = field(default_factory=dict)


def part_of(value: Any, claim: Claim) -> Part:
    """Return a copy of a tensor, an array or a tree of tensors, as one vector."""
    leaves = list(value.values()) if isinstance(value, Mapping) else [value]
    names = list(value) if isinstance(value, Mapping) else [""]
    flat = [_vector(leaf) for leaf in leaves]
    shapes = ", ".join(f"{n}{tuple(np.shape(x))}" for n, x in zip(names, leaves, strict=True))
    precision = max((_precision(leaf) for leaf in leaves), default=0.0)
    return Part(np.concatenate(flat) if flat else np.zeros(0), shapes, precision, claim)


def _vector(leaf: Any) -> Array:
    if isinstance(leaf, Tensor):
        leaf = leaf.detach().to("cpu", torch.float64).numpy()
    return np.array(leaf, dtype=np.float64).ravel()


def _precision(leaf: Any) -> float:
    if isinstance(leaf, Tensor):
        return float(torch.finfo(leaf.dtype).eps) if leaf.is_floating_point() else 0.0
    kind = np.asarray(leaf).dtype
    return float(np.finfo(kind).eps) if kind.kind == "f" else 0.0


class Transcript:
    """The releases of one run. With ``master`` they are compared with its releases and replaced
    by them."""

    def __init__(
        self,
        rows: Rows,
        coins: Coins,
        master: Transcript | None = None,
        without: Transcript | None = None,
        slack: float = 0.0,
        all_absent: bool = False,
        neighbour: str = "",
    ) -> None:
        self.rows, self.coins, self.master, self.without = rows, coins, master, without
        self.slack = slack
        self.neighbour = neighbour
        self.passages: list[Passage] = []
        self.findings: list[Finding] = []
        self.uncoupled: list[int] = []
        self.largest = 0.0
        self.releases = 0
        self.witnesses: list[Any] = []  # trainings whose weights are looked at at every release
        self.ledgers: list[Any] = []
        self.samplers_paid: list[tuple[Any, Any]] = []  # (sampler, ledger)
        self._all_absent = all_absent
        self._moved_weights = False

    # --------------------------------------------------------------------------- a release

    def passing(
        self, door: str, step: int, parts: dict[str, Part], facts: dict[str, str],
        absent: bool, sampler: Any = None,
    ) -> Passage | None:  # fmt: skip
        """Note what wants to leave; the first run's passage, if this is a second run."""
        weights = {} if self._moved_weights else weights_of(self.witnesses)
        state = self.coins.state(), self.coins.masked_rows
        absent = absent or self._all_absent
        passage = Passage(door, step, parts, facts, weights, state, absent)
        self.passages.append(passage)
        if self.master is None:
            return None
        place = len(self.passages) - 1
        if place >= len(self.master.passages):
            self.find("control flow", "this run releases more than the first", step)
            raise Diverged
        first = self.master.passages[place]
        self._compare_frames(first, passage)
        self._compare_weights(first, passage)
        for name, part in parts.items():
            self._compare_part(name, first, passage, part, absent, sampler)
            other = self._without_the_row(place)
            if other is not None:
                self._compare_part(name, other, passage, part, True, sampler)
        return first

    def passed(self, noisy: Any, std: dict[str, float]) -> None:
        """Note what left, and set the coins of the stretch that begins."""
        passage = self.passages[-1]
        passage.noisy, passage.std = noisy, std
        if self.master is not None:
            claimed = self.master.passages[len(self.passages) - 1].std
            if claimed != std:
                detail = f"the noise depends on a record: {std}, in the first run {claimed}"
                self.find("claim", detail, passage.step)
        self.rows.since = []
        self.coins.reset(len(self.passages))

    def finished(self) -> None:
        """Note that the run is over: it must have released as often as the first."""
        if self.master is not None and len(self.passages) < len(self.master.passages):
            detail = (
                f"this run made {len(self.passages)} releases and payments, the first one "
                f"{len(self.master.passages)}"
            )
            self.find("control flow", detail, self.passages[-1].step if self.passages else None)

    def forget(self) -> None:
        """Let go of the values, which may be large; findings stay."""
        self.releases = sum(bool(passage.parts) for passage in self.passages)
        self.passages = []

    # ----------------------------------------------------------------------- the comparison

    def _compare_frames(self, first: Passage, second: Passage) -> None:
        """Names, shapes, steps and claims: functions of public values, hence equal."""
        frames = [
            (p.door, p.step, {name: part.shapes for name, part in p.parts.items()})
            for p in (first, second)
        ]
        if frames[0] != frames[1]:
            detail = f"the first run released {frames[0]}, this one {frames[1]}"
            self.find("control flow", detail, second.step)
            raise Diverged
        for name, fact in first.facts.items():
            if second.facts.get(name) != fact:
                detail = f"{name} depends on a record: {second.facts.get(name)}, before {fact}"
                self.find("claim", detail, second.step, name)

    def _compare_weights(self, first: Passage, second: Passage) -> None:
        if self._moved_weights:
            return
        for name, detail in difference(first.weights, second.weights):
            self._moved_weights = True  # and everything after follows from it
            detail = f"{detail}, although every release so far was the same"
            self.find("around the door", detail, second.step, name)

    def _compare_part(
        self, name: str, first: Passage, second: Passage, part: Part, absent: bool, sampler: Any
    ) -> None:
        before = first.parts[name]
        shift = part.value - before.value
        if not np.isfinite(shift).all():
            bad = ~np.isfinite(part.value)
            if bool((bad != ~np.isfinite(before.value)).any()):
                self.find("shift", "a value is not finite in one of the runs", second.step, name)
                return
            shift = np.nan_to_num(shift, nan=0.0, posinf=0.0, neginf=0.0)
        rounding = 4 * part.precision * max(_norm(part.value), _norm(before.value))
        untouched = self._untouched(second, sampler)
        for norm, order, bound in before.claim.bounds(absent):
            measured = _norm(shift, order)
            scale = math.sqrt(shift.size) if order == 1 else 1.0
            self.largest = max(self.largest, (measured - rounding * scale) / bound)
            if untouched and measured > 1e-6 * bound + rounding * scale:
                what = f"the row was not drawn, yet the released value moved ({norm})"
                kind, allowed = "unsampled step", 0.0
            elif measured > bound * (1 + self.slack) + rounding * scale:
                what = f"{'one row more or less' if absent else 'one row replaced'} ({norm})"
                kind, allowed = "shift", bound
            else:
                continue
            if self._same_coins(first, second):
                self.find(kind, what, second.step, name, measured, allowed)
            else:
                self.uncoupled.append(second.step)

    def _without_the_row(self, place: int) -> Passage | None:
        """The same release without the row: this run's has a hostile row more."""
        if self.without is None or place >= len(self.without.passages):
            return None
        passage = self.without.passages[place]
        return passage if passage.absent else None

    def _untouched(self, passage: Passage, sampler: Any) -> bool:
        """Return whether the draw for this release is known, and the row was not in it."""
        if sampler is not None and (repr(sampler), passage.step) in self.rows.drawn:
            return not self.rows.drawn[repr(sampler), passage.step]
        return len(self.rows.since) == 1 and not self.rows.since[0]

    @staticmethod
    def _same_coins(first: Passage, second: Passage) -> bool:
        same: Callable[[list[int], list[int]], bool] = coupled
        return first.coins[0] == second.coins[0] and same(first.coins[1], second.coins[1])

    def find(
        self, kind: str, detail: str, step: int | None, part: str = "",
        measured: float | None = None, claimed: float | None = None,
    ) -> None:  # fmt: skip
        """Note a finding, unless there are enough of them."""
        if len(self.findings) < MOST_FINDINGS:
            found = Finding(
                kind, detail, self.neighbour, self.rows.row, step, part, measured, claimed
            )
            self.findings.append(found)

    def left_behind(self, name: str, detail: str) -> None:
        """Note that something which depends on the row was left behind."""
        self.find("left behind", detail, None, name)


def _norm(values: Array, order: float = 2) -> float:
    """The length of what is finite, in units of its largest number: no square overflows."""
    finite = values[np.isfinite(values)]
    most = float(np.abs(finite).max(initial=0.0))
    return most * float(np.linalg.norm(finite / most, order)) if most else 0.0
