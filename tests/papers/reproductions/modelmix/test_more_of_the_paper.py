"""Figure 2 (a), figure 3, Table 1 on CIFAR-10 with private statistics, and transfer, in small."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn
from winsor_papers.modelmix.statistics import PRINTED_EPSILON, statistics_claim
from winsor_papers.reproductions.cifar import CifarSize
from winsor_papers.reproductions.modelmix import transfer as modelmix_transfer
from winsor_papers.reproductions.modelmix import unnoised
from winsor_papers.reproductions.modelmix.curves import figure_3_of, figure_3_verdict
from winsor_papers.reproductions.modelmix.deep import PRINTED_BATCH, Deep
from winsor_papers.reproductions.modelmix.section43 import (
    AT_RATE_4,
    Section43,
    figure_3,
    section_43,
    section_43_noise,
)
from winsor_papers.reproductions.modelmix.statistics import channel_statistics
from winsor_papers.reproductions.modelmix.transfer import Transfer, transfer_problem
from winsor_papers.reproductions.reproduction import Line, Measured, Request
from winsor_papers.reproductions.training_runs import (
    Problem,
    cifar10,
    gaussian_classes,
    plain_noise,
)

from winsor.core.contract import ConfigurationError


def write(path, rows, seed=0):
    rng = np.random.default_rng(seed)
    arrays = {}
    for part, n in (("train", rows), ("test", 30)):
        y = np.arange(n, dtype=np.uint8) % 10
        x = 20 * y[:, None, None, None] + rng.integers(0, 40, (n, 3, 32, 32))
        arrays |= {f"x_{part}": x.astype(np.uint8), f"y_{part}": y}
    np.savez(path, **arrays)


@pytest.fixture
def folder(tmp_path):
    write(tmp_path / "cifar10_20k_5k.npz", 80)
    return tmp_path


# --------------------------------------------------------------------------------------- CIFAR-10


def test_the_whole_set_is_read_where_it_is_there(folder):
    (x, y), _ = cifar10(folder)
    assert (len(x), len(y), float(x.max()) <= 1) == (80, 80, True)
    write(folder / "cifar10.npz", 120)
    assert len(cifar10(folder)[0][1]) == 120


def test_a_folder_without_either_file_is_refused(tmp_path):
    message = r"folder must hold cifar10_20k_5k\.npz or cifar10\.npz"
    with pytest.raises(ConfigurationError, match=message):
        cifar10(tmp_path)


def test_the_deep_tables_have_the_papers_batch_on_the_whole_set():
    assert Deep().size.batch_size == PRINTED_BATCH == round(0.03 * 50_000)


# --------------------------------------------------------------------------------------- figure 3


def test_figure_3_ends_where_section_43_does_and_rises():
    setting = Section43(widths=(0.3,), coordinates=(25,))
    points = figure_3(setting, points=2)
    assert [(point.p, point.steps) for point in points] == [
        (0, 2500), (0, 5000), (25, 2500), (25, 5000),
    ]  # fmt: skip
    (row,) = section_43(setting)
    assert points[-1].certified == row.certified
    assert points[2].certified < points[3].certified < points[0].certified < points[1].certified
    assert points[1].published.published_epsilon == pytest.approx(200.0, rel=1e-4)


def test_figure_3_at_the_other_rate():
    """Twice the batch: a record's share is halved, the budget of DP-SGD stays."""
    assert AT_RATE_4.sampling_probability == 0.04
    assert pytest.approx(20 / 2000) == AT_RATE_4.clip
    assert section_43_noise(AT_RATE_4) > section_43_noise()
    small = dataclasses.replace(AT_RATE_4, widths=(0.3,), coordinates=(100,))
    found = figure_3_of((small,), points=1)
    assert [line.label["tau/eta"] for line in found.lines] == ["no mixing", "0.3"]
    assert all(line.printed is None for line in found.lines)
    assert found.verdict.startswith("Holds")
    assert section_43(small)[0].printed is None
    points = figure_3(small, points=1)
    worse = [points[0], dataclasses.replace(points[1], certified=400.0)]
    assert figure_3_verdict(worse).startswith("Holds in part")


# ------------------------------------------------------------------------------------ figure 2 (a)


def linear(steps=40):
    training, test = gaussian_classes(n=400, dimension=8, classes=3, seed=1)
    return Problem("tiny", training, test, lambda: nn.Linear(8, 3), 20, steps, 1e-3)


def test_mixing_without_noise(folder, monkeypatch):
    setting = unnoised.Unnoised(CifarSize(None, 20, 1, "cnn"), lr=0.5, taus=(5.0, 0.05), looks=2)
    found = unnoised.figure_2_ab_of(linear(), setting, Request(), (1, 2))
    assert [line.label["step"] for line in found.lines] == ["20", "40"] * 3
    for line in found.lines:
        assert line.certified is line.published is line.certified_epsilon is None
        assert "test accuracy, NOT PRIVATE" in line.extra
    plain = dict(unnoised.trail(linear(), setting, None, 1))
    narrow = dict(unnoised.trail(linear(), setting, setting.lines()[2][1], 1))
    wide = dict(unnoised.trail(linear(), setting, setting.lines()[1][1], 1))
    assert plain[40] > 60
    assert abs(narrow[40] - plain[40]) < 10
    assert wide[40] < plain[40]
    monkeypatch.setattr(unnoised, "QUICK", dataclasses.replace(unnoised.QUICK, looks=1))
    quick = unnoised.figure_2_ab(Request(quick=True, data=folder, seeds=1))
    assert len(quick.lines) == 3
    assert "80 rows, 60 steps at q = 0.05" in quick.notes[0]


