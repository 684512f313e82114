"""Fixed shapes: rows keep their slots, empty slots count for nothing, overflow is paid for."""

from unittest import mock

import engine_zoo as zoo
import numpy as np
import pytest
import torch
from dp_accounting.dp_event import ComposedDpEvent, GaussianDpEvent, PoissonSampledDpEvent
from layer_zoo import MODELS
from scipy.stats import binom
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset

import winsor
from winsor.audit import replay
from winsor.core.accounting import certify, event_from_json, event_to_json
from winsor.core.arithmetic.slack import most_drawn
from winsor.core.contract import ConfigurationError, Neighbouring
from winsor.core.events.thresholded import OverflowDpEvent
from winsor.core.noise.gaussian import Gaussian
from winsor.core.sampling.allocation import Allocation, Loader
from winsor.core.sampling.cyclic import CyclicPoisson
from winsor.core.sampling.samplers import FixedSize, FullBatch, Poisson, Sampler
from winsor.gradients import make_engine, trainable_parameters
from winsor.planning.run import PARTS
from winsor.rules import NSGD, Averaged, Flat, PerLayer, Quantile
from winsor.training.feeding.slots import OVERFLOW, Slots, only_rows

N = 300


def rows(n=N):
    x = torch.randn(n, 4, generator=torch.Generator().manual_seed(0))
    return TensorDataset(x, (x[:, 0] > 0).long())


def build(fixed=True, data=None, model=None, **options):
    torch.manual_seed(1)
    model = model or nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    chosen = {"rule": Flat(0.5), "batch_size": 30, "steps": 8, "delta": 1e-4, "seed": 3}
    if not {"epsilon", "noise_multiplier"} & set(options):
        chosen["noise_multiplier"] = 1.0
    private = winsor.make_private(
        model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.2),
        dataset=data or rows(), fixed_shapes=fixed, **(chosen | options),
    )  # fmt: skip
    return model, private


