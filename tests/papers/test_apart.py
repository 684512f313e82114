"""winsor without winsor-papers: what it wrote can be read, and its commands run."""

from __future__ import annotations

import json
import subprocess
import sys

from winsor.contrib.modelmix.mixed_gaussian import MixedGaussianDpEvent
from winsor.core.events.registry import event_to_json

ALONE = """
import json
import sys
from importlib import metadata

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("winsor_papers", "selfaudit"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
every = metadata.entry_points
metadata.entry_points = lambda **of: [p for p in every(**of) if p.value.startswith("winsor.")]
"""

READ = (
    ALONE
    + """
from winsor.core.events.registry import event_from_json, event_to_json
assert "winsor.contrib" not in sys.modules
data = json.loads(sys.argv[1])
event = event_from_json(data)
assert event_to_json(event) == data and "winsor.contrib" in sys.modules
"""
)

PLAN = (
    ALONE
    + """
from winsor.app.commands.main import main
main(["plan", "--n", "1000", "--batch-size", "10", "--steps", "10", "--noise-multiplier", "1",
      "--delta", "1e-5"])
"""
)


def run(program: str, *arguments: str) -> str:
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_event_of_modelmix_is_read_without_the_papers():
    event = MixedGaussianDpEvent(0.02, 0.3633, width_ratio=15.0, coordinates=25)
    run(READ, json.dumps(event_to_json(event)))


def test_a_plan_needs_no_papers_and_names_none():
    assert "promises" not in run(PLAN)
