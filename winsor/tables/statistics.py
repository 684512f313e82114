"""Statistics that are sums over rows, each in one file: found rather than listed.

A statistic is a bounded function of a row, summed over all rows, and what is made of the noisy sum.
Its file exports ``EXAMPLES``, a few instances of its class, and stands in a folder named by the
environment variable ``WINSOR_STATISTICS`` (several, separated as in PATH) or in an installed
package with an entry point of the group ``winsor.statistics``. The test battery, the audit, the
command line and the documentation find it by `all_statistics`.

Guarantee
---------
Sensitivity and shape are those stated for a table without rows: they cannot depend on the rows.
That no row moves the sum by more is the statistic's proof, which the battery tries to refute.
"""

from __future__ import annotations

import functools
import importlib
import os
import pkgutil
from abc import ABC, abstractmethod
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from winsor.core.arithmetic.rows import quiet
from winsor.core.checks import as_delta, as_relation, choice, nearest_first
from winsor.core.contract import Bounded, ConfigurationError, Guarantee, UnsoundRelease
from winsor.core.ledger.ledger import Ledger
from winsor.core.noise.gaussian import Gaussian
from winsor.core.prepaid import PrepaidDoor
from winsor.core.randomness import key_for
from winsor.core.sampling.samplers import FullBatch
from winsor.planning.budget import Payment, Target, noise_multiplier
from winsor.planning.cells import as_numbers

FOLDERS, ENTRY_POINTS = "WINSOR_STATISTICS", "winsor.statistics"
__path__ = [folder for folder in os.environ.get(FOLDERS, "").split(os.pathsep) if folder]
# With a path this module is a package: files of these folders are found by other processes, too.


class Statistic(ABC):
    """A bounded function of a row, summed over rows; its `repr` says all of its settings."""

    columns: int = 1
    """Number of columns of the rows with which the battery and the audit try it."""

    @abstractmethod
    def bounded(self, rows: NDArray[np.float64]) -> Bounded:
        """Return the float64 sum over ``rows`` (perhaps none), and how far a row can move it."""

    def result(self, released: NDArray[np.float64], n: int) -> Any:
        """Return what is made of the noisy sum over ``n`` rows, a public number."""
        return released


class Measured(NamedTuple):
    """A released statistic and the account of its release."""

    value: Any
    guarantee: Guarantee
    noise_std: float
    ledger: Ledger


@quiet
def release(
    statistic: Statistic,
    rows: ArrayLike,
    *,
    epsilon: float,
    delta: float | None = None,
    relation: str = "add_or_remove_one",
    random_state: int | bytes | None = None,
) -> Measured:
    """Release a statistic of (n, columns) ``rows`` within ``epsilon``; n is taken to be public."""
    table = as_numbers(rows, "rows")
    if table.ndim != 2 or len(table) == 0:
        raise ConfigurationError(
            f"rows must be a table with rows. Got shape {table.shape} instead."
        )
    n, claimed, whole = len(table), statistic.bounded(table[:0]), statistic.bounded(table)
    shape, sensitivity = claimed.value.shape, claimed.sensitivity
    if (whole.value.shape, whole.sensitivity) != (shape, sensitivity):
        raise UnsoundRelease(
            f"shape and sensitivity of {statistic!r} must be those of a table without rows, "
            f"{shape} and {sensitivity}. Got others instead, which depend on the rows and are not "
            "shown. State them from the settings of the statistic alone."
        )
    target = Target(epsilon, as_delta(delta, n), None, as_relation(relation))
    multiplier = noise_multiplier([Payment(FullBatch(n), sensitivity, 1)], target)
    key = key_for(random_state, None, "statistic", statistic, target, table, whole.value)
    door = PrepaidDoor(Ledger({"statistic": repr(statistic), "n": n}), target.relation, key)
    receipt = door.pay(Gaussian(multiplier), FullBatch(n), sensitivity, 1, shape)
    value = statistic.result(receipt.release(whole.value), n)
    guarantee = door.guarantee(target.delta, (f"n = {n} is public",))
    return Measured(value, guarantee, receipt.std, door.ledger)


@functools.cache
def all_statistics() -> MappingProxyType[str, tuple[Statistic, ...]]:
    """Return the examples of every statistic that is found, by the name of its class."""
    for folder in __path__:
        if not Path(folder).is_dir():
            raise ConfigurationError(
                f"{FOLDERS} must name folders with statistics. Got {folder!r}, which is none."
            )
    files = sorted(file.name for file in pkgutil.iter_modules(__path__))
    modules = [importlib.import_module(f"{__name__}.{file}") for file in files]
    points = sorted(metadata.entry_points(group=ENTRY_POINTS), key=lambda point: point.name)
    found: dict[str, tuple[Statistic, ...]] = {}
    for module in [*modules, *(point.load() for point in points)]:
        for example in getattr(module, "EXAMPLES", ()):
            name = type(example).__name__
            if any(type(known) is not type(example) for known in found.get(name, ())):
                raise ConfigurationError(
                    f"statistics must have names of their own. Got {name!r} twice. Rename one."
                )
            found[name] = (*found.get(name, ()), example)
    return MappingProxyType(found)


def by_name(name: str) -> Statistic:
    """Return the first example of the statistic called ``name``."""
    known = all_statistics()
    return known[choice("statistic", name, nearest_first(name, known))][0]
