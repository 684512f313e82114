"""Writing plain tables as TOML: the standard library only reads it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def dump(table: Mapping[str, Any]) -> str:
    """TOML text that reads back as ``table``. Entries that are None are left out.

    >>> print(dump({"name": "a", "data": {"shape": [1, 28, 28], "target": None}}))
    name = "a"
    <BLANKLINE>
    [data]
    shape = [1, 28, 28]
    <BLANKLINE>
    """
    plain = {k: v for k, v in table.items() if not isinstance(v, Mapping) and v is not None}
    lines = [f"{_key(name)} = {_value(value)}" for name, value in plain.items()]
    for name, value in table.items():
        if isinstance(value, Mapping):
            lines += ["", f"[{_key(name)}]"]
            lines += [f"{_key(k)} = {_value(v)}" for k, v in value.items() if v is not None]
    return "\n".join(lines) + "\n"


def _key(name: str) -> str:
    bare = name and all(c.isascii() and (c.isalnum() or c in "_-") for c in name)
    return name if bare else _text(name)


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping):
        inside = ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items() if v is not None)
        return f"{{{inside}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(_value(item) for item in value)}]"
    return repr(value)
