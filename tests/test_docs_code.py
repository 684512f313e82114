"""Every Python block of the documentation runs, page by page, as printed."""

from __future__ import annotations

import json
import re
import sys
import types

import documents
import numpy as np
import peer_code
import pytest
import torch

ELSEWHERE = {  # with models of those libraries
    "transformers": "tests/integrations/test_docs.py",
    "lightning": "tests/integrations/test_docs.py",
}
LIBRARIES = documents.ROOT / "docs" / peer_code.LIBRARIES
FOLDERS = ("docs/*.md", "docs/adr/*.md", "benchmarks/README.md", "examples/gallery/*.md")
PAGES = [
    path
    for pattern in FOLDERS
    for path in sorted(documents.ROOT.glob(pattern))
    if documents.count(path)
]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_the_blocks_of_a_page_run_one_after_the_other(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002  a page may use scikit-learn's default
    name = "page_" + re.sub(r"\W", "_", page.stem)
    module = types.ModuleType(name)  # one that can be found: classes and functions may be pickled
    monkeypatch.setitem(sys.modules, name, module)
    exec(compile(documents.program(page), str(page), "exec"), module.__dict__)


@pytest.mark.parametrize("name", ELSEWHERE)
def test_blocks_that_run_elsewhere_do(name):
    assert f'run_blocks("{name}"' in (documents.ROOT / ELSEWHERE[name]).read_text()
    assert documents.count(LIBRARIES, f"{documents.PYTHON} {name}") >= 2


def test_few_blocks_are_not_run_and_none_by_accident():
    every = [path for pattern in FOLDERS for path in documents.ROOT.glob(pattern)]
    assert set(peer_code.PAGES) == set(peer_code.PEERS)
    for path in every:
        found = re.findall(r"^```py(.*)", path.read_text(), re.MULTILINE)
        peers = {name for name, page in peer_code.PAGES.items() if page == path.name}
        others = {f"thon peer {name}" for name in peers}
        if path == LIBRARIES:
            others |= {f"thon {name}" for name in ELSEWHERE}
        assert set(found) - {"thon"} == others, f"another fence in {path.name}"
        assert found.count("thon") == documents.count(path)


@pytest.mark.parametrize("name", peer_code.PEERS)
def test_code_of_another_library_is_the_code_that_was_run(name):
    kept = documents.ROOT / "benchmarks" / "results" / f"{peer_code.RESULT}.json"
    ran = json.loads(kept.read_text())["peers"][name]
    program = peer_code.peer_program(name)
    assert ran["digest"] == peer_code.digest(program), "run docs/peer_code.py again"
    assert ran["versions"] and ran["printed"]


def test_a_program_keeps_the_lines_of_its_page(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# A\n\n<!-- setup\nx = 1\n-->\n\n```python\ny = x\n```\n\n```python peer a\nno(\n```\n"
    )
    assert documents.program(page).splitlines() == [
        "",
        "",
        "",
        "x = 1",
        "",
        "",
        "",
        "y = x",
        *[""] * 5,
    ]
    assert documents.count(page) == documents.count(page, f"{documents.PEER} a") == 1
