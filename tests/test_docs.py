"""Pages that programs write can be built, are the same each time, and links lead somewhere."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import built
import pytest

import winsor
from winsor.rules import all_rules

ROOT = Path(__file__).parent.parent


def generator(name, folder=ROOT / "docs"):
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def files():
    return built.files()


DIGESTS = """
import hashlib, json, sys
sys.path.insert(0, "docs")
import built
print(json.dumps({k: hashlib.sha256(v.encode()).hexdigest() for k, v in built.files().items()}))
"""


def test_another_process_builds_the_same_files(files):
    environment = {**os.environ, "PYTHONHASHSEED": "7", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", DIGESTS],
        capture_output=True, text=True, check=False, cwd=ROOT, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    here = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in files.items()}
    assert json.loads(done.stdout.splitlines()[-1]) == here


def test_files_are_written_where_they_belong_and_none_is_committed(files, tmp_path):
    built.write(files, tmp_path)
    found = {p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_file()}
    assert found == files.keys()
    assert all((tmp_path / name).read_text() == text for name, text in files.items())
    assert not [name for name in files if (ROOT / "docs" / name).exists()]
    assert all(text.startswith("# ") for name, text in files.items() if name.endswith(".md"))


def test_two_writers_of_one_file_are_refused(monkeypatch):
    monkeypatch.setattr(built, "WRITERS", ("fidelity_page", "fidelity_page"))
    with pytest.raises(ValueError, match=r"fidelity\.md"):
        built.files.__wrapped__()


def test_the_names_that_type_checkers_see_are_up_to_date():
    pages = generator("rule_pages")
    assert pages.NAMES.read_text() == pages.names(), "run: make docs"


def test_the_figure_of_the_architecture_shows_every_part_and_points_down(files):
    drawing = files["architecture.svg"]
    for path in (ROOT / "winsor").iterdir():
        part = path.name.removesuffix(".py")
        if part not in ("__init__", "__pycache__", "py.typed"):
            assert f">{part}</text>" in drawing
    down = re.findall(r"M[\d.]+ ([\d.]+)C.* ([\d.]+)\" fill", drawing)
    assert len(down) >= 15 and all(float(start) < float(end) for start, end in down)


def test_the_reference_has_every_public_name(files):
    for name in winsor.__all__:
        assert f"api/{name}.md" in files or f"\n## {name}\n" in files["api/winsor.md"]


def test_the_walk_is_short():
    walked = json.loads((ROOT / "benchmarks" / "results" / "walk.json").read_text())
    assert walked["files"] <= 12 and walked["switches"] <= 45


RESULTS = sorted((ROOT / "benchmarks" / "results").glob("*.json"))


@pytest.mark.parametrize("path", RESULTS, ids=lambda p: p.stem)
def test_results_say_what_made_them_and_are_compact(path):
    content = json.loads(path.read_text())
    assert re.fullmatch(r"[0-9a-f]{7,}\+?", content["made_by"]["commit"])
    assert re.fullmatch(r"\d+\.\d+\.\d+", content["made_by"]["version"])
    saving = generator("saving", ROOT / "benchmarks")
    assert path.read_text() == saving.compact(content) + "\n"


def test_saving_keeps_what_it_is_given(tmp_path):
    saving = generator("saving", ROOT / "benchmarks")
    result = {"rows": [{"a": 1.5, "b": [1, 2]}] * 9, "cells": {"x" * 60: {"y" * 60: [0.1] * 40}}}
    path = saving.save("some", result, tmp_path)
    found = json.loads(path.read_text())
    assert found.pop("made_by") == saving.made_by() and found == result
    saving.save("some", {"made_by": {"version": "0"}, **result}, tmp_path)
    assert json.loads(path.read_text())["made_by"] == saving.made_by()
    assert [file.name for file in tmp_path.iterdir()] == ["some.json"]


def test_the_page_of_tables_says_losses(tmp_path):
    """A score behind the others, a line that is not reached and one that was not run are said."""
    pages = generator("tables_page")
    path = tmp_path / "tables.jsonl"
    scores = {"whitened": 0.1, "dp-ebm": 0.2, "adassp": 0.05, "diffprivlib": -70.0}
    rows = [
        {"table": "a9a", "method": name, "epsilon": 1.0, "seed": seed, "score": value}
        for name, value in scores.items()
        for seed in (0, 1)
    ]
    path.write_text("\n".join(map(json.dumps, [rows[0] | {"score": 9.0}, *rows])))
    found = pages.cells(path)
    assert len(found["a9a", "whitened", 1.0]) == 2  # the first was run again
    comparison = "\n".join(pages.comparison(found, 1.0))
    assert "| whitened | 0 of 1 | a9a by 50.0% | 50.0%, more than 5% |" in comparison
    asked = "\n".join(pages.asked(found))
    assert "short by 0.7500" in asked and "not run" in asked
    assert "| < -1 |" in "\n".join(pages.results(found, 1.0))


def test_the_papers_have_a_page_each_and_their_figures(files):
    made = generator("paper_page")
    for key in made.PAPERS:
        assert files[f"papers/{key}.md"] == made.details(key)
    drawn = {f"papers/{name}.svg" for name in made.paper_figures.figures(made.read())}
    assert {name for name in files if re.fullmatch(r"papers/.*\.svg", name)} == drawn
    assert drawn and all(f"]({name})" in files["papers.md"] for name in drawn)


def test_the_figures_of_paper_3_are_drawn_from_full_tables_only():
    made = generator("paper_figures")
    number = {"mean": 90.0, "half_width": 1.0, "seeds": 5}
    curves = {
        "clipped by epoch": "9 5", "test by epoch": "80 90", "published, test by epoch": "70 80",
    }  # fmt: skip

    def line(**label):
        return {"label": label, "certified": number, "published": number, "extra": curves,
                "certified_epsilon": 0.5}  # fmt: skip

    lines = {
        "figure-1": line(data="MNIST", model="linear", C="1"),
        "figures-2-3": line(data="MNIST", model="2-layer NN", C="20", method="VC"),
        "figure-5": line(model="linear", sigma="1", delta="1e-05", method="VC"),
    }
    for quick in (False, True):
        tables = {("value", key): {"quick": quick, "lines": [one]} for key, one in lines.items()}
        drawn = made.figures(tables)
        assert set(drawn) == (set() if quick else {f"value-figure-{n}" for n in (1, 3, 5)})
        assert all(series.points for chart in drawn.values() for series in chart.series)


def test_every_table_without_a_full_run_has_its_reason():
    made = generator("paper_page")
    keys = [(key, name) for key, paper in made.PAPERS.items() for name in paper.tables]
    found = made.progress(made.RESULTS, keys)
    unfinished = {(one.paper, one.table) for one in found if not one.finished}
    assert set(generator("paper_left_out").REASONS) == unfinished


def test_the_heat_map_of_paper_1_has_every_cell_and_darkens_with_accuracy():
    made = generator("paper_figures")
    lines = [
        {
            "label": {"c1/c2": ratio, "rate": rate},
            "published": {"mean": mean + 1},
            "certified": {"mean": mean},
        }
        for ratio, rate, mean in (("1", "4", 80.0), ("1", "16", 90.0), ("10", "4", 60.0),
                                  ("10", "16", 75.5))
    ]  # fmt: skip
    found = made.figures({("dc-dpsgd", "figure-4"): {"quick": False, "lines": lines}})
    heat = found["dc-dpsgd-figure-4"]
    assert heat.panels["certified"] == ((80.0, 90.0), (60.0, 75.5))
    assert "certified: largest 90.0 at c1/c2 1 and rate 16" in heat.words()
    text = generator("heat_map").drawn(heat)
    numbers = re.findall(r"middle\">(\d+\.\d)</text>", text)
    shades = [float(share) for share in re.findall(r"fill-opacity=\"([\d.]+)\"", text)]
    assert numbers == ["81.0", "91.0", "61.0", "76.5", "80.0", "90.0", "60.0", "75.5"]
    ranks = [sorted(values).index for values in (shades, [float(n) for n in numbers])]
    assert [ranks[0](s) for s in shades] == [ranks[1](float(n)) for n in numbers]


def test_what_is_said_of_a_paper_follows_its_full_tables():
    made = generator("paper_conclusions")

    def line(mean, extra=None, **label):
        number = {"mean": mean, "half_width": 1.0, "seeds": 3}
        return {"label": label, "certified": number, "published": None, "extra": extra or {}}

    frequencies = [line(1.0, {"clipped by epoch": text}) for text in ("9 5 1", "2 3", "4 4")]
    times = [line(mean, method=name) for name, mean in (("SGD", 1.0), ("VC", 3.0), ("GC", 1.5))]
    mixed = [
        line(80.0 + k, method=name, nominal=at)
        for k, (name, at) in enumerate((("DP-SGD", "2"), ("mixing", "0.64"), ("mixing", "2")))
    ]
    compared = [
        line(70.0 + k, data="CIFAR-10", method=name)
        for k, name in enumerate(
            ("DP-SGD", "DC-DPSGD", *(f"DC-DPSGD, by {by}" for by in ("norm", "loss", "coin")))
        )
    ]
    tuned = [
        line(mean, method=name, nominal=at, constants="tuned")
        for name, at, mean in (("DP-SGD", "4", 88.0), ("DP-SGD", "8", 89.0), ("mixing", "4", 86.0))
    ]
    averaged = [
        line(75.0 + k, method=name, nominal="2") for k, name in enumerate(("CC", "UC", "DP-SGD"))
    ]
    averaged[0]["published"] = {"mean": 77.5, "half_width": 1.0, "seeds": 3}
    tables = {
        ("value", "figure-1"): frequencies, ("value", "table-2"): times,
        ("modelmix", "transfer"): mixed, ("dc-dpsgd", "table-2"): compared,
        ("modelmix", "table-2-features"): tuned, ("aclip", "table-3-features"): averaged,
    }  # fmt: skip

    def said(quick):
        records = {key: {"quick": quick, "lines": lines} for key, lines in tables.items()}
        papers = ("value", "modelmix", "dc-dpsgd", "aclip")
        return " ".join(text for key in papers for text in made.conclusions(key, records))

    none, full = said(True), said(False)
    assert "Figure 1, on images, has no run" in none and "paper's own tables there is no" in none
    assert "in the first on 1 of 3 lines" in full and "on 0 of 1 models" in full
    assert "80.0 per cent at epsilon 2, mixing 82.0 at the same" in full and "81.0 at 0.64" in full
    assert "layers CIFAR-10 70.0, 72.0, 73.0, 74.0 and 71.0 per cent" in full
    assert "no run" not in full
    assert "88.0 to 89.0 per cent at epsilon 4 to 8, mixing 86.0 to 86.0." in full
    assert "CC reached 75.0 to 75.0 per cent, certified, and 77.5 to 77.5 with" in full
    assert "Table 3, on CIFAR-10, has no run" in none
    digits = [{**one, "label": {**one["label"], "data": "MNIST"}} for one in compared]
    tables["dc-dpsgd", "table-2-mnist"] = digits
    assert "71.0; with CNN MNIST 70.0, 72.0, 73.0, 74.0 and 71.0 per cent" in said(False)
    partly = {("dc-dpsgd", "table-7"): {"quick": False, "lines": compared}}
    assert "own tables table-7 has a run" in made.conclusions("dc-dpsgd", partly)[2]


def test_the_page_of_the_papers_can_be_read_in_ten_minutes(files):
    assert len(files["papers.md"].splitlines()) < 600


SAVED = {
    "paper": "value", "table": "table-2", "quick": False, "seconds": 9.0,
    "processor_seconds": 4.0, "title": "A <table>", "quantity": "loss",
    "verdict": "Reproduced in 1.", "notes": ["a note"],
    "lines": [
        {
            "label": {"data": "x|y"}, "printed": "1.5", "certified_epsilon": 0.5,
            "published": {"mean": "inf", "half_width": None, "seeds": 2},
            "certified": {"mean": 2.25, "half_width": 0.5, "seeds": 3},
            "published_certifies": "inf", "extra": {"step": "7"},
        }
    ],
}  # fmt: skip


def test_the_page_of_a_paper_shows_every_number(tmp_path):
    (tmp_path / "value-table-2.json").write_text(json.dumps(SAVED))
    page = generator("paper_page").details("value", tmp_path)
    assert "| x\\|y | 1.5 | inf | inf | 2.25 ± 0.5 | 0.5 | 7 |" in page
    assert "## A &lt;table&gt;" in page
    assert "**Verdict.** Reproduced in 1." in page and "* a note" in page and "(full, 4 s)" in page
    assert "Not run yet: figure-1, figures-2-3, figure-4, figure-5." in page


def test_a_smoke_run_has_no_verdict_on_any_page(tmp_path):
    (tmp_path / "value-table-2.json").write_text(json.dumps({**SAVED, "quick": True}))
    made = generator("paper_page")
    page, overview = made.details("value", tmp_path), made.page(tmp_path)
    assert "(smoke)" in page and "Smoke run: no verdict." in page
    assert "| table-2 | smoke | 2 to 3 |" in overview
    assert "Reproduced in 1." not in page + overview


def test_every_rule_has_its_sections(files):
    for rule in all_rules().values():
        name = f"rules/{rule.__module__.rsplit('.', 1)[1]}.md"
        for section in ("When to use", "Cost", "Guarantee", "References"):
            assert f"## {section}" in files[name], f"{name} lacks {section}"


HAND = sorted((ROOT / "docs").rglob("*.md"))
FOLDERS = (
    "*.md",
    "benchmarks/*.md",
    "papers/winsor_papers/reproductions/*.md",
    "examples/gallery/*.md",
)
OUTSIDE = sorted(path for pattern in FOLDERS for path in ROOT.glob(pattern))
"""Pages that are read in the repository, where nothing that is built exists."""


def links(text):
    found = re.findall(r"\]\(([^)#]+)", text)
    return [target for target in found if not target.startswith(("http", "mailto"))]


@pytest.mark.parametrize("page", OUTSIDE, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_in_the_repository_exist(page):
    for target in links(page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_links_in_the_documentation_lead_to_committed_or_built_files(files):
    texts = {path.relative_to(ROOT / "docs").as_posix(): path.read_text() for path in HAND}
    pages = {name: text for name, text in files.items() if name.endswith(".md")}
    assert not texts.keys() & pages.keys()
    for name, text in {**texts, **pages}.items():
        for target in links(text):
            place = os.path.normpath(os.path.join("docs", os.path.dirname(name), target))
            inside = os.path.relpath(place, "docs")
            assert (ROOT / place).exists() or inside in files, f"{name} links to {target}"


def test_the_documentation_is_short_enough_to_be_read():
    """The listing of docs/ is seen at a glance; the hand-written words are limited, too."""
    assert len([path for path in HAND if path.parent.name == "docs"]) <= 20
    assert sum(len(path.read_text().split()) for path in [*HAND, *ROOT.glob("*.md")]) <= 35_000


def test_the_table_of_records_says_what_the_results_say():
    """Means over seeds of every way that was run, and whether one of them reaches the aim."""
    kept = json.loads((ROOT / "benchmarks" / "results" / "records.json").read_text())
    runs: dict[tuple[str, str], list[float]] = {}
    for key, cell in kept.items():
        parts = key.split(" | ")
        if len(parts) == 3 and parts[2].isdigit():
            runs.setdefault((parts[0], parts[1]), []).append(cell["accuracy"])
    section = (ROOT / "docs" / "features.md").read_text().split("## Records")[1]
    lines = [line for line in section.splitlines() if re.match(r"\| \w+ \| [\d.]+ \|", line)]
    rows = [line.strip("| ").split(" | ") for line in lines]
    assert len(rows) == 7
    for task, _, _, aim, *shown, verdict in rows:
        for way, text in zip(("tuned", "blind", "inside"), shown, strict=True):
            found = runs.get((task, way))
            assert text == ("-" if found is None else f"{sum(found) / len(found):.2f}"), (task, way)
        best = max(float(text) for text in shown if text != "-")
        assert verdict == (
            "-" if aim == "-" else "reached" if best >= float(aim) else "not reached"
        )


def test_a_verdict_in_short_has_its_words_and_not_its_sizes():
    brief = generator("paper_brief").brief
    whole = (
        "A ahead of B: Reproduced in 1 of 1 data sets (measured +2 points, claimed +1 to +3; "
        "smallest detectable difference 0.4 points). Certified: undecided in 2 of 2 rows (measured "
        "-1 to +1; one seed, so no difference could have been detected) (k 2 over 1 (X): "
        "undecided); the published noise certifies epsilon 3."
    )
    assert brief(whole) == (
        "A ahead of B: Reproduced. Certified: undecided in 2 of 2 rows; the published noise "
        "certifies epsilon 3."
    )
    records = generator("paper_page").read().values()
    kept = [record["verdict"] for record in records if not record["quick"]]
    assert len(kept) > 30
    for verdict in kept:
        short = brief(verdict)
        assert short.endswith(".") and "detectable" not in short and "measured" not in short
        for word in ("contradicted", "reproduced", "undecided"):
            assert (word in verdict.lower()) == (word in short.lower())


def test_the_overview_is_read_in_ten_minutes(files):
    prose = [line for line in files["papers.md"].splitlines() if not line.startswith(("|", "!["))]
    assert sum(len(line.split()) for line in prose) < 3500  # bullets and names are skimmed
