"""Rows that mix are found, whatever the engine; rows that do not are left as they were."""

from __future__ import annotations

import copy
import importlib.util
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from row_models import (
    KINDS,
    Centred,
    Cnn,
    Embedded,
    Gate,
    KeepsARow,
    Mlp,
    Noisy,
    Remembers,
    RunningMean,
    Transformer,
    Warm,
    WritesFrozen,
    cross_entropy,
    rows_of,
)
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset, default_collate

import winsor
from winsor.core.contract import LossError, UnsupportedModel
from winsor.core.randomness import new_key
from winsor.core.sampling.samplers import Poisson
from winsor.gradients import ENGINES, make_engine, trainable_parameters
from winsor.training.checks.row_checks import ASSUMED, UNCHECKED, RowChecks, due, rows_to_check
from winsor.training.checks.row_independence import RANDOM, UNSTEADY, check_rows
from winsor.training.feeding.feed import Feed

KEY = new_key(seed=4)


def built(kind, seam=None):
    torch.manual_seed(2)
    return kind(seam)


@pytest.fixture(params=ENGINES)
def attach(request):
    """Attach an engine of each kind, as a training run does."""
    attached = []

    def attach(model):
        engine = make_engine(model, trainable_parameters(model), request.param)
        engine.attach()
        attached.append(engine)
        return engine

    yield attach
    for engine in attached:
        engine.detach()


def norms(engine, model, rows):
    batch = default_collate(rows[:4])
    engine.recording(True)
    torch.manual_seed(0)
    view = engine.view(cross_entropy(model, batch))
    engine.recording(False)
    return view.norms()


# ------------------------------------------------------------------------------- honest models


@pytest.mark.parametrize("kind", KINDS)
def test_honest_models_pass_and_the_engine_works_as_before(kind, attach):
    model, rows = built(kind), rows_of(kind)
    engine = attach(model)
    before = norms(engine, model, rows)
    assert check_rows(model, cross_entropy, rows) == ()
    assert torch.equal(norms(engine, model, rows), before)


@pytest.mark.parametrize("kind", KINDS)
def test_honest_models_pass_in_eval_mode(kind):
    assert check_rows(built(kind).eval(), cross_entropy, rows_of(kind)) == ()


def test_frozen_batchnorm_and_counters_are_honest():
    seam = nn.Sequential(nn.BatchNorm1d(8).eval(), Warm())
    assert check_rows(built(Mlp, seam), cross_entropy, rows_of(Mlp)) == ()


class FunctionalDropout(nn.Module):
    def forward(self, h):
        q = F.dropout(h, 0.4, self.training).unsqueeze(1)
        return F.scaled_dot_product_attention(q, q, q, dropout_p=0.3).squeeze(1)


def test_dropout_as_a_function_is_switched_off_too():
    assert check_rows(built(Mlp, FunctionalDropout()), cross_entropy, rows_of(Mlp)) == ()


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent_models_pass_and_keep_their_weights(kind):
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.head = kind(2, 4, 2, batch_first=True, dropout=0.2), nn.Linear(4, 3)

        def forward(self, x):
            return self.head(self.rnn(x.reshape(len(x), 3, 2))[0][:, -1])

    model = Recurrent()
    assert check_rows(model, cross_entropy, rows_of(Mlp)) == ()
    names = model.rnn._flat_weights_names
    assert all(
        w is getattr(model.rnn, n) for w, n in zip(model.rnn._flat_weights, names, strict=True)
    )


def test_tied_weights_pass():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.head = nn.Embedding(9, 4), nn.Linear(4, 9, bias=False)
            self.head.weight = self.table.weight

        def forward(self, x):
            return self.head(self.table(x).mean(1))

    assert check_rows(Tied(), cross_entropy, rows_of(Embedded)) == ()


def test_sure_predictions_pass_in_every_precision():
    """Losses near zero, where float32 keeps no relative precision."""
    model = built(Mlp)
    with torch.no_grad():
        model.head.weight.mul_(60)
    labelled = [(x, model(x[None]).argmax(1)[0]) for x, _ in rows_of(Mlp)]
    assert check_rows(model, cross_entropy, labelled) == ()
    float32 = [(x, y) for x, y in labelled]

    def narrow(model, batch):  # refuses float64: the native way is taken
        assert batch[0].dtype is torch.float32
        return cross_entropy(model, batch)

    assert check_rows(model, narrow, float32) == ()


