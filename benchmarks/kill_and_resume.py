"""Kill -9 at random moments, resume, and compare with a run that was never interrupted.

    .venv/bin/python benchmarks/kill_and_resume.py --kills 100

Each trial takes a rule, an optimiser, a schedule and a mechanism, trains a small network with
dropout in fragments, is killed by SIGKILL at a random step (before or after its checkpoint), and is
resumed from the last checkpoint. The weights must be equal bit by bit, and the ledger must hold as
many entries as the uninterrupted run: nothing lost, nothing paid twice. Writes
benchmarks/results/kill_and_resume.json.
"""

from __future__ import annotations

import argparse
import itertools
import random
import subprocess
import sys
import tempfile
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from saving import save

SCRIPT = textwrap.dedent(
    """
    import os, sys, torch
    from torch import nn
    from torch.nn import functional as F
    from torch.utils.data import TensorDataset
    import winsor
    from winsor import rules

    folder, kill_at, rule, optimiser, schedule, mechanism = sys.argv[1:]
    torch.set_num_threads(1)
    x = torch.randn(96, 5, generator=torch.Generator().manual_seed(0))
    data = TensorDataset(x, (x[:, 0] > 0).long())
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.2), nn.Linear(8, 2))
    plain = mechanism == "modelmix"
    optimizer = {
        "sgd": lambda p: torch.optim.SGD(p, lr=0.3),
        "momentum": lambda p: torch.optim.SGD(p, lr=0.3, momentum=0 if plain else 0.9),
        "adam": lambda p: torch.optim.SGD(p, lr=0.3) if plain else torch.optim.Adam(p, lr=0.05),
    }[optimiser](model.parameters())
    scheduler = {
        "none": lambda o: None,
        "step": lambda o: torch.optim.lr_scheduler.StepLR(o, 3, 0.5),
        "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 14),
    }[schedule](optimizer)
    if plain:
        rule = "flat"
    chosen = {
        "flat": rules.Flat(1.0), "quantile": rules.Quantile(1.0), "automatic": rules.Automatic(1.0),
        "per layer": rules.PerLayer(1.0, joint=True), "averaged": rules.Averaged(1.0),
        "microbatch": rules.Microbatch(1.0, size=2), "dc": rules.Discriminative(1.0, 0.1),
    }[rule]
    private = winsor.make_private(
        model=model, optimizer=optimizer, dataset=data, rule=chosen, noise_multiplier=1.0,
        delta=1e-3, steps=14, batch_size=16, ledger=f"{folder}/ledger.jsonl", seed=7,
        max_physical_batch_size=7, scheduler=scheduler, resume=True,
        mechanism=winsor.ModelMix(0.2) if plain else None,
    )
    path = f"{folder}/checkpoint.pt"
    if os.path.exists(path):
        saved = torch.load(path, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        if scheduler is not None:
            scheduler.load_state_dict(saved["scheduler"])
        private.load_state_dict(saved["private"])
    for batch in private.batches():
        losses = F.cross_entropy(model(batch[0]), batch[1], reduction="none")
        done = private.step(losses)
        if private.steps_done == int(kill_at) and done:
            os.kill(os.getpid(), 9)
        if done and private.steps_done % 4 == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(),
                     "private": private.state_dict()}
            if scheduler is not None:
                state["scheduler"] = scheduler.state_dict()
            torch.save(state, path + ".tmp")
            os.replace(path + ".tmp", path)
    print(len(private.ledger), private.spent().epsilon)
    torch.save(model.state_dict(), f"{folder}/final.pt")
    """
)
RULES = ("flat", "quantile", "automatic", "per layer", "averaged", "microbatch", "dc")
WAYS = [
    *itertools.product(
        RULES, ("sgd", "momentum", "adam"), ("none", "step", "cosine"), ("gaussian",)
    ),
    *itertools.product(("flat",), ("sgd",), ("none", "step"), ("modelmix",)),
]


def run(folder: str, kill_at: int, way: tuple[str, ...]) -> str:
    command = [sys.executable, "-c", SCRIPT, folder, str(kill_at), *way]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode not in (0, -9):
        raise RuntimeError(done.stderr[-1500:])
    return done.stdout.strip()


def trial(number: int) -> dict[str, Any]:
    chance = random.Random(number)
    way = WAYS[number % len(WAYS)] if number >= 4 else WAYS[-1 - number % 2]
    kills = sorted(chance.sample(range(1, 14), chance.choice((1, 2))))
    with tempfile.TemporaryDirectory() as whole, tempfile.TemporaryDirectory() as broken:
        expected = run(whole, -1, way)
        for kill in kills:
            run(broken, kill, way)
        found = run(broken, -1, way)
        one = torch.load(Path(whole, "final.pt"), weights_only=True)
        two = torch.load(Path(broken, "final.pt"), weights_only=True)
    equal = all(torch.equal(one[name], two[name]) for name in one)
    return {"way": way, "kills": kills, "bit_equal": equal, "same_account": expected == found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    options = parser.parse_args()
    with ThreadPoolExecutor(2) as pool:
        rows = list(pool.map(trial, range(options.kills)))
    good = sum(row["bit_equal"] and row["same_account"] for row in rows)
    print(f"{good} of {len(rows)} resumed bit-equal with the same account")
    bad = [row for row in rows if not (row["bit_equal"] and row["same_account"])]
    for row in bad:
        print(row)
    save("kill_and_resume", {"trials": len(rows), "good": good, "bad": bad})


if __name__ == "__main__":
    main()
