"""Correlated noise behind the door: what is paid, what is added, and how a run goes on."""

import copy

import numpy as np
import pytest
import torch
from dp_accounting.dp_event import GaussianDpEvent, PoissonSampledDpEvent
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import winsor
from winsor.audit import replay
from winsor.core.accounting import certify
from winsor.core.contract import ConfigurationError, LedgerError, Neighbouring, UnsupportedRelation
from winsor.core.noise.banded import BandedGaussian
from winsor.core.noise.gaussian import Gaussian
from winsor.core.sampling.cyclic import CyclicPoisson
from winsor.rules import Flat, PerLayer, Quantile
from winsor.training.correlated import learning_rates, momentum

N, BATCH, STEPS, DELTA = 240, 24, 20, 1e-4


def rows(labels_from=0):
    x = torch.randn(N, 5, generator=torch.Generator().manual_seed(0))
    return TensorDataset(x, (x[:, labels_from] > 0).long())


def build(seed=3, ledger=None, data=None, **options):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 2))
    chosen = {"mechanism": winsor.Banded(4), "rule": Flat(1.0), "noise_multiplier": 1.0}
    private = winsor.make_private(
        model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.5),
        dataset=data or rows(), batch_size=BATCH, steps=STEPS, delta=DELTA, seed=seed,
        ledger=ledger, **(chosen | options),
    )  # fmt: skip
    return model, private


def train(model, private, steps=None):
    for x, y in private.batches(steps):
        private.step(F.cross_entropy(model(x), y, reduction="none"))


