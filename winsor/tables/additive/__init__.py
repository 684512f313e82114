"""Additive models: a shape function for every feature.

Public names are those of `winsor.tables`.
"""

from winsor.tables import __getattr__ as __getattr__  # type: ignore[attr-defined]
