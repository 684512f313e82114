"""A newcomer writes one file in a folder of their own; everything finds the statistic."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent

STATISTIC = '''
"""Mean of the signs of a column."""

from dataclasses import dataclass

import numpy as np

from winsor.core.contract import Bounded, Sensitivity
from winsor.tables.statistics import Statistic


@dataclass(frozen=True)
class Signs(Statistic):
    """Mean of the signs of column ``column``."""

    column: int = 0
    columns = 2

    def bounded(self, rows):
        signs = np.nan_to_num(np.sign(rows[:, self.column]))
        claim = Sensitivity.per_sample(1.0, "a sign is at most 1")
        return Bounded(signs.sum(keepdims=True), claim)

    def result(self, released, n):
        return float(released[0] / n)


EXAMPLES = (Signs(), Signs(1))
'''.lstrip()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("my_statistics")
    (folder / "signs.py").write_text(STATISTIC)
    return folder


def run(folder: Path, *arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "WINSOR_STATISTICS": str(folder), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True, text=True, check=False, cwd=cwd, env=environment,
    )  # fmt: skip


def succeed(folder: Path, *arguments: str, cwd: Path = ROOT) -> str:
    done = run(folder, *arguments, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_battery_finds_it(folder):
    battery = ["-m", "pytest", "-q", "-p", "no:cacheprovider"]
    out = succeed(folder, *battery, "tests/tables/test_statistic_battery.py", "-k", "Signs")
    assert "12 passed" in out and " failed" not in out


def test_the_command_line_finds_it(folder, tmp_path):
    np.save(tmp_path / "rows.npy", np.ones((2000, 2)))
    out = succeed(folder, "-m", "winsor", "statistic", "Signs", str(tmp_path / "rows.npy"),
                  "--epsilon", "1")  # fmt: skip
    assert out.startswith("Signs(column=0): ") and "noise" in out
    assert abs(float(out.split()[1]) - 1) < 0.1


def test_the_audit_finds_it_and_other_processes_run_it(folder):
    command = ["-m", "winsor", "audit", "mechanisms", "--quick", "--only", "Signs", "--json"]
    found = json.loads(succeed(folder, *command))
    assert len(found["audits"]) == 4, "two examples under both relations"
    assert found["violated"] == 0


def test_the_documentation_finds_it(folder):
    code = "import sys; sys.path.insert(0, 'docs'); import statistic_pages as s; print(s.page())"
    out = succeed(folder, "-c", code)
    assert "## Signs" in out and "a sign is at most 1" in out


def test_an_installed_package_may_bring_a_statistic(tmp_path):
    (tmp_path / "my_package.py").write_text(STATISTIC)
    metadata = tmp_path / "my_package-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[winsor.statistics]\nsigns = my_package\n")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r});"
        "from winsor.tables.statistics import by_name; print(by_name('Signs'))"
    )
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "Signs(column=0)" in succeed(empty, "-c", code)


ASK = ["-c", "from winsor.tables.statistics import all_statistics; all_statistics()"]


def test_names_that_are_taken_and_folders_that_are_none_are_refused(tmp_path):
    (tmp_path / "one.py").write_text(STATISTIC)
    (tmp_path / "two.py").write_text(STATISTIC)
    assert "statistics must have names of their own" in run(tmp_path, *ASK).stderr
    assert "WINSOR_STATISTICS must name folders" in run(tmp_path / "missing", *ASK).stderr
