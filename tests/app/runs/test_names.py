"""Names that the papers use, chosen in a configuration: read from TOML, trained to the end."""

from __future__ import annotations

import tomllib

import numpy as np
import pytest
import torch
from tiny_runs import table
from torch import nn

from winsor.app.runs.assemble import check
from winsor.app.runs.config import from_table
from winsor.app.runs.directory import RunDirectory
from winsor.app.runs.execute import execute
from winsor.app.runs.progress import Quiet
from winsor.app.runs.tasks import make_task
from winsor.contrib.embedding.public_gradients import PublicGradients
from winsor.contrib.modelmix.mechanism import ModelMix
from winsor.core.contract import ConfigurationError, UnsoundRelease
from winsor.features import scattering as wavelets
from winsor.models.lora import LowRank
from winsor.training.losses import LdamDrw, LogitAdjusted
from winsor.training.optimisers import AdamCorrected

BASE = """
name = "named"
reproducible_noise = true
seed = 1
optimizer = { name = "sgd", lr = 0.5 }

[budget]
noise_multiplier = 1.5
delta = 1e-3
"""
ROWS = """
[data]
source = "synthetic"
classes = 3
options = { rows = 240, features = 5 }
"""
FLAT = 'rule = { name = "flat", max_grad_norm = 1.0 }\n'
LINEAR = 'model = "linear"\n'
STEPS = "[training]\nsteps = 6\nbatch_size = 40\n"
IMAGES = """
[data]
source = "images.npz"
classes = 2
shape = [1, 8, 8]
held_out_fraction = 0.25
"""


class Watch(Quiet):
    run = None

    def started(self, run, directory):
        self.run = run


def trained(tmp_path, text):
    """Write the file, read it, train, and give the result and what was assembled."""
    config = from_table(tomllib.loads(text), tmp_path)
    check(config)
    again = from_table(tomllib.loads(config.to_toml()))
    assert again == config
    watch = Watch()
    result = execute(config, tmp_path / "run", watch)
    assert result["steps"] == config.training.steps
    return result, watch.run


@pytest.fixture
def images(tmp_path):
    rng = np.random.default_rng(0)
    y = np.arange(60) % 2
    np.savez(tmp_path / "images.npz", x=rng.random((60, 64)).astype("f4") + y[:, None], y=y)
    return tmp_path


def test_modelmix_with_an_absolute_tau_another_start_and_the_average_of_theorem_3_1(tmp_path):
    mechanism = """
[mechanism]
name = "modelmix"
tau = [[0, 0.02], [3, 0.01]]
lr = 0.5
earlier = "zero"
"""
    training = STEPS + 'iterate = "averaged_midpoints"\n'
    _, run = trained(tmp_path, LINEAR + FLAT + BASE + ROWS + mechanism + training)
    mix = ModelMix(tau=((0, 0.02), (3, 0.01)), lr=0.5, earlier="zero")
    assert run.private._update.mix == mix
    assert [count for _, count in run.private.ledger.history()] == [3, 3]


def test_a_learning_rate_above_the_promised_one_stops_the_run(tmp_path):
    mechanism = '[mechanism]\nname = "modelmix"\ntau = 0.02\nlr = 0.1\n'
    config = from_table(tomllib.loads(LINEAR + FLAT + BASE + ROWS + mechanism + STEPS))
    with pytest.raises(UnsoundRelease, match="learning rate must be at most"):
        execute(config, tmp_path / "run", Quiet())


def test_a_ball_around_the_start(tmp_path):
    training = STEPS + 'ball_radius = 0.25\nball_centre = "start"\n'
    _, run = trained(tmp_path, LINEAR + FLAT + BASE + ROWS + training)
    torch.manual_seed(1)
    start = nn.Linear(5, 3)
    moved = [
        (a - b).detach().flatten()
        for a, b in zip(run.model.parameters(), start.parameters(), strict=True)
    ]
    assert float(torch.cat(moved).norm()) == pytest.approx(0.25, rel=1e-4)


