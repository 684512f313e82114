"""Which part of winsor imports which: read from the source, nothing is run.

A *part* is what stands directly under `winsor/`: a package or a module. Every form of import
counts, wherever it stands: at the top, in a function, under `TYPE_CHECKING`, relative, and by
string (`import_module("winsor.x")`, a home like `"winsor.x.y:name"`, the values of a table of names
that load later). `tests/test_architecture.py` forbids what must not be, and
`architecture_page.py` draws what is.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "winsor"

LAYERS: tuple[tuple[str, ...], ...] = (  # a part imports from lower layers, and from its own
    ("core",),
    ("charts", "models", "gradients"),
    ("planning",),
    ("rules", "tails"),
    ("metrics", "features", "tables", "training"),
    ("tuning", "audit", "contrib"),
    ("app", "integrations"),
    ("__main__",),
)
"""From the bottom up: the core, what it bounds, rules, plans, fits and trainings, what is built on
them, doors to the outside. Inside a layer arrows may point either way, but never in a circle."""

STRANGERS = ("winsor_papers", "selfaudit")
"""Packages beside winsor that it must not import."""

FRONT = "__init__"
"""The front door, `winsor/__init__.py`: it names the homes of everything, and nobody looks back."""

_HOME = re.compile(r"(winsor(?:\.\w+)+)(?::\w+)?")


@dataclass(frozen=True)
class Import:
    """One mention of a module of winsor (or of its reproductions) in a file of winsor."""

    file: str
    line: int
    target: str
    lazy: bool
    """Inside a function, or by string: not imported when the file is."""
    typing_only: bool

    @property
    def source_part(self) -> str:
        return self.file.split("/")[0].removesuffix(".py")

    @property
    def target_part(self) -> str:
        return self.target.split(".")[1]

    def __str__(self) -> str:
        return f"winsor/{self.file}:{self.line} -> {self.target}"


def all_imports(package: Path = PACKAGE) -> list[Import]:
    """Every import of winsor by winsor, in the order of files and lines."""
    found = []
    for path in sorted(package.rglob("*.py")):
        relative = path.relative_to(package).as_posix()
        found += imports_of(path.read_text(), relative, package)
    return found


def imports_of(source: str, file: str, package: Path = PACKAGE) -> list[Import]:
    """The imports of one file, whatever their form."""
    found = []
    for node, lazy, typing_only in _nodes(ast.parse(source)):
        for target, by_string in _targets(node, file, package):
            found.append(Import(file, node.lineno, target, lazy or by_string, typing_only))
    return found


def _nodes(
    node: ast.AST, lazy: bool = False, typing_only: bool = False
) -> Iterator[tuple[ast.stmt | ast.expr, bool, bool]]:
    """Every statement and expression, with whether it is in a function or under TYPE_CHECKING."""
    for child in ast.iter_child_nodes(node):
        inside = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        typed = typing_only or (_asks_type_checking(node) and child in getattr(node, "body", ()))
        if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
            continue  # docstrings speak of modules without importing them
        if isinstance(child, ast.stmt | ast.expr):
            yield child, inside, typed
        yield from _nodes(child, inside, typed)


def _asks_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def _targets(node: ast.AST, file: str, package: Path) -> Iterator[tuple[str, bool]]:
    """Modules named by a node, and whether they are named in a string."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            if _ours(alias.name):
                yield alias.name, False
    elif isinstance(node, ast.ImportFrom):
        base = _absolute(node, file)
        if _ours(base) or base == "winsor":
            for alias in node.names:
                named = f"{base}.{alias.name}"
                yield (named if base == "winsor" or _exists(named, package) else base), False
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        match = _HOME.fullmatch(node.value)
        if match and _exists(match[1], package):
            yield match[1], True
        elif node.value.split(":")[0].startswith(STRANGERS):
            yield node.value.split(":")[0], True


def _absolute(node: ast.ImportFrom, file: str) -> str:
    if not node.level:
        return node.module or ""
    folder = ["winsor", *file.split("/")[:-1]]
    kept = folder[: len(folder) - node.level + 1]
    return ".".join([*kept, *([node.module] if node.module else [])])


def _ours(module: str) -> bool:
    return module.startswith(("winsor.", *STRANGERS))


def _exists(module: str, package: Path) -> bool:
    """Whether a dotted name is a module of the package, not a word that looks like one."""
    path = package.joinpath(*module.split(".")[1:])
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def arrows(imports: list[Import]) -> dict[str, set[str]]:
    """Part -> the other parts of winsor that it imports; the front door left out on both sides."""
    found: dict[str, set[str]] = {}
    for one in imports:
        if one.target.startswith("winsor.") and FRONT not in (one.source_part, one.target_part):
            found.setdefault(one.source_part, set())
            if one.source_part != one.target_part and _part_exists(one.target_part):
                found[one.source_part].add(one.target_part)
    return found


def _part_exists(part: str) -> bool:
    return _exists(f"winsor.{part}", PACKAGE)


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of parts that import one another in a circle (strongly connected, two or more)."""
    reach = {part: _reachable(part, graph) for part in graph}
    groups = {
        tuple(sorted(other for other in reach[part] if part in reach.get(other, ())))
        for part in graph
        if part in reach[part]
    }
    return sorted(list(group) for group in groups)


def _reachable(part: str, graph: dict[str, set[str]]) -> set[str]:
    seen: set[str] = set()
    waiting = list(graph.get(part, ()))
    while waiting:
        other = waiting.pop()
        if other not in seen:
            seen.add(other)
            waiting += graph.get(other, ())
    return seen


def without_shortcuts(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """The same graph without arrows that a longer way implies: what a figure can show."""
    return {
        part: {
            other
            for other in others
            if not any(other in _reachable(between, graph) for between in others - {other})
        }
        for part, others in graph.items()
    }


def rank() -> dict[str, int]:
    """Part -> its layer, counted from the bottom."""
    return {part: level for level, layer in enumerate(LAYERS) for part in layer}
