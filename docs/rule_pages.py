"""One page of documentation per rule, from its docstring, with a figure of its weight.

    python docs/rule_pages.py        # writes build/docs/rules/ and winsor/rules/_names.pyi

A rule needs no registration here: it is found as everywhere else. The names that type checkers see
are committed; `tests/test_docs.py` keeps them equal to what this script writes.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import torch
from built import write

from winsor.charts import Chart, Series
from winsor.charts.files import drawing
from winsor.charts.series import points_of
from winsor.rules import all_rules

NAMES = Path(__file__).parent.parent / "winsor" / "rules" / "_names.pyi"
LOW, HIGH = -2.0, 2.0  # decades of the gradient norm
WEIGHTS = (1e-3, 1e2)
MOST_CURVES = 3


def first_sentence(text: str) -> str:
    return re.split(r"(?<=[.:])\s", " ".join(text.split()))[0].rstrip(":.") + "."


def markdown(docstring: str) -> str:
    """Numpydoc sections to headings; indented formulas and tables to code blocks."""
    lines = inspect.cleandoc(docstring).splitlines()
    out: list[str] = []
    i, in_code = 0, False
    while i < len(lines):
        line = lines[i]
        underlined = i + 1 < len(lines) and re.fullmatch(r"-{3,}", lines[i + 1]) is not None
        indented = line.startswith("    ")
        if in_code and not indented and line:
            out.append("```")
            in_code = False
        if underlined:
            out += [f"## {line}", ""]
            i += 2
            continue
        if indented and not in_code:
            out.append("```text")
            in_code = True
        out.append(line[4:] if indented else line)
        i += 1
    if in_code:
        out.append("```")
    return re.sub(r"\n+```\n", "\n```\n", "\n".join(out))


def figure(rules: list[Any]) -> str | None:
    """SVG of w(|g|) over |g|, both on logarithmic axes, one curve per example."""
    norms = torch.logspace(LOW, HIGH, 200, dtype=torch.float64)
    curves: list[Series] = []
    for rule in rules:
        weight_of_norm = getattr(rule, "weight_of_norm", None)
        if weight_of_norm is not None and len(curves) < MOST_CURVES:
            weights = weight_of_norm(norms).double().clamp(*WEIGHTS)
            points = points_of(norms.tolist(), weights.tolist())
            curves.append(Series(_short(repr(rule)), points, colour=len(curves)))
    if not curves:
        return None
    chart = Chart(
        key="weight",
        title="Weight of a row",
        note=curves[0].label if len(curves) == 1 else "",
        x_label="norm of the per-sample gradient",
        y_label="weight",
        series=tuple(curves),
        log_x=True,
        log_y=True,
        y_range=WEIGHTS,
    )
    return str(drawing(chart)) + "\n"


def _short(label: str, most: int = 74) -> str:
    return label if len(label) <= most else label[: most - 1] + "…"


def pages() -> dict[str, str]:
    """File name -> content, for every rule module and the index."""
    by_module: dict[str, list[type[Any]]] = {}
    for rule in all_rules().values():
        by_module.setdefault(rule.__module__, []).append(rule)
    files, rows = {}, []
    for module_name, classes in sorted(by_module.items()):
        module = inspect.getmodule(classes[0])
        assert module is not None and module.__doc__ is not None
        name = module_name.rsplit(".", 1)[1]
        names = ", ".join(f"`{cls.__name__}`" for cls in classes)
        rows.append(f"| [{names}]({name}.md) | {first_sentence(module.__doc__)} |")
        drawing = figure(list(module.EXAMPLES))
        picture = ""
        if drawing is not None:
            files[f"{name}.svg"] = drawing
            picture = f"![weight as a function of the gradient norm]({name}.svg)\n\n"
        files[f"{name}.md"] = (
            f"# {names}\n\n*Built from `winsor/rules/{name}.py` by `docs/rule_pages.py`.*\n\n"
            f"{picture}{markdown(module.__doc__)}\n"
        )
    files["README.md"] = (
        "# Clipping rules\n\n*Built by `docs/rule_pages.py`.* Measured costs and accuracies: "
        "[performance](../performance.md).\n\n| rule | what it does |\n|---|---|\n"
        + "\n".join(rows)
        + "\n"
    )
    return files


def names() -> str:
    """The stub with which type checkers see rules that are found at run time."""
    lines = ["# Written by docs/rule_pages.py (make docs)."]
    found = {
        (rule.__module__, not rule.__name__.isupper(), rule.__name__)
        for rule in all_rules().values()
    }
    lines += [f"from {module} import {name} as {name}" for module, _, name in sorted(found)]
    return "\n".join(lines) + "\n"


def files() -> dict[str, str]:
    return {f"rules/{name}": content for name, content in pages().items()}


def main() -> None:
    NAMES.write_text(names())
    write(files())


if __name__ == "__main__":
    main()
