"""The one-run audit on real trainings: honest ones pass, weak noise is found out."""

import numpy as np
import pytest
import torch
from dp_accounting import dp_event
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import winsor
from winsor.audit.canaries import plant, random_canaries, rows
from winsor.audit.claims import gaussian_epsilon, scaled
from winsor.audit.example import clusters
from winsor.audit.one_run import audit_training, correct_guesses, curve_epsilon, twin
from winsor.contrib.modelmix.mechanism import ModelMix
from winsor.core.contract import ConfigurationError, Neighbouring
from winsor.core.noise.gaussian import Gaussian
from winsor.rules.coordinates import L1, LInf
from winsor.rules.flat import Flat
from winsor.training.fit import cross_entropy

ADD = Neighbouring.ADD_OR_REMOVE_ONE


def training(dataset=None, steps=12, **options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(200, 8), nn.ReLU(), nn.Linear(8, 10))
    defaults = {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "rule": Flat(1.0),
        "epsilon": 8.0,
    }
    return winsor.make_private(
        dataset=TensorDataset(*clusters(400, inputs=200)) if dataset is None else dataset,
        delta=1e-5,
        steps=steps,
        batch_size=100 if dataset is None else len(dataset) / 4,
        seed=0,
        **(defaults | options),
    )


class QuietNoise(Gaussian):
    """Adds a twentieth of the noise it states."""

    def add_noise(self, parts, std, draw):
        return super().add_noise(parts, {name: s / 20 for name, s in std.items()}, draw)


def test_an_honest_training_is_not_refuted_and_the_bound_is_below_the_claim():
    report = audit_training(training(), cross_entropy, canaries=300, seed=1)
    assert not report.violated
    assert (report.canaries, report.guesses) == (300, 60)
    assert 0 < report.epsilon_curve < report.claimed_epsilon <= 8.0
    assert report.epsilon_pointwise < report.claimed_epsilon
    assert "not violated" in str(report)


def test_training_with_a_twentieth_of_the_noise_is_refuted():
    def make(dataset):
        private = training(dataset, epsilon=1.0)
        private._door.mechanism = QuietNoise(private.noise_multiplier)
        return private

    report = audit_training(training(), cross_entropy, canaries=300, seed=1, make=make)
    assert report.violated
    assert report.epsilon_curve > report.claimed_epsilon
    assert "VIOLATED" in str(report)


def test_the_audited_run_is_left_as_it_was():
    private = training()
    before = {name: p.clone() for name, p in private.model.named_parameters()}
    audit_training(private, cross_entropy, canaries=20, seed=1)
    assert private.steps_done == 0 and len(private.ledger) == 0
    for name, parameter in private.model.named_parameters():
        assert torch.equal(parameter, before[name])
    for batch in private.batches(1):
        assert private.step(cross_entropy(private.model, batch))


def test_the_twin_has_the_same_events():
    private = training()
    bigger = TensorDataset(*clusters(450, inputs=200))
    copy = twin(private, bigger, seed=3)
    assert copy.sampler.rate == private.sampler.rate
    assert copy.noise_multiplier == private.noise_multiplier
    assert copy.budget.planned_steps == private.budget.planned_steps
    for batch in copy.batches():
        copy.step(cross_entropy(copy.model, batch))
    assert copy.spent().epsilon == pytest.approx(8.0, rel=0.01)


@pytest.mark.parametrize("mechanism", ["laplace", ModelMix(0.5), ModelMix(0.5, noise="laplace")])
def test_the_twin_has_the_same_mechanism(mechanism):
    laplace = mechanism == "laplace" or mechanism.noise == "laplace"
    options = {"epsilon": None, "noise_multiplier": 2.0, "mechanism": mechanism}
    private = training(rule=L1(1.0) if laplace else LInf(1.0, 1), **options)
    copy = twin(private, TensorDataset(*clusters(450, inputs=200)), seed=3)
    assert copy._door.mechanism.config() == private._door.mechanism.config()
    assert type(copy._door.mechanism) is type(private._door.mechanism)
    assert type(copy._update) is type(private._update)


