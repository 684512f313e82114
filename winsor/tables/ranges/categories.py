"""Which categories a column of texts has, found inside the budget: a private set union.

    counts    rows of every category of every column, plus N(0, s^2)
    released  the categories whose noisy count exceeds T, and these counts

A record stands in one category per column. T is such that a record which is alone in its
categories, in all k columns, brings any of them to light with probability at most delta_T
(`winsor/core/noise/gaussian.py`), half of delta by default.

Guarantee
---------
Let D' be D with one more record, and U the categories of D. The counts of U are a vector that the
record moves by at most sqrt(k), with noise: a Gaussian release, whatever is then cut off. D' has at
most k categories more, each with a count of 1. Their noise is independent of all other; any of them
leaves with probability at most delta_T, and otherwise nothing of them does. So the release is a
Gaussian one and, independent of it, one that differs between D and D' with probability at most
delta_T: (0, delta_T)-private in both directions. Where the record becomes another, counts of common
categories move by at most sqrt(2k); D and D' each may have k categories of their own, and all of
these stay hidden with probability at least 1 - delta_T on either side: whatever set of outcomes is
looked at, its chances differ by at most delta_T, again.

The number of categories is private too: noise is drawn for more than there could be, at least 2n
places in each column, so that nothing about the noise depends on it. A category has the place that
a public hash of its name says, the next free one if that is taken: which of the equal and
independent noises it gets is of no consequence, but neighbouring tables can be compared
(`winsor.audit.replay`).

References
----------
Korolova, Kenthapadi, Mishra & Ntoulas 2009 (thresholded counts of queries); Gopi et al. 2020
(set union). One category per column and record needs none of their weighting.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from winsor.core.checks import probability
from winsor.core.contract import Bounded, ConfigurationError, Guarantee, Neighbouring, Sensitivity
from winsor.core.events.registry import History
from winsor.core.ledger.ledger import Ledger
from winsor.core.noise.gaussian import ThresholdedGaussian
from winsor.core.prepaid import PrepaidDoor
from winsor.core.randomness import key_for
from winsor.core.sampling.samplers import FullBatch
from winsor.planning import calibrate
from winsor.planning.budget import Target
from winsor.planning.cells import as_keys, listed, named
from winsor.planning.shares import Session

Texts = NDArray[Any]
"""Of objects in tables, so that a long text takes no room in every row."""

SHARE = 0.5
"""The share of delta for categories of one record; noise has the rest."""
PROOF = "one category per column and record: sqrt(k) in L2; lonely ones stay below the threshold"


def sensitivity(columns: int) -> Sensitivity:
    """Return how far a record moves the counts of categories."""
    return Sensitivity(math.sqrt(columns), math.sqrt(2 * columns), PROOF)


@dataclass(frozen=True)
class FoundCategories:
    """The categories of every column in the order of their names, their noisy counts, the cost."""

    categories: list[Texts]
    counts: list[NDArray[np.float64]]
    guarantee: Guarantee
    ledger: Ledger


def private_categories(
    columns: Any,
    *,
    epsilon: float,
    delta: float | None = None,
    relation: str | Neighbouring = Neighbouring.ADD_OR_REMOVE_ONE,
    random_state: int | bytes | None = None,
    allow_large_delta: bool = False,
) -> FoundCategories:
    """Find the categories of every column of ``columns`` (n, k) that enough rows hold.

    Examples
    --------
    >>> import numpy as np
    >>> towns = np.array(["Bern", "Genf", "Zug"]).repeat([3_000, 1_999, 1])
    >>> found = private_categories(towns[:, None], epsilon=0.5, random_state=0)
    >>> found.categories[0].tolist(), bool(abs(found.counts[0] - [3_000, 1_999]).max() < 60)
    (['Bern', 'Genf'], True)
    """
    table = as_texts(columns)
    if table.ndim != 2 or table.size == 0:
        raise ConfigurationError(
            "columns must be a table (n, k) with n, k >= 1. Got shape "
            f"{table.shape} instead. Write x[:, None] for a single column."
        )
    n, k = table.shape
    target = Target.of(n, epsilon, delta, relation, allow_large_delta)
    mechanism = calibrated(k, n, epsilon, target.delta, target.relation)
    key = key_for(
        random_state, None, "categories", epsilon, target.delta, target.relation, table.tolist()
    )
    session = Session.open(target, key, {"method": "categories", "n": n, "d": k})
    found, counts = release(table, session.door, mechanism)
    reached = session.guarantee(f"n = {n} is public")
    return FoundCategories(found, counts, reached, session.ledger)


def calibrated(
    columns: int,
    n: int,
    epsilon: float,
    delta: float,
    relation: Neighbouring,
    share: float = SHARE,
    admit: Callable[[History], None] | None = None,
) -> ThresholdedGaussian:
    """Find the least noise within the budget; the accountant certifies both parts of it
    together. ``admit`` may refuse what is found."""
    shown = probability("share", share) * delta
    parts = {"value": Bounded(None, sensitivity(columns))}

    def history_of(multiplier: float) -> History:
        return [(ThresholdedGaussian(multiplier, shown).event(parts).whole(relation), 1)]

    budget = calibrate.Budget(epsilon, delta, relation)
    multiplier = calibrate.noise_multiplier(history_of, budget)
    if admit is not None:
        admit(history_of(multiplier))
    return ThresholdedGaussian(multiplier, shown)


def release(
    table: Texts, door: PrepaidDoor, mechanism: ThresholdedGaussian, n: int | None = None
) -> tuple[list[Texts], list[NDArray[np.float64]]]:
    """Release the categories of each column of ``table`` and their noisy counts. ``n`` is the
    public number of rows, where a plan has stated it."""
    rows, k = table.shape
    n = rows if n is None else n
    if rows > n:
        raise ConfigurationError(f"the table must have at most {n} rows. Got {rows} instead.")
    counts, present = np.zeros((k, _places(n))), []
    for own in range(k):
        names, held = np.unique(table[:, own], return_counts=True)
        places = _placed(names, counts.shape[1])
        counts[own, places] = held
        present.append((names, places))
    receipt = door.pay(mechanism, FullBatch(n), sensitivity(k), 1, counts.shape)
    noisy, least = receipt.release(counts), mechanism.threshold(receipt.std, k)
    found, shown = [], []
    for row, (names, places) in zip(noisy, present, strict=True):
        kept = row[places] > least
        found.append(np.asarray(names[kept].tolist(), dtype=str))  # no wider than what is shown
        shown.append(row[places][kept])
    return found, shown


def _places(n: int) -> int:
    """A power of two, at least 2n."""
    return 2 ** math.ceil(math.log2(2 * n))


def _placed(names: Texts, places: int) -> NDArray[np.intp]:
    """A place for each name, by its hash."""
    found, taken = np.empty(len(names), np.intp), set()
    for number, name in enumerate(names.tolist()):
        place = zlib.crc32(name.encode(errors="surrogatepass")) % places
        while place in taken:
            place = (place + 1) % places
        taken.add(place)
        found[number] = place
    return found


def as_texts(columns: Any) -> Texts:
    """Return a table (n, k) as texts, cell by cell (`winsor.planning.cells.key`): 1 and 1.0 are one
    category whatever type holds them, and "nan" is what is missing."""
    given = listed(columns, plain=False) if isinstance(columns, list | tuple) else columns
    given = given if hasattr(given, "iloc") else np.asarray(given)
    table, cells = np.empty(given.shape, dtype=object), getattr(given, "iloc", given)
    for j in range(table.shape[1] if table.ndim == 2 else 0):  # other shapes are refused
        table[:, j] = texts_of(cells[:, j])
    return table


def texts_of(column: Any) -> Texts:
    """Return the cells of one column as texts."""
    keys, places = named(as_keys(column))
    return np.array(["nan" if each is None else str(each) for each in keys], dtype=object)[places]


def one_hot(table: Texts, categories: Sequence[Texts]) -> NDArray[np.float64]:
    """Return an indicator for every category, and a last one of each column for all others."""
    n = len(table)
    parts = []
    for number, names in enumerate(categories):
        part = np.zeros((n, len(names) + 1))
        order = {name: place for place, name in enumerate(names.tolist())}
        places = [order.get(text, len(names)) for text in table[:, number].tolist()]
        part[np.arange(n), places] = 1.0
        parts.append(part)
    return np.concatenate(parts, axis=1)
