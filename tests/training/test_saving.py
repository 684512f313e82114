"""`private.save` and `winsor.resume`: all of a run or nothing, and exactly."""

from __future__ import annotations

import copy
import os
import pickle
import random
import stat
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset

import winsor
from winsor.core.contract import ConfigurationError, LedgerError, ProtocolError, UnsoundRelease
from winsor.rules import Averaged, Flat, Quantile
from winsor.training.feeding.random_states import random_states
from winsor.training.saving import file as saving
from winsor.training.saving.state import ONCE

STEPS = 6


class Augmented(Dataset):
    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        shift = float(np.random.normal()) + random.random()  # noqa: NPY002
        return self.x[i] + 0.1 * (torch.randn(5) + shift), self.y[i]


def arguments(optimizer="momentum", schedule="step", augmented=False, p=0.3, **changes):
    x = torch.randn(64, 5, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long()
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    model = nn.Sequential(nn.Linear(5, 8), nn.Dropout(p), nn.Linear(8, 2))
    chosen = {
        "momentum": lambda: torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9),
        "sgd": lambda: torch.optim.SGD(model.parameters(), lr=0.3),
        "adam": lambda: torch.optim.Adam(model.parameters(), lr=0.05),
        "slow adam": lambda: torch.optim.Adam(model.parameters(), lr=0.01),
    }[optimizer]()
    scheduler = {
        "none": lambda: None,
        "step": lambda: torch.optim.lr_scheduler.StepLR(chosen, 2, 0.5),
        "slow step": lambda: torch.optim.lr_scheduler.StepLR(chosen, 3, 0.5),
        "cosine": lambda: torch.optim.lr_scheduler.CosineAnnealingLR(chosen, STEPS),
        "one cycle": lambda: torch.optim.lr_scheduler.OneCycleLR(chosen, 0.5, total_steps=STEPS),
        "lambda": lambda: torch.optim.lr_scheduler.LambdaLR(chosen, lambda k: 0.9**k),
    }[schedule]()
    return {
        "model": model,
        "optimizer": chosen,
        "scheduler": scheduler,
        "dataset": Augmented(x, y) if augmented else TensorDataset(x, y),
        "rule": Flat(1.0),
        "noise_multiplier": 1.0,
        "delta": 1e-3,
        "steps": STEPS,
        "batch_size": 16,
        "max_physical_batch_size": 5,
        "seed": 7,
    } | changes


def train(private, stop_after=None):
    """To the end, or until so many physical batches were used."""
    for count, (x, y) in enumerate(private.batches(), start=1):
        private.step(F.cross_entropy(private.model(x), y, reduction="none"))
        if count == stop_after:
            break
    return private


def same(one, two):
    a, b = one.model.state_dict(), two.model.state_dict()
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert one.ledger.state_dict() == two.ledger.state_dict()  # every digest too
    reached = [each.spent() for each in (one, two)]
    assert replace(reached[0], conditions=()) == replace(reached[1], conditions=())
    assert set(reached[0].conditions) ^ set(reached[1].conditions) <= {ONCE}


# ------------------------------------------------------------------------------- exactly


@pytest.mark.parametrize("stop_after", [1, 2, 3, 7, 12])
@pytest.mark.parametrize(
    ("optimizer", "schedule", "changes"),
    [
        ("momentum", "step", {}),
        ("adam", "cosine", {"augmented": True}),
        ("adam", "one cycle", {"augmented": True, "rule": Quantile(1.0)}),
        ("momentum", "lambda", {"rule": Averaged(1.0), "iterate": "averaged"}),
        ("sgd", "none", {"mechanism": winsor.ModelMix(0.2)}),
        ("momentum", "none", {"sampling": "allocation", "augmented": True}),
        ("momentum", "step", {"mechanism": winsor.Banded(3)}),
    ],
)
def test_from_the_middle_of_a_logical_batch(tmp_path, optimizer, schedule, changes, stop_after):
    whole = train(winsor.make_private(**arguments(optimizer, schedule, **changes)))
    half = train(winsor.make_private(**arguments(optimizer, schedule, **changes)), stop_after)
    half.save(tmp_path / "checkpoint.pt")
    resumed = winsor.resume(tmp_path / "checkpoint.pt", **arguments(optimizer, schedule, **changes))
    assert resumed.steps_done == half.steps_done
    same(train(resumed), whole)


