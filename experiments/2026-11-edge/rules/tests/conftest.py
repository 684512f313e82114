"""Tests of the archived rules: `pytest experiments/2026-11-edge/rules/tests`, from the root."""

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent

os.environ["WINSOR_RULES"] = str(HERE.parent)
sys.path.insert(0, str(HERE.parents[3] / "tests" / "support"))

from winsor import rules  # noqa: E402

rules.all_rules()  # adds the folder to the package `winsor.rules`
