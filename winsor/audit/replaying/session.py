"""`replay`: train on neighbouring datasets under the same coins, and compare every step.

    first run     the dataset as it is; every pre-noise value, claim and release is kept
    other runs    one row removed, or replaced by a hostile one; same keys, same membership of the
                  other rows, same coins; each release is overwritten with the first run's

Then at every release both runs have the same history, and the audit checks, deterministically:

* each pre-noise value moved by at most its claimed sensitivity, and not at all at a step for which
  the row was not drawn;
* names, shapes, number and order of releases, claims, noise and ledger events are the same;
* weights, buffers, attributes, returned values, files and printed text are the same, bit for bit:
  they are functions of what was released.

What it cannot see: whether the noise has the law it should have (the curve audit does that), low
bits of the noise, and how a total is computed from the ledger.
"""

from __future__ import annotations

import contextlib
import fnmatch
import inspect
import io
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from winsor.audit.replaying import neighbours
from winsor.audit.replaying.checks import loudness_findings, noise_findings, sampling_findings
from winsor.audit.replaying.coins import Coins, same_coins
from winsor.audit.replaying.doors import Taps, tapped
from winsor.audit.replaying.reachable import Leaf, difference, files, leaves
from winsor.audit.replaying.rows import Rows, watched
from winsor.audit.replaying.transcript import Diverged, Finding, ReplayReport, Transcript
from winsor.core.checks import at_least
from winsor.core.contract import ConfigurationError
from winsor.tables.surroundings import fitted_on_purpose

Adapter = Callable[[Transcript, Rows], AbstractContextManager[Any]]
"""Taps on another library's release, for the length of one run."""

SLACK = 1e-3
"""Relative slack on every claim: sums in float32 move by up to 8e-4 of it by rounding alone."""


def replay(
    train: Callable[..., Any],
    dataset: Any,
    *,
    rows: Sequence[int] | None = None,
    hostile: Mapping[str, Any] | None = None,
    absent: Any = None,
    slack: float = SLACK,
    seed: int = 0,
    ignore: Sequence[str] = (),
    adapters: Sequence[Adapter] = (),
    first_only: bool = False,
    crowd: int = 0,
) -> ReplayReport:
    """Run ``train`` on ``dataset`` and on its neighbours, and compare.

    Parameters
    ----------
    train
        ``train(dataset)`` or ``train(dataset, folder)``: the whole training, from building the
        model to its result. What it returns is compared; files belong into ``folder``, which is
        empty at the start of every run.
    dataset
        A map-style dataset, a table, or a tuple of tables. Runs get copies of tables.
    rows
        The rows to exchange, each in turn. None takes one that is in the first batch. Everything
        is done twice: with the other rows as given, and with all of them copies of one.
    hostile
        Name -> a row to put in place of the row. None: zeros, times -100, 1e30, -1e30, places
        that cancel, squares that vanish, another label, a copy of another row, and where units are
        protected two rows of one that cancel.
    absent
        A row that contributes nothing by construction (a mean's centre, say). It stands for a
        removed row where rows are not drawn by a sampler.
    slack
        A shift may exceed its claim by this factor before it counts.
    seed
        Names the coins of all runs.
    ignore
        Patterns of names that may differ, such as ``"returned.seconds"`` or ``"file log.txt"``.
    adapters
        Taps on the releases of other libraries, see `winsor.audit.replaying.opacus`.
    first_only
        Stop at the first neighbour with a finding.
    crowd
        How many other rows (or units) every batch has: those that were drawn, as often as it
        takes. Sums may change at a count, such as 16,384. 0 leaves draws as they are.

    Examples
    --------
    >>> import numpy as np, winsor
    >>> def train(x):
    ...     return winsor.tables.clipped_mean(x, radius=3.0, epsilon=1.0).estimate
    >>> replay(train, np.random.default_rng(0).normal(size=(50, 2))).passed
    True
    >>> report = replay(lambda x: (train(x), x.max()), np.eye(50))
    >>> report.verdict, report.findings[0].kind, report.findings[0].part
    ('VIOLATED', 'left behind', 'returned.1')
    """
    at_least("slack", slack, 0)
    neighbours.check(dataset)
    pairs: list[_Pair] = []
    notes: list[str] = []
    with tempfile.TemporaryDirectory(prefix="winsor-replay-") as home:
        runner = _Runner(train, tuple(adapters), seed, slack, Path(home) / "run", crowd)
        labels = neighbours.labels(dataset)
        for others, data in {"": dataset, COPIES: neighbours.all_copies(dataset)}.items():
            compared = _Comparison(runner, data, others, hostile, absent, labels, tuple(ignore))
            try:
                for row in rows if rows is not None else (None,):
                    if not (first_only and any(pair.findings for pair in pairs)):
                        pairs += compared.at(row, first_only)
            except Exception as error:
                if not others:
                    raise
                notes.append(f"{others}: not run, {type(error).__name__}: {error}")
    return _report(pairs, slack, notes)


COPIES = "all other rows alike"


@dataclass
class _Pair:
    """One comparison: a first run alone, or with a neighbour."""

    neighbour: str
    row: int
    transcript: Transcript
    findings: list[Finding]


