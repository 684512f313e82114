"""The pages of the papers: papers.md and papers/ in build/docs.

    python docs/paper_page.py

papers.md is the overview: what holds, what was run and what it cost. papers/PAPER.md has every
table of a paper with its notes, papers/*.svg the figures (`paper_figures.py`). All are made from
benchmarks/results/reproduce/, which `winsor reproduce` writes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import heat_map
import paper_figures
from built import write
from paper_brief import CURVES, brief
from paper_conclusions import conclusions
from paper_left_out import left_out, rounded
from winsor_papers.reproduce import columns
from winsor_papers.reproductions.catalogue import PAPERS
from winsor_papers.reproductions.queue import HOUR, Progress, progress
from winsor_papers.reproductions.reproduction import Line, Measured

from winsor.charts.files import drawing

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "reproduce"

Records = dict[tuple[str, str], dict[str, Any]]

HEAD = """# The five papers, run again

*Built by `docs/paper_page.py` from `benchmarks/results/reproduce/`.*

For each paper, this page says what holds, what holds after correction, and what that is worth.
Then it lists every table with its strength, processor time and a short verdict. The linked pages
have all numbers.

## How to read it

A table shows up to three numbers side by side, which must not be confused:

* **paper**: the authors' own figure;
* **published**: our run with the noise that the paper's account requires at its nominal epsilon;
  the column **it certifies** has the epsilon that this noise really gives (`inf`: no guarantee);
* **certified**: our run with the noise that the same nominal epsilon really needs; the column
  **epsilon** has what its ledger reports.

Strength is one of

* **full**: the setting of the catalogue, with several seeds; it has a verdict;
* **calculation**: exact, without seeds; the verdict is a statement about numbers;
* **smoke**: shortened to minutes, to show that the table can be made. **A smoke run has no
  verdict**, and its accuracies say nothing about the paper;
* **not run**: with the cost of its cells, if one was measured.

A verdict compares means over seeds by the 95 per cent interval of their difference (Welch):
*reproduced* where it lies above zero; *contradicted* only where it excludes the paper's claim at
the paper's own setting; *not reproduced at our size* where it excludes the claim elsewhere;
*undecided* where it contains both. The page of the paper also has the measured difference and the
smallest one that the seeds could have shown with probability 0.8. The words are computed
(`papers/winsor_papers/reproductions/verdicts.py`), never written.