def test_autocast_passes_and_mixing_is_still_seen():
    def loss(model, batch):
        with torch.autocast("cpu", torch.bfloat16):
            return cross_entropy(model, (batch[0].float(), batch[1]))

    assert check_rows(built(Cnn), loss, rows_of(Cnn)) == ()
    with pytest.raises(UnsupportedModel, match="rows must not mix"):
        check_rows(built(Cnn, Centred()), loss, rows_of(Cnn))


def test_invented_rows_that_the_loss_refuses_or_that_overflow_are_no_finding():
    rows = [(x, torch.tensor(float(i % 2))) for i, (x, _) in enumerate(rows_of(Mlp))]

    def bernoulli(model, batch):
        inside = model(batch[0])[:, 0].sigmoid()
        return F.binary_cross_entropy(inside, batch[1], reduction="none")

    assert check_rows(built(Mlp), bernoulli, rows) == ()

    def exponential(model, batch):
        return model(batch[0]).mul(30).exp().sum(1)  # infinite for rows a hundred times as large

    assert check_rows(built(Mlp), exponential, rows) == ()


def padded(samples):
    xs, ys = zip(*samples, strict=True)
    return nn.utils.rnn.pad_sequence(xs, batch_first=True), torch.stack(ys)


def ragged():
    return [(x[: 2 + i % 4], y) for i, (x, y) in enumerate(rows_of(Embedded))]


def test_padding_is_honest_where_it_is_masked_and_mixing_where_it_is_not():
    masked = built(Transformer)
    assert check_rows(masked, cross_entropy, ragged(), padded) == ()
    with pytest.raises(UnsupportedModel, match="rows must not mix"):
        check_rows(built(Embedded), cross_entropy, ragged(), padded)


# -------------------------------------------------------------------------------- rows that mix


@pytest.mark.parametrize("kind", KINDS)
def test_a_detached_batch_mean_is_found_and_named(kind, attach):
    model = built(kind, Centred())
    attach(model)
    with pytest.raises(UnsupportedModel, match=r"in seam \(Centred\)"):
        check_rows(model, cross_entropy, rows_of(kind))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "name, change",
    [
        ("divided by their mean", lambda losses: losses / losses.mean().detach()),
        ("divided by their number", lambda losses: losses / len(losses)),
        ("weighted by rank", lambda losses: losses * losses.detach().argsort().argsort()),
        ("clipped at the median", lambda losses: losses.clamp(max=losses.median().item())),
    ],
)
def test_losses_that_look_at_one_another_are_found(kind, name, change, attach):
    model = built(kind)
    attach(model)
    with pytest.raises(UnsupportedModel, match="in the loss function, after the model itself"):
        check_rows(model, lambda m, b: change(cross_entropy(m, b)), rows_of(kind))


def standardised(x):
    return (x - x.mean(0)) / (x.std(0, unbiased=False) + 1e-3)


@pytest.mark.parametrize("kind", [Mlp, Cnn])
def test_inputs_standardised_over_the_batch_are_found(kind, attach):
    model = built(kind)
    attach(model)

    def collate(samples):
        x, y = default_collate(samples)
        return standardised(x), y

    with pytest.raises(UnsupportedModel, match="in the collate function"):
        check_rows(model, cross_entropy, rows_of(kind), collate)
    with pytest.raises(UnsupportedModel, match="before the model itself .* in the loss function"):
        check_rows(model, lambda m, b: cross_entropy(m, (standardised(b[0]), b[1])), rows_of(kind))


def test_class_weights_counted_in_the_batch_are_found(attach):
    model = built(Embedded)
    attach(model)

    def loss(model, batch):
        weight = 1 / torch.bincount(batch[1], minlength=3).clamp_min(1)
        return cross_entropy(model, batch) * weight[batch[1]]

    with pytest.raises(UnsupportedModel, match="in the loss function"):
        check_rows(model, loss, rows_of(Embedded))


@pytest.mark.parametrize("draw", ["torch", "numpy", "python"])
def test_mixup_is_found(draw, attach):
    model = built(Mlp)
    attach(model)

    def mixup(samples):
        x, y = default_collate(samples)
        order = {
            "torch": lambda: torch.randperm(len(x)),
            "numpy": lambda: torch.from_numpy(np.random.permutation(len(x))),  # noqa: NPY002
            "python": lambda: torch.tensor(random.sample(range(len(x)), len(x))),
        }[draw]()
        return 0.8 * x + 0.2 * x[order], y

    with pytest.raises(UnsupportedModel, match="in the collate function"):
        check_rows(model, cross_entropy, rows_of(Mlp), mixup)


