"""The loop a PyTorch user sees: right updates, right accounts, refusals."""

from __future__ import annotations

import copy
import gc
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset

import winsor
from winsor.core.accounting.spending import certify
from winsor.core.contract import (
    BudgetExceeded,
    ConfigurationError,
    LossError,
    ProtocolError,
    Released,
    UnsoundRelease,
    UnsupportedModel,
)
from winsor.rules import Flat

N = 64


def make_dataset(n: int = N, seed: int = 0) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 5, generator=generator)
    return TensorDataset(x, (x[:, 0] > 0).long())


def make_model(seed: int = 1) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2))


def start(model=None, optimizer=None, **changes):
    model = model if model is not None else make_model()
    arguments = {
        "model": model,
        "optimizer": optimizer or torch.optim.SGD(model.parameters(), lr=0.5),
        "dataset": make_dataset(),
        "rule": Flat(1.0),
        "noise_multiplier": 1.0,
        "delta": 1e-3,
        "steps": 5,
        "batch_size": 16,
        "seed": 0,
    }
    return winsor.make_private(**{**arguments, **changes})


def losses_of(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def train(private, steps=None):
    for batch in private.batches(steps):
        private.step(losses_of(private.model, batch))
    return private


def weights(private):
    return torch.cat([p.detach().reshape(-1) for p in private.model.parameters()])


# ------------------------------------------------------------------------------- right updates


def test_the_update_is_the_clipped_sum_plus_the_ledgered_noise_over_the_expected_size():
    private = start(steps=1)
    before = copy.deepcopy(private.model)
    rows = private.sampler.indices(private._feed.key, 0)
    train(private)
    data = private._feed.dataset
    clipped = [torch.zeros_like(p) for p in before.parameters()]
    for i in rows:
        loss = losses_of(before, (data.tensors[0][i : i + 1], data.tensors[1][i : i + 1]))
        grads = torch.autograd.grad(loss.sum(), list(before.parameters()))
        norm = torch.sqrt(sum(g.square().sum() for g in grads))
        for total, g in zip(clipped, grads, strict=True):
            total += g * min(1.0, 1.0 / float(norm))
    flat = torch.cat([g.reshape(-1) for g in clipped])
    noise = torch.from_numpy(private._door.noise.normal(0, "grad", flat.numel())).float()
    expected = torch.cat([p.detach().reshape(-1) for p in before.parameters()])
    expected = expected - 0.5 * (flat + 1.0 * noise) / 16  # 16 expected, whatever was drawn
    assert len(rows) != 16
    torch.testing.assert_close(weights(private), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("limit", [1, 3, 16])
def test_fragments_give_the_same_update_as_one_piece(limit):
    whole, pieces = train(start()), train(start(max_physical_batch_size=limit))
    torch.testing.assert_close(weights(whole), weights(pieces), rtol=1e-4, atol=1e-6)
    assert whole.ledger.history() == pieces.ledger.history()


def test_a_logical_batch_of_4096_in_fragments():
    data = make_dataset(8192)
    whole = train(start(dataset=data, batch_size=4096, steps=2, delta=1e-5))
    pieces = train(
        start(dataset=data, batch_size=4096, steps=2, delta=1e-5, max_physical_batch_size=256)
    )
    torch.testing.assert_close(weights(whole), weights(pieces), rtol=1e-4, atol=1e-6)


def test_only_a_whole_logical_batch_updates():
    private = start(max_physical_batch_size=4, steps=1)
    before = weights(private).clone()
    updated = []
    for batch in private.batches():
        updated.append(private.step(losses_of(private.model, batch)))
        if not updated[-1]:
            assert torch.equal(weights(private), before)
    assert updated.count(True) == 1 and updated[-1]


def test_an_empty_batch_still_adds_noise_and_is_accounted():
    private = start(batch_size=1, dataset=make_dataset(50), steps=30, delta=1e-3)
    sizes = [len(private.sampler.indices(private._feed.key, s)) for s in range(30)]
    assert 0 in sizes
    seen = []
    before = weights(private).clone()
    for batch in private.batches():
        seen.append(len(batch[0]))
        private.step(losses_of(private.model, batch))
        if len(seen) == 1:
            first = weights(private).clone()
    assert seen == [size for size in sizes if size]
    assert private.steps_done == len(private.ledger) == 30
    assert not torch.equal(before, first)


def test_nothing_depends_on_the_realised_batch_size_when_no_gradient_flows():
    """With zero gradients the update is noise over the expected size, for every realised size."""

    class Constant(Dataset):
        def __len__(self):
            return N

        def __getitem__(self, i):
            return torch.zeros(5), torch.tensor(0)

    model = nn.Linear(5, 1, bias=False)
    private = start(model, dataset=Constant(), steps=3)
    for step, batch in enumerate(private.batches()):
        before = weights(private).clone()
        private.step(model(batch[0]).squeeze(1))
        noise = torch.from_numpy(private._door.noise.normal(step, "grad", 5)).float()
        torch.testing.assert_close(weights(private), before - 0.5 * noise / 16)


OPTIMIZERS = {
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_any_optimiser_sees_the_released_gradient(name):
    model = make_model()
    twin = copy.deepcopy(model)
    private = start(model, OPTIMIZERS[name](model.parameters()))
    other = OPTIMIZERS[name](twin.parameters())

    def mirror(*_):
        for mine, theirs in zip(model.parameters(), twin.parameters(), strict=True):
            theirs.grad = mine.grad.clone()
        other.step()

    private._update.optimizer.register_step_pre_hook(mirror)
    for batch in private.batches():
        private.step(losses_of(model, batch))
        assert all(p.grad is None for p in model.parameters())  # nothing is left to be applied
    for mine, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_parameter_groups_and_schedulers():
    model = make_model()
    optimizer = torch.optim.SGD(
        [{"params": model[0].parameters(), "lr": 0.0}, {"params": model[2].parameters()}], lr=1.0
    )
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    first = model[0].weight.detach().clone()
    private = start(model, optimizer, scheduler=scheduler)
    train(private)
    assert torch.equal(model[0].weight, first)
    assert optimizer.param_groups[1]["lr"] == pytest.approx(0.25)


def test_frozen_parameters_stay_put_and_get_no_noise():
    model = make_model()
    model[0].requires_grad_(False)
    frozen = model[0].weight.detach().clone()
    private = train(start(model, torch.optim.SGD(model[2].parameters(), lr=0.5)))
    assert torch.equal(model[0].weight, frozen)
    assert set(private._update.parameters) == {"2.weight", "2.bias"}


def test_the_model_keeps_a_plain_state_dict():
    model = make_model()
    keys = list(model.state_dict())
    private = train(start(model))
    assert list(model.state_dict()) == keys
    plain = private.detach()
    assert plain is model
    copy.deepcopy(plain)
    assert "forward" not in vars(model[0])
    assert not model[0]._forward_hooks and not model[0]._forward_pre_hooks


def test_datasets_that_are_not_tensors_and_workers_give_the_same():
    class Rows(Dataset):
        def __init__(self, data):
            self.data = data

        def __len__(self):
            return len(self.data)

        def __getitem__(self, i):
            return self.data[i]

    plain = train(start())
    listed = train(start(dataset=Rows(make_dataset())))
    torch.testing.assert_close(weights(plain), weights(listed))


def test_rows_that_are_not_finite_count_as_zero_and_are_counted():
    data = make_dataset()
    poisoned = TensorDataset(data.tensors[0].clone(), data.tensors[1])
    private = start(dataset=poisoned, steps=4)
    rows = set(private.sampler.indices(private._feed.key, 0).tolist())
    bad = sorted(rows)[:2]
    poisoned.tensors[0][bad[0]] = float("nan")
    poisoned.tensors[0][bad[1]] = float("inf")
    train(private)
    assert weights(private).isfinite().all()
    assert private.neutralised_rows_not_private >= 2


# ------------------------------------------------------------------------------ right accounts


def test_spent_is_the_account_of_the_ledger():
    private = train(start(), steps=3)
    spent = private.spent()
    event = private.ledger.history()[0][0]
    assert private.ledger.history() == [(event, 3)]
    assert (
        spent.epsilon == certify([(event, 3)], 1e-3, winsor.Neighbouring.ADD_OR_REMOVE_ONE).epsilon
    )
    assert spent.steps == 3 and spent.accountant == "pld"
    assert "certified" in str(spent)


def test_the_target_is_spent_but_not_exceeded():
    private = train(start(noise_multiplier=None, epsilon=2.0, steps=20))
    assert 0.995 * 2.0 <= private.spent().epsilon <= 2.0


def test_planned_events_are_the_events_of_the_real_run():
    from winsor.rules.rule import dry_run

    private = start(noise_multiplier=None, epsilon=2.0)
    parts = dry_run(private.rule, private._update.parameters, private.sampler.expected_size)
    planned = private._door.event(parts)
    train(private)
    assert private.ledger.history() == [(planned, 5)]


def test_the_step_beyond_the_target_is_refused_before_data_are_touched():
    class Watched(TensorDataset):
        reads = 0

    private = train(start(noise_multiplier=None, epsilon=2.0))
    spent = private.spent()
    private._feed._load = lambda rows: pytest.fail("data were touched")
    with pytest.raises(BudgetExceeded, match="epsilon = 2.0"):
        next(iter(private.batches(1)))
    assert private.spent() == spent


def test_with_fixed_noise_the_target_stops_the_run():
    private = start(epsilon=1.5, noise_multiplier=1.0, steps=10_000)
    with pytest.raises(BudgetExceeded):
        train(private)
    assert private.spent().epsilon <= 1.5
    event, count = private.ledger.history()[0]
    beyond = certify([(event, count + 1)], 1e-3, winsor.Neighbouring.ADD_OR_REMOVE_ONE)
    assert beyond.epsilon > 1.5


def test_epochs_count_expected_passes():
    assert start(steps=None, epochs=3).budget.planned_steps == 12  # 3 * 64 / 16


@pytest.mark.parametrize(
    "sampling, relation", [("full", "add_or_remove_one"), ("full", "replace_one"),
                           ("fixed", "replace_one"), ("poisson", "replace_one")]
)  # fmt: skip
def test_every_sampler_under_its_relations(sampling, relation):
    batch_size = N if sampling == "full" else 16
    private = train(start(sampling=sampling, relation=relation, batch_size=batch_size))
    spent = private.spent()
    assert spent.relation.value == relation
    assert spent.epsilon > train(start()).spent().epsilon  # all of these cost more


# ------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"delta": 0.0}, "delta"),
        ({"delta": 1.0}, "delta"),
        ({"delta": 0.5}, "below 1/n"),
        ({"batch_size": N + 1}, "batch_size"),
        ({"batch_size": 0}, "batch_size"),
        ({"noise_multiplier": 0.0}, "noise_multiplier"),
        ({"noise_multiplier": -1.0}, "noise_multiplier"),
        ({"noise_multiplier": float("nan")}, "noise_multiplier"),
        ({"noise_multiplier": None}, "epsilon"),
        ({"noise_multiplier": None, "epsilon": -1.0}, "epsilon"),
        ({"steps": 0}, "steps"),
        ({"steps": None}, "epochs"),
        ({"epochs": 2}, "either epochs or steps"),
        ({"relation": "neighbours"}, "relation"),
        ({"sampling": "shuffle"}, "sampling"),
        ({"max_physical_batch_size": 0}, "max_physical_batch_size"),
        ({"dataset": TensorDataset(torch.zeros(0, 5))}, "dataset"),
    ],
)
def test_bad_arguments_are_named(changes, words):
    with pytest.raises(ConfigurationError, match=words):
        start(**changes)


def test_a_large_delta_must_be_said():
    assert start(delta=0.5, allow_large_delta=True).spent().epsilon == 0


def test_a_dataset_without_length_is_refused():
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(())

    with pytest.raises(ConfigurationError, match="map-style"):
        start(dataset=Stream())


@pytest.mark.parametrize(
    "spoil",
    [
        lambda losses: losses.mean(),
        lambda losses: losses[:-1],
        lambda losses: losses[:, None],
        lambda losses: losses.detach(),
        lambda losses: losses.tolist(),
    ],
)
def test_bad_losses_release_nothing(spoil):
    private = start()
    before = weights(private).clone()
    with pytest.raises(LossError, match="losses must"):
        for batch in private.batches():
            private.step(spoil(losses_of(private.model, batch)))
    assert len(private.ledger) == 0
    assert torch.equal(weights(private), before)


def test_a_step_outside_batches_is_refused():
    private = start()
    model = private.model
    with pytest.raises(ProtocolError, match="inside"):
        private.step(losses_of(model, make_dataset(4).tensors))
    for batch in private.batches(1):
        private.step(losses_of(model, batch))
        with pytest.raises(ProtocolError, match="once for each batch"):
            private.step(losses_of(model, batch))
    assert len(private.ledger) == 1


def test_a_batch_without_a_step_is_refused():
    private = start()
    batches = private.batches()
    next(batches)
    with pytest.raises(ProtocolError, match="one private.step"):
        next(batches)
    assert len(private.ledger) == 0


def test_noise_cannot_be_changed_by_hand():
    private = start()
    for change in (
        lambda: setattr(private, "noise_multiplier", 0.1),
        lambda: setattr(private._door.mechanism, "noise_multiplier", 0.1),
        lambda: setattr(private, "delta", 0.1),
        lambda: setattr(private, "sampler", None),
    ):
        with pytest.raises(UnsoundRelease, match="by hand"):
            change()


def test_an_update_takes_only_what_the_door_released_and_only_once():
    private = start()
    with pytest.raises(UnsoundRelease, match="only values"):
        private._update.apply(Released({}, {}, 0))
    train(private, steps=1)
    parts = private.public_parts()
    released = private._door.release(1, parts)
    private._update.apply(released)
    with pytest.raises(UnsoundRelease, match="already used"):
        private._update.apply(released)


def test_batchnorm_in_training_mode_is_refused_with_the_remedy():
    model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    with pytest.raises(UnsupportedModel, match="replace_batchnorm"):
        start(model)


def test_batchnorm_switched_on_during_training_is_refused():
    model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8, affine=False), nn.Linear(8, 2))
    model[1].eval()
    private = train(start(model), steps=2)
    model.train()
    with pytest.raises(UnsupportedModel, match="BatchNorm"):
        train(private, steps=1)
    assert len(private.ledger) == 2