Commands, and how hours are counted: [papers/README.md](../papers/README.md).
"""

LONG = 2.0
"""Hours of one core: what is below can be run in an evening."""
CALCULATIONS = {("sco", "theorem-6"), ("modelmix", "section-4.3"), ("modelmix", "figure-3")}


def read(folder: Path = RESULTS) -> Records:
    """The saved tables, by paper and table."""
    return {
        (record["paper"], record["table"]): record
        for path in sorted(folder.glob("*.json"))
        for record in [json.loads(path.read_text())]
    }


def page(folder: Path = RESULTS) -> str:
    """The overview."""
    records = read(folder)
    found = progress(folder, [(key, name) for key, p in PAPERS.items() for name in p.tables])
    parts = [HEAD, _effort_sentence(found), ""]
    for key, paper in PAPERS.items():
        holds, corrected, worth = conclusions(key, records)
        parts.append(
            f"## {paper.title}\n\n* **What holds.** {holds}\n* **After correction.** {corrected}\n"
            f"* **What it is worth.** {worth}\n"
        )
        mine = [one for one in found if one.paper == key]
        parts.append(_overview(mine, records))
        judged = [
            name
            for name in paper.tables
            if _strength(records.get((key, name)), (key, name)) in ("full", "calculation")
        ]
        parts.append(_verdicts(key, judged, records))
        if missing := left_out(mine, folder):
            parts.append(missing)
        parts += [
            f"![{chart.title}](papers/{name}.svg)\n"
            for name, chart in paper_figures.figures(records).items()
            if name.startswith(f"{key}-")
        ]
    return "\n".join(parts)


def _verdicts(key: str, judged: list[str], records: Records) -> str:
    """In short; nothing of a smoke run."""
    if not judged:
        return "No verdict yet.\n"
    curves = [name for name in judged if (key, name) in CURVES]
    lines = [
        f"* **{name}.** {_escape(brief(records[key, name]['verdict']))}"
        for name in judged
        if name not in curves
    ]
    if curves:
        lines.append(f"* **{', '.join(curves)}:** curves of these runs, judged on the same page.")
    return (
        f"Verdicts in short; with sizes and power: [papers/{key}.md](papers/{key}.md).\n\n"
        + "\n".join(lines)
        + "\n"
    )


def _effort_sentence(found: list[Progress]) -> str:
    done = sum(one.finished for one in found)
    known = sorted(one.left for one in found if not one.finished and one.left is not None)
    short = [left for left in known if left < LONG * HOUR]
    unknown = len(found) - done - len(known)
    missing = f" Of {unknown} no cell was measured." if unknown else ""
    soon = (
        f"{len(short)} others need less than {LONG:g} hours of one core each, "
        f"{rounded(sum(short) / HOUR)} together, and "
        if short
        else ""
    )
    return (
        f"**Effort.** {done} of {len(found)} tables are at full strength, "
        f"{len(CALCULATIONS)} of them calculations, for "
        f"{sum(one.spent for one in found) / HOUR:.2f} processor hours with the cells of "
        f"unfinished ones. By measured or begun cells {soon}{len(known) - len(short)} more would "
        f"take {rounded(sum(known[len(short) :]) / HOUR)} hours: deep networks on images, and "
        f"text.{missing} The "
        "machine has two cores, busy with other work: times are processor time."
    )


def _overview(found: list[Progress], records: Records) -> str:
    rows = [
        "| table | strength | seeds | cells | hours spent | hours left |",
        "|---|---|---|---|---|---|",
    ]
    for one in found:
        key = (one.paper, one.table)
        record = records.get(key)
        strength = _strength(record, key)
        spent, left = _hours(one, record)
        cells = "" if one.planned is None else f"{one.done} of {one.planned}"
        rows.append(f"| {one.table} | {strength} | {_seeds(record)} | {cells} | {spent} | {left} |")
    return "\n".join(rows) + "\n"


def _hours(one: Progress, record: dict[str, Any] | None) -> tuple[str, str]:
    spent = one.spent
    if not one.finished and record is not None:
        spent += record.get("processor_seconds", 0.0)  # of the smoke run
    left = "" if one.finished else "not measured" if one.left is None else rounded(one.left / HOUR)
    return f"{spent / HOUR:.3f}", left


def _strength(record: dict[str, Any] | None, key: tuple[str, str]) -> str:
    if record is None:
        return "not run"
    if record["quick"]:
        return "smoke"
    return "calculation" if key in CALCULATIONS else "full"


def _seeds(record: dict[str, Any] | None) -> str:
    if record is None:
        return ""
    counts = {
        line[column]["seeds"]
        for line in record["lines"]
        for column in ("published", "certified")
        if line[column] is not None
    }
    fewest, most = min(counts, default=0), max(counts, default=0)
    return "" if not counts else f"{fewest}" if fewest == most else f"{fewest} to {most}"


# ------------------------------------------------------------------------------------- the details


def details(key: str, folder: Path = RESULTS) -> str:
    """Every table of one paper."""
    records, paper = read(folder), PAPERS[key]
    parts = [
        f"# {paper.title}: every number\n\n*Built by `docs/paper_page.py`.* "
        "How to read it: [papers.md](../papers.md).\n"
    ]
    found = [records[key, table] for table in paper.tables if (key, table) in records]
    parts += [section(record) for record in found]
    missing = [table for table in paper.tables if (key, table) not in records]
    if missing:
        parts.append(f"Not run yet: {', '.join(missing)}.\n")
    return "\n".join(parts)


def section(record: dict[str, Any]) -> str:
    """One reproduced table."""
    headers, rows = columns(tuple(_line(line) for line in record["lines"]))
    table = [_row(headers), "|" + "---|" * len(headers), *(_row(row) for row in rows)]
    seconds = record.get("processor_seconds", record["seconds"])
    strength = _strength(record, (record["paper"], record["table"]))
    command = f"winsor reproduce {record['paper']} {record['table']}"
    command += " --quick" if record["quick"] else " --full --resume"
    notes = "\n".join(f"* {_escape(note)}" for note in record["notes"])
    verdict = "Smoke run: no verdict." if record["quick"] else f"**Verdict.** {record['verdict']}"
    title = record["title"].removesuffix(" (smoke)") + (" (smoke)" if record["quick"] else "")
    return (
        f"## {_escape(title)}\n\n"
        f"Numbers: {_escape(record['quantity'])}. `{command}` ({strength}, {seconds:.0f} s).\n\n"
        f"{_escape(verdict)}\n\n" + "\n".join(table) + f"\n\n{notes}\n"
    )


def _line(found: dict[str, Any]) -> Line:
    """A line as it was before it was written."""
    numbers = {
        name: None if found[name] is None else Measured(**_floats(found[name]))
        for name in ("published", "certified")
    }
    epsilons = {
        name: None if found[name] is None else float(found[name])
        for name in ("certified_epsilon", "published_certifies")
    }
    return Line(found["label"], found["printed"], extra=found["extra"], **numbers, **epsilons)


def _floats(found: dict[str, Any]) -> dict[str, Any]:
    """Numbers that are not finite were written as text."""
    return {key: float(value) if isinstance(value, str) else value for key, value in found.items()}


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(_escape(cell).replace("|", "\\|") for cell in cells) + " |"


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


# --------------------------------------------------------------------------------------- the files


def files() -> dict[str, str]:
    found = {"papers.md": page()} | {f"papers/{key}.md": details(key) for key in PAPERS}
    for name, chart in paper_figures.figures(read()).items():
        text = heat_map.drawn(chart) if isinstance(chart, heat_map.HeatMap) else drawing(chart)
        found[f"papers/{name}.svg"] = str(text)
    return found


if __name__ == "__main__":
    write(files())