class Between(nn.Module):
    """Mixes in its own forward, between two modules."""

    def __init__(self, where):
        super().__init__()
        self.first, self.head, self.where = nn.Linear(6, 8), nn.Linear(8, 3), where

    def forward(self, x):
        x = x / x.abs().max() if self.where == "before" else x
        h = self.first(x)
        h = h / h.detach().norm() if self.where == "between" else h
        out = self.head(h)
        return out - out.detach().mean(0) * torch.arange(3) if self.where == "after" else out


@pytest.mark.parametrize(
    "where, said",
    [
        ("before", r"in the forward of the model itself \(Between\), before first \(Linear\)"),
        ("between", r"between first \(Linear\) and head \(Linear\)"),
        ("after", r"in the forward of the model itself \(Between\), after head \(Linear\)"),
    ],
)
def test_mixing_outside_of_modules_is_placed(where, said):
    with pytest.raises(UnsupportedModel, match=said):
        check_rows(Between(where), cross_entropy, rows_of(Mlp))


def test_batchnorm_in_training_mode_is_refused_by_name(attach):
    model = built(Mlp)
    attach(model)
    model.seam = nn.BatchNorm1d(8, track_running_stats=False)
    with pytest.raises(UnsupportedModel, match=r"seam \(BatchNorm1d\)"):
        check_rows(model, cross_entropy, rows_of(Mlp))


def test_batch_statistics_of_a_home_made_norm_are_found():
    class Norm(nn.Module):
        def forward(self, h):
            return F.batch_norm(h, None, None, training=True)

    with pytest.raises(UnsupportedModel, match=r"in seam \(Norm\)"):
        check_rows(built(Mlp, Norm()), cross_entropy, rows_of(Mlp))


def test_mixing_from_a_certain_size_on_is_found():
    class Sized(nn.Module):
        def forward(self, h):
            return h - h.mean(0).detach() if len(h) > 8 else h

    with pytest.raises(UnsupportedModel, match="12 rows instead of 5"):
        check_rows(built(Mlp, Sized()), cross_entropy, rows_of(Mlp))


def test_a_gradient_that_mixes_under_equal_values_is_found():
    class Leaks(nn.Module):
        def forward(self, h):
            mean = h.mean(0)
            return h + mean - mean.detach()

    with pytest.raises(UnsupportedModel, match="rows must not mix"):
        check_rows(built(Mlp, Leaks()), cross_entropy, rows_of(Mlp))


# ------------------------------------------------------------------------------- state, buffers


def test_a_gate_that_opens_after_the_first_batch_is_found_at_once(attach):
    model = built(Mlp, Gate(closed=1))
    attach(model)
    with pytest.raises(UnsupportedModel, match="from the second batch on"):
        check_rows(model, cross_entropy, rows_of(Mlp))


def test_a_gate_that_opens_later_is_found_by_a_later_check(attach):
    model, rows = built(Mlp, Gate(closed=3)), rows_of(Mlp)
    engine = attach(model)
    assert check_rows(model, cross_entropy, rows) == ()
    assert model.seam.seen == 0
    for _ in range(3):
        norms(engine, model, rows)
    with pytest.raises(UnsupportedModel, match=r"in seam \(Gate\)"):
        check_rows(model, cross_entropy, rows)


def test_a_gate_in_the_loss_function_is_found():
    calls = []

    def loss(model, batch):
        calls.append(1)
        losses = cross_entropy(model, batch)
        return losses if len(calls) < 2 else losses - losses.mean().detach() * losses

    with pytest.raises(UnsupportedModel, match="in the loss function"):
        check_rows(built(Mlp), loss, rows_of(Mlp))


def test_rows_remembered_in_an_attribute_are_found(attach):
    model = built(Mlp, Remembers())
    attach(model)
    with pytest.raises(UnsupportedModel, match="rows of an earlier batch"):
        check_rows(model, cross_entropy, rows_of(Mlp))
    assert model.seam.memory == []


@pytest.mark.parametrize(
    "seam, name",
    [(RunningMean, "seam.mean"), (KeepsARow, "seam.kept"), (WritesFrozen, "seam.frozen")],
)
def test_what_a_forward_pass_writes_is_refused_and_put_back(seam, name, attach):
    model = built(Mlp, seam())
    attach(model)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(UnsupportedModel, match=name):
        check_rows(model, cross_entropy, rows_of(Mlp))
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