@dataclass(frozen=True)
class _Comparison:
    """Everything that is compared on one dataset: as given, or with all other rows alike."""

    runner: _Runner
    dataset: Any
    others: str
    hostile: Mapping[str, Any] | None
    absent: Any
    labels: list[Any]
    ignore: tuple[str, ...]

    def at(self, row: int | None, first_only: bool) -> list[_Pair]:
        """Return the first run, and every neighbour at ``row`` against it."""
        first, left = self.runner.first(neighbours.copied(self.dataset), row)
        found = first.rows.row
        row = neighbours.size(self.dataset) // 2 if found is None else found
        alone = [*noise_findings(first), *loudness_findings(first), *sampling_findings(first)]
        pairs = [_Pair("", row, first, alone)]
        without: Transcript | None = None
        units = first.rows.units
        unit = () if units is None else units.of(units.unit_of(row)).tolist()
        for name, content in self._contents(row, unit).items():
            if first_only and any(pair.findings for pair in pairs):
                break
            removed = name == neighbours.REMOVE
            run = self.runner.second(
                neighbours.with_row(self.dataset, row, content),
                Rows(row, removed, self.runner.crowd),
                first,
                without,
                neighbour=f"{name}, {self.others}" if self.others else name,
                all_absent=removed and self.absent is not None,
            )
            without = run.transcript if removed else without
            if run.complete:
                self._compare_what_is_left(run.transcript, left, run.left)
            if not removed:
                run.transcript.forget()
            pairs.append(_Pair(name, row, run.transcript, run.transcript.findings))
        for transcript in (first, without):
            if transcript is not None:
                transcript.forget()
        return pairs

    def _contents(self, row: int, unit: Sequence[int]) -> dict[str, Any]:
        """Name of the neighbour -> what stands in the row's place."""
        rows = (
            neighbours.hostile_rows(self.dataset, row, self.labels, unit)
            if self.hostile is None
            else dict(self.hostile)
        )
        vacant = next(iter(rows.values()), neighbours.read_row(self.dataset, row))
        vacant = rows.get("1e30", vacant) if self.absent is None else self.absent
        return {neighbours.REMOVE: vacant, **rows}

    def _compare_what_is_left(
        self, transcript: Transcript, first: Mapping[str, Leaf], second: Mapping[str, Leaf]
    ) -> None:
        for path, detail in difference(first, second):
            if not any(fnmatch.fnmatch(path, pattern) for pattern in self.ignore):
                transcript.left_behind(path, detail)


def _report(pairs: list[_Pair], slack: float, notes: list[str]) -> ReplayReport:
    notes = notes + [
        f"{pair.neighbour}: random numbers drawn with a row more or less shifted those of other "
        f"rows at steps {sorted(set(pair.transcript.uncoupled))[:5]}; not judged there"
        for pair in pairs
        if pair.transcript.uncoupled
    ]
    return ReplayReport(
        findings=tuple(finding for pair in pairs for finding in pair.findings),
        neighbours=tuple(dict.fromkeys(pair.neighbour for pair in pairs if pair.neighbour)),
        rows=tuple(dict.fromkeys(pair.row for pair in pairs)),
        releases=max(pair.transcript.releases for pair in pairs),
        largest_share=max(0.0, *(pair.transcript.largest for pair in pairs)),
        slack=slack,
        notes=tuple(notes),
    )


# ----------------------------------------------------------------------------------------- one run


@dataclass
class _Second:
    transcript: Transcript
    complete: bool
    left: dict[str, Leaf] = field(default_factory=dict)


@dataclass(frozen=True)
class _Runner:
    """Runs the user's training under the taps."""

    train: Callable[..., Any]
    adapters: tuple[Adapter, ...]
    seed: int
    slack: float
    folder: Path
    crowd: int

    def first(self, dataset: Any, row: int | None) -> tuple[Transcript, dict[str, Leaf]]:
        transcript = Transcript(Rows(row, False, self.crowd), Coins(self.seed), slack=self.slack)
        left = self._run(dataset, transcript)
        if not any(passage.parts for passage in transcript.passages):
            raise ConfigurationError(
                "train must release something through a door of winsor, or of an adapter. Got no "
                "release: nothing can be compared. Pass the function that trains, and the adapter "
                "of the library it uses."
            )
        return transcript, left

    def second(
        self,
        dataset: Any,
        rows: Rows,
        master: Transcript,
        without: Transcript | None,
        neighbour: str,
        all_absent: bool,
    ) -> _Second:
        coins = Coins(self.seed)
        transcript = Transcript(rows, coins, master, without, self.slack, all_absent, neighbour)
        try:
            left = self._run(dataset, transcript)
        except Diverged:
            return _Second(transcript, complete=False)
        except Exception as error:
            transcript.find(
                "control flow", f"raised {type(error).__name__}: {error}", _last(transcript)
            )
            return _Second(transcript, complete=False)
        transcript.finished()
        return _Second(transcript, complete=True, left=left)

    def _run(self, dataset: Any, transcript: Transcript) -> dict[str, Leaf]:
        text = io.StringIO()
        with _emptied(self.folder) as folder, ExitStack() as stack:
            stack.enter_context(same_coins(transcript.coins))
            stack.enter_context(fitted_on_purpose())
            stack.enter_context(watched(transcript.rows))
            stack.enter_context(tapped(Taps(transcript, transcript.rows)))
            for adapter in self.adapters:
                stack.enter_context(adapter(transcript, transcript.rows))
            with contextlib.redirect_stdout(text):
                takes = 2 if _wants_folder(self.train) else 1
                returned = self.train(*(dataset, folder)[:takes])
            return {
                **leaves(returned, "returned"),
                **leaves(transcript.witnesses, "training"),
                **leaves(transcript.ledgers, "ledgers"),
                **leaves(text.getvalue().splitlines(), "printed line"),
                **files(folder),
            }


def _wants_folder(train: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(train).parameters.values()
    except (TypeError, ValueError):
        return False
    needed = [
        p for p in parameters
        if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]  # fmt: skip
    return len(needed) == 2


@contextmanager
def _emptied(folder: Path) -> Iterator[Path]:
    """The same empty folder for every run: its path may end up in files."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _last(transcript: Transcript) -> int | None:
    return transcript.passages[-1].step if transcript.passages else None
