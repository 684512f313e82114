"""Features as parts: equal to their slow forms, kept on disk; one private release of moments."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import winsor
from winsor.core.contract import ConfigurationError, LedgerError, ProtocolError
from winsor.features import Pretrained, PrivateNorm, RandomFeatures, Scattering
from winsor.features import pretrained as networks
from winsor.features import scattering as wavelets
from winsor.features.pretrained import fold


def images(n=3, colours=None, side=28):
    shape = (n, side, side) if colours is None else (n, colours, side, side)
    return torch.rand(shape, generator=torch.Generator().manual_seed(0))


def gaussian_bank(h, w, J, L):
    """Filters in the form of kymatio's, without it."""

    def low(h, w, width):
        rows, columns = np.fft.fftfreq(h)[:, None], np.fft.fftfreq(w)[None, :]
        return np.exp(-((rows**2 + columns**2) * width**2) * 10).astype(np.float32)

    def band(h, w, angle, width):
        rows, columns = np.fft.fftfreq(h)[:, None], np.fft.fftfreq(w)[None, :]
        there = (rows - 0.25 * math.sin(angle) / width) ** 2
        there = there + (columns - 0.25 * math.cos(angle) / width) ** 2
        return np.exp(-there * 20).astype(np.float32)

    levels = range(max(J - 1, 1))
    psi = [
        {
            "j": j,
            "levels": [
                band(h >> k, w >> k, math.pi * a / L, 2 ** (j - k)) for k in levels[: j + 1]
            ],
        }
        for j in range(J)
        for a in range(L)
    ]
    return {"psi": psi, "phi": {"levels": [low(h >> k, w >> k, 2 ** (J - k)) for k in range(J)]}}


def path_by_path(x, bank, J, pad):
    """The textbook: every path by transforms of its own."""
    x = nn.functional.pad(x[:, None], pad, mode="reflect")[:, 0]

    def averaged(u, level):
        low = torch.from_numpy(bank["phi"]["levels"][level])
        full = torch.fft.ifft2(torch.fft.fft2(u) * low).real
        step = 1 << (J - level)
        return full[:, ::step, ::step][:, 1:-1, 1:-1]

    def wave(u, psi, level):
        step = 1 << (psi["j"] - level)
        full = torch.fft.ifft2(torch.fft.fft2(u) * torch.from_numpy(psi["levels"][level]))
        return full.abs()[:, ::step, ::step]

    first = [wave(x, psi, 0) for psi in bank["psi"]]
    out = [averaged(x, 0)]
    out += [averaged(u, psi["j"]) for u, psi in zip(first, bank["psi"], strict=True)]
    for u, one in zip(first, bank["psi"], strict=True):
        out += [
            averaged(wave(u, two, one["j"]), two["j"]) for two in bank["psi"] if two["j"] > one["j"]
        ]
    return torch.stack(out, dim=1)


@pytest.mark.parametrize(("J", "L", "side"), [(2, 8, 32), (3, 2, 64), (1, 3, 24)])
def test_batched_scattering_is_scattering_path_by_path(J, L, side):
    padded = (side, side)
    inner = side - 2 * 2**J
    bank = gaussian_bank(*padded, J, L)
    transform = wavelets.Transform(J, L, (inner, inner), padded, bank)
    x = images(side=inner)
    found = transform(x)
    assert found.shape[1] == Scattering(J, L, groups=None).channels
    expected = path_by_path(x, bank, J, (2**J,) * 4)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(transform(x[None])[0], found)


def test_scattering_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "kymatio.scattering2d.filter_bank", None)
    wavelets.transform_with.cache_clear()
    with pytest.raises(ConfigurationError, match="pip install 'winsor\\[scattering\\]'"):
        Scattering()(images())


def test_scattering_is_kymatio():
    from kymatio.scattering2d.frontend.torch_frontend import ScatteringTorch2D

    for J, L, side in ((2, 8, 28), (3, 4, 32)):
        x = images(2, 3, side)
        ours = Scattering(J, L, groups=None)(x)
        theirs = ScatteringTorch2D(J=J, L=L, shape=(side, side))(x)
        torch.testing.assert_close(ours, theirs.flatten(1, 2), rtol=1e-4, atol=1e-6)


def test_parts_refuse_what_cannot_be():
    with pytest.raises(ConfigurationError, match="groups must divide the 81"):
        Scattering(groups=10)
    with pytest.raises(ConfigurationError, match="name must be"):
        Pretrained("resnet-9000")
    with pytest.raises(ConfigurationError, match="bandwidth"):
        RandomFeatures(bandwidth=-1.0)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self._conv_stem = nn.Conv2d(3, 4, 3, bias=False)
        self._bn0 = nn.BatchNorm2d(4)
        self._conv_head = nn.Conv2d(4, 5, 1, bias=False)
        self._bn1 = nn.BatchNorm2d(5)

    def forward(self, x):
        return self._bn1(self._conv_head(self._bn0(self._conv_stem(x)).relu()))


def test_folded_normalisation_changes_nothing():
    torch.manual_seed(0)
    network = Block()
    for norm in (network._bn0, network._bn1):
        nn.init.uniform_(norm.running_mean)
        nn.init.uniform_(norm.running_var, 0.5, 2.0)
        nn.init.uniform_(norm.weight, 0.5, 2.0)
        nn.init.normal_(norm.bias)
    network.eval().requires_grad_(False)
    x = images(2, 3, 8)
    before = network(x)
    fold(network)
    assert not any(isinstance(m, nn.BatchNorm2d) for m in network.modules())
    torch.testing.assert_close(network(x), before, rtol=1e-4, atol=1e-5)