def test_a_buffer_made_during_the_forward_pass_is_refused():
    class Registers(nn.Module):
        def forward(self, h):
            self.register_buffer("found", h.detach())
            return h

    model = built(Mlp, Registers())
    with pytest.raises(UnsupportedModel, match=r"seam\.found"):
        check_rows(model, cross_entropy, rows_of(Mlp))
    assert "seam.found" not in model.state_dict()


@pytest.mark.parametrize("kind", KINDS)
def test_no_trace_is_left(kind, attach):
    model = built(kind, nn.Sequential(Warm(), nn.BatchNorm1d(4 if kind is Cnn else 8).eval()))
    attach(model)
    model.head.weight.grad = torch.ones_like(model.head.weight)
    attributes = {path: dict(m.__dict__) for path, m in model.named_modules()}
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    values = {name: tensor.clone() for name, tensor in tensors.items()}
    versions = {name: tensor._version for name, tensor in tensors.items()}
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()  # noqa: NPY002
    check_rows(model, cross_entropy, rows_of(kind))
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert (np.random.get_state()[1] == states[2]).all()  # noqa: NPY002
    now = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for name, tensor in tensors.items():
        assert now[name] is tensor and tensor._version == versions[name]
        assert torch.equal(tensor, values[name])
        expected = name == "head.weight"
        assert (tensor.grad is not None) == expected
    for path, module in model.named_modules():
        assert module.__dict__.keys() == attributes[path].keys()
        assert all(module.__dict__[key] is value for key, value in attributes[path].items())


# ------------------------------------------------------------------------------------ randomness


def test_random_numbers_that_cannot_be_switched_off_are_stated(attach):
    model = built(Mlp, Noisy())
    attach(model)
    assert check_rows(model, cross_entropy, rows_of(Mlp)) == (RANDOM,)
    with pytest.raises(UnsupportedModel, match="rows must not mix"):
        check_rows(built(Mlp, Noisy(mixing=True)), cross_entropy, rows_of(Mlp))


def test_random_numbers_that_cannot_be_repeated_are_stated():
    model = built(Mlp, Noisy(own=True))
    assert check_rows(model, cross_entropy, rows_of(Mlp)) == (UNSTEADY,)


# ---------------------------------------------------------------------------------- in a run


def feed_of(kind=Mlp, n=40, **options):
    rows = rows_of(kind, n)
    x, y = (torch.stack(column) for column in zip(*rows, strict=True))
    return Feed(TensorDataset(x, y), Poisson(n, min(1.0, 8 / n)), KEY, **options)


def test_the_checks_of_a_run_lift_the_condition(attach):
    model = built(Cnn)
    checks = RowChecks(model, attach(model), feed_of(Cnn))
    at_first = (ASSUMED if checks._engine.name == "loop" else UNCHECKED,)
    assert checks.conditions == at_first
    checks.check_if_due(1)  # no loss is known
    assert checks.conditions == at_first
    checks.check(cross_entropy, 0)
    assert checks.conditions == ()


def test_what_could_not_be_checked_stays_a_condition(attach):
    model = built(Mlp, Noisy())
    checks = RowChecks(model, attach(model), feed_of())
    checks.check(cross_entropy, 0)
    checks.check_if_due(1)
    assert checks.conditions == (RANDOM,)


def test_a_later_step_finds_what_the_first_could_not(attach):
    model = built(Mlp, Gate(closed=6))
    engine = attach(model)
    checks = RowChecks(model, engine, feed_of())
    checks.check(cross_entropy, 0)
    with pytest.raises(UnsupportedModel, match=r"in seam \(Gate\)|second batch"):
        for step in range(64):
            checks.check_if_due(step)
            norms(engine, model, rows_of(Mlp))


def test_the_engine_records_again_after_a_check_inside_the_loop(attach):
    model, rows = built(Mlp), rows_of(Mlp)
    engine = attach(model)
    before = norms(engine, model, rows)
    checks = RowChecks(model, engine, feed_of())
    checks.check(cross_entropy, 0, recording=True)
    view = engine.view(cross_entropy(model, default_collate(rows[:4])))
    assert torch.equal(view.norms(), before)


@pytest.mark.parametrize("n", [1, 2, 3, 6])
def test_small_datasets_can_be_checked(n):
    feed = feed_of(n=n)
    rows = rows_to_check(feed, 0)
    assert len(rows) == n
    model = built(Mlp)
    assert check_rows(model, cross_entropy, rows) == ()
    with pytest.raises(UnsupportedModel):
        check_rows(built(Mlp, Centred()), cross_entropy, rows)
    with pytest.raises(UnsupportedModel):
        check_rows(model, lambda m, b: cross_entropy(m, b) / len(b[1]), rows)


