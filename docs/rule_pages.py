"""Write one page of documentation per rule, from its docstring, with a figure of its weight.

    python docs/rule_pages.py            # writes docs/rules/

A rule needs no registration here: it is found as everywhere else. `tests/test_docs.py` keeps the
pages equal to what this script writes.
"""

from __future__ import annotations

import inspect
import math
import re
from pathlib import Path
from typing import Any

import torch

from winsor.rules import all_rules

FOLDER = Path(__file__).parent / "rules"
WIDTH, HEIGHT, MARGIN = 460, 260, 46
LOW, HIGH = -2.0, 2.0  # decades of the gradient norm
COLOURS = ("#0b6e99", "#c2571a", "#5a7d2a")


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
    norms = torch.logspace(LOW, HIGH, 200)
    curves = []
    for rule in rules:
        weight_of_norm = getattr(rule, "weight_of_norm", None)
        if weight_of_norm is None:
            continue
        weights = weight_of_norm(norms)
        curves.append((repr(rule), weights.double().clamp(1e-3, 1e2).log10()))
    if not curves:
        return None
    pieces = [_axes()]
    for (label, values), colour, line in zip(curves, COLOURS, range(len(COLOURS)), strict=False):
        points = " ".join(
            f"{_x(float(x)):.1f},{_y(float(y)):.1f}"
            for x, y in zip(norms.log10(), values, strict=True)
        )
        pieces.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'
        )
        short = label if len(label) < 58 else label[:55] + "..."
        pieces.append(
            f'<text x="{MARGIN + 8}" y="{HEIGHT - MARGIN - 10 - 15 * line}" fill="{colour}" '
            f'font-size="11">{_escape(short)}</text>'
        )
    body = "\n".join(pieces)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
        f'font-family="sans-serif">\n<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>\n'
        f"{body}\n</svg>\n"
    )


def _x(decade: float) -> float:
    return MARGIN + (decade - LOW) / (HIGH - LOW) * (WIDTH - MARGIN - 12)


def _y(decade: float) -> float:
    return 12 + (2 - decade) / 5 * (HIGH_Y - 12)


HIGH_Y = HEIGHT - MARGIN


def _axes() -> str:
    lines = []
    for decade in range(int(LOW), int(HIGH) + 1):
        x = _x(decade)
        lines.append(f'<path d="M{x:.1f} 12V{HIGH_Y}" stroke="#ddd"/>')
        lines.append(
            f'<text x="{x:.1f}" y="{HIGH_Y + 16}" font-size="11" fill="#444" '
            f'text-anchor="middle">{_decade(decade)}</text>'
        )
    for decade in range(-3, 3):
        y = _y(decade)
        lines.append(f'<path d="M{MARGIN} {y:.1f}H{WIDTH - 12}" stroke="#ddd"/>')
        lines.append(
            f'<text x="{MARGIN - 6}" y="{y + 4:.1f}" font-size="11" fill="#444" '
            f'text-anchor="end">{_decade(decade)}</text>'
        )
    middle = (MARGIN + WIDTH - 12) / 2
    lines.append(
        f'<text x="{middle:.0f}" y="{HEIGHT - 10}" font-size="12" fill="#222" '
        'text-anchor="middle">norm of the per-sample gradient</text>'
    )
    lines.append(
        f'<text x="12" y="{HIGH_Y / 2:.0f}" font-size="12" fill="#222" text-anchor="middle" '
        f'transform="rotate(-90 12 {HIGH_Y / 2:.0f})">weight</text>'
    )
    return "\n".join(lines)


def _decade(decade: int) -> str:
    return f"{10.0**decade:g}" if math.isfinite(decade) else ""


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


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
            f"# {names}\n\n*Generated from `winsor/rules/{name}.py` by `docs/rule_pages.py`.*\n\n"
            f"{picture}{markdown(module.__doc__)}\n"
        )
    files["README.md"] = (
        "# Clipping rules\n\n*Generated by `docs/rule_pages.py`.* Measured costs and accuracies: "
        "[benchmarks](../../benchmarks/README.md).\n\n| rule | what it does |\n|---|---|\n"
        + "\n".join(rows)
        + "\n"
    )
    return files


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, content in pages().items():
        (FOLDER / name).write_text(content)


if __name__ == "__main__":
    main()
