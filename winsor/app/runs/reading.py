"""TOML files, tables and import paths as typed values; complaints name the key.

`load_table` reads a configuration file, `read` fills a dataclass, `bind` checks the options of a
function, and `import_object` finds what "package.module:name" points to. `read` and `bind` go by
type annotations, so a setting is declared once, where it is used. Nothing heavy is imported here: a
file that is missing or not TOML is refused before NumPy is loaded.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import inspect
import math
import sys
import tomllib
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar, Union

from winsor.core.contract import ConfigurationError

T = TypeVar("T")
SYNONYMS = {
    "learning_rate": ("lr",),
    "clip": ("max_grad_norm",),
    "max_norm": ("max_grad_norm",),
    "clip_norm": ("max_grad_norm",),
    "batch": ("batch_size",),
    "num_epochs": ("epochs",),
    "max_steps": ("steps",),
    "privacy": ("budget",),
    "dataset": ("data",),
    "path": ("source",),
    "file": ("source",),
    "label": ("target",),
    "num_classes": ("classes",),
    "test_size": ("held_out_fraction",),
    "scheduler": ("schedule",),
}
"""What others call a setting, and what it may be called here."""
HOMES = {
    "epsilon": "budget.epsilon",
    "delta": "budget.delta",
    "noise_multiplier": "budget.noise_multiplier",
    "lr": "optimizer.lr",
    "momentum": "optimizer.momentum",
    "max_grad_norm": "rule.max_grad_norm",
    "epochs": "training.epochs",
    "steps": "training.steps",
    "batch_size": "training.batch_size",
    "source": "data.source",
    "target": "data.target",
    "classes": "data.classes",
}
"""Where the settings that people put into another table belong."""
MOST = 2**62
"""Beyond it a whole number fits into no machine word."""


@dataclasses.dataclass(frozen=True)
class Part:
    """A thing chosen by name, with its options: a model, a rule, an optimiser, a schedule."""

    name: str
    options: dict[str, Any] = dataclasses.field(default_factory=dict)

    def to_table(self) -> dict[str, Any]:
        """Plain values that read as this part again."""
        return {"name": self.name, **self.options}


def read(kind: type[T], table: Any, path: str = "") -> T:
    """Fill a dataclass from a table of its fields; unknown keys and wrong types raise."""
    if not isinstance(table, Mapping):
        raise ConfigurationError(f"{path} must be a table of settings. Got {table!r} instead.")
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    hints = _hints(kind)
    for key in table:
        if key not in fields:
            raise _unknown(key, path, fields)
    for name, field in fields.items():
        nothing = dataclasses.MISSING
        if name not in table and field.default is nothing and field.default_factory is nothing:
            raise ConfigurationError(f"{_join(path, name)} must be given. It is missing.")
    return kind(**{key: value_of(hints[key], table[key], _join(path, key)) for key in table})


def bind(function: Callable[..., Any], options: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Check ``options`` against the signature of ``function``; return them as keyword arguments.

    Only keyword-only parameters are options; of a class without them, all are.
    """
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return dict(options)
    known = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    if not known and inspect.isclass(function):
        known = [p.name for p in parameters]
    hints = _hints(function)
    for key, value in options.items():
        if key not in known:
            raise _unknown(key, path, known)
        _refuse_infinite(value, _join(path, key))
    for p in parameters:
        if p.name in known and p.default is p.empty and p.name not in options:
            raise ConfigurationError(f"{_join(path, p.name)} must be given. It is missing.")
    return {key: value_of(hints.get(key, Any), v, _join(path, key)) for key, v in options.items()}


def _refuse_infinite(value: Any, path: str) -> None:
    """No option of anything is infinite or NaN; settings of a run say so for themselves."""
    if isinstance(value, float) and not math.isfinite(value):
        raise _wrong(path, "a finite number", value)
    if isinstance(value, list | tuple):
        for place, item in enumerate(value):
            _refuse_infinite(item, f"{path}[{place}]")
    elif isinstance(value, Mapping):
        for key, item in value.items():
            _refuse_infinite(item, f"{path}.{key}")


