"""What a run was made with: versions and machine, without names of people or hosts."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import sys
from typing import Any

import torch

import winsor

PACKAGES = ("torch", "numpy", "scipy", "scikit-learn", "dp-accounting")


def describe() -> dict[str, Any]:
    """One session: a start or a resumption of a run."""
    return {
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "winsor": winsor.__version__,
        "python": platform.python_version(),
        "packages": {name: importlib.metadata.version(name) for name in PACKAGES},
        "system": f"{platform.system()} {platform.machine()}",
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "command": [os.path.basename(sys.argv[0]), *sys.argv[1:]],
    }
