"""Every experiment says what was asked and found; its code stays provenance."""

from __future__ import annotations

import ast
import json
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXPERIMENTS = ROOT / "experiments"
FOLDERS = sorted(path for path in EXPERIMENTS.iterdir() if path.is_dir())
SECTIONS = [
    "Question", "Registered beforehand", "Answer", "Not reached", "Ran on", "Command",
]  # fmt: skip
OUTSIDE = ("winsor", "tests", "benchmarks", "docs", "examples", "reproductions")
MOST_LINES = 14
"""Of an answer: about ten, and a table needs two for its head."""

each_folder = pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)


def sections(folder: Path) -> dict[str, str]:
    """The sections of a folder's README by their titles, in order."""
    _, *parts = re.split(r"^## ", (folder / "README.md").read_text(), flags=re.MULTILINE)
    return {part.partition("\n")[0]: part.partition("\n")[2].strip() for part in parts}


@pytest.fixture(scope="module")
def history() -> list[str] | None:
    """Every commit before this one; None where they are not here (a shallow clone, an archive)."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True).stdout

    if git("rev-parse", "--is-shallow-repository").strip() != "false":
        return None
    return git("rev-list", "HEAD").split()


@each_folder
def test_an_experiment_has_its_question_its_answer_and_its_scripts(folder):
    assert re.fullmatch(r"\d{4}-\d\d-[a-z0-9-]+", folder.name)
    assert (folder / "README.md").read_text().startswith("# ")
    found = sections(folder)
    assert list(found) == SECTIONS and all(found.values())
    answer = [line for line in found["Answer"].splitlines() if line]
    assert len(answer) <= MOST_LINES
    assert re.search(r"\d", found["Answer"]), "an answer has figures"
    scripts = [path.name for path in folder.glob("*.py")]
    named = re.findall(r"benchmarks/(\w+\.py)", found["Command"])
    assert scripts and named and set(named) <= set(scripts)


@each_folder
def test_its_commits_are_in_the_history(folder, history):
    found = sections(folder)
    pinned = re.search(r"Pinned commit: `([0-9a-f]{40})`", found["Ran on"])
    assert pinned, "write 'Pinned commit: `...`' with all forty digits"
    if history is None:
        return
    assert pinned[1] in history, "pin a commit of this history"
    text = re.sub(r"\s+", " ", found["Registered beforehand"] + "\n" + found["Ran on"])
    lost = set(re.findall(r"`([0-9a-f]{7,40})`[^.`]* is not in this history", text))
    named = set(re.findall(r"`([0-9a-f]{7,40})\+?`", text))
    for commit in named - lost:
        assert any(known.startswith(commit) for known in history), commit
    for commit in lost:
        assert not any(known.startswith(commit) for known in history), commit


@each_folder
def test_its_readme_says_which_commit_wrote_each_result(folder):
    ran = sections(folder)["Ran on"]
    for path in sorted((folder / "results").glob("*.json")):
        commit = json.loads(path.read_text())["made_by"]["commit"]
        (row,) = [line for line in ran.splitlines() if f"`results/{path.name}`" in line]
        assert row.endswith(f"| `{commit}` |")
    for name in re.findall(r"`(results/[^`*]+|benchmarks/results/[^`*]+\.json)`", ran):
        assert (ROOT / name).exists() or (folder / name).exists(), name


@pytest.mark.parametrize(
    "path", sorted(EXPERIMENTS.rglob("*.py")), ids=lambda path: str(path.relative_to(EXPERIMENTS))
)
def test_its_scripts_compile(path):
    compile(path.read_text(), str(path), "exec")


def imported(path: Path) -> set[str]:
    """The first names of all absolute imports of a file."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found


def test_nothing_outside_imports_an_experiment():
    scripts = {path.stem for path in EXPERIMENTS.rglob("*.py")}
    for place in OUTSIDE:
        for path in sorted((ROOT / place).rglob("*.py")):
            names = imported(path)
            assert "experiments" not in names, path
            beside = {other.stem for other in path.parent.glob("*.py")}
            assert not (names & scripts) - beside, path


def test_benchmarks_stay_small():
    """What is run again has at most 6,000 lines; what answered one question belongs here."""
    scripts = (ROOT / "benchmarks").glob("*.py")
    assert sum(len(path.read_text().splitlines()) for path in scripts) <= 6000
