"""Linear models, and the methods that fit them (papers 2 and 4).

Public names are those of `winsor.tables`.
"""

from winsor.tables import __getattr__ as __getattr__  # type: ignore[attr-defined]
