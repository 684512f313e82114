"""The pages of fidelity and theory have every row, and every reference in them leads somewhere."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import fidelity_page
import pytest
import theory_page
from winsor_papers import theory
from winsor_papers.theory.fidelity import Row

ROOT = Path(__file__).parents[3]
ROWS = fidelity_page.gathered()


def named(row: Row) -> str:
    return f"{row.paper}-{row.item}"


def resolve(dotted: str) -> object:
    """The module or attribute of a dotted name, whatever its depth."""
    words = dotted.split(".")
    for cut in range(len(words), 0, -1):
        try:
            found: object = importlib.import_module(".".join(words[:cut]))
        except ModuleNotFoundError:
            continue
        for word in words[cut:]:
            found = getattr(found, word)
        return found
    raise ModuleNotFoundError(dotted)


def test_the_page_has_a_line_for_every_row():
    page = fidelity_page.files()["fidelity.md"]
    assert len(ROWS) > 100
    assert page.count("\n| ") == len(ROWS) + 2 * len(fidelity_page.PAPERS) + 1
    assert all(f"| {fidelity_page._escape(row.item)} | {row.form} |" in page for row in ROWS)


def test_the_page_of_the_theorems_has_every_function_and_its_figure():
    files = theory_page.files()
    assert files.keys() == {"theory.md", "theory.svg"}
    assert "![predicted and measured](theory.svg)" in files["theory.md"]
    functions = [name for name in theory.__all__ if callable(getattr(theory, name))]
    listed = [name for name in functions if f"| `{name}` |" in files["theory.md"]]
    assert len(listed) >= 20
    assert files["theory.svg"].startswith("<svg")


@pytest.mark.parametrize("row", [row for row in ROWS if row.form != "missing"], ids=named)
def test_where_exists(row):
    assert row.where, "a row that is not missing must say where it is"
    if "/" in row.where:
        assert (ROOT / row.where).exists()
    else:
        assert resolve(row.where) is not None


@pytest.mark.parametrize("row", [row for row in ROWS if row.form != "missing"], ids=named)
def test_test_exists(row):
    path, _, name = row.test.partition("::")
    text = (ROOT / path).read_text()
    assert re.search(rf"^def {re.escape(name)}\(", text, re.MULTILINE), f"{path} has no {name}"


def test_no_row_is_empty_without_a_reason_and_none_is_there_twice():
    assert all(row.reason for row in ROWS if row.form == "missing" or row.deviation)
    keys = [(row.paper, row.item) for row in ROWS]
    assert len(keys) == len(set(keys))


def test_all_five_papers_have_algorithms_theorems_and_tables():
    for paper in range(1, 6):
        items = " ".join(row.item for row in ROWS if row.paper == paper)
        for kind in ("Algorithm", "Theorem", "Table 1"):
            assert kind in items


def test_every_formula_of_the_theory_has_a_row():
    """Whatever returns a `Bound` is of some paper; `promises` only gathers."""
    rows = {
        row.where.rsplit(".", 1)[1] for row in ROWS if row.where.startswith("winsor_papers.theory.")
    }
    formulas = {
        name
        for name in theory.__all__
        if "Bound" in str(getattr(getattr(theory, name), "__annotations__", {}).get("return", ""))
    }
    assert formulas <= rows


def test_a_row_that_hides_something_is_refused():
    with pytest.raises(ValueError, match="must state its reason"):
        Row(1, "Table 9", "missing")
    with pytest.raises(ValueError, match="must state its reason"):
        Row(1, "Table 9", "both", deviation="smaller")
    with pytest.raises(ValueError, match="one of"):
        Row(1, "Table 9", "perhaps")


def test_items_are_ordered_as_people_count():
    rows = [Row(1, f"Table {n}", "published", "x", "y::z") for n in (10, 9)]
    rows.append(Row(1, "Algorithm 2", "published", "x", "y::z"))
    ordered = sorted(rows, key=fidelity_page._place)
    assert [row.item for row in ordered] == ["Algorithm 2", "Table 9", "Table 10"]
