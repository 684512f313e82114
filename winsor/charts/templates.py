"""The templates of drawings and pages. Text reaches them through an engine that escapes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

HERE = Path(__file__).parent
WIDTH, HEIGHT = 560, 300
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 12, 44
COLOURS = 8
LETTER = 6.5
"""About the width of a letter, in pixels."""


def environment(*folders: Path) -> Environment:
    """Make a template engine that escapes, for these folders and this one."""
    made = Environment(
        loader=FileSystemLoader([*folders, HERE]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["px"] = lambda value: f"{value:.1f}"
    made.filters["number"] = lambda value: f"{value:.4g}"
    made.filters["together"] = lambda text: text.replace(" %", "\u00a0%")  # not broken in lines
    made.globals |= {"WIDTH": WIDTH, "HEIGHT": HEIGHT, "COLOURS": COLOURS, "LETTER": LETTER}
    made.globals |= {"LEFT": LEFT, "RIGHT": RIGHT, "TOP": TOP, "BOTTOM": BOTTOM}
    return made


_OWN = environment()


def rendered(template: str, **values: Any) -> Markup:
    """Fill a template of this folder."""
    return Markup(_OWN.get_template(template).render(**values))


def asset(name: str) -> str:
    """Read a style or a script of this folder."""
    return (HERE / name).read_text(encoding="utf-8")
