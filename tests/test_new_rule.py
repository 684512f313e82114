"""A newcomer writes one file of fifty lines in a folder of their own; everything finds it.

The environment variable WINSOR_RULES names the folder.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

RULE = '''
"""Smooth clipping: norms are squeezed through tanh, so that no row sits on a kink.

    w_i = C tanh(|g_i| / C) / |g_i|

When to use
-----------
Where a smooth weight helps the analysis.

Cost
----
Per-sample norms.

Guarantee
---------
|w_i g_i| = C tanh(|g_i| / C) <= C, and w_i depends on row i only.

References
----------
The newcomer's own notebook.
"""

from dataclasses import dataclass

from torch import Tensor

from winsor.gradients.view import View
from winsor.rules.rule import PerSampleRule, State, clip_weights


@dataclass(frozen=True)
class Smooth(PerSampleRule):
    """Clip each per-sample gradient to norm ``max_grad_norm``, smoothly."""

    max_grad_norm: float
    proof = "w_i depends on row i only and C tanh(|g_i| / C) <= C"

    def weights(self, view: View, state: State) -> Tensor:
        return self.weight_of_norm(view.norms())

    def weight_of_norm(self, norms: Tensor) -> Tensor:
        ratio = (norms / self.max_grad_norm).clamp(min=1e-6)
        return clip_weights(norms, self.max_grad_norm).minimum(ratio.tanh() / ratio)

    def clipped_norm(self, state: State) -> float:
        return self.max_grad_norm


EXAMPLES = (Smooth(1.0), Smooth(0.1))
'''.lstrip()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("my_rules")
    (folder / "smooth.py").write_text(RULE)
    return folder


def run(folder: Path, *arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "WINSOR_RULES": str(folder), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True, text=True, check=False, cwd=cwd, env=environment,
    )  # fmt: skip


def succeed(folder: Path, *arguments: str, cwd: Path = ROOT) -> str:
    done = run(folder, *arguments, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_is_one_file_of_fifty_lines():
    assert len(RULE.splitlines()) <= 50


def test_the_battery_finds_it(folder):
    battery = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/rules/test_battery.py"]
    out = succeed(folder, *battery, "-k", "Smooth")
    assert " passed" in out and " failed" not in out
    assert int(out.split(" passed")[0].split()[-1]) >= 15


CONFIG = """
name = "mine"
seed = 0
data = { source = "digits", held_out_fraction = 0.3 }
model = { name = "linear" }
rule = { name = "smooth", max_grad_norm = 0.5 }
optimizer = { name = "sgd", lr = 1.0 }
budget = { epsilon = 8.0, delta = 5e-4 }
training = { steps = 3, batch_size = 64 }
"""


def test_the_command_line_finds_it(folder, tmp_path):
    (tmp_path / "mine.toml").write_text(CONFIG)
    succeed(folder, "-m", "winsor", "train", "mine.toml", "--run", "mine", cwd=tmp_path)
    assert "Smooth" in (tmp_path / "mine" / "ledger.jsonl").read_text()


def test_the_audit_finds_it(folder):
    code = (
        "import json, sys; sys.path.insert(0, 'tests/support');"
        "from selfaudit.honest import honest_audits;"
        "print(json.dumps([a.name for a in honest_audits() if 'smooth' in a.name.lower()]))"
    )
    names = json.loads(succeed(folder, "-c", code))
    assert len(names) >= 2, "under both relations"


def test_the_documentation_finds_it(folder):
    code = (
        "import json, sys; sys.path.insert(0, 'docs'); import rule_pages;"
        "pages = rule_pages.pages(); print(json.dumps([pages['smooth.md'], pages['README.md']]))"
    )
    page, index = json.loads(succeed(folder, "-c", code))
    for section in ("When to use", "Cost", "Guarantee", "References"):
        assert f"## {section}" in page
    assert "`Smooth`" in index


def test_an_installed_package_may_bring_a_rule(folder, tmp_path):
    """The other way in: an entry point of the group winsor.rules."""
    (tmp_path / "my_package.py").write_text(RULE)
    metadata = tmp_path / "my_package-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[winsor.rules]\nsmooth = my_package\n")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import winsor;"
        "print(winsor.rules.Smooth(1.0), winsor.rules.by_name('smooth', max_grad_norm=2.0))"
    )
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "Smooth(max_grad_norm=1.0) Smooth(max_grad_norm=2.0)" in succeed(empty, "-c", code)


ASK = ["-c", "import winsor; winsor.rules.all_rules()"]


def test_names_that_are_taken_are_refused(tmp_path):
    (tmp_path / "flat.py").write_text(RULE)
    assert "Got ['flat']" in run(tmp_path, *ASK).stderr
    (tmp_path / "flat.py").rename(tmp_path / "my_flat.py")
    (tmp_path / "my_flat.py").write_text(RULE.replace("Smooth", "Flat"))
    assert "rules must have names of their own. Got 'Flat'" in run(tmp_path, *ASK).stderr


def test_a_folder_that_is_none_is_refused(tmp_path):
    assert "WINSOR_RULES must name folders" in run(tmp_path / "missing", *ASK).stderr
