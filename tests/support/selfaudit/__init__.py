"""Audits of winsor itself: honest mechanisms that must pass, and planted mistakes that must not.

`winsor audit mechanisms` and `winsor audit mutants` find them by the entry points in
`tests/support/selfaudit.dist-info`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from winsor.audit.suite import Audit


def mechanism_audits() -> list[Audit]:
    """Return an audit of every mechanism of winsor: a violation of any is a bug."""
    from selfaudit import modelmix_audits
    from selfaudit.honest import honest_audits

    return [*honest_audits(), *modelmix_audits.honest()]


def mutant_audits() -> list[Audit]:
    """Return an audit of every planted mistake: the verdict on each must be a violation."""
    from selfaudit import modelmix_audits
    from selfaudit.mutants import mutants as planted

    return [*planted(), *modelmix_audits.mutants()]