def test_from_the_very_end(tmp_path):
    """Killed after the last save: the resumed loop must not train a second time."""
    whole = train(winsor.make_private(**arguments(iterate="averaged")))
    whole.save(tmp_path / "checkpoint.pt")
    resumed = winsor.resume(tmp_path / "checkpoint.pt", **arguments(iterate="averaged"))
    same(train(resumed), whole)
    assert resumed.steps_done == STEPS
    with pytest.raises(ProtocolError, match="spans all epochs"):
        train(resumed)
    for x, y in resumed.batches(STEPS):  # asked how far, it goes on
        resumed.step(F.cross_entropy(resumed.model(x), y, reduction="none"))
    assert resumed.steps_done == 2 * STEPS


def test_a_save_disturbs_nothing(tmp_path):
    whole = train(winsor.make_private(**arguments(augmented=True)))
    saved = winsor.make_private(**arguments(augmented=True))
    for x, y in saved.batches():
        saved.step(F.cross_entropy(saved.model(x), y, reduction="none"))
        saved.save(tmp_path / "checkpoint.pt")
    same(saved, whole)


def test_the_secret_key_of_a_run_goes_on(tmp_path):
    first = train(winsor.make_private(**arguments(seed=None, p=0.0)), 3)
    first.save(tmp_path / "checkpoint.pt")
    second = winsor.resume(tmp_path / "checkpoint.pt", **arguments(seed=None, p=0.0))
    same(train(first), train(second))


def test_new_randomness_is_paid_for(tmp_path):
    first = train(winsor.make_private(**arguments()), 8)
    first.save(tmp_path / "checkpoint.pt")
    spent = len(first.ledger)
    second = winsor.resume(tmp_path / "checkpoint.pt", **arguments(), repeat=False)
    train(second)
    assert len(second.ledger) == STEPS and len(second.ledger.runs) == 2 and spent > 0


def test_other_things_can_be_saved_along(tmp_path):
    path = tmp_path / "checkpoint.pt"
    given = arguments(schedule="none")
    own = torch.optim.lr_scheduler.StepLR(given["optimizer"], 1, 0.5)
    private = winsor.make_private(**given)
    train(private, 7)
    own.last_epoch = 5
    private.save(path, also={"scheduler": own})
    again = arguments(schedule="none")
    other = torch.optim.lr_scheduler.StepLR(again["optimizer"], 1, 0.5)
    winsor.resume(path, also={"scheduler": other}, **again)
    assert other.last_epoch == 5
    with pytest.raises(ConfigurationError, match=r"also must name.*\['scheduler'\]. Got \[\]"):
        winsor.resume(path, **_with_schedule_of_its_own())


def _with_schedule_of_its_own():
    given = arguments(schedule="none")
    torch.optim.lr_scheduler.StepLR(given["optimizer"], 1, 0.5)
    return given


def test_what_the_guarantee_rests_on_is_kept(tmp_path):
    private = winsor.make_private(**arguments())
    for x, y in private.batches(2):
        private.step(F.cross_entropy(private.model(x), y, reduction="none"))
    with private.replacing_weights():
        nn.init.zeros_(private.model[2].bias)
    private.save(tmp_path / "checkpoint.pt")
    resumed = winsor.resume(tmp_path / "checkpoint.pt", **arguments(seed=None))
    conditions = " ".join(resumed.spent().conditions)
    assert "edited by hand" in conditions and "known seed" in conditions


# --------------------------------------------------------------------------------- one file


def test_the_file_is_the_owners_and_plain(tmp_path):
    path = tmp_path / "checkpoint.pt"
    private = train(winsor.make_private(**arguments()), 4)
    old = os.umask(0)
    try:
        private.save(path)
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [file.name for file in tmp_path.iterdir()] == ["checkpoint.pt"]
    assert set(torch.load(path, weights_only=True)) >= {
        "model",
        "optimizer",
        "scheduler",
        "private",
    }


