"""The page measured-tables.md and its figure, from the results of the benchmark of tables.

    python docs/tables_page.py

Reads benchmarks/results/tables.jsonl (`benchmarks/tables.py`) and the results of
experiments/2026-11-tables-without-bounds. Nothing is computed here but means over seeds: a page
never says what no run has measured.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

from built import write

from winsor.charts import Chart, Series
from winsor.charts.files import drawing

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
ANSWERED = ROOT / "experiments" / "2026-11-tables-without-bounds" / "results"

Cells = dict[tuple[str, str, float], list[dict[str, Any]]]

OURS = ("additive, learnt", "additive", "whitened, learnt", "whitened")
CLOSED = ("suffstats, learnt", "suffstats")
OTHERS = ("dp-ebm", "adassp", "diffprivlib")
PUBLIC = ("public linear", "public boosting")
CLASSES = ("a9a", "pima", "breast_cancer")
ASKED = (
    ("eu_health", 1.0, "additive, learnt", 0.18),
    ("aus_injury", 1.0, "additive, learnt", 0.495),
    ("fremtpl2", 1.0, "additive, learnt", 0.010),
    ("california", 1.0, "additive, learnt", 0.645),
    ("a9a", 1.0, "whitened", 0.85),
    ("a9a", 1.0, "whitened, learnt", 0.85),
    ("aus_injury", 3.0, "additive, learnt", 0.512),
    ("california", 3.0, "additive, learnt", 0.66),
)
OLDER = """Our cells were measured at the commits below; a table is listed under two of them if its
seeds are. Where a commit is not the newest, the figure lacks later changes of the code."""

EUROS = """## Raw euros

Claims of fremtpl2 without a range and without a logarithm (`raw_amounts.py`). One claim in a
hundred is more than a third of the total, so at a small epsilon predictions have the lower mean of
winsorised amounts. Huber and median regression predict the bulk, as they should. The Gamma model
takes no steps along directions that noise hides, its steps have a bounded length, and its means
stay within the released range of y; without these limits its mean was 12 million at epsilon 1000.
Use it for `coef_interval_`, and `PrivateAdditiveRegressor` for predictions, with `target="log"` for
the median amount.
"""

BLIND = """## What was not blind

Shares, steps and cuts are fixed for all tables, but not all of them were chosen blind. The
designers had seen scores of *a9a, breast_cancer, pima* and *diabetes* (test rows too) while they
wrote the defaults for indicators and small tables; those of the claims tables and of california
stood in the issue that asked for this. Later it was known from test rows that *bemtpl97* was
behind, *diabetes* diverged at epsilon 0.3, *a9a* was 0.06 points short, and *breast_cancer* and
*pima* at 0.3 were below the majority; what was done follows theory, and was tried on splits inside
the training rows and on simulated tables. Last, it was known that given bounds lost to learnt
ranges on *breast_cancer, diabetes, california* and the linear simulation, and the additive model on
*bemtpl97* at 3. The look between bounds, the variance of waves between knots and the penalty on
small blocks were chosen by theory and on other simulated tables alone; small tables were scored
twice, before and after cells were made finer towards zero.
"""

ALONE = "Ours, one by one, against the better of DP-EBM and AdaSSP (losses in shares of its score):"
GIVEN = "Scores with public ranges minus those with learnt ones, and standard errors:"
BEHIND = 0.05
"""How far behind the best of the others a method may be: this share of its score."""

HEAD = """# Eleven tables: what privacy costs, and who pays less

*Built by `docs/tables_page.py` from what `benchmarks/tables.py` measured; no figure is typed in.*

The tables are claims, incomes, housing, two of scikit-learn's, and two simulated ones with heavy
tails, whose scores are relative to the known mean. Scores are R2 on test rows (targets are log
amounts; california in $100,000), or accuracy where there are two classes. All methods have fixed
defaults and the same public ranges, which were written down from the meaning of a column and
never read off the rows (`benchmarks/tables_data.py`). Methods of ours marked *learnt* are given
no ranges and pay for finding them. delta is 1e-5, or 1/(2n) if smaller; diffprivlib is pure
epsilon. Wide ranges hurt AdaSSP and diffprivlib, whose noise is in units of the range. The others
use their authors' defaults: interpret 0.6.16, and diffprivlib 0.6.6, whose regression adds noise
to X'X without making it positive definite again, so that some solutions are arbitrary.