class Augmented(Dataset):
    def __len__(self):
        return 30

    def __getitem__(self, i):
        return {"x": torch.randn(6) + i, "y": random.randrange(3)}


def test_rows_of_a_random_dataset_are_drawn_once_and_without_a_trace():
    feed = Feed(Augmented(), Poisson(30, 0.5), KEY, collate_fn=default_collate)
    states = torch.get_rng_state(), random.getstate()
    rows = rows_to_check(feed, 3)
    assert torch.equal(torch.get_rng_state(), states[0]) and random.getstate() == states[1]
    again = rows_to_check(feed, 3)
    assert all(torch.equal(a["x"], b["x"]) for a, b in zip(rows, again, strict=True))
    other = rows_to_check(feed, 4)
    assert not all(torch.equal(a["x"], b["x"]) for a, b in zip(rows, other, strict=True))
    checks = RowChecks(built(Mlp), make_engine(Mlp(), {}, "loop"), feed)
    checks.check(lambda m, b: F.cross_entropy(m(b["x"]), b["y"], reduction="none"), 0)
    assert checks.conditions == ()


def test_about_log_t_steps_are_checked_and_the_key_chooses_them():
    def steps(key):
        return [step for step in range(4096) if due(key, step)]

    found = [steps(new_key(seed=s)) for s in range(3)]
    assert all(len(one) == 12 for one in found)
    assert all(one[0] == 1 and one == sorted(one) for one in found)
    assert found[0] != found[1] != found[2]
    assert steps(new_key(seed=0)) == found[0]


def test_a_loss_without_one_value_per_row_is_refused():
    with pytest.raises(LossError, match="one value per row"):
        check_rows(built(Mlp), lambda m, b: cross_entropy(m, b).mean(), rows_of(Mlp))
    with pytest.raises(LossError, match="one value per row"):
        check_rows(built(Mlp), lambda m, b: cross_entropy(m, b).detach(), rows_of(Mlp))


def test_a_model_that_cannot_take_a_single_row_is_refused():
    def loss(model, batch):
        if len(batch[1]) == 1:
            raise RuntimeError("too few")
        return cross_entropy(model, batch)

    with pytest.raises(UnsupportedModel, match="any number of rows"):
        check_rows(built(Mlp), loss, rows_of(Mlp))


AUTOCAST = Path(__file__).parents[2] / "benchmarks" / "row_checks.py"


@pytest.mark.parametrize(("seed", "rate"), [(3, 1.0), (5, 30.0)])
def test_low_rank_training_with_dropout_under_autocast_is_no_false_alarm(seed, rate):
    """Both were, and the mixing of the first was not found. 200 runs: benchmarks/row_checks.py."""
    spec = importlib.util.spec_from_file_location("row_checks", AUTOCAST)
    runs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(runs)
    runs.train(seed, rate, dropout=0.1, narrow=True)
    with pytest.raises(UnsupportedModel, match="rows must not mix"):
        runs.train(seed, rate, dropout=0.1, narrow=True, weight=0.2)


@pytest.mark.parametrize("unit", [None, [i // 2 for i in range(40)]], ids=["rows", "units"])
@pytest.mark.parametrize("engine", ENGINES)
def test_views_and_units_are_checked_on_every_engine(engine, unit):
    """A loop of one's own, with three losses for each row."""
    rows = TensorDataset(*(torch.stack(column) for column in zip(*rows_of(Mlp, 40), strict=True)))

    def run(model):
        return winsor.make_private(
            model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), dataset=rows,
            rule=winsor.rules.Flat(1.0), batch_size=10, steps=2, noise_multiplier=1.0, delta=1e-3,
            group_size=3, engine=engine, unit=unit,
        )  # fmt: skip

    def loss(model, batch):
        views = [x.repeat_interleave(3, 0) for x in batch]
        return cross_entropy(
            model, (views[0] + torch.arange(3.0).repeat(len(batch[1]))[:, None], views[1])
        )

    private = run(built(Mlp))
    said = [each for each in private.spent().conditions if "rows assumed" in each]
    assert said == [ASSUMED if engine == "loop" else UNCHECKED]
    private.check(loss)
    for batch in private.batches():
        private.step(loss(private.model, batch))
    assert not any("rows assumed" in each for each in private.spent().conditions)
    with pytest.raises(UnsupportedModel, match="rows must not mix"):
        run(built(Mlp, Centred())).check(loss)