def test_low_rank_corrections_of_public_weights(tmp_path):
    torch.manual_seed(3)
    public = nn.Sequential(nn.Flatten(), nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 3))
    torch.save(public.state_dict(), tmp_path / "public.pt")
    model = """
[model]
name = "mlp"
hidden = [16]
weights = "public.pt"
low_rank = { rank = 2, scale = 4.0, train = ["3"] }
"""
    result, run = trained(tmp_path, FLAT + BASE + ROWS + model + STEPS)
    assert result["parameters"] == 2 * (5 + 16) + 16 * 3 + 3
    corrected = run.model[1]
    assert isinstance(corrected, LowRank) and corrected.factor == 2.0
    assert torch.equal(corrected.base.weight, public[1].weight)
    assert not torch.equal(run.model[3].weight, public[3].weight)
    released = torch.load(tmp_path / "run" / "model.pt", weights_only=True)
    assert torch.equal(released["1.base.weight"], public[1].weight)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"weights": "nowhere.pt"}, "model.weights must be a file"),
        ({"low_rank": {"rnak": 2}}, "model.low_rank.rnak is not a setting"),
        ({"low_rank": "two"}, "model.low_rank.rank must be a whole number"),
    ],
)
def test_wrong_starts_show_before_the_data_are_read(tmp_path, model, message):
    config = from_table(table(model={"name": "linear", **model}), tmp_path)
    with pytest.raises(ConfigurationError, match=message):
        check(config)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"weights": "other.pt"}, "model.weights must hold tensors by the names"),
        ({"weights": "text.pt"}, "model.weights must hold tensors by the names"),
        ({"low_rank": {"rank": 0}}, "model.low_rank: rank must be a positive whole number"),
        ({"low_rank": {"train": ["head"]}}, "model.low_rank: train must name modules"),
    ],
)
def test_wrong_starts_show_before_training(tmp_path, model, message):
    torch.save(nn.Linear(4, 4).state_dict(), tmp_path / "other.pt")
    (tmp_path / "text.pt").write_text("weights")
    config = from_table(table(model={"name": "linear", **model}), tmp_path)
    with pytest.raises(ConfigurationError, match=message):
        execute(config, tmp_path / "run", Quiet())


def test_ldam_drw(tmp_path):
    loss = '[training.loss]\nname = "ldam_drw"\nprofile = [100, 40, 10]\ndeferred = 0.5\n'
    result, run = trained(tmp_path, LINEAR + FLAT + BASE + ROWS + STEPS + loss)
    assert result["main_metric"] == "accuracy"
    wanted = LdamDrw((100, 40, 10), deferred=0.5)
    batch = (torch.randn(4, 5), torch.tensor([0, 1, 2, 2]))
    scores = run.model(batch[0])
    late = wanted(scores, batch[1], 1.0)
    torch.testing.assert_close(run.task.losses(run.model, batch), late)  # the run is over
    early = make_task(run.config)
    torch.testing.assert_close(early.losses(run.model, batch), wanted(scores, batch[1], 0.0))


def test_adjusted_logits_corrected_adam_and_the_moving_average(tmp_path):
    loss = '[training.loss]\nname = "logit_adjusted"\nprofile = [100, 40, 10]\ntau = 0.5\n'
    steps = STEPS + 'iterate = "ema"\n'
    base = BASE.replace('"sgd", lr = 0.5', '"adam_corrected", lr = 0.01, floor = 0.001')
    assert base != BASE
    _, run = trained(tmp_path, LINEAR + FLAT + base + ROWS + steps + loss)
    assert isinstance(run.optimizer, AdamCorrected)
    assert run.optimizer.param_groups[0]["floor"] == 0.001
    batch = (torch.randn(4, 5), torch.tensor([0, 1, 2, 2]))
    wanted = LogitAdjusted((100, 40, 10), 0.5)(run.model(batch[0]), batch[1])
    torch.testing.assert_close(run.task.losses(run.model, batch), wanted)


def test_random_features(images):
    features = '[features]\nname = "random"\ncount = 30\nseed = 2\n'
    _, run = trained(images, LINEAR + FLAT + BASE + IMAGES + features + STEPS)
    assert run.data.shape == (30,)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        ({"name": "ldam_drw"}, "training.loss.profile must be given"),
        ({"name": "ldam_drw", "profile": [1, 2]}, "one count for each of 3 classes"),
        ({"name": "ldam_drw", "profile": [1, 2, 0]}, "training.loss: profile must be a count"),
        ({"name": "ldam_drw", "profile": [3, 2, 1], "beta": 1.0}, "training.loss: beta must be"),
        ({"name": "cross_entropy", "profile": [1]}, "training.loss.profile is not a setting"),
    ],
)
def test_wrong_losses(loss, message):
    with pytest.raises(ConfigurationError, match=message):
        check(from_table(table(training={"loss": loss})))