def _hints(thing: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(thing)
    except NameError:  # annotations that exist for type checkers only
        return {}


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _unknown(key: str, path: str, known: Iterable[str]) -> ConfigurationError:
    known = sorted(known)
    close = difflib.get_close_matches(key, known, n=1)
    where = f"of [{path}] " if path else ""
    meant = next((name for name in SYNONYMS.get(key, ()) if name in known), None)
    near = meant or (close[0] if close else HOMES.get(key))
    hint = f"Did you mean {near!r}? " if near else ""
    names = ", ".join(known) if known else "none"
    return ConfigurationError(
        f"{_join(path, key)} is not a setting. {hint}The settings {where}are: {names}."
    )


# -------------------------------------------------------------------------------- single values


def value_of(hint: Any, value: Any, path: str) -> Any:
    """Convert ``value`` to the type ``hint``. Hints that are not known here accept anything."""
    origin = typing.get_origin(hint)
    if origin in (Union, types.UnionType):
        return _one_of(typing.get_args(hint), value, path)
    if hint is Part:
        return _part(value, path)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return value if isinstance(value, hint) else read(hint, value, path)
    if isinstance(hint, type) and isinstance(value, Mapping) and _kinds(hint):
        return _one_kind_of(hint, value, path)
    if origin in (list, tuple):
        return _sequence(hint, value, path)
    if origin is dict or hint is dict:
        if not isinstance(value, Mapping):
            raise _wrong(path, "a table", value)
        return dict(value)
    plain = _PLAIN.get(hint)
    return plain(value, path) if plain is not None else value


def _one_of(hints: tuple[Any, ...], value: Any, path: str) -> Any:
    if value is None and type(None) in hints:
        return None
    complaints: list[ConfigurationError] = []
    for hint in hints:
        if hint is type(None):
            continue
        try:
            return value_of(hint, value, path)
        except ConfigurationError as error:
            complaints.append(error)
    if len(complaints) == 1:
        raise complaints[0]
    names = " or ".join(_called(hint) for hint in hints if hint is not type(None))
    raise _wrong(path, names, value)


def _part(value: Any, path: str) -> Part:
    if isinstance(value, str):
        return Part(value)
    if not isinstance(value, Mapping):
        raise _wrong(path, 'a name or a table with a "name"', value)
    if "name" not in value:
        raise ConfigurationError(f"{path}.name must be given. It is missing.")
    name = _string(value["name"], f"{path}.name")
    return Part(name, {key: v for key, v in value.items() if key != "name"})


def _one_kind_of(base: type, value: Mapping[str, Any], path: str) -> Any:
    """A table whose ``name`` says which kind of ``base`` it describes."""
    part, kinds = _part(value, path), _kinds(base)
    if plain(part.name) not in kinds:
        names = ", ".join(kind.__name__ for kind in kinds.values())
        raise _wrong(f"{path}.name", f"one of {names}", part.name)
    return read(kinds[plain(part.name)], part.options, path)


def _kinds(base: type) -> dict[str, type]:
    """The dataclasses made of ``base``, by plain name."""
    if base.__module__ == "builtins":
        return {}
    children: list[type] = type.__subclasses__(base)
    return {plain(kind.__name__): kind for kind in children if dataclasses.is_dataclass(kind)}


def plain(name: str) -> str:
    """Reduce a name to its letters: PerLayer, per_layer and per-layer are the same."""
    return name.lower().replace("_", "").replace("-", "")


def _sequence(hint: Any, value: Any, path: str) -> Any:
    arguments = [a for a in typing.get_args(hint) if a is not Ellipsis]
    if not isinstance(value, list | tuple):
        raise _wrong(path, f"a list of {_called(arguments[0])}", value)
    kinds = arguments * len(value) if len(arguments) == 1 else arguments
    if len(kinds) != len(value):
        raise _wrong(path, f"a list of {len(kinds)} values", value)
    items = [
        value_of(kind, item, f"{path}[{i}]")
        for i, (kind, item) in enumerate(zip(kinds, value, strict=True))
    ]
    return tuple(items) if typing.get_origin(hint) is tuple else items


def _string(value: Any, path: str) -> str:
    if not isinstance(value, str):
        raise _wrong(path, "text", value)
    return value


def _boolean(value: Any, path: str) -> bool:
    if not isinstance(value, bool):
        raise _wrong(path, "true or false", value)
    return value


def _number(value: Any, path: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong(path, "a number", value)
    if isinstance(value, int) and abs(value) > MOST:
        raise _wrong(path, "a finite number", value)
    return float(value)


def _whole(value: Any, path: str) -> int:
    """Whole numbers may be written 20000 or 2e4."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1:
        raise _wrong(path, "a whole number", value)
    if not -MOST <= value <= MOST:
        raise _wrong(path, f"a whole number between -{MOST} and {MOST}", value)
    return int(value)


_PLAIN: dict[Any, Callable[[Any, str], Any]] = {
    str: _string,
    bool: _boolean,
    float: _number,
    int: _whole,
}
_NAMES = {str: "text", bool: "true or false", float: "a number", int: "a whole number"}


def _called(hint: Any) -> str:
    if typing.get_origin(hint) in (list, tuple):
        return f"a list of {_called(typing.get_args(hint)[0])}"
    return _NAMES.get(hint, getattr(hint, "__name__", str(hint)))


def _wrong(path: str, wanted: str, value: Any) -> ConfigurationError:
    return ConfigurationError(f"{path} must be {wanted}. Got {_shown(value)} instead.")


def _shown(value: Any) -> str:
    """Return a value as short text; a stranger's may be a megabyte, or a number without end."""
    try:
        text = repr(value)
    except ValueError:  # a whole number with more digits than Python prints
        return "a number with thousands of digits"
    return text if len(text) <= 200 else f"{text[:200]}..."


REMEDIES = {
    "\\": 'Write paths with /, or in single quotes: source = "C:/data/rows.csv".',
    "Invalid value": 'Text stands in quotes: name = "flat".',
    "Expected '='": "A setting is written key = value, under the name of its table: [data].",
    "declare": "Write the settings of a table together, under one heading.",
    "overwrite": "The same setting stands there twice.",
    "codec": "Save it as UTF-8.",
}


def load_table(path: Path) -> dict[str, Any]:
    """Read a TOML file as a plain table."""
    try:
        return tomllib.loads(read_text(path))
    except OSError as error:
        raise ConfigurationError(
            f"cannot read the configuration {path}: {error.strerror or error}."
        ) from error
    except (ValueError, RecursionError) as error:  # also numbers and tables without end
        raise ConfigurationError(
            f"{path} is not valid TOML: {error}.{_remedy(str(error))}"
        ) from error


def read_text(path: Path) -> str:
    """Read a text file, without the mark that editors on Windows put in front."""
    return path.read_text(encoding="utf-8-sig")


def _remedy(problem: str) -> str:
    """What to write instead, for what people write most."""
    for sign, remedy in REMEDIES.items():
        if sign in problem:
            return f" {remedy}"
    return ""


ALLOWED: ContextVar[bool] = ContextVar("winsor_allow_import", default=True)
"""Whether import paths are followed. The command line switches it off, unless told otherwise."""


@contextmanager
def allowing(wanted: bool) -> Iterator[None]:
    """Follow import paths inside the block, or refuse them."""
    token = ALLOWED.set(wanted)
    try:
        yield
    finally:
        ALLOWED.reset(token)


def is_import_path(name: str) -> bool:
    """Return whether a name reads as "package.module:name"."""
    module, colon, attribute = name.partition(":")
    return bool(colon) and all(part.isidentifier() for part in f"{module}.{attribute}".split("."))


def import_object(name: str, path: str) -> Any:
    """Import what ``name`` points to; ``path`` is the setting it came from.

    The working directory can be imported from, after everything that is installed.
    """
    if not ALLOWED.get():
        raise ConfigurationError(
            f"{path} names code to be run, {name!r}, and a configuration may come from a stranger. "
            "If you trust it, say --allow-import."
        )
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    module, _, attribute = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except Exception as error:  # importing runs the user's code, which may raise anything
        raise ConfigurationError(
            f"{path} must be something that can be imported. Got {name!r} instead: "
            f"{type(error).__name__}: {error}. Check the spelling, and that the module is "
            "installed or in the working directory."
        ) from error
    return found


def call_imported(function: Any, options: dict[str, Any], path: str) -> Any:
    """Call the user's class or function, and report its errors under the setting ``path``."""
    try:
        return function(**options)
    except Exception as error:
        raise ConfigurationError(
            f"{path} cannot be built: {type(error).__name__}: {error}. It was called with "
            f"{options!r}."
        ) from error