![Share of the non-private score](measured-tables.svg)
"""


def cells(path: Path = RESULTS / "tables.jsonl") -> Cells:
    """By table, method and epsilon; a cell that was run twice counts as the later run."""
    last: dict[tuple[str, str, float, int], dict[str, Any]] = {}
    for line in path.read_text().splitlines():
        cell = json.loads(line)
        last[cell["table"], cell["method"], cell["epsilon"], cell["seed"]] = cell
    found: Cells = {}
    for (table, method, epsilon, _), cell in last.items():
        found.setdefault((table, method, epsilon), []).append(cell)
    return found


def score(found: Cells, table: str, method: str, epsilon: float) -> float:
    """The mean over seeds; NaN if it was not run."""
    at = math.inf if method in PUBLIC else epsilon
    return mean([c["score"] for c in found.get((table, method, at), [])] or [math.nan])


def shown(value: float, best: bool = False) -> str:
    if math.isnan(value):
        return ""
    text = "< -1" if value < -1 else f"{value:.4f}"
    return f"**{text}**" if best else text


def results(found: Cells, epsilon: float) -> list[str]:
    methods = [m for m in (*OURS, *CLOSED, *OTHERS) if any(k[1:] == (m, epsilon) for k in found)]
    runs = {m: {len(v) for k, v in found.items() if k[1:] == (m, epsilon)} for m in methods}
    rows = [f"## Epsilon {epsilon:g}", "", "| table | " + " | ".join([*methods, *PUBLIC]) + " |"]
    rows.append("|---|" + "---|" * (len(methods) + len(PUBLIC)))
    for table in _tables(found):
        private = {m: score(found, table, m, epsilon) for m in methods}
        best = max((v for v in private.values() if not math.isnan(v)), default=math.nan)
        line = [shown(v, v == best) for v in private.values()]
        line += [shown(score(found, table, m, epsilon)) for m in PUBLIC]
        rows.append(f"| {table} | " + " | ".join(line) + " |")
    count = ", ".join(f"{m} {'-'.join(map(str, sorted(n)))}" for m, n in runs.items())
    absent = [m for m in (*OURS, *CLOSED, *OTHERS) if m not in methods]
    missing = f" Not run at this epsilon: {', '.join(absent)}." if absent else ""
    return [*rows, "", f"The best private score of a row is bold. Seeds: {count}.{missing}", ""]


def comparison(found: Cells, epsilon: float) -> list[str]:
    """One method of ours at a time against the better of DP-EBM and AdaSSP, table by table."""
    rows = [
        "| ours | ahead of both | behind | worst loss |",
        "|---|---|---|---|",
    ]
    for method in OURS:
        gaps: dict[str, float] = {}
        for table in _tables(found):
            theirs = [score(found, table, m, epsilon) for m in ("dp-ebm", "adassp")]
            own, best = score(found, table, method, epsilon), max(theirs)
            if not any(math.isnan(v) for v in (own, *theirs)):
                gaps[table] = (own - best) / max(abs(best), 1e-12)
        if not gaps:
            continue
        lost = {table: gap for table, gap in gaps.items() if gap < 0}
        words = ", ".join(f"{t} {_by(-g)}" for t, g in sorted(lost.items(), key=lambda i: i[1]))
        worst = abs(min(lost.values(), default=0.0))
        verdict = _by(worst).removeprefix("by ") + (
            "" if worst <= BEHIND else f", more than {BEHIND:.0%}"
        )
        ahead = f"{len(gaps) - len(lost)} of {len(gaps)}"
        rows.append(f"| {method} | {ahead} | {words or 'nowhere'} | {verdict} |")
    return rows if len(rows) > 2 else ["DP-EBM or AdaSSP was not run at this epsilon."]


def _by(loss: float) -> str:
    """A share; beyond the score itself its size says nothing: R2 is below zero."""
    return f"by {loss:.1%}" if loss <= 1 else "by more than the score"


def given(found: Cells) -> list[str]:
    """What bounds add to the score of ranges that are learnt, and its standard error."""
    columns = [(m, e) for m in ("whitened", "additive") for e in _epsilons(found)]
    rows = ["| table | " + " | ".join(f"{m}, {e:g}" for m, e in columns) + " |"]
    rows.append("|---|" + "---|" * len(columns))
    for table in _tables(found):
        line = []
        for method, epsilon in columns:
            groups = [found.get((table, m, epsilon), []) for m in (method, f"{method}, learnt")]
            runs = [[cell["score"] for cell in group] for group in groups]
            line.append("")
            if min(map(len, runs)) > 1:
                error = math.sqrt(sum(stdev(each) ** 2 / len(each) for each in runs))
                line[-1] = f"{mean(runs[0]) - mean(runs[1]):+.4f} ± {error:.4f}"
        rows.append(f"| {table} | " + " | ".join(line) + " |")
    return rows


def asked(found: Cells) -> list[str]:
    rows = [
        "| table | epsilon | method | asked | measured | seeds | |",
        "|---|---|---|---|---|---|---|",
    ]
    for table, epsilon, method, least in ASKED:
        runs = [c["score"] for c in found.get((table, method, epsilon), [])]
        if not runs:
            rows.append(f"| {table} | {epsilon:g} | {method} | {least} | not run | 0 | |")
            continue
        error = f" ± {stdev(runs) / math.sqrt(len(runs)):.4f}" if len(runs) > 1 else ""
        verdict = "reached" if mean(runs) >= least else f"short by {least - mean(runs):.4f}"
        line = f"{least} | {mean(runs):.4f}{error} | {len(runs)} | {verdict}"
        rows.append(f"| {table} | {epsilon:g} | {method} | {line} |")
    return rows


def ages(found: Cells) -> list[str]:
    """Which of our cells are of which commit: the code went on after some of them."""
    rows = ["| commit | cells of ours |", "|---|---|"]
    made: dict[str, dict[tuple[str, float], set[str]]] = {}
    for (table, method, epsilon), group in found.items():
        if method in (*OURS, *CLOSED):
            for cell in group:
                made.setdefault(cell["commit"], {}).setdefault((method, epsilon), set()).add(table)
    everywhere = len(_tables(found))
    for commit, groups in sorted(made.items(), key=lambda item: -len(item[1])):
        words = []
        for (method, epsilon), tables in sorted(groups.items()):
            named = "all" if len(tables) == everywhere else ", ".join(sorted(tables))
            words.append(f"{method} at {epsilon:g} ({named})")
        rows.append(f"| {commit} | {'; '.join(words)} |")
    return rows


def means(path: Path = ANSWERED / "winsorised_means.json") -> list[str]:
    saved = json.loads(path.read_text())
    rows = ["| table | rows | `winsorised_mean` | `clipped_mean`, `PrivateRadius` | asked |"]
    rows.append("|---|---|---|---|---|")
    for row in saved["accuracy"]:
        ours, clipped = row["winsorised"], row["clipped, PrivateRadius"]
        rows.append(
            f"| {row['table']} | {row['n']:,} | {ours:.4f} | {clipped:.4f} | {row['asked']} |"
        )
    cover = [f"{r['data']} {r['coverage']:.1%} (n = {r['n']:,})" for r in saved["coverage"]]
    said = "Coverage of its 95 % interval over 500 simulations: " + "; ".join(cover) + "."
    return [*rows, "", f"{said} Pareto 2 has no variance: its interval does not cover as it says."]


def stretched(path: Path = ANSWERED / "learnt_ranges.json") -> list[str]:
    """How often noise stretches a learnt range, beside an earlier commit."""
    saved = json.loads(path.read_text())
    earlier = {(c["kind"], c["n"]): c for c in saved["before"]["cells"]}
    rows = [
        "| four columns | rows | fits with a stretched range | before | median width | before |",
        "|---|---|---|---|---|---|",
    ]
    for cell in saved["cells"]:
        old = earlier[cell["kind"], cell["n"]]
        fits = " | ".join(f"{c['fits with a stretched range']:.1%}" for c in (cell, old))
        widths = " | ".join(f"{c['median width']:.2f}" for c in (cell, old))
        rows.append(f"| {cell['kind']} | {cell['n']:,} | {fits} | {widths} |")
    first = saved["cells"][0]
    return [
        "## Learnt ranges",
        "",
        f"Epsilon {first['epsilon']:g}, a tenth of it on ranges, {first['fits']} fits",
        "(`learnt_ranges.py`). *Stretched*: more than half as wide again as without",
        "noise. Widths are shares of that one: noise hides thin tails, and they are winsorised.",
        f"*Before* is commit {saved['before']['made_by']['commit']}.",
        "",
        *rows,
        "",
    ]


def intervals(path: Path = ANSWERED / "intervals.json") -> list[str]:
    """Coverage of the intervals of generalised linear models."""
    saved = json.loads(path.read_text())
    words = []
    for kind in ("poisson", "gamma"):
        each = saved[kind]["coverage_by_parameter"]
        words.append(
            f"{kind} {saved[kind]['coverage']:.1%} ({min(each):.1%} to {max(each):.1%} over its "
            "parameters)"
        )
    first = saved["poisson"]
    return [
        "## Intervals of coefficients",
        "",
        f"Coverage at nominal 95 % over {first['tables']} simulated tables of {first['rows']:,}",
        f"rows, epsilon 1 (`intervals.py`, commit {saved['made_by']['commit']}):",
        f"{'; '.join(words)}.",
        "",
    ]


def euros(path: Path = ANSWERED / "raw_amounts.json") -> list[str]:
    saved = json.loads(path.read_text())
    data = saved["data"]
    rows = [
        "| regressor | epsilon | mean prediction | over seeds | largest |",
        "|---|---|---|---|---|",
    ]
    for row in saved["predictions"]:
        low, high = row["over seeds"]
        line = f"{row['mean prediction']:,.0f} | {low:,.0f} to {high:,.0f} | {row['largest']:,.0f}"
        rows.append(f"| {row['regressor']} | {row['epsilon']:g} | {line} |")
    truth = f"{data['rows']:,} claims, mean {data['mean']:,.0f}, median {data['median']:,.0f}"
    return [f"{truth}; {saved['seeds']} seeds.", "", *rows, ""]


def slowest(found: Cells) -> str:
    """Processor time, for the clock depends on who else uses the machine."""
    ours = [
        (cell["processor"], key)
        for key, group in found.items()
        for cell in group
        if key[1] in (*OURS, *CLOSED) and "processor" in cell
    ]
    seconds, (table, method, _) = max(ours)
    return f"The slowest fit of ours took {seconds:.1f} s of one processor ({method} on {table})."


def figure(found: Cells) -> Chart:
    """The median over tables of the score over that of the better model without privacy."""
    names = ("additive, learnt", "whitened, learnt", "dp-ebm", "adassp")
    drawn = []
    for colour, method in enumerate(names):
        points = []
        for epsilon in _epsilons(found):
            shares = [
                score(found, table, method, epsilon)
                / max(score(found, table, each, epsilon) for each in PUBLIC)
                for table in _tables(found)
            ]
            run = [share for share in shares if not math.isnan(share)]
            if len(run) >= len(shares) - 1:  # medians over other tables are not comparable
                points.append((epsilon, median(run)))
        drawn.append(Series(method, tuple(points), colour=colour, markers=True))
    return Chart(
        key="tables",
        title="What is left of the score without privacy",
        x_label="epsilon",
        y_label="share, median over tables",
        series=tuple(drawn),
        log_x=True,
        note="of the better of linear model and boosting; R2 or accuracy; ten tables or all",
    )


def _tables(found: Cells) -> list[str]:
    return list(dict.fromkeys(table for table, _, _ in found))


def _epsilons(found: Cells) -> list[float]:
    return sorted({epsilon for _, _, epsilon in found} - {math.inf})


def page() -> str:
    found = cells()
    lines = [HEAD, "## What was asked for", "", *asked(found), "", slowest(found), "", ALONE, ""]
    for epsilon in (1.0, 3.0, 0.3):
        if epsilon in _epsilons(found):
            lines += [f"*Epsilon {epsilon:g}.*", "", *comparison(found, epsilon), ""]
    lines += ["## Bounds that are given", "", GIVEN, "", *given(found), ""]
    for epsilon in _epsilons(found):
        lines += results(found, epsilon)
    lines += [BLIND, "## Of which commit", "", OLDER, "", *ages(found), ""]
    lines += ["## Means that need no radius", "", "Relative root mean squared error at epsilon 1,"]
    lines += ["50 seeds (`winsorised_means.py`; this script and those named below are in"]
    lines += ["`experiments/2026-11-tables-without-bounds`):", "", *means(), ""]
    lines += [*intervals(), *stretched(), EUROS, *euros()]
    return "\n".join(lines)


def files() -> dict[str, str]:
    return {"measured-tables.md": page(), "measured-tables.svg": str(drawing(figure(cells())))}


if __name__ == "__main__":
    write(files())