def test_without_noise_the_plain_line_is_sgd_with_the_same_batches():
    """Mixing with equal iterates and no width at the first step is a plain step."""
    setting = unnoised.Unnoised(CifarSize(None, 20, 1, "cnn"), lr=0.5, taus=(0.0, 0.0), looks=1)
    one = linear(steps=1)
    mix = setting.lines()[1][1]
    assert unnoised.trail(one, setting, mix, 3) == unnoised.trail(one, setting, None, 3)


def test_the_verdict_of_figure_2_a():
    good = {unnoised.PLAIN: 70.0, "tau = 0.1 eta": 66.0, "tau = 0.05 eta": 69.5}
    assert unnoised.figure_2_ab_verdict(good).startswith("Reproduced")
    assert "tau = 0.1 eta: -4.0" in unnoised.figure_2_ab_verdict(good)
    bad = good | {"tau = 0.05 eta": 60.0}
    assert unnoised.figure_2_ab_verdict(bad).startswith("Not reproduced")


# ---------------------------------------------------------------------- statistics of the features


def test_the_printed_epsilon_of_the_statistics_and_the_certified_one():
    assert round(statistics_claim().published_epsilon, 3) == PRINTED_EPSILON
    released = channel_statistics(torch.rand(50, 3, 2, 2), seed=0)
    assert released.epsilon(1e-5) == pytest.approx(0.634, abs=2e-3)


def test_statistics_are_those_of_the_clipped_rows_plus_the_printed_noise():
    torch.manual_seed(0)
    x = torch.randn(20_000, 3, 2, 2) * torch.tensor([1.0, 0.5, 0.1]).view(3, 1, 1) + 0.2
    found = channel_statistics(x, mean_bound=100.0, square_bound=100.0, seed=1)
    spread = 100 * 8 / 20_000  # the noise on a mean
    wanted = x.mean((0, 2, 3))
    assert (found.mean - wanted).abs().max() < 5 * spread
    assert found.mean.sub(wanted).abs().max() > spread / 100
    tight = channel_statistics(x, mean_bound=1e-3, square_bound=1e-3, seed=1)
    assert tight.mean.norm() <= 1e-3 * (1 + 8 * 5 / 20_000 * 3**0.5)
    draws = torch.stack(
        [channel_statistics(x[:1], mean_bound=1.0, seed=seed).mean for seed in range(300)]
    )
    assert draws.std(0).mean() == pytest.approx(8.0, rel=0.1)


def test_standardising_by_released_statistics():
    x = torch.randn(30, 2, 2, 2)
    found = channel_statistics(x, seed=0)
    found = dataclasses.replace(
        found, mean=torch.tensor([1.0, 2.0]), variance=torch.tensor([4.0, 0.0])
    )
    made = found.standardise(x)
    torch.testing.assert_close(made[:, 0], (x[:, 0] - 1) / 2, rtol=1e-4, atol=1e-4)
    assert made[:, 1].eq(0).all()


# --------------------------------------------------------------------------------------- transfer


def features(images):
    return images.mean((2, 3)).sub(0.3).repeat(1, 4)


def test_transfer_from_files_to_verdict(folder, tmp_path, monkeypatch):
    calls = []

    def extract(images):
        calls.append(len(images))
        return features(images)

    tiny = Transfer(steps=3, mixed_steps=3, taus=(1e-4,), mixed_epsilons=(8.0, 9.0),
                    plain_epsilon=9.0)  # fmt: skip
    monkeypatch.setattr(modelmix_transfer, "DELTA", 1e-3)
    given = transfer_problem(folder, tmp_path / "cache", tiny, extract)
    again = transfer_problem(folder, tmp_path / "cache", tiny, extract)
    assert calls == [80, 30]
    assert torch.equal(given.train[0], again.train[0])
    torch.testing.assert_close(given.train[0].norm(dim=1), torch.ones(80))
    assert given.batch_size == 2  # the paper's rate of 80
    found = modelmix_transfer.transfer_of(given, tiny, Request(), (1, 2))
    plain, small, equal = found.lines
    assert [line.label["method"] for line in found.lines] == ["DP-SGD", "mixing", "mixing"]
    assert plain.certified_epsilon <= 9.0 and small.certified_epsilon <= 8.0
    assert small.published is not None and equal.published is None
    assert small.published_certifies > 0


def test_the_published_noise_of_the_transfer_is_the_printed_share_of_dp_sgds():
    setting = Transfer()
    assert setting.noise_factor == 0.85
    rows = torch.zeros(50_000)
    whole = Problem("x", (rows, rows), (rows, rows), nn.Identity, 1024, setting.steps, 1e-5)
    noise = plain_noise(whole, setting.plain_epsilon)
    assert 1.0 < noise < 3.0
    mix = setting.mix(1024)
    assert mix.schedule == ((0, 0.0075), (500, 0.005), (1000, 0.0025))
    assert setting.mix(512).at(0) == pytest.approx(2 * 0.0075)
    parts = modelmix_transfer.mixed_steps(
        dataclasses.replace(whole, steps=1500), mix, 0.85 * noise, 0.1
    )
    assert [count for _, count in parts] == [500, 500, 500]
    assert parts[0][0].noise_multiplier == pytest.approx(0.85 * noise)
    assert parts[0][0].width_ratio == pytest.approx(0.0075 * 1024 / 0.1)


def test_the_verdict_of_the_transfer():
    def lines(*values):
        return [Line({}, certified=Measured(value, 0.1, 3)) for value in values]

    level = modelmix_transfer.transfer_verdict(lines(92.7, 92.7, 93.6))
    assert level.count("Reproduced in 1") == 2
    behind = modelmix_transfer.transfer_verdict(lines(92.7, 90.0, 91.0))
    assert behind.count("Not reproduced at our size in 1") == 2
