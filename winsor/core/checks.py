"""The checks of arguments, each with one wording: "X must be ... Got ... instead. What to do."

No torch and no NumPy here; their scalars count as numbers all the same.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from typing import Any

from winsor.core.contract import ConfigurationError, Neighbouring, UnknownArgument


def positive(name: str, value: Any, remedy: str = "") -> float:
    """Return ``value`` as a float; refuse what is not positive and finite."""
    if not (_is_finite(value) and value > 0):
        raise refusal(name, "a positive finite number", value, remedy)
    return float(value)


def all_positive(**values: Any) -> None:
    """Refuse the first value that is not positive and finite."""
    for name, value in values.items():
        positive(name, value)


def at_least(name: str, value: Any, least: float, remedy: str = "") -> float:
    """Return ``value`` as a float; refuse what is below ``least`` or not finite."""
    if not (_is_finite(value) and value >= least):
        raise refusal(name, f"at least {least:g} and finite", value, remedy)
    return float(value)


def whole(name: str, value: Any, least: int = 1) -> int:
    """Return ``value`` as an int; refuse what is not a whole number of at least ``least``."""
    if isinstance(value, bool) or not (isinstance(value, Integral) and int(value) >= least):
        kind = "a positive whole number" if least == 1 else f"a whole number >= {least}"
        raise refusal(name, kind, value)
    return int(value)


def written_whole(name: str, value: float | None, least: int = 1) -> int | None:
    """A whole number where people write 6e4 as well as 60000; None stays None."""
    is_whole = isinstance(value, float) and value.is_integer()
    return None if value is None else whole(name, int(value) if is_whole else value, least)


def probability(name: str, value: Any, remedy: str = "") -> float:
    """Return ``value`` as a float; refuse what is not strictly between 0 and 1."""
    if not (_is_number(value) and 0 < value < 1):
        raise refusal(name, "strictly between 0 and 1", value, remedy)
    return float(value)


def all_probabilities(**values: Any) -> None:
    """Refuse the first value that is not strictly between 0 and 1."""
    for name, value in values.items():
        probability(name, value)


def fraction(name: str, value: Any) -> float:
    """A share that may be nothing, but not everything."""
    if not (_is_number(value) and 0 <= value < 1):
        raise refusal(name, "in [0, 1)", value)
    return float(value)


def choice(name: str, value: Any, options: Iterable[str], remedy: str = "") -> str:
    """One of ``options``; a misspelt one is named in the refusal."""
    options = list(options)
    if value not in options:
        close = difflib.get_close_matches(str(value), options, n=1)
        hint = f"Did you mean {close[0]!r}? " if close else ""
        raise refusal(name, f"one of {', '.join(options)}", value, (hint + remedy).strip())
    return str(value)


def nearest_first(value: str, options: Iterable[str]) -> list[str]:
    """The options in their order, but those that look like ``value`` before the others.

    >>> nearest_first("sdg", ["whitened", "flat", "dp_sgd"])
    ['dp_sgd', 'whitened', 'flat']
    """

    def unlike(option: str) -> float:
        return -round(difflib.SequenceMatcher(None, value.lower(), option.lower()).ratio(), 1)

    return sorted(options, key=unlike)


def as_relation(value: str | Neighbouring) -> Neighbouring:
    """Return the neighbouring relation that is meant by its name."""
    if isinstance(value, Neighbouring):
        return value
    return Neighbouring(choice("relation", value, [r.value for r in Neighbouring]))


def as_delta(delta: float | None, n: int, allow_large: bool = False) -> float:
    """The delta to certify at, for ``n`` records: the one policy of docs/adr/0006.

    Above 1/n, publishing one record at random would pass as private; that must be asked for.
    Without a wish it is 1e-5, or 1/(2n) if that is smaller.
    """
    if delta is None:
        return min(1e-5, 1 / (2 * n))
    probability("delta", delta, f"A common choice is 1/(10 n) = {1 / (10 * n):.3g}.")
    if delta >= 1 / n and not allow_large:
        raise ConfigurationError(
            f"delta must be below 1/n = {1 / n:.3g}: otherwise publishing one record at random "
            f"would pass as private. Got {delta!r} instead. Choose a smaller delta, or say "
            "allow_large_delta=True."
        )
    return float(delta)


def refuse_unknown(
    where: str, given: Iterable[str], known: Iterable[str], elsewhere: Mapping[str, str]
) -> None:
    """Refuse names that ``where`` does not take: a misspelt one would change what is certified.

    ``elsewhere`` says what names of other libraries are called here.
    """
    known = list(known)
    for name in given:
        if name in known:
            continue
        close = difflib.get_close_matches(name, known, n=1)
        meant = elsewhere.get(name) or (f"{close[0]}=" if close else "")
        hint = f"Did you mean {meant}? " if meant else ""
        raise UnknownArgument(
            f"{where}() got an unknown argument {name!r}. {hint}It takes {', '.join(known)}."
        )


def refusal(name: str, wanted: str, value: Any, remedy: str = "") -> ConfigurationError:
    """Build the error "name must be wanted. Got value instead.", with what to do."""
    if isinstance(value, str) and _reads_as_number(value):
        remedy = f"Write it without quotes: {name}={value}. {remedy}".strip()
    if hasattr(value, "item") and hasattr(value, "detach"):  # of torch, which is not loaded here
        remedy = f"Write {name}=float(...), or int(...). {remedy}".strip()
        return ConfigurationError(f"{name} must be {wanted}. Got a tensor instead. {remedy}")
    hint = f" {remedy}" if remedy else ""
    return ConfigurationError(f"{name} must be {wanted}. Got {value!r} instead.{hint}")


def _reads_as_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _is_finite(value: Any) -> bool:
    try:
        return _is_number(value) and math.isfinite(value)
    except OverflowError:  # a whole number beyond every float
        return False


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