def test_a_save_that_fails_leaves_the_one_before(tmp_path, monkeypatch):
    path = tmp_path / "checkpoint.pt"
    private = train(winsor.make_private(**arguments()), 4)
    private.save(path)
    before = path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(LedgerError, match="No space left.*The one before it is untouched"):
        private.save(path)
    assert path.read_bytes() == before and len(list(tmp_path.iterdir())) == 1


def test_no_sum_of_gradients_is_written(tmp_path):
    """Fragments pending: the checkpoint goes back to the start of the logical batch instead."""
    private = train(winsor.make_private(**arguments()), 2)
    assert private._sums is not None
    held = {t.data_ptr() for t in private._sums["grad"].values()}
    found = torch.utils._pytree.tree_leaves(saving.everything(private, {}))
    assert not held & {t.data_ptr() for t in found if isinstance(t, torch.Tensor)}


def test_not_while_a_batch_is_open(tmp_path):
    private = winsor.make_private(**arguments())
    for _ in private.batches():
        with pytest.raises(ProtocolError, match="below private.step"):
            private.save(tmp_path / "checkpoint.pt")
        break
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_loaded_is_not_saved(tmp_path):
    class Odd:
        def state_dict(self):
            return {"inner": [object()]}

        def load_state_dict(self, state): ...

    private = winsor.make_private(**arguments())
    with pytest.raises(ConfigurationError, match=r"Got object at also.odd.inner\[0\]"):
        private.save(tmp_path / "checkpoint.pt", also={"odd": Odd()})


# --------------------------------------------------------------------------- all or nothing


def everything_of(private):
    state = saving.everything(private, {})
    state["private"]["random"] = random_states()
    return copy.deepcopy(state)