def test_a_foreign_optimiser_is_refused():
    model, other = make_model(), make_model(2)
    with pytest.raises(ConfigurationError, match="Missing"):
        start(model, torch.optim.SGD(other.parameters(), lr=0.1))
    with pytest.raises(ConfigurationError, match="Missing: 0.weight"):
        start(model, torch.optim.SGD(model[2].parameters(), lr=0.1))
    both = [*model.parameters(), *other.parameters()]
    with pytest.raises(ConfigurationError, match="not in the model"):
        start(model, torch.optim.SGD(both, lr=0.1))
    with pytest.raises(ConfigurationError, match="LBFGS"):
        start(model, torch.optim.LBFGS(model.parameters()))


def test_freezing_during_the_run_is_refused():
    private = train(start(), steps=1)
    private.model[0].weight.requires_grad_(False)
    with pytest.raises(ProtocolError, match=r"0\.weight was frozen"):
        train(private, steps=1)


def test_a_parameter_used_outside_its_module_is_refused_not_dropped():
    class Sneaky(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(5, 5), nn.Linear(5, 2)

        def forward(self, x):
            return self.b(x) + (x @ self.a.weight)[:, :2]

    private = start(Sneaky())
    with pytest.raises(UnsupportedModel, match=r"a\.weight"):
        train(private)
    assert len(private.ledger) == 0


def test_fit_trains_to_the_end():
    model = make_model()
    private = winsor.fit(
        progress=False,
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
        dataset=make_dataset(),
        rule=Flat(1.0),
        epsilon=3.0,
        delta=1e-3,
        steps=6,
        batch_size=16,
    )
    assert private.steps_done == 6
    assert private.spent().epsilon <= 3.0


@pytest.mark.parametrize("engine", ["ghost", "func", "loop"])
def test_a_finished_run_can_be_freed_and_keeps_no_graph(engine):
    private = train(start(engine=engine), steps=2)
    assert all(p.grad is None for p in private.model.parameters())
    model = weakref.ref(private.model)
    del private
    gc.collect()
    assert model() is None
