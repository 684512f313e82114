"""diffprivlib's mean and logistic regression, in an environment of their own.

diffprivlib 0.6.6 does not import with scikit-learn 1.9 (and its logistic regression needs an older
one still), so `baseline` runs this same file under another interpreter that has scikit-learn 1.5,
built once in ~/.cache/winsor. Data travel through a temporary .npz file, answers as JSON: one run
of a benchmark, two interpreters.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

import numpy as np

HOME = Path.home() / ".cache" / "winsor" / "diffprivlib-0.6.6"
PACKAGES = ("diffprivlib==0.6.6", "scikit-learn==1.5.2")


def interpreter() -> Path:
    """Python with diffprivlib; installs it on first use."""
    python = HOME / "bin" / "python"
    if not (HOME / "ready").exists():
        venv.create(HOME, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *PACKAGES], check=True)
        (HOME / "ready").touch()
    return python


def baseline(task: str, arrays: dict[str, np.ndarray], **options: Any) -> Any:
    """Run ``task`` ("mean" or "logistic") on ``arrays`` there, and return its answer."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "data.npz"
        np.savez(path, **arrays)
        command = [interpreter(), __file__, task, str(path), json.dumps(options)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def _mean(data: Any, epsilon: float, bound: float, seeds: int) -> list[list[float]]:
    """Means of each row of data["x"] (one dataset per row), ``seeds`` of each, all independent."""
    from diffprivlib.tools import mean

    return [
        [
            float(mean(row, epsilon=epsilon, bounds=(-bound, bound), random_state=seed))
            for seed in range(number * seeds, (number + 1) * seeds)
        ]
        for number, row in enumerate(data["x"])
    ]


def _logistic(data: Any, epsilon: float, data_norm: float, seeds: int) -> list[float]:
    """Test accuracy of each seed."""
    from diffprivlib.models import LogisticRegression

    scores = []
    for seed in range(seeds):
        model = LogisticRegression(
            epsilon=epsilon, data_norm=data_norm, max_iter=1000, random_state=seed
        )
        model.fit(data["x_train"], data["y_train"])
        scores.append(float(model.score(data["x_test"], data["y_test"])))
    return scores


if __name__ == "__main__":
    task, path, options = sys.argv[1:]
    run = {"mean": _mean, "logistic": _logistic}[task]
    print(json.dumps(run(np.load(path), **json.loads(options))))
