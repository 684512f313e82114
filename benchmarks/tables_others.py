"""DP-EBM (interpret) and diffprivlib, in an environment of their own.

Both want an older scikit-learn than winsor; this file runs under another interpreter, built once in
~/.cache/winsor. Data travel through a temporary .npz file, scores as JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import venv
import warnings
from pathlib import Path
from typing import Any

import numpy as np

HOME = Path.home() / ".cache" / "winsor" / "tables-others"
PACKAGES = (
    "diffprivlib==0.6.6",
    "scikit-learn==1.5.2",
    "interpret-core==0.6.16",
    "joblib",
    "pandas<3",
)


def interpreter() -> Path:
    """Python with both; installs them on first use."""
    python = HOME / "bin" / "python"
    if not (HOME / "ready").exists():
        venv.create(HOME, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *PACKAGES], check=True)
        (HOME / "ready").touch()
    return python


def others(task: str, arrays: dict[str, np.ndarray], **options: Any) -> list[float]:
    """Scores of ``task`` ("ebm" or "diffprivlib") on ``arrays``, one per seed."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "data.npz"
        np.savez(path, **arrays)
        command = [interpreter(), __file__, task, str(path), json.dumps(options)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    scores: list[float] = json.loads(done.stdout.splitlines()[-1])
    return scores


def _score(predicted: np.ndarray, data: Any, classes: bool) -> float:
    truth = data["y_test"]
    if classes:
        return float(np.mean((predicted > 0.5) == truth))
    return float(1 - np.mean((truth - predicted) ** 2) / truth.var())


def _ebm(data: Any, epsilon: float, delta: float, classes: bool, seeds: list[int]) -> list[float]:
    from interpret.privacy import DPExplainableBoostingClassifier, DPExplainableBoostingRegressor

    low, high = data["bounds"].T
    ranges = {
        "feature_types": ["continuous"] * len(low),
        "privacy_bounds": dict(enumerate(zip(low, high, strict=True))),
    }
    scores = []
    for seed in seeds:
        if classes:
            model = DPExplainableBoostingClassifier(
                epsilon=epsilon, delta=delta, random_state=seed, n_jobs=1, **ranges
            ).fit(data["x"], data["y"].astype(int))
            scores.append(_score(model.predict_proba(data["x_test"])[:, 1], data, True))
            continue
        model = DPExplainableBoostingRegressor(
            epsilon=epsilon,
            delta=delta,
            random_state=seed,
            n_jobs=1,
            privacy_target_min=float(data["target"][0]),
            privacy_target_max=float(data["target"][1]),
            **ranges,
        ).fit(data["x"], data["y"])
        scores.append(_score(model.predict(data["x_test"]), data, False))
    return scores


def _diffprivlib(
    data: Any, epsilon: float, delta: float, classes: bool, seeds: list[int]
) -> list[float]:
    """Pure epsilon: its estimators take no delta."""
    from diffprivlib.models import LinearRegression, LogisticRegression

    low, high = data["bounds"].T
    norm = float(data["attributes"]) ** 0.5
    x, x_test = ((data[name] - low) / (high - low) for name in ("x", "x_test"))
    scores = []
    for seed in seeds:
        if classes:
            model = LogisticRegression(
                epsilon=epsilon,
                data_norm=norm,
                max_iter=1000,
                random_state=seed,
            ).fit(x, data["y"].astype(int))
            scores.append(_score(model.predict_proba(x_test)[:, 1], data, True))
            continue
        model = LinearRegression(
            epsilon=epsilon,
            bounds_X=(np.zeros(len(low)), np.ones(len(low))),
            bounds_y=tuple(float(end) for end in data["target"]),
            random_state=seed,
        ).fit(x, data["y"])
        scores.append(_score(model.predict(x_test), data, False))
    return scores


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    run = {"ebm": _ebm, "diffprivlib": _diffprivlib}[sys.argv[1]]
    print(json.dumps(run(np.load(sys.argv[2]), **json.loads(sys.argv[3]))))
