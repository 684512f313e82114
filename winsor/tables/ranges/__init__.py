"""Ranges, quantiles, bins and categories of columns, learnt inside the budget.

Public names are those of `winsor.tables`.
"""

from winsor.tables import __getattr__ as __getattr__  # type: ignore[attr-defined]