def equal(one, two):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, two)
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(equal(one[key], two[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(two) and all(equal(a, b) for a, b in zip(one, two, strict=True))
    return one == two


def _without(*path):
    def damage(state):
        *parents, last = path
        for name in parents:
            state = state[name]
        del state[last]

    return damage


def _with(value, *path):
    def damage(state):
        *parents, last = path
        for name in parents:
            state = state[name]
        state[last] = value

    return damage


DAMAGES = {
    "no model": _without("model"),
    "no weight": _without("model", "0.weight"),
    "other weight": _with(torch.zeros(3, 3), "model", "0.weight"),
    "no optimiser": _without("optimizer"),
    "odd optimiser": _with([], "optimizer", "param_groups"),
    "no schedule": _without("scheduler"),
    "no private part": _without("private"),
    "private part of another kind": _with(7, "private"),
    "no steps": _without("private", "steps_done"),
    "odd steps": _with("many", "private", "steps_done"),
    "no key": _without("private", "key"),
    "odd key": _with("xyz", "private", "key"),
    "other key": _with("00" * 32, "private", "key"),
    "odd rule": _with(3, "private", "rule"),
    "no iterates": _without("private", "iterates"),
    "half of iterates": _without("private", "iterates", "dtypes"),
    "no random": _without("private", "random"),
    "odd random": _with(torch.zeros(3), "private", "random", "torch"),
    "half of random": _without("private", "random", "numpy", "words"),
    "no account": _without("private", "ledger"),
    "odd account": _with({}, "private", "ledger", "runs"),
    "no noise": _without("private", "noise"),
    "no conditions": _without("private", "conditions"),
    "other format": _with(1, "private", "format"),
    "other version": _with(99, "whole_run"),
    "no settings": _without("settings"),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("mechanism", [None, winsor.Banded(3)], ids=["gaussian", "banded"])
def test_a_load_that_fails_changes_nothing(tmp_path, damage, mechanism):
    path = tmp_path / "checkpoint.pt"
    train(winsor.make_private(**arguments(mechanism=mechanism)), 9).save(path)
    state = torch.load(path, weights_only=True)
    DAMAGES[damage](state)
    private = train(winsor.make_private(**arguments(mechanism=mechanism)), 5)
    before, twin = everything_of(private), random_states()
    with pytest.raises(LedgerError):
        saving.restore(private, state, {}, repeat=True)
    assert equal(before, everything_of(private)) and equal(twin, random_states())
    train(private)  # and it goes on


def test_an_account_that_does_not_fit_changes_nothing(tmp_path):
    """The same key released something else at one of these steps."""
    path = tmp_path / "checkpoint.pt"
    train(winsor.make_private(**arguments()), 12).save(path)
    other = train(winsor.make_private(**arguments(p=0.3, augmented=True)), 5)
    before = everything_of(other)
    with pytest.raises(LedgerError, match="another value"):
        saving.restore(other, saving.read(path), {}, repeat=True)
    assert equal(before, everything_of(other))


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 torn", pickle.dumps({"a": 1}), b"\x00" * 99])
def test_other_files_are_refused(tmp_path, content):
    path = tmp_path / "checkpoint.pt"
    path.write_bytes(content)
    with pytest.raises(LedgerError, match="checkpoint"):
        winsor.resume(path, **arguments())


def test_a_refused_checkpoint_leaves_no_files(tmp_path):
    path = tmp_path / "checkpoint.pt"
    train(winsor.make_private(**arguments()), 4).save(path)
    new = tmp_path / "new" / "ledger.jsonl"
    with pytest.raises(LedgerError, match="noise_multiplier: 1.0 in the checkpoint, 2.0 here"):
        winsor.resume(path, **arguments(noise_multiplier=2.0, ledger=new))
    assert list(new.parent.iterdir()) == []
    resumed = winsor.resume(path, **arguments(ledger=new))  # the ledger was not spoilt
    assert len(train(resumed).ledger) == STEPS
    resumed.detach()


# ------------------------------------------------------------------------ other configurations


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rule": Flat(2.0)}, r"rule: Flat\(.*1.0.*\) in the checkpoint, Flat\(.*2.0.*\) here"),
        ({"noise_multiplier": 2.0}, r"noise_multiplier: 1.0 in the checkpoint, 2.0 here"),
        ({"batch_size": 8}, r"rate: 0.25 in the checkpoint, 0.125 here"),
        ({"epsilon": 30.0}, r"epsilon: None in the checkpoint, 30.0 here"),
        ({"delta": 1e-4}, r"delta: 0.001 in the checkpoint, 0.0001 here"),
        ({"sampling": "allocation"}, r"sampler: Poisson in the checkpoint, Allocation here"),
        ({"relation": "replace_one"}, r"relation: add_or_remove_one in the .*, replace_one here"),
        ({"mechanism": winsor.ModelMix(0.2), "optimizer": "sgd"}, r"mechanism: \w+ in .*here"),
        ({"max_physical_batch_size": 6}, r"max_physical_batch_size: 5 in .*, 6 here"),
        ({"engine": "func"}, r"engine: \w+ in the checkpoint, \w+ here"),
        ({"iterate": "averaged"}, r"iterate: last in the checkpoint, averaged here"),
        ({"ball": winsor.Ball(3.0)}, r"ball: None in the checkpoint, 3.0 here"),
        ({"optimizer": "adam"}, r"optimizer: SGD in the checkpoint, Adam here"),
        ({"optimizer": "sgd"}, r"optimizer.group\[0\].momentum: 0.9 in the checkpoint, 0 here"),
        ({"schedule": "cosine"}, r"scheduler: StepLR in the checkpoint, CosineAnnealingLR here"),
        ({"schedule": "slow step"}, r"scheduler.step_size: 2 in the checkpoint, 3 here"),
        ({"schedule": "none"}, r"scheduler: StepLR in the checkpoint, absent here"),
        ({"p": 0.4}, r"model.1: Dropout\(p=0.3.*\) in the checkpoint, Dropout\(p=0.4.*\) here"),
    ],
)
def test_the_field_that_differs_is_named(tmp_path, changes, words):
    path = tmp_path / "checkpoint.pt"
    train(winsor.make_private(**arguments()), 4).save(path)
    given = arguments(**changes)
    before = copy.deepcopy(given["model"].state_dict())
    with pytest.raises(LedgerError, match=words):
        winsor.resume(path, **given)
    assert equal(before, given["model"].state_dict())
    assert given["optimizer"].state_dict()["state"] == {}


def test_a_model_of_another_size_is_named_layer_by_layer(tmp_path):
    path = tmp_path / "checkpoint.pt"
    train(winsor.make_private(**arguments()), 4).save(path)
    given = arguments(schedule="none")
    model = nn.Sequential(nn.Linear(5, 9), nn.Dropout(0.3), nn.Linear(9, 2))
    given |= {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.3)}
    with pytest.raises(LedgerError, match=r"model.0: Linear\(.*out_features=8.*out_features=9"):
        winsor.resume(path, **given)


# ------------------------------------------------------------------------- copies and children


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, pickle.dumps])
def test_what_draws_noise_is_not_copied(way):
    private = train(winsor.make_private(**arguments()), 4)
    for holder in (private, private._door, private._door.noise):
        with pytest.raises(UnsoundRelease, match="must not be copied"):
            way(holder)
    copy.deepcopy(private.model.state_dict())