def test_pretrained_is_kept(tmp_path, monkeypatch):
    torch.manual_seed(0)
    tiny = nn.Conv2d(3, 6, 5, stride=2).requires_grad_(False)
    calls = []

    def network():
        calls.append(1)
        return tiny

    monkeypatch.setattr(networks, "efficientnet_lite0", network)
    part = Pretrained(side=16, cache=tmp_path)
    first = part(images(5, 3))
    assert torch.equal(part(images(5, 3)), first) and len(calls) == 1
    assert first.shape == (5, 6)


def test_random_features_approximate_the_gaussian_kernel():
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(1))
    features = RandomFeatures(20_000, bandwidth=2.0, seed=3)(x)
    kernel = torch.exp(-torch.cdist(x, x).square() / (2 * 2.0**2))
    torch.testing.assert_close(features @ features.T, kernel, rtol=0, atol=0.05)
    assert torch.equal(features, RandomFeatures(20_000, bandwidth=2.0, seed=3)(x))


# ------------------------------------------------------------------------------- PrivateNorm


def channels(n=3000, scale=(0.3, 0.01)):
    torch.manual_seed(0)
    return torch.stack(
        [0.2 + scale[0] * torch.randn(n, 5, 5), 0.02 + scale[1] * torch.randn(n, 5, 5)], 1
    )


def test_channels_come_out_standardised_and_paid_for():
    x = channels()
    norm = PrivateNorm(epsilon=2.0, delta=1e-5, square_bound=0.5, seed=1).fit(x)
    out = norm(x)
    assert out.mean((0, 2, 3)).abs().max() < 0.1
    assert (out.std((0, 2, 3))[0] - 1).abs() < 0.1
    assert norm.guarantee_.epsilon <= 2.0 and norm.guarantee_.steps == 1
    assert len(norm.ledger_) == 1
    assert "sqrt(2)" in " ".join(norm.guarantee_.conditions)


def test_noise_never_makes_a_deviation_vanish():
    x = torch.full((100, 3, 2, 2), 0.1)
    norm = PrivateNorm(noise_multiplier=50.0, delta=1e-5, seed=0).fit(x)
    assert (norm.deviation_ >= math.sqrt(50 * math.sqrt(2) / 100 * 0.05) * 0.99).all()


@given(st.integers(0, 2**31), st.floats(0.01, 1e6))
@settings(max_examples=30, deadline=None)
def test_one_row_moves_the_sums_by_at_most_the_sensitivity(seed, size):
    generator = torch.Generator().manual_seed(seed)
    x = size * torch.randn(6, 4, 3, generator=generator)
    norm = PrivateNorm(noise_multiplier=1.0, delta=1e-5)
    moved = norm._sums(x) - norm._sums(x[:-1])
    assert np.linalg.norm(moved) <= math.sqrt(2) * (1 + 1e-12)


def test_a_broken_row_counts_as_none():
    x = channels(20)
    norm = PrivateNorm(noise_multiplier=1.0, delta=1e-3)
    before = norm._sums(x)
    for broken in (math.inf, math.nan):
        more = torch.cat([x, torch.full((1, 2, 5, 5), broken)])
        np.testing.assert_allclose(norm._sums(more), before)


def test_what_private_norm_refuses():
    with pytest.raises(ConfigurationError, match="either epsilon or noise_multiplier"):
        PrivateNorm(delta=1e-5)
    with pytest.raises(ProtocolError, match="fitted"):
        PrivateNorm(1.0, 1e-5)(channels(3))
    with pytest.raises(ConfigurationError, match="channels"):
        PrivateNorm(1.0, 1e-5).fit(torch.zeros(10))


def private(x, after=(), seed=None, **more):
    model = nn.Linear(50, 2)
    return winsor.make_private(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        dataset=torch.utils.data.TensorDataset(x.flatten(1), torch.zeros(len(x)).long()),
        rule=winsor.rules.Flat(1.0),
        batch_size=300,
        steps=5,
        delta=1e-5,
        seed=seed,
        after=after,
        **more,
    )


def run(training):
    for rows, labels in training.batches():
        losses = nn.functional.cross_entropy(training.model(rows), labels, reduction="none")
        training.step(losses)
    return training


def test_norm_and_training_fit_into_one_epsilon():
    x = channels()
    norm = PrivateNorm(noise_multiplier=8.0, delta=1e-5).fit(x)
    training = run(private(norm(x), after=[norm], epsilon=1.0))
    alone = private(norm(x), epsilon=1.0)
    assert training.noise_multiplier > alone.noise_multiplier
    together = winsor.total(norm, training)
    assert 0.98 < together.epsilon <= 1.0
    assert together.steps == 6
    assert training.spent().epsilon < together.epsilon


def test_total_refuses_one_key_in_two_ledgers():
    x = channels(3000)
    one, two = run(private(x, epsilon=1.0, seed=3)), run(private(x, epsilon=1.0, seed=3))
    with pytest.raises(LedgerError, match="keys of their own"):
        winsor.total(one, two)


def test_total_refuses_mixed_relations_and_strangers():
    x = channels()
    norm = PrivateNorm(noise_multiplier=8.0, delta=1e-5, relation="replace_one").fit(x)
    with pytest.raises(ConfigurationError, match="one neighbouring relation"):
        winsor.total(norm, run(private(x, epsilon=1.0)))
    with pytest.raises(ConfigurationError, match="relation"):
        private(x, after=[norm], epsilon=1.0)
    with pytest.raises(ConfigurationError, match="ledger"):
        private(x, after=[object()], epsilon=1.0)
    with pytest.raises(ConfigurationError, match="epsilon alone"):
        private(x, after=[PrivateNorm(noise_multiplier=8.0, delta=1e-5).fit(x)],
                epsilon=1.0, noise_multiplier=3.0)  # fmt: skip
    with pytest.raises(ConfigurationError, match="at least one"):
        winsor.total(object())
