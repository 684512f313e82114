"""The epsilon that a paper's own formula gives, kept apart from every certified number.

A `PublishedClaim` is not a `winsor.core.contract.Guarantee` and not a number. It cannot be ordered,
added, rounded or converted with ``float``; each attempt raises TypeError. However it is formatted,
the text says *published, not certified*. Tables and plots of a reproduction read
``published_epsilon``, whose name says at the place of use what it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

MARK = "published, not certified"


@dataclass(frozen=True)
class PublishedClaim:
    """What a paper claims for a run.

    Attributes:
        published_epsilon: the claimed epsilon.
        delta: the claimed delta.
        paper: which paper.
        statement: which theorem or equation, and how it was read where it is ambiguous.
        doubts: why winsor does not certify it.

    >>> print(PublishedClaim(4.8, 1e-5, "ModelMix", "Corollary 4.1", ("worst case not proven",)))
    epsilon 4.8 at delta 1e-05 (published, not certified: ModelMix, Corollary 4.1)
    """

    published_epsilon: float
    delta: float
    paper: str
    statement: str
    doubts: tuple[str, ...] = ()

    def __str__(self) -> str:
        return format(self, ".4g")

    def __repr__(self) -> str:
        return f"<PublishedClaim: {self}>"

    def __format__(self, spec: str) -> str:
        """``spec`` formats epsilon; the mark is always there."""
        value = format(self.published_epsilon, spec or ".4g")
        return f"epsilon {value} at delta {self.delta:.3g} ({MARK}: {self.paper}, {self.statement})"

    def _refuse(self, *_: Any) -> NoReturn:
        raise TypeError(
            "a published claim must not be used as a number or compared with a certified one. Got "
            f"{self} instead. Read .published_epsilon where a table sets both side by side."
        )

    # Spelt out, also the reflected ones: without them Python would still raise, but not say why,
    # and a number's own operator could be asked first.
    __float__ = __int__ = __index__ = __complex__ = __round__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _refuse
    __truediv__ = __rtruediv__ = __pow__ = __rpow__ = __neg__ = __abs__ = _refuse
    __array_ufunc__ = None