def in_a_fork(action):
    """What ``action`` raises in a forked child, by name."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            action()
            said = "nothing"
        except BaseException as error:
            said = type(error).__name__
        os.write(write, said.encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    with os.fdopen(read) as file:
        return file.read()


@pytest.mark.parametrize("on_disk", [True, False])
def test_a_forked_child_draws_none_of_the_parents_noise(tmp_path, on_disk):
    private = winsor.make_private(**arguments(ledger=tmp_path / "ledger" if on_disk else None))
    train(private, 4)
    state = private.state_dict()
    assert in_a_fork(lambda: train(private)) == ("LedgerError" if on_disk else "UnsoundRelease")
    assert in_a_fork(lambda: private.load_state_dict(state)) == "UnsoundRelease"
    train(private)  # the parent goes on
    assert len(private.ledger) == STEPS
    private.detach()


# ------------------------------------------------------------------- what a checkpoint is bound to


class Listed(Dataset):
    """Rows that torch does not hold in memory."""

    def __init__(self, dataset):
        self.rows = [dataset[i] for i in range(len(dataset))]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


@pytest.mark.parametrize("kind", ["tensors", "a subset", "a list"])
@pytest.mark.parametrize("on_disk", [True, False])
def test_a_run_is_not_resumed_on_other_rows(tmp_path, kind, on_disk):
    def given(change=0.0):
        found = arguments(ledger=tmp_path / "ledger.jsonl" if on_disk else None)
        x, y = found["dataset"].tensors
        x = x.clone()
        x[17, 2] += change
        rows = TensorDataset(x, y)
        named = {"tensors": lambda: rows, "a list": lambda: Listed(rows)}
        named["a subset"] = lambda: torch.utils.data.Subset(rows, range(len(rows)))
        return found | {"dataset": named[kind]()}

    path = tmp_path / "checkpoint.pt"
    private = train(winsor.make_private(**given()), 5)
    private.save(path)
    private.detach()
    with pytest.raises(LedgerError, match="on the rows that it began with"):
        winsor.resume(path, **given(change=2.0**-20))
    resumed = train(winsor.resume(path, **given()))
    assert (ONCE in resumed.spent().conditions) != on_disk
    resumed.detach()
    assert ONCE not in winsor.resume(path, **given(), repeat=False).spent().conditions


def test_rows_that_are_drawn_anew_each_time_are_told_by_their_number(tmp_path):
    class Fresh(Listed):
        def __getitem__(self, i):
            x, y = self.rows[i]
            noise = np.random.default_rng().normal(size=5)
            return x + torch.from_numpy(noise).float(), y

    given = arguments()
    given["dataset"] = Fresh(given["dataset"])
    winsor.make_private(**given).save(tmp_path / "checkpoint.pt")
    again = arguments()
    again["dataset"] = Fresh(again["dataset"])
    assert winsor.resume(tmp_path / "checkpoint.pt", **again).steps_done == 0


def test_every_part_of_a_checkpoint_is_under_its_mac(tmp_path):
    path = tmp_path / "checkpoint.pt"
    train(winsor.make_private(**arguments()), 9).save(path)

    def parts(value, place=()):
        if isinstance(value, dict):
            for name in value:
                yield from parts(value[name], (*place, name))
        elif not isinstance(value, list | tuple):
            yield place

    kept = torch.load(path, weights_only=True)
    for place in parts(kept):
        state = copy.deepcopy(kept)
        *inside, name = place
        part = state
        for each in inside:
            part = part[each]
        old = part[name]
        part[name] = old + 1 if isinstance(old, torch.Tensor | int | float) else f"{old}x"
        with pytest.raises(LedgerError):
            saving.restore(winsor.make_private(**arguments()), state, {}, repeat=True)
