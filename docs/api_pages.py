"""The reference, api/ in build/docs, from signatures and docstrings: one page per public package.

    python docs/api_pages.py

What is public is what `winsor.__all__` and the `__all__` of its packages list; a module without one
(`contract`) shows the classes and functions it defines.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import pkgutil
import re
from types import ModuleType
from typing import Any

from built import write

import winsor

MORE = ("charts", "core.accounting", "core.contract", "training.losses")
"""Packages that are public without being on the front door."""

HEAD = "*Built by `docs/api_pages.py` from docstrings.*"


def pages() -> dict[str, str]:
    """File name -> content."""
    front = {name: getattr(winsor, name) for name in winsor.__all__}
    modules = {name: value for name, value in front.items() if isinstance(value, ModuleType)}
    modules |= {name: importlib.import_module(f"winsor.{name}") for name in MORE}
    files = {
        f"{name}.md": page(f"winsor.{name}", module.__doc__ or "", exports(module))
        for name, module in sorted(modules.items())
    }
    named = {name: value for name, value in front.items() if name not in modules}
    files["winsor.md"] = page("winsor", winsor.__doc__ or "", named)
    files["README.md"] = index(files, modules)
    return files


def exports(module: ModuleType) -> dict[str, Any]:
    """The public names of a package; without `__all__`, its modules, or what a module defines."""
    names = getattr(module, "__all__", None)
    if names is not None:
        return {name: getattr(module, name) for name in sorted(names)}
    if hasattr(module, "__path__"):
        names = sorted(found.name for found in pkgutil.iter_modules(module.__path__))
        return {name: importlib.import_module(f"{module.__name__}.{name}") for name in names}
    return {
        name: value
        for name, value in sorted(vars(module).items())
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    }


def index(files: dict[str, str], modules: dict[str, ModuleType]) -> str:
    rows = ["| [`winsor`](winsor.md) | The front door: what most programs need. |"]
    rows += [
        f"| [`winsor.{name}`]({name}.md) | {first_sentence(module.__doc__ or '')} |"
        for name, module in sorted(modules.items())
    ]
    return (
        f"# Reference\n\n{HEAD}\n\n| package | what it is |\n|---|---|\n" + "\n".join(rows) + "\n"
    )


def page(title: str, docstring: str, names: dict[str, Any]) -> str:
    contents = [f"[`{name}`](#{anchor(name)})" for name in names]
    parts = [f"# {title}", HEAD, markdown(docstring)]
    parts += [", ".join(contents)] if contents else []
    parts += [section(name, value) for name, value in names.items()]
    return "\n\n".join(part for part in parts if part) + "\n"


def section(name: str, value: Any) -> str:
    """One public name: signature, docstring, and for a class its methods."""
    heading = f"## {name}"
    if isinstance(value, ModuleType):
        return f"{heading}\n\nModule `{value.__name__}`. {first_sentence(value.__doc__ or '')}"
    if inspect.isclass(value):
        call = name if issubclass(value, enum.Enum) else signature(name, value)
        parts = [heading, _code(f"class {call}"), markdown(own_doc(value)), _members(value)]
        return "\n\n".join(part for part in parts if part)
    if callable(value):
        return "\n\n".join(
            part
            for part in (heading, _code(signature(name, value)), markdown(own_doc(value)))
            if part
        )
    return f"{heading}\n\n{_code(f'{name} = {plain(repr(value))}')}"


def _members(cls: type[Any]) -> str:
    """The public methods and properties that the class itself defines, a line or two each."""
    if issubclass(cls, enum.Enum):
        return _code("\n".join(f"{member.name} = {member.value!r}" for member in cls))
    found = []
    for name, member in sorted(vars(cls).items()):
        if name.startswith("_"):
            continue
        function = member.__func__ if isinstance(member, staticmethod | classmethod) else member
        if isinstance(member, property):
            found.append(f"- `{name}`: {summary(member)}".rstrip(": "))
        elif inspect.isfunction(function):
            found.append(f"- `{signature(name, function, 1000)}`: {summary(function)}".rstrip(": "))
    return "\n".join(found)


def own_doc(value: Any) -> str:
    """The docstring, unless it was inherited or written by `dataclass`."""
    found = (vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__) or ""
    return "" if re.match(rf"{getattr(value, '__name__', '')}\(.*\)$", found, re.DOTALL) else found


def summary(value: Any) -> str:
    paragraph = inspect.cleandoc(getattr(value, "__doc__", "") or "").split("\n\n")[0]
    return " ".join(paragraph.split())


def signature(name: str, value: Any, width: int = 88) -> str:
    """Name and parameters, one per line when they are too long for ``width``."""
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return name
    kept = [p for p in found.parameters.values() if p.name not in ("self", "cls")]
    returned = "" if inspect.isclass(value) else _returned(found)
    short = f"{name}{found.replace(parameters=kept, return_annotation=found.empty)}"
    if len(plain(short) + returned) <= width:
        return plain(short) + returned
    lines = "".join(f"    {line},\n" for line in _parameters(kept))
    return f"{name}(\n{lines}){returned}"


def _returned(found: inspect.Signature) -> str:
    if found.return_annotation is found.empty:
        return ""
    return plain(f" -> {inspect.formatannotation(found.return_annotation)}")


def _parameters(kept: list[inspect.Parameter]) -> list[str]:
    """Each parameter as written, with the star before the first that must be named."""
    lines = [plain(str(parameter)) for parameter in kept]
    named = [i for i, parameter in enumerate(kept) if parameter.kind is parameter.KEYWORD_ONLY]
    if named and not any(p.kind is p.VAR_POSITIONAL for p in kept):
        lines.insert(named[0], "*")
    return lines


def plain(text: str) -> str:
    """Without quotes around annotations and without addresses, so that pages can be compared."""
    text = re.sub(r"<function (\w+) at 0x[0-9a-f]+>", r"\1", text)
    text = re.sub(r" at 0x[0-9a-f]+", "", text)
    text = re.sub(r"ForwardRef\('([^']*)'(?:, [^)]*)?\)", r"\1", text)
    return re.sub(r"(: |-> )'([^']*)'", r"\1\2", text)


def _code(text: str) -> str:
    return f"```python\n{text}\n```"


def first_sentence(text: str) -> str:
    paragraph = " ".join(inspect.cleandoc(text).split("\n\n")[0].split())
    return re.split(r"(?<=[.:])\s(?=[A-Z`])", paragraph)[0].rstrip(":").replace("|", "\\|")


def anchor(name: str) -> str:
    return name.lower()


LISTED = ("Parameters", "Attributes", "Returns")


def markdown(docstring: str) -> str:
    """Numpydoc to Markdown, paragraph by paragraph."""
    out, section_name = [], ""
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(docstring)):
        lines = paragraph.splitlines()
        if len(lines) > 1 and re.fullmatch(r"-{3,}", lines[1]):
            section_name, lines = lines[0], lines[2:]
            out.append(f"**{section_name}**")
        if lines:
            out.append(_paragraph(lines, section_name))
    return "\n\n".join(out)


def _paragraph(lines: list[str], section_name: str) -> str:
    """Examples and indented formulas to code, parameters to a list, the rest as it is."""
    if lines[0].startswith(">>>"):
        return _code("\n".join(lines))
    if section_name in LISTED:
        return "\n".join(_parameter(line) for line in lines)
    if all(line.startswith("    ") for line in lines):
        return "```text\n" + "\n".join(line[4:] for line in lines) + "\n```"
    return "\n".join(lines)


def _parameter(line: str) -> str:
    if line.startswith("    "):
        return f"  {line.strip()}"
    names, _, about = line.partition(" : ")
    return f"- `{names}`" + (f": {about}" if about else "")


def files() -> dict[str, str]:
    return {f"api/{name}": content for name, content in pages().items()}


if __name__ == "__main__":
    write(files())
