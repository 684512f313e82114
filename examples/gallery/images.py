"""Images, privately: a linear model on public features, by `winsor train`, with its report.

    python examples/gallery/images.py [--full] [--out DIR] [--data DIR]

The short form is the digits of scikit-learn, pixels as they are, at epsilon 4. The full form is
Fashion-MNIST with scattering features (needs kymatio, and fashion_mnist.npz in --data), at
epsilon 3. Features are a fixed function of the row alone, so they cost no privacy.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tomli_w
from options import asked_for

from winsor.cli.main import main as winsor

CHANGES = (
    "data.source: your own .npz with x and y, a CSV, or package.module:dataset.",
    "data.classes: how many; data.divide: a constant you know, never one computed from the rows.",
    "features: none, oriented_gradients, scattering or efficientnet_lite0.",
    "budget: your epsilon, and a delta well below one over the number of rows.",
)
SHORT: dict[str, Any] = {
    "name": "digits",
    "data": {"source": "digits", "held_out_fraction": 0.3},
    "model": {"name": "linear"},
    "rule": {"name": "flat", "max_grad_norm": 0.5},
    "optimizer": {"name": "sgd", "lr": 2.0, "momentum": 0.9},
    "budget": {"epsilon": 4.0, "delta": 1e-4},
    "training": {"epochs": 15, "batch_size": 256},
    "record": {"evaluations": 8},
}


def settings(full: bool, data: Path) -> dict[str, Any]:
    if not full:
        return SHORT
    return {
        **SHORT,
        "name": "fashion-mnist",
        "data": {
            "source": str(data / "fashion_mnist.npz"),
            "classes": 10,
            "held_out_fraction": 0.15,
            "inputs": "x_train",
            "target": "y_train",
            "shape": [1, 28, 28],
            "divide": 255.0,
        },
        "features": {"name": "scattering"},
        "rule": {"name": "flat", "max_grad_norm": 0.1},
        "optimizer": {"name": "sgd", "lr": 4.0, "momentum": 0.9},
        "budget": {"epsilon": 3.0, "delta": 1e-5},
        "training": {"epochs": 15, "batch_size": 4096},
    }


def main(arguments: list[str] | None = None) -> None:
    options = asked_for(__doc__, "images", arguments)
    table = settings(options.full, options.data)
    options.out.mkdir(parents=True, exist_ok=True)
    config = options.out / f"{table['name']}.toml"
    config.write_text(tomli_w.dumps(table), encoding="utf-8")
    run = options.out / table["name"]
    for words in (["train", str(config), "--run", str(run), "--quiet"], ["report", str(run)]):
        try:
            winsor(words)
        except SystemExit as end:
            if end.code:
                raise
    print("For your own data:", *CHANGES, sep="\n  ")


if __name__ == "__main__":
    main()
