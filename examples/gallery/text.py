"""A language model, privately: the next character of restaurant reviews, and a real one in full.

    python examples/gallery/text.py [--full] [--out DIR] [--data DIR]

The short form trains a small GPT of ours on a few hundred made-up sentences: it shows the shape of
the loop, one loss per sentence, not a good model. The full form fine-tunes SmolLM2-135M with LoRA
on the 42,061 descriptions of E2E at epsilon 8, and asks it, the model as it came and one trained
without privacy for the same sentences. It is examples/private_llm.py in its smallest sensible size;
that file says what to install, and does more in hours.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import torch
from options import asked_for
from page import Ranked, Shown
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import winsor
from winsor.charts import Chart, Series
from winsor.models import SmallGPT

LENGTH, ROWS = 32, 400
CHANGES = (
    "Replace sentences() by your tokenised rows, of one length; one row is one person.",
    "A person with many texts: unit= of make_private protects the person.",
    "A model of Hugging Face: winsor.integrations.transformers.PrivateTrainer.",
    "The loss on training rows is private; look at public rows, as here.",
)

FULL = (
    *("--steps", "24", "--batch", "24", "--physical", "4", "--rate", "0.005", "--epsilon", "8"),
    *("--looked-at", "100", "--prompts", "60"),
)


def sentences(count: int, seed: int) -> Tensor:
    """Characters of made-up reviews as numbers, (count, LENGTH)."""
    draw = torch.Generator().manual_seed(seed)
    names, goods, foods = (
        ("Aria", "Blue Fox", "Cibo"),
        ("good", "cheap", "slow"),
        ("pizza", "sushi"),
    )
    rows = []
    for _ in range(count):
        a, b, c = (int(torch.randint(0, k, (), generator=draw)) for k in (3, 3, 2))
        text = f"{names[a]} has {goods[b]} {foods[c]}."
        rows.append([ord(letter) for letter in text.ljust(LENGTH)[:LENGTH]])
    return torch.tensor(rows)


def losses(model: torch.nn.Module, rows: Tensor) -> Tensor:
    """One value per sentence: the mean over its characters."""
    logits = model(rows[:, :-1])
    each = F.cross_entropy(logits.transpose(1, 2), rows[:, 1:], reduction="none")
    return each.mean(1)


def short(out: Path) -> None:
    torch.manual_seed(0)
    public = sentences(64, seed=1)
    model = SmallGPT(128, LENGTH, layers=1, heads=2, width=32)
    private = winsor.make_private(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=0.01),
        dataset=TensorDataset(sentences(ROWS, seed=0)),
        rule=winsor.rules.Automatic(1.0),
        epsilon=8.0,
        delta=1e-4,
        steps=40,
        batch_size=100,
    )
    curve = []
    for (rows,) in private.batches():
        private.step(losses(model, rows))
        if private.steps_done % 8 == 0:
            with torch.no_grad():
                curve.append((float(private.steps_done), float(losses(model, public).mean())))
    chart = Chart(
        key="loss",
        title="Loss on public sentences",
        x_label="step",
        y_label="nats per character",
        series=(Series("public rows", tuple(curve), markers=True),),
        from_zero=True,
    )
    spent = private.spent()
    results = [
        ("private sentences", f"{ROWS}"),
        ("loss on public ones", f"{curve[0][1]:.2f} after 8 steps, {curve[-1][1]:.2f} at the end"),
    ]
    Shown("A language model", f"The training: {spent}.", results, CHANGES, [chart], spent).write(
        out
    )


def full(data: Path, out: Path) -> None:
    """A real model, each run in a process of its own; what is finished is not done again."""
    script = Path(__file__).resolve().parents[1] / "private_llm.py"
    subprocess.run([sys.executable, script, data, "--out", out, *FULL], check=True)
    names = {"zero-shot": "as it came", "epsilon-8": "private", "not-private": "not private"}
    runs = {said: json.loads((out / f"{name}.json").read_text()) for name, said in names.items()}
    results = [
        (said, f"loss {run['loss']:.2f} per token, BLEU {run['bleu']:.2f}")
        for said, run in runs.items()
    ]
    for place, first in enumerate(runs["private"]["sentences"][:2]):
        results.append(("asked for", first["prompt"]))
        results += [(said, run["sentences"][place]["said"]) for said, run in runs.items()]
    chart = Ranked(
        title="Loss on rows that nobody trained on",
        axis="nats per token",
        values=[(said, run["loss"], None) for said, run in runs.items()],
    )
    promise = f"The training: {runs['private']['spent']}."
    Shown("A language model", promise, results, CHANGES, ranked=[chart]).write(out)


def main(arguments: list[str] | None = None) -> None:
    options = asked_for(__doc__, "text", arguments)
    if options.full:
        full(options.data, options.out)
    else:
        short(options.out)


if __name__ == "__main__":
    main()