def weights(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def test_a_run_pays_for_one_visit_in_each_round_of_groups():
    model, private = build()
    train(model, private)
    sampled = PoissonSampledDpEvent(4 * BATCH / N, GaussianDpEvent(1.0))
    paid = certify([(sampled, STEPS // 4)], DELTA, Neighbouring.ADD_OR_REMOVE_ONE).epsilon
    assert private.spent().epsilon == pytest.approx(paid, rel=1e-9)
    assert len(private.ledger) == STEPS


@pytest.mark.parametrize("rule", [Flat(1.0), Quantile(1.0), PerLayer(1.0, joint=True)])
def test_calibration_spends_the_target(rule):
    model, private = build(noise_multiplier=None, epsilon=6.0, rule=rule)
    train(model, private)
    assert 5.9 < private.spent().epsilon <= 6.0


def test_what_is_released_carries_noise_that_later_steps_take_back():
    """Over many seeds, the noise of the sums so far is that of |A C^-1|, not of independent noise,
    and the stated deviation is that of each release."""
    prefix, single = [], []
    for seed in range(60):
        _, private = build(seed)
        door = private._door
        noises = []
        for step in range(12):
            parts = private.public_parts()
            released = door.release(step, parts)
            grad = released.values["grad"]
            flat = torch.cat([leaf.reshape(-1).double() for leaf in grad.values()])
            noises.append(flat.numpy())
            single.append(float(np.mean(flat.numpy() ** 2)) / released.std["grad"] ** 2)
        prefix.append(np.mean(np.sum(noises, axis=0) ** 2))
    mechanism = BandedGaussian.of_bands(1.0, 4)
    responses = np.linalg.inv(
        np.array([[_entry(mechanism.column, i - j) for j in range(12)] for i in range(12)])
    )
    expected = float(np.sum(responses.sum(axis=0) ** 2))
    assert np.mean(prefix) == pytest.approx(expected, rel=0.08)
    assert expected < 0.6 * 12
    assert np.mean(single) == pytest.approx(1.0, rel=0.03)


def _entry(column, lag):
    return column[lag] if 0 <= lag < len(column) else 0.0


@pytest.mark.parametrize("at", [1, 6, 13])
def test_a_killed_run_goes_on_bit_by_bit_and_for_free(tmp_path, at):
    model, private = build()
    train(model, private)
    whole = weights(model)

    model, private = build(ledger=tmp_path / "run.ledger")
    train(model, private, at)
    state = private.state_dict()
    kept = [p.detach().clone() for p in model.parameters()]
    buffers = copy.deepcopy(private._update.optimizer.state_dict())
    train(model, private, 3)  # released after the checkpoint, then killed
    private.ledger.close()

    model, private = build(ledger=tmp_path / "run.ledger")
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), kept, strict=True):
            parameter.copy_(value)
    private._update.optimizer.load_state_dict(buffers)
    private.load_state_dict(state)
    train(model, private, STEPS - at)
    assert torch.equal(weights(model), whole)
    assert len(private.ledger) == STEPS


def test_its_past_is_part_of_what_noise_is_bound_to(tmp_path):
    """The same noise under another history would show the difference of two sums."""
    model, private = build(ledger=tmp_path / "run.ledger")
    train(model, private, 5)
    private.ledger.close()
    model, private = build(ledger=tmp_path / "run.ledger", data=rows(1), resume=True)
    with pytest.raises(LedgerError, match="digest|another value|noise"):
        train(model, private, 5)


def test_new_randomness_begins_a_new_stretch(tmp_path):
    model, private = build(ledger=tmp_path / "run.ledger")
    train(model, private, 6)
    state = private.state_dict()
    private.ledger.close()
    other, again = build(ledger=tmp_path / "run.ledger")
    other.load_state_dict(model.state_dict())
    again.load_state_dict(state, repeat=False)
    train(other, again, 6)
    assert len(again.ledger) == 12
    assert again._door.noise_state()["step"] == 6


def test_bands_are_chosen_for_the_run():
    data = TensorDataset(torch.randn(2000, 3), torch.zeros(2000, dtype=torch.long))

    def chosen(steps, epsilon, batch_size=20):
        model = nn.Linear(3, 2)
        return winsor.make_private(
            model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), dataset=data,
            rule=Flat(1.0), batch_size=batch_size, steps=steps, epsilon=epsilon, delta=1e-5,
            mechanism=winsor.Banded(),
        )  # fmt: skip

    few = chosen(100, 8.0)
    assert isinstance(few.sampler, CyclicPoisson)
    assert few.sampler.bands >= 16
    many = chosen(40 * 59, 3.0, batch_size=34)
    assert isinstance(many._door.mechanism, Gaussian)
    assert not isinstance(many.sampler, CyclicPoisson)


def test_replay_finds_nothing_in_an_honest_run_and_a_row_that_returns():
    def fit(data):
        model, private = build(data=data)
        train(model, private)
        return model

    assert replay(fit, rows()).passed

    class Hasty(CyclicPoisson):
        def indices(self, key, step):
            return super().indices(key, step - step % 2)  # the same group two steps running

    def hasty(data):
        model, private = build(data=data, sampling=Hasty(N, 4, BATCH / N))
        train(model, private)
        return model

    report = replay(hasty, rows())
    assert not report.passed
    assert "drawn at steps" in str(report)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"sampling": "poisson"}, ConfigurationError, "stay away"),
        ({"sampling": "cyclic", "mechanism": None}, ConfigurationError, "Banded"),
        ({"mechanism": winsor.Banded()}, ConfigurationError, "target epsilon"),
        ({"relation": "replace_one"}, UnsupportedRelation, "add_or_remove"),
        ({"mechanism": winsor.Banded(11)}, ConfigurationError, "1/bands"),
    ],
)
def test_what_is_not_proven_is_refused(options, error, words):
    with pytest.raises(error, match=words):
        build(**options)


def test_the_choice_knows_momentum_and_schedule():
    parameter = nn.Parameter(torch.zeros(2))
    sgd = torch.optim.SGD([parameter], lr=0.5, momentum=0.9)
    assert momentum(sgd) == 0.9
    assert momentum(torch.optim.Adam([parameter], betas=(0.8, 0.99))) == 0.8
    assert momentum(torch.optim.Adagrad([parameter])) == 0.0
    assert learning_rates(sgd, None, 4) is None
    warm = torch.optim.lr_scheduler.LinearLR(sgd, 0.5, total_iters=2)
    step = torch.optim.lr_scheduler.StepLR(sgd, 2, 0.1)
    both = torch.optim.lr_scheduler.SequentialLR(sgd, [warm, step], [2])
    before = sgd.param_groups[0]["lr"]
    rates = learning_rates(sgd, both, 6)
    assert len(rates) == 6
    assert rates[0] == before
    assert rates[-1] < rates[2]
    assert sgd.param_groups[0]["lr"] == before  # only the copy was stepped
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(sgd)
    assert learning_rates(sgd, plateau, 4) is None
