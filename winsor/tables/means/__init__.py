"""Means of heavy-tailed data (paper 2, Algorithms 2 and 3; paper 4, estimator (7)).

Public names are those of `winsor.tables`.
"""

from winsor.tables import __getattr__ as __getattr__  # type: ignore[attr-defined]
