"""Kill a run with SIGKILL at any moment; the resumed run ends as if nothing had happened."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap

import pytest
import torch

from winsor.core.contract import LedgerError
from winsor.training.saving.state import ONCE

SCRIPT = textwrap.dedent(
    """
    import os, sys, torch
    from torch import nn
    from torch.nn import functional as F
    from torch.utils.data import TensorDataset
    import winsor
    from winsor.rules import Flat

    folder, kill_at, save_every = sys.argv[1], int(sys.argv[2]), 4
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 5, generator=generator)
    data = TensorDataset(x, (x[:, 0] > 0).long())
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.2), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    private = winsor.make_private(
        model=model, optimizer=optimizer, dataset=data, rule=Flat(1.0), epsilon=3.0, delta=1e-3,
        steps=14, batch_size=16, ledger=f"{folder}/ledger.jsonl", max_physical_batch_size=7,
    )
    checkpoint = f"{folder}/checkpoint.pt"
    if os.path.exists(checkpoint):
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        private.load_state_dict(saved["private"])
    elif os.path.exists(f"{folder}/start.pt"):
        private.load_state_dict(torch.load(f"{folder}/start.pt", weights_only=True))
    for batch in private.batches():
        losses = F.cross_entropy(model(batch[0]), batch[1], reduction="none")
        if not private.step(losses):
            continue
        if private.steps_done == kill_at:
            os.kill(os.getpid(), 9)
        if private.steps_done % save_every == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(),
                     "private": private.state_dict()}
            torch.save(state, checkpoint + ".tmp")
            os.replace(checkpoint + ".tmp", checkpoint)
    print(private.spent().epsilon, private.spent().steps)
    torch.save(model.state_dict(), f"{folder}/final.pt")
    """
)


def run(folder, kill_at: int = -1) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder), str(kill_at)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )


def test_killed_and_resumed_equals_never_interrupted(tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    whole.mkdir()
    broken.mkdir()
    start_both_with_the_same_key(whole, broken)
    straight = run(whole)
    assert straight.returncode == 0, straight.stderr
    for kill_at in (3, 6, 11):
        killed = run(broken, kill_at)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
    resumed = run(broken)
    assert resumed.returncode == 0, resumed.stderr
    one = torch.load(whole / "final.pt", weights_only=True)
    two = torch.load(broken / "final.pt", weights_only=True)
    for name in one:
        assert torch.equal(one[name], two[name]), name
    assert straight.stdout == resumed.stdout  # the same epsilon, and repeated steps paid once
    assert straight.stdout.split()[1] == "14"


def start_both_with_the_same_key(*folders):
    """A checkpoint from before the first step: it only carries the key."""
    setup = SCRIPT.split("for batch in private.batches():")[0]
    code = setup + "\ntorch.save(private.state_dict(), f'{folder}/start.pt')\n"
    first, *others = folders
    subprocess.run([sys.executable, "-c", code, str(first), "-1"], check=True)
    for other in others:
        (other / "start.pt").write_bytes((first / "start.pt").read_bytes())
    (first / "ledger.jsonl").unlink()


def make(**changes):
    import winsor
    from winsor.rules import Flat

    torch.manual_seed(1)
    model = torch.nn.Linear(3, 2)
    data = torch.utils.data.TensorDataset(torch.randn(40, 3), torch.zeros(40).long())
    arguments = {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "dataset": data,
        "rule": Flat(1.0),
        "noise_multiplier": 1.0,
        "delta": 1e-3,
        "steps": 6,
        "batch_size": 8,
    }
    return winsor.make_private(**{**arguments, **changes})


def advance(private, steps):
    for x, y in private.batches(steps):
        private.step(torch.nn.functional.cross_entropy(private.model(x), y, reduction="none"))


def test_a_run_killed_before_its_first_checkpoint_pays_for_what_it_did(tmp_path):
    path = tmp_path / "ledger.jsonl"
    lost = make(ledger=path)
    advance(lost, 3)
    lost.detach()
    again = make(ledger=path)  # a fresh key: these are new releases
    advance(again, 2)
    assert again.spent().steps == 5


def test_a_checkpoint_of_another_configuration_is_refused():
    saved = make()
    advance(saved, 2)
    state = saved.state_dict()
    from winsor.rules import Flat

    for change in ({"noise_multiplier": 2.0}, {"rule": Flat(2.0)}, {"batch_size": 4}):
        with pytest.raises(LedgerError, match="configuration"):
            make(**change).load_state_dict(state)


def test_the_state_is_plain_values(tmp_path):
    private = make()
    advance(private, 2)
    torch.save(private.state_dict(), tmp_path / "state.pt")
    loaded = torch.load(tmp_path / "state.pt", weights_only=True)
    other = make()
    other.load_state_dict(loaded)
    assert other.steps_done == 2 and other.spent().epsilon == private.spent().epsilon
    assert set(other.spent().conditions) - set(private.spent().conditions) == {ONCE}


def test_a_checkpoint_ahead_of_its_ledger_restores_what_was_spent(tmp_path):
    """The ledger file was lost: the checkpoint still knows what it had spent."""
    private = make(ledger=tmp_path / "one.jsonl")
    advance(private, 3)
    state = private.state_dict()
    other = make(ledger=tmp_path / "two.jsonl")
    other.load_state_dict(state)
    assert other.spent() == private.spent()
