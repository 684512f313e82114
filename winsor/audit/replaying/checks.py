"""What one run alone can show: noise that is missing or used twice, rows drawn too often."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from winsor.audit.replaying.transcript import Finding, Passage, Transcript, part_of
from winsor.core.sampling.cyclic import CyclicPoisson
from winsor.core.sampling.samplers import BlockSampler, FixedSize, Poisson, Sampler

Array = NDArray[np.float64]
DIGITS = 12.0
"""Two independent draws agree by chance to so many digits, over all coordinates, once in 1e12."""
FALSE_ALARM = 1e-10
CORRELATED = 4.0
"""So many values count as one where noise is correlated over steps (`mechanisms/banded.py`)."""
_BEGINNING = 8  # coordinates that are looked at before all of them are
_DRAWS = 200

GRID = 2.0**-24
"""Sums are rounded to the grid of their noise, which is finer than this share of its deviation."""


def noise_findings(transcript: Transcript) -> Iterator[Finding]:
    """Find noise that is not there, and the same noise under two different sums."""
    seen: dict[int, list[tuple[Array, Passage, str]]] = {}
    for passage in transcript.passages:
        for name, part in passage.parts.items():
            std = passage.std.get(name, 0.0)
            if not (std > 0 and part.value.size and np.isfinite(part.value).all()):
                continue
            noise = _noise(passage, name)
            if not noise.any():
                detail = f"released without noise, although a standard deviation of {std:g} is paid"
                yield Finding("noise", detail, step=passage.step, part=name)
                continue
            earlier = seen.setdefault(part.value.size, [])
            for beginning, other, its_name in earlier:
                error = max(_rounding(passage, name), _rounding(other, its_name))
                close = np.abs(noise[:_BEGINNING] - beginning).max() <= error
                if close and _reused(passage, name, other, its_name, error):
                    detail = (
                        f"the noise of {its_name} at step {other.step} covers another sum again: "
                        "the difference of the two releases has none"
                    )
                    yield Finding("noise", detail, step=passage.step, part=name)
                    break
            earlier.append((noise[:_BEGINNING].copy(), passage, name))


def loudness_findings(transcript: Transcript) -> Iterator[Finding]:
    """Find Gaussian noise that is softer than was paid for, or louder, added by every rank."""
    squares, count, free = 0.0, 0, 0.0
    for passage in transcript.passages:
        for name, part in passage.parts.items():
            known = passage.std.get(name, 0.0) > 0 and not part.claim.laplace
            if known and part.value.size and np.isfinite(part.value).all():
                noise = _noise(passage, name)
                squares += float(noise @ noise)
                count += noise.size
                free += noise.size / (1.0 if part.claim.independent else CORRELATED)
    if not count:
        return
    free = max(1.0, free)
    scaled = squares / count * free
    if min(stats.chi2.cdf(scaled, free), stats.chi2.sf(scaled, free)) < FALSE_ALARM / 2:
        found = math.sqrt(squares / count)
        detail = f"noise has {found:.3g} times the standard deviation that is paid for"
        yield Finding("noise", detail, measured=found, claimed=1.0)


def _reused(first: Passage, name: str, second: Passage, its_name: str, error: float) -> bool:
    """Return whether all noise of two releases agrees, in enough digits, and their sums differ."""
    size = first.parts[name].value.size
    if size * -math.log10(error) < DIGITS:
        return False
    if np.array_equal(first.parts[name].value, second.parts[its_name].value):
        return False
    return float(np.abs(_noise(first, name) - _noise(second, its_name)).max()) <= error


def _noise(passage: Passage, name: str) -> Array:
    """In units of its standard deviation."""
    return (_noisy(passage, name) - passage.parts[name].value) / passage.std[name]


def _rounding(passage: Passage, name: str) -> float:
    """How far the difference of two rounded numbers may be from the noise."""
    part = passage.parts[name]
    largest = float(np.abs(part.value).max()) / passage.std[name]
    return max(GRID, 8 * part.precision * (1 + largest))


def _noisy(passage: Passage, name: str) -> Array:
    noisy = passage.noisy if isinstance(passage.noisy, np.ndarray) else passage.noisy[name]
    return part_of(noisy, passage.parts[name].claim).value


# --------------------------------------------------------------------------------------- sampling


def sampling_findings(transcript: Transcript) -> Iterator[Finding]:
    """Find samplers whose draws are more than the ledger says. Called outside the taps."""
    for sampler, ledger in transcript.samplers_paid:
        if isinstance(sampler, BlockSampler):
            yield from _returns(sampler)
        rates = {rate for event, _ in ledger.history() for rate in event_rates(event)}
        if not isinstance(sampler, Poisson | FixedSize) or sampler.rate == 1.0 or not rates:
            continue
        paid = min(rates, key=lambda rate: abs(rate - sampler.rate))
        if not math.isclose(paid, sampler.rate, rel_tol=1e-9):
            detail = f"the ledger pays for the rate {sorted(rates)}, the sampler has {sampler.rate}"
            yield Finding("sampling", detail, measured=sampler.rate, claimed=paid)
            continue
        drawn, flips = _drawn(sampler)
        if stats.binom.sf(drawn - 1, flips, paid) < FALSE_ALARM:
            detail = f"{drawn} of {flips} draws had a row, at a rate of {paid:g} in the ledger"
            yield Finding("sampling", detail, measured=drawn / flips, claimed=paid)


def _returns(sampler: BlockSampler) -> Iterator[Finding]:
    """A row that is drawn twice where the ledger pays for once: in a block, or, where noise is
    correlated, in any ``block`` steps in a row."""
    key = b"a key for the audit of draws" + bytes(4)
    last: dict[int, int] = {}
    for step in range(min(3 * sampler.block, _DRAWS)):
        for row in sampler.indices(key, step).tolist():
            before = last.get(row)
            again = before is not None and (
                step - before < sampler.block
                if isinstance(sampler, CyclicPoisson)
                else step // sampler.block == before // sampler.block
            )
            if again:
                detail = f"row {row} is drawn at steps {before} and {step}: the ledger pays for one"
                yield Finding("sampling", detail, step=step)
                return
            last[row] = step


def _drawn(sampler: Sampler) -> tuple[int, int]:
    """How many rows a few hundred batches hold, and of how many they could."""
    key = b"a key for the audit of rates" + bytes(4)
    batches: Any = getattr(sampler, "batches", None)
    found = (
        batches(key, 0, _DRAWS)
        if batches is not None
        else (sampler.indices(key, step) for step in range(_DRAWS))
    )
    return sum(len(rows) for rows in found), _DRAWS * sampler.n


def event_rates(event: Any) -> Iterator[float]:
    """Yield the sampling rates in an event, wherever they are."""
    for name in ("sampling_probability", "q"):
        rate = getattr(event, name, None)
        if isinstance(rate, float):
            yield rate
    if hasattr(event, "source_dataset_size"):
        yield event.sample_size / event.source_dataset_size
    if hasattr(event, "sampling_probs"):
        silent = zip(event.sensitivities, event.sampling_probs, strict=True)
        yield 1 - sum(p for shift, p in silent if shift == 0)
    inner = getattr(event, "event", None)
    for one in [*getattr(event, "events", ()), *([inner] if inner is not None else [])]:
        yield from event_rates(one)
