"""winsor where PyTorch is not installed: what works, and how the rest says what is missing.

Every test runs in a process that cannot import torch. `make test-light` runs this file, and the
tests of what it promises, in an environment that does not have it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BLOCKED = """
import sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "winsor_papers", "selfaudit"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NoTorch())
"""


def without_torch(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run ``code`` in a process that has neither torch nor the papers."""
    words = [sys.executable, "-c", BLOCKED + code, *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True)


def winsor(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Call the command line there."""
    return without_torch("from winsor.app.commands.main import main\nmain()", *arguments)


# ---------------------------------------------------------------------------------- what works


@pytest.mark.parametrize(
    "module",
    [
        "winsor",
        "winsor.core",
        "winsor.core.accounting",
        "winsor.core.ledger.ledger",
        "winsor.core.sampling.samplers",
        "winsor.planning.plan",
        "winsor.audit",
        "winsor.tables",
        "winsor.tails",
        "winsor.tuning",
        "winsor.rules",
        "winsor.charts",
        "winsor.app.runs.config",
        "winsor.app.runs.directory",
        "winsor.app.runs.verifying",
        "winsor.app.tuning.directory",
        "winsor.app.report.page",
        "winsor.app.commands.audit",
        "winsor.app.commands.plan",
        "winsor.app.commands.tails",
        "winsor.app.commands.train",
    ],
)
def test_this_can_be_imported(module):
    done = without_torch(f"import {module}")
    assert (done.returncode, done.stderr) == (0, "")


def test_winsor_plan_computes():
    done = winsor(
        *("plan", "--n", 1000, "--batch-size", 100, "--epochs", 2, "--epsilon", 1),
        *("--delta", 1e-5, "--json"),
    )
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert 0.99 < plan["epsilon"] <= 1 and plan["noise_multiplier"] > 1


FINISHED = """
from pathlib import Path
from dp_accounting.dp_event import GaussianDpEvent, PoissonSampledDpEvent
from tiny_runs import table
from winsor.app.runs.config import from_table
from winsor.app.runs.directory import RunDirectory
from winsor.core.contract import Neighbouring
from winsor.core.ledger.guarantee import spent_by
from winsor.core.ledger.ledger import Ledger

run = RunDirectory(sys.argv[1])
run.create(from_table(table()))
relation = Neighbouring.ADD_OR_REMOVE_ONE
header = {
    "rule": "Flat(max_grad_norm=1.0)", "mechanism": "Gaussian", "noise_multiplier": 1.5,
    "sampler": "Poisson", "n": 200, "rate": 0.2, "delta": 1e-3, "relation": relation.value,
}
with_noise = PoissonSampledDpEvent(0.2, GaussianDpEvent(1.5))
ledger = Ledger(header, run.ledger)
run.bind(ledger)
ledger.record_many("0f" * 8, with_noise, 12)
run.seal("model.pt", b"weights")
result = {
    "name": "made", "stopped": "planned steps done", "rows": 200, "held_out": {}, "seconds": 1.0,
    "held_out_rows": 0, "steps": 12, "noise_multiplier": 1.5, "delta": 1e-3,
    "relation": relation.value,
    "epsilon": spent_by(ledger.history(), 1e-3, relation).epsilon,
}
run.seal_result(result)
"""


@pytest.fixture
def finished(tmp_path):
    """The directory of a network that was trained elsewhere: only its checkpoint needs torch."""
    support = f"sys.path.insert(0, {str(Path(__file__).parent / 'support')!r})\n"
    made = without_torch(support + FINISHED, tmp_path / "run")
    assert made.returncode == 0, made.stderr
    return tmp_path / "run"


def test_winsor_verify_checks_a_run(finished):
    done = winsor("verify", finished)
    assert done.returncode == 0 and "run: agrees. 12 releases" in done.stdout, done
    (finished / "model.pt").write_bytes(b"other weights")
    done = winsor("verify", finished)
    assert done.returncode == 1 and "model.pt is not the file that the ledger names" in done.stdout


def test_winsor_report_draws_a_run(finished):
    """What the rule released beside gradients is the one thing it cannot say."""
    done = winsor("report", finished)
    assert done.returncode == 0 and "differentially private" in done.stdout, done
    (run,) = json.loads((finished / "report.json").read_text())["runs"]
    assert any("not known here" in item for item in run["statement"]["covered"])
    assert "<svg" in (finished / "report.html").read_text()


TABLES = """
import numpy as np
from winsor import metrics, tables

rng = np.random.default_rng(0)
x = rng.standard_normal((2000, 3))
label, target = (x[:, 0] > 0).astype(int), x @ [1.0, -1.0, 0.5]
mean = tables.clipped_mean(x, epsilon=1.0, delta=1e-5, radius=4.0)
assert mean.guarantee.epsilon <= 1
assert len(tables.private_bins(x, epsilon=1.0, delta=1e-5).edges) == 3
for estimator, y in [
    (tables.PrivateLogisticRegression(epsilon=1.0, delta=1e-5), label),
    (tables.PrivateRidge(epsilon=1.0, delta=1e-5), target),
    (tables.PrivateAdditiveClassifier(epsilon=1.0, delta=1e-5), label),
]:
    fitted = estimator.fit(x, y)
    assert fitted.guarantee_.epsilon <= 1.0, fitted
found = metrics.measure(
    metrics.Accuracy(), targets=label, predictions=label, epsilon=1.0, delta=1e-5
)
assert found.guarantee.epsilon <= 1
"""


def test_tables_means_and_metrics_are_released():
    done = without_torch(TABLES)
    assert done.returncode == 0, done.stderr


# ------------------------------------------------------------------------------- what is missing

INSTALL = "needs PyTorch. It is not installed. Install it with: pip install 'winsor[torch]'."


@pytest.mark.parametrize(
    "name", ["make_private", "fit", "PrivateTraining", "Ball", "gradients", "rules.Flat"]
)
def test_networks_say_how_to_install_torch(name):
    code = f"""
import winsor
from winsor.planning.optional import TorchMissing
from winsor.core.contract import WinsorError
try:
    winsor.{name}
except WinsorError as error:
    assert isinstance(error, TorchMissing) and isinstance(error, ImportError)
    print(error)
"""
    done = without_torch(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"winsor.{name} {INSTALL}"


def test_commands_that_train_say_how_to_install_torch(tmp_path):
    root = Path(__file__).parent.parent
    done = winsor("train", root / "examples" / "digits.toml", "--run", tmp_path / "run")
    assert done.returncode == 2
    assert done.stderr.strip() == f"winsor: error: winsor train {INSTALL}"
    assert not (tmp_path / "run").exists()


def test_what_is_in_the_papers_says_what_is_missing():
    done = winsor("reproduce", "sco")
    assert done.returncode == 2
    said = (
        "winsor reproduce needs the package winsor_papers",  # its command is known, and blocked
        "winsor reproduce must find winsor-papers, which is not installed",
    )
    assert any(sentence in done.stderr for sentence in said), done.stderr