def test_public_gradients(images):
    rng = np.random.default_rng(1)
    y = np.arange(20) % 2
    np.savez(images / "public.npz", x=rng.random((20, 64)).astype("f4") + y[:, None], y=y)
    rule = """
[rule]
name = "embedding"
c_embedded = 1.0
c_residual = 0.4
basis = { name = "public_gradients", source = "public.npz", k = 3, refresh = 2 }
"""
    _, run = trained(images, LINEAR + BASE + IMAGES + rule + STEPS)
    basis = run.private._rule.basis
    assert isinstance(basis, PublicGradients)
    assert (basis.k, basis.refresh, len(basis.rows[1])) == (3, 2, 20)
    assert basis.rows[0].shape == (20, 1, 8, 8)
    assert run.private.rule_state["basis"].shape == (3, 64 * 2 + 2)


@pytest.mark.parametrize(
    ("basis", "message"),
    [
        ({"name": "public_gradients", "k": 3}, "rule.basis.source must be given"),
        ({"name": "PublicGradients", "source": "a", "k": 3, "m": 1}, "rule.basis.m is not a set"),
        ({"name": "gradients"}, "rule.basis.name must be one of RandomBasis, .*PublicGradients"),
    ],
)
def test_wrong_bases(basis, message):
    rule = {"name": "embedding", "c_embedded": 1.0, "c_residual": 1.0, "basis": basis}
    with pytest.raises(ConfigurationError, match=message):
        check(from_table(table(rule=rule)))


def test_oriented_gradients_kept_in_a_folder(images):
    features = '[features]\nname = "oriented_gradients"\norientations = 4\ncache = "kept"\n'
    result, run = trained(images, LINEAR + FLAT + BASE + IMAGES + features + STEPS)
    assert run.data.shape == (4 * 4 + 4,)
    assert result["parameters"] == 2 * 20 + 2
    files = sorted((images / "kept").iterdir())
    assert len(files) == 2 and all("oriented_gradients" in path.name for path in files)
    config = from_table(tomllib.loads(LINEAR + FLAT + BASE + IMAGES + features + STEPS), images)
    again = execute(config, images / "again", Quiet())
    assert again["held_out"] == result["held_out"]
    assert sorted((images / "kept").iterdir()) == files


def test_scattering_features(images, monkeypatch):
    """A transform of the same shape stands in for the wavelets, which take larger images."""

    def transform_of(shape):
        def transform(x):  # (n, 1, 8, 8) -> (n, 1, 81, 2, 2)
            cells = nn.functional.avg_pool2d(x, 4)
            return cells[:, :, None] * torch.linspace(1, 2, 81).view(81, 1, 1)

        return transform

    monkeypatch.setattr(wavelets, "transform_of", transform_of)
    features = '[features]\nname = "scattering"\n'
    result, run = trained(images, LINEAR + FLAT + BASE + IMAGES + features + STEPS)
    assert run.data.shape == (81, 2, 2)
    assert run.data.held_out_size + run.data.size == 60
    assert result["parameters"] == 2 * 81 * 4 + 2


def test_features_of_a_public_network(images, monkeypatch):
    from winsor.features import pretrained

    torch.manual_seed(0)
    tiny = nn.Conv2d(3, 7, 4, stride=4).requires_grad_(False)
    monkeypatch.setattr(pretrained, "efficientnet_lite0", lambda: tiny)
    features = '[features]\nname = "efficientnet_lite0"\nside = 16\n'
    _, run = trained(images, LINEAR + FLAT + BASE + IMAGES + features + STEPS)
    assert run.data.shape == (7,)


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ("fourier", "features.name must be one of none, scattering"),
        ({"name": "oriented_gradients", "angles": 3}, "features.angles is not a setting"),
    ],
)
def test_wrong_features(features, message):
    with pytest.raises(ConfigurationError, match=message):
        check(from_table(table(features=features)))


def test_features_need_images(tmp_path):
    config = from_table(table(features="oriented_gradients"))
    with pytest.raises(ConfigurationError, match=r"images must be .* Set data.shape"):
        execute(config, tmp_path / "run", Quiet())
    assert RunDirectory(tmp_path / "run").result() is None