def losses_of(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def train(model, private, loss=losses_of, steps=None):
    """Return the sums before noise, the released parameters and the sizes of all batches."""
    sums, sizes, release = [], [], private._door.release

    def noted(step, parts):
        leaves = [torch.as_tensor(v).clone() for v in parts["grad"].value.values()]
        others = [torch.as_tensor(p.value) for n, p in sorted(parts.items()) if n != "grad"]
        sums.append(torch.cat([v.double().flatten() for v in (*leaves, *others)]))
        return release(step, parts)

    private._door.release = noted
    for batch in private.batches(steps):
        sizes.append(len(batch[0]))
        private.step(loss(model, batch))
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    return torch.stack(sums), weights, sizes


# ------------------------------------------------------------------------- the same as without


WAYS = {
    "poisson": {},
    "fragments": {"max_physical_batch_size": 16},
    "full": {"sampling": "full", "batch_size": N, "max_physical_batch_size": 70},
    "fixed": {"sampling": "fixed", "relation": "replace_one"},
    "allocation": {"sampling": "allocation"},
    "loader": {"sampling": "loader", "batch_size": 40},
    "cyclic": {"mechanism": winsor.Banded(bands=3)},
    "laplace": {"mechanism": "laplace", "rule": winsor.rules.L1(0.5)},
    "quantile votes": {"rule": Quantile(0.5)},
    "per layer": {"rule": PerLayer(0.5)},
    "torch.func": {"engine": "func"},
}


@pytest.mark.parametrize("way", WAYS)
def test_what_is_released_is_what_is_released_without(way):
    found = [train(*build(fixed, **WAYS[way])) for fixed in (False, True)]
    (expected, weights, _), (sums, others, sizes) = found
    torch.testing.assert_close(sums, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(others, weights)
    assert len(set(sizes)) == 1, sizes


def test_every_logical_batch_has_as_many_physical_ones_and_resumes_in_its_slots():
    options = {"max_physical_batch_size": 6, "sampling": Poisson(N, 0.002), "batch_size": 0.6}
    model, private = build(**options)
    _, weights, sizes = train(model, private)
    slots = private._feed.slots
    assert slots.batches > 1
    assert sizes == [6] * (8 * slots.batches)  # most of these Poisson batches hold no row
    again, half = build(**options)
    train(again, half, steps=3)
    third, resumed = build(**options)
    third.load_state_dict(again.state_dict())
    resumed.load_state_dict(half.state_dict())
    assert torch.equal(train(third, resumed)[1], weights)


def test_workers_and_a_collate_function_of_dictionaries():
    def collate(found):
        return {"x": torch.stack([x for x, _ in found]), "y": torch.stack([y for _, y in found])}

    def loss(model, batch):
        return F.cross_entropy(model(batch["x"]), batch["y"], reduction="none")

    seen = []
    for workers in (0, 1):
        model, private = build(
            collate_fn=collate, num_workers=workers, batch_size=0.6, sampling=Poisson(N, 0.002)
        )
        for batch in private.batches():
            assert len(batch["y"]) == private._feed.slots.size
            private.step(loss(model, batch))
        seen.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.equal(*seen)


# ------------------------------------------------------------------------------- empty slots


class Direction(nn.Module):
    """NaN, and a gradient of NaN, for a row of zeros."""

    def forward(self, x):
        return x / x.norm(dim=1, keepdim=True)


@pytest.mark.parametrize("rule", [Flat(0.5), PerLayer(0.5), Quantile(0.5)])
@pytest.mark.parametrize("engine", ["ghost", "func"])
def test_an_empty_slot_may_have_any_loss_and_gradient(rule, engine):
    def model():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(4, 6, bias=False), Direction(), nn.Linear(6, 2))

    def loss(model, batch):
        return losses_of(model, batch) / (batch[0] != 0).any(1)

    options = {"rule": rule, "engine": engine}
    expected, _, _ = train(*build(False, model=model(), **options))
    network, private = build(model=model(), **options)
    sums, _, _ = train(network, private, loss)
    torch.testing.assert_close(sums, expected, rtol=1e-12, atol=1e-12)
    assert private.neutralised_rows_not_private == 0


# --------------------------------------------------------- other rows, when one more row comes


class Shift(nn.Module):
    """Moves what a ReLU sees to its kink."""

    def __init__(self, at):
        super().__init__()
        self.register_buffer("at", at)

    def forward(self, h):
        return h - self.at


def at_a_kink(count):
    """Alike rows, and a network in which the last bit of their first layer decides a gradient."""
    coins = torch.Generator().manual_seed(0)
    x = torch.randn(5, generator=coins).expand(count, 5).contiguous()
    first, last = nn.Linear(5, 10), nn.Linear(10, 1, bias=False)
    with torch.no_grad():
        first.weight.copy_(torch.randn(10, 5, generator=coins))
        first.bias.zero_()
        last.weight.zero_()
        h = first(x)
        unit = int((h != h[0]).sum(0).argmax())
        least = h.min(0).values
        last.weight[0, unit] = 1.0
    signs = torch.where(h[:, unit] > least[unit], 1.0, -1.0)
    return nn.Sequential(first, Shift(least), nn.ReLU(), last), (x, signs)


def norms_and_sum(model, batch, slots=None):
    engine = make_engine(model, trainable_parameters(model))
    engine.attach()
    engine.recording(True)
    losses = model(batch[0])[:, 0] * batch[1]
    view = engine.view(losses) if slots is None else only_rows(engine, losses, slots)
    with torch.no_grad():
        norms = view.norms()
        total = view.weighted_sum(1 / norms.clamp_min(1e-30))
    engine.detach()
    return norms, torch.cat([leaf.flatten() for leaf in total.values()])


def test_rows_keep_their_bits_when_another_row_comes():
    """The example of 1,448 C in docs/privacy.md, without slots and with them."""
    count, size = 4096, 4300
    model, (x, signs) = at_a_kink(count)
    more = torch.cat([x[:1] * 0, x]), torch.cat([signs[:1] * 0, signs])
    (norms, total), (others, moved) = norms_and_sum(model, (x, signs)), norms_and_sum(model, more)
    if (signs > 0).any():  # with kernels that give equal rows equal bits there is no such example
        assert not torch.equal(norms, others[1:])
        assert (total - moved).norm() > 1000

    taken = np.sort(np.random.default_rng(0).permutation(size)[: count + 1])
    slots, like = Slots(1, size), (x[:1], signs[:1])
    norms, total = norms_and_sum(model, slots.padded((x, signs), like, taken[1:]), taken[1:])
    others, moved = norms_and_sum(model, slots.padded(more, like, taken), taken)
    assert torch.equal(norms, others[1:])
    assert (total - moved).norm() < 1e-9


class Last(nn.Module):
    """The last output of a recurrent layer."""

    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(6, 8, batch_first=True)

    def forward(self, x):
        return self.gru(x)[0][:, -1]


LAYERS = {
    "convolution": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 5)), nn.Conv1d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(),
        nn.Flatten(1), nn.Linear(12, 1),
    ),
    "attention": lambda: nn.Sequential(
        nn.TransformerEncoderLayer(6, 2, 8, dropout=0.1, batch_first=True), nn.Flatten(1),
        nn.Linear(30, 1),
    ),
    "recurrent": lambda: nn.Sequential(Last(), nn.Linear(8, 1)),
    "dropout": lambda: nn.Sequential(
        nn.Flatten(1), nn.Linear(30, 9), nn.Dropout(), nn.Linear(9, 1),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_other_rows_are_alike_bit_for_bit_in_all_kinds_of_layers(name):
    torch.manual_seed(0)
    model, count, size = LAYERS[name](), 37, 64
    x, signs = torch.randn(count, 5, 6), torch.randn(count)
    x = x[:, :, 0] if name == "convolution" else x
    slots, taken = Slots(1, size), np.random.default_rng(0).permutation(size)[:count]
    found = []
    for rows in (slice(None), slice(1, None)):  # random layers draw by slot
        torch.manual_seed(5)
        batch = slots.padded((x[rows], signs[rows]), (x[:1], signs[:1]), taken[rows])
        found.append(norms_and_sum(model, batch, taken[rows])[0])
    assert torch.equal(found[0][1:], found[1])


@pytest.mark.parametrize("name", MODELS)
def test_rows_in_slots_answer_every_question_as_they_do_alone(name):
    torch.manual_seed(0)
    build_model, inputs = MODELS[name]
    model, x = build_model().eval(), inputs()
    taken = np.random.default_rng(0).permutation(2 * len(x))[: len(x)]
    (full,) = Slots(1, 2 * len(x)).padded((x,), (x[:1],), taken)
    parameters = trainable_parameters(model)
    engine = make_engine(model, parameters)
    engine.attach()
    engine.recording(True)
    found = only_rows(engine, zoo.square_loss(model(full)), taken)
    engine.detach()
    alone = zoo.make_view(model, x, "ghost")[1]
    zoo.assert_same_views(alone, found, list(parameters), 2e-5)


def shifted(slots, rows, key, step, chosen=Slots.chosen):
    """Slots that depend on how many rows were drawn."""
    found = chosen(slots, rows, key, step)
    return [(own, (places + len(rows)) % slots.size) for own, places in found]


def test_replay_finds_a_slot_that_depends_on_other_rows():
    slots, _ = Slots.of(Poisson(200, 0.5), 1, None)
    x = at_a_kink(1)[1][0]

    def one_step(data):
        model, (_, signs) = at_a_kink(slots.size)
        _, private = build(
            model=model, data=data, rule=NSGD(1.0, 0.0), batch_size=100, steps=1, delta=1e-3
        )
        for (batch,) in private.batches():
            private.step(model(batch)[:, 0] * signs)
        return [p.detach() for p in model.parameters()]

    data = TensorDataset(x.expand(200, 5).contiguous())
    assert replay(one_step, data, slack=1e-9).passed
    with mock.patch.object(Slots, "chosen", shifted):
        found = replay(one_step, data, slack=1e-9, first_only=True)
    alike = not (at_a_kink(slots.size)[1][1] > 0).any()
    assert found.passed == alike
    assert alike or found.largest_share > 2


# ----------------------------------------------------------------------------------- injection


def test_the_injection_is_uniform_also_restricted_to_some_rows():
    slots, counts = Slots(2, 3), np.zeros((4, 6))
    for step in range(6000):
        chosen = slots.chosen(np.arange(4), b"key of the run", step)
        for number, (found, places) in enumerate(chosen):
            counts[found, 3 * number + places] += 1
    assert (counts.sum(1) == 6000).all()
    assert np.abs(counts - 1000).max() < 5 * np.sqrt(1000 * 5 / 6)


def test_rows_beyond_the_slots_are_dropped_by_coins():
    slots, kept = Slots(1, 3), np.zeros(5)
    for step in range(5000):
        ((found, places),) = slots.chosen(np.arange(5), b"key of the run", step)
        assert sorted(places) == [0, 1, 2]
        kept[found] += 1
    assert np.abs(kept - 3000).max() < 5 * np.sqrt(5000 * 0.6 * 0.4)


def test_in_full_batches_the_index_is_the_slot():
    slots, _ = Slots.of(FullBatch(10), 5, 4)
    found = slots.chosen(np.arange(10), b"key of the run", 1)
    assert [r.tolist() for r, _ in found] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert [p.tolist() for _, p in found] == [[0, 1, 2, 3], [0, 1, 2, 3], [0, 1]]


# ------------------------------------------------------------------------------------ overflow


@pytest.mark.parametrize(
    ("n", "rate"),
    [(60_000, 128 / 60_000), (1000, 0.05), (10**8, 1e-8), (50, 0.9), (1, 0.5), (9, 1)],
)
def test_a_draw_reaches_its_bound_as_rarely_as_is_said(n, rate):
    for chance in (1e-3, 2.0**-50):
        most = most_drawn(n, rate, chance)
        assert n * rate <= most <= n
        assert most == n or binom.sf(most - 1, n, rate) <= chance
        assert most < 40 or binom.sf(0.9 * most, n, rate) > chance or most == n  # not far off


@pytest.mark.parametrize(
    "sampler", [Poisson(5000, 0.01), Allocation(5000, 100), CyclicPoisson(5000, 4, 0.01)]
)
def test_overflow_of_all_steps_is_paid_for_by_the_ledger(sampler):
    slots, paying = Slots.of(sampler, 400, 64)
    assert slots.size == 64
    most = slots.batches * slots.size
    assert 400 * binom.sf(most - 1, 5000, 0.01) <= OVERFLOW / 2
    assert paying.overflow == OVERFLOW / 400
    assert sampler.overflow == 0
    assert np.array_equal(paying.indices(b"key", 3), sampler.indices(b"key", 3))
    local = Gaussian(1.0).event(PARTS)
    relation = Neighbouring.ADD_OR_REMOVE_ONE
    history = paying.history(local, relation, 400)
    for (event, count), (plain, _) in zip(
        history, sampler.history(local, relation, 400), strict=True
    ):
        assert isinstance(event, ComposedDpEvent)
        assert event.events[0] == plain
        assert event.events[1].delta * count == pytest.approx(OVERFLOW)
        assert event_from_json(event_to_json(event)) == event
    assert paying.event(local, relation, 0) == history[0][0]


def test_delta_pays_for_overflow():
    event, most = PoissonSampledDpEvent(0.01, GaussianDpEvent(1.0)), 1000
    lost = ComposedDpEvent([event, OverflowDpEvent(4e-9)])
    paid, less = certify([(lost, most)], 1e-5).epsilon, certify([(event, most)], 6e-6).epsilon
    assert paid == pytest.approx(less, rel=1e-3)
    assert certify([(lost, most)], 4e-6).epsilon == float("inf")


@pytest.mark.parametrize(
    ("sampler", "most"),
    [
        (FixedSize(300, 20), 20),
        (FullBatch(300), 300),
        (Loader(300, 40), 40),
        (Poisson(300, 1.0), 300),
    ],
)
def test_public_sizes_cost_nothing(sampler, most):
    slots, same = Slots.of(sampler, 100, None)
    assert (slots.batches, slots.size) == (1, most)
    assert same.overflow == 0


def test_a_calibrated_run_spends_its_epsilon_and_says_what_it_rests_on():
    model, private = build(epsilon=2.0)
    train(model, private)
    spent = private.spent()
    assert 1.9 < spent.epsilon <= 2.0
    assert any("more rows than slots" in text for text in spent.conditions)
    assert any("and its slot" in text for text in spent.conditions)
    _, plain = build(False)
    assert "what is recorded of a row is a function of the row" in plain.spent().conditions


# ------------------------------------------------------------------------------------ refusals


class Own(Sampler):
    n, rate, expected_size = N, 0.1, 30.0

    def indices(self, key, step):
        return np.arange(30)

    def amplify(self, event, relation):
        return event.whole(relation)


@pytest.mark.parametrize(
    "options",
    [
        {"unit": np.arange(N)},
        {"group_size": 2},
        {"engine": "loop"},
        {"rule": Averaged(1.0)},
        {"mechanism": winsor.ModelMix(0.1)},
        {"sampling": Own()},
        {"sampling_rate": 0.1},
    ],
    ids=lambda options: next(iter(options)),
)
def test_what_has_no_slots_is_refused(options):
    with pytest.raises(ConfigurationError, match="fixed_shapes"):
        build(**options)


class Ragged(Dataset):
    def __len__(self):
        return N

    def __getitem__(self, i):
        return torch.ones(4 + (i > 20)), 0


@pytest.mark.parametrize("collate", [lambda found: found, lambda found: torch.stack(found[0][:1])])
def test_rows_of_other_shapes_are_refused(collate):
    _, private = build(data=Ragged(), collate_fn=collate)
    with pytest.raises(ConfigurationError, match="one shape"):
        next(private.batches())