def test_a_mechanism_that_hides_its_gradients_is_audited_by_its_model_only():
    options = {"epsilon": None, "noise_multiplier": 2.0, "mechanism": ModelMix(0.5)}
    private = training(steps=2, rule=LInf(1.0, 1), **options)
    with pytest.raises(ConfigurationError, match='access="model"'):
        audit_training(private, cross_entropy, canaries=10, seed=1)
    report = audit_training(private, cross_entropy, canaries=10, access="model", seed=1)
    assert report.family == "Gaussian DP" and not report.violated


def test_the_twin_follows_the_learning_rate_of_the_run():
    torch.manual_seed(0)
    model = nn.Linear(200, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    private = training(steps=3, model=model, optimizer=optimizer, scheduler=scheduler)
    copy = twin(private, TensorDataset(*clusters(450, inputs=200)), seed=3)
    for batch in copy.batches():  # torch would warn of a scheduler that lost its optimiser
        copy.step(cross_entropy(copy.model, batch))
    assert copy._update.optimizer.param_groups[0]["lr"] == pytest.approx(0.1 / 8)
    assert optimizer.param_groups[0]["lr"] == 0.1


def test_the_curve_bound_inverts_the_runs_own_ledger():
    event = dp_event.PoissonSampledDpEvent(0.2, dp_event.GaussianDpEvent(1.0))
    counts = (1000, 200, 170)
    bound = curve_epsilon([(event, 20)], ADD, 1e-5, counts)
    louder = curve_epsilon(scaled([(event, 20)], 2.0), ADD, 1e-5, counts)
    assert bound == pytest.approx(louder, rel=0.03)  # the family is the same, wherever it starts
    assert 0 < bound < gaussian_epsilon(20.0, 1e-5)
    assert curve_epsilon([(event, 20)], ADD, 1e-5, (1000, 200, 100)) == 0.0
    assert curve_epsilon([(dp_event.NoOpDpEvent(), 1)], ADD, 1e-5, counts) is None


def test_a_private_object_audits_itself():
    report = audit_training(training(steps=2), cross_entropy, canaries=20, seed=1)
    assert (report.canaries, report.violated) == (20, False)


def test_the_final_model_alone_can_be_audited():
    report = audit_training(training(), cross_entropy, canaries=100, access="model", seed=1)
    assert not report.violated and 0 <= report.right <= report.guesses == 20


def test_guesses_are_the_extreme_scores():
    coins = np.array([True, False, True, False, True])
    scores = np.array([5.0, 1.0, 4.0, 2.0, 0.0])
    assert correct_guesses(scores, coins, 2) == 1  # highest is in (right), lowest is in (wrong)
    assert correct_guesses(scores, coins, 4) == 3
    assert correct_guesses(scores, coins, 1) == 1


def test_coins_are_fair_and_winners_are_planted():
    data = TensorDataset(*clusters(50, inputs=20))
    canaries = random_canaries(data, 1_000, seed=0)
    planted = plant(data, canaries, seed=0)
    assert 430 < planted.coins.sum() < 570
    assert len(planted.dataset) == 50 + planted.coins.sum()
    first = int(np.flatnonzero(planted.coins)[0])
    assert torch.equal(planted.dataset[50][0], canaries[first][0])


class Pairs(Dataset):
    """A dataset that is not a TensorDataset."""

    def __len__(self):
        return 30

    def __getitem__(self, i):
        return torch.full((4,), float(i)), i % 3


def test_canaries_take_the_shape_and_the_range_of_any_dataset():
    canaries = random_canaries(Pairs(), 200, seed=0)
    inputs, labels = canaries.tensors
    assert inputs.shape == (200, 4) and set(labels.tolist()) == {0, 1, 2}
    planted = plant(Pairs(), canaries, seed=0)
    assert len(planted.dataset) == 30 + planted.coins.sum()
    assert rows(Pairs(), range(2))[0].shape == (2, 4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"access": "everything"}, "access"),
        ({"guesses": 31}, "guesses"),
        ({"canaries": 0}, "canaries"),
    ],
)
def test_bad_arguments_are_refused(options, message):
    with pytest.raises(ConfigurationError, match=message):
        audit_training(training(), cross_entropy, **({"canaries": 30} | options))


def test_samplers_with_a_public_size_are_refused():
    private = training(sampling="fixed", relation="replace_one")
    with pytest.raises(ConfigurationError, match="Poisson"):
        audit_training(private, cross_entropy, canaries=10)
