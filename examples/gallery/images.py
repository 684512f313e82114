"""Images, privately: a linear model on public features, by `winsor train`, with its report.

    python examples/gallery/images.py [--full] [--out DIR] [--data DIR]

The short form is the digits of scikit-learn, pixels as they are, at epsilon 4. The full form is
examples/fashion_mnist.toml, the record of docs/features.md: Fashion-MNIST with scattering features
at epsilon 3 (needs kymatio, and fashion_mnist.npz in --data). Features are a fixed function of the
row alone, so they cost no privacy; their moments, by which they are decorrelated, are released
first, within the same epsilon. The threshold and the rate were found on public rows, outside
epsilon; for your own rows, features without such a release, `winsor tune` finds them within it.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import tomli_w
from options import asked_for
from page import keep

from winsor.app.commands.main import main as winsor

RECORD = Path(__file__).resolve().parents[1] / "fashion_mnist.toml"
CHANGES = (
    "data.source: your own .npz with x and y, a CSV, or package.module:dataset.",
    "data.classes: how many; data.divide: a constant you know, never one computed from the rows.",
    "features: none, oriented_gradients, scattering or efficientnet_lite0; and [[prepare]].",
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
    table = tomllib.loads(RECORD.read_text(encoding="utf-8"))
    table["data"]["source"] = str((data / "fashion_mnist.npz").resolve())
    return table


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
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    keep(options.out, result["guarantee"], [(k, f"{v:.4f}") for k, v in result["held_out"].items()])
    print("For your own data:", *CHANGES, sep="\n  ")


if __name__ == "__main__":
    main()
