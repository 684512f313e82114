"""Tensors at the core's door: sizes, digests, noise and correlated noise."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from torch import Tensor, nn

from winsor.core.accounting.lattice import bits_for, on_grid
from winsor.core.buffers import KINDS, FlatTree, flat_doubles, size
from winsor.core.contract import Bounded, LedgerError, Neighbouring, Sensitivity, UnsoundRelease
from winsor.core.door import Digest, Door
from winsor.core.ledger.ledger import Ledger
from winsor.core.noise.banded import BandedGaussian
from winsor.core.noise.gaussian import Gaussian
from winsor.core.noise.laplace import Laplace
from winsor.core.noise.source import NoiseOfStep, NoiseSource
from winsor.core.randomness import new_key
from winsor.core.sampling.samplers import FullBatch
from winsor.gradients.buffers import Layout, as_tensor, with_tensors

KEY = bytes(range(32))
ADD = Neighbouring.ADD_OR_REMOVE_ONE
TYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def plain(key: bytes = KEY) -> NoiseSource:
    return NoiseSource(key, prefetch=False, use_kernel=False)


def released(source: NoiseSource, entry: int, x: Tensor, std: float = 0.5) -> Tensor:
    copy = x.clone()
    source.add(entry, "grad", copy, std)
    return copy


def both() -> list[Digest]:
    pure = Digest(bytes(range(16)))
    pure._kernel = None
    return [Digest(bytes(range(16))), pure]


# -------------------------------------------------------------------------------------- protocol


@pytest.mark.parametrize("dtype", TYPES)
def test_values_are_read_and_overwritten_in_their_own_type(dtype):
    for array in (torch.randn(3, 5).to(dtype), torch.randn(5, 3).to(dtype).t()):
        kind = KINDS[type(array)]
        assert kind.size(array) == size(array) == 15
        copy = kind.doubles(array)
        assert copy.dtype == np.float64 and np.array_equal(copy, array.double().reshape(-1))
        assert np.array_equal(flat_doubles([array, array])[15:], copy)
        kind.write(array, copy + 0.1)
        assert torch.equal(array, torch.from_numpy(copy + 0.1).view(array.shape).to(dtype))
        plain = dtype in (torch.float32, torch.float64) and array.is_contiguous()
        assert (kind.place(array) is not None) == plain


def test_a_place_shares_memory():
    array = torch.zeros(4, 2)
    kind = KINDS[torch.Tensor]
    assert kind.place(array) == (array.data_ptr(), 8, 4)
    kind.view(array)[3] = 1.0
    assert array[1, 1] == 1.0


def test_parameters_are_served_like_tensors():
    parameter = nn.Parameter(torch.zeros(3))
    KINDS[nn.Parameter].write(parameter, np.arange(3.0))
    assert torch.equal(parameter.detach(), torch.arange(3.0))


def test_other_types_are_refused_with_what_to_import():
    door = Door(Ledger({}), Gaussian(1.0), FullBatch(10), ADD, new_key(seed=0))
    part = Bounded([1.0, 2.0], Sensitivity.per_sample(1.0, "test"))
    with pytest.raises(UnsoundRelease, match=r"builtins\.list instead\. Import what registers it"):
        door.release(0, {"grad": part})


def test_tensors_are_refused_until_they_are_registered():
    code = (
        "import torch\n"
        "from winsor.core import buffers\n"
        "from winsor.core.contract import UnsoundRelease\n"
        "try:\n"
        "    buffers.size(torch.zeros(3))\n"
        "except UnsoundRelease as error:\n"
        "    assert 'winsor.gradients.buffers' in str(error)\n"
        "else:\n"
        "    raise SystemExit('not refused')\n"
        "import winsor.gradients.buffers\n"
        "assert buffers.size(torch.zeros(3)) == 3\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_states_go_to_checkpoints_as_tensors():
    state = {"step": 3, "noises": {"grad": [np.arange(2.0), np.ones(2)]}}
    found = with_tensors(state)
    assert found["step"] == 3
    assert all(isinstance(noise, Tensor) for noise in found["noises"]["grad"])
    assert torch.equal(found["noises"]["grad"][0], torch.arange(2.0).double())
    assert as_tensor(found["noises"]["grad"][0]) is found["noises"]["grad"][0]


# --------------------------------------------------------------------------------------- digests


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("size", [0, 1, 2, 5, 31, 64, 65, 1000, 7850])
def test_tags_are_those_of_the_library(size, dtype):
    value = torch.randn(size, generator=torch.Generator().manual_seed(size)).to(dtype)
    data = value.view(torch.uint8).numpy().tobytes() if size else b""
    for step in range(3):
        nonce = step.to_bytes(12, "little")
        expected = AESGCM(bytes(range(16))).encrypt(nonce, b"", data)
        assert [digest.tag(nonce, value) for digest in both()] == [expected, expected]


def test_tensors_are_read_in_their_own_order():
    value = torch.randn(6, 5)
    for digest in both():
        whole = digest.tag(bytes(12), value.T.contiguous())
        assert digest.tag(bytes(12), value.T) == whole != digest.tag(bytes(12), value)
        assert whole == digest.tag(bytes(12), value.T.contiguous().numpy())


@pytest.mark.parametrize("bad", [float("inf"), -float("inf"), float("nan")])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("size", [1, 40, 200])
def test_what_is_not_finite_has_no_tag(size, dtype, bad):
    for place in {0, size // 2, size - 1}:
        value = torch.full((size,), torch.finfo(dtype).max, dtype=dtype)
        assert all(digest.tag(bytes(12), value) for digest in both())
        value[place] = bad
        assert not any(digest.tag(bytes(12), value) for digest in both())


# ----------------------------------------------------------------------------------------- noise


@pytest.mark.parametrize("dtype", TYPES)
def test_a_release_is_the_rounded_sum_plus_noise(dtype: torch.dtype) -> None:
    x = torch.linspace(-3, 3, 1001, dtype=torch.float64).to(dtype)
    bits = bits_for(1001)
    gamma = 0.3 * 2.0**-bits
    noise = torch.from_numpy(plain().normal(5, "grad", 1001)) * 2.0**bits
    expected = ((x.double() * (1 / gamma)).round() + noise) * gamma
    for each in (NoiseSource(KEY), plain()):
        assert torch.equal(released(each, 5, x, 0.3), expected.to(dtype))
        each.close()


def test_leaves_and_slices_are_pieces_of_one_vector() -> None:
    x = torch.arange(1000.0)
    whole = released(plain(), 3, x)
    for each in (NoiseSource(KEY), NoiseSource(KEY, prefetch=False), plain()):
        leaves = [x[:1].clone(), x[1:334].clone().view(9, 37), x[334:].clone()]
        each.add_leaves(3, "grad", leaves, 0.5)
        assert torch.equal(torch.cat([leaf.flatten() for leaf in leaves]), whole)
        part = x[401:777].clone()
        each.add_slice(3, "grad", [part], 0.5, 401, 1000)
        assert torch.equal(part, whole[401:777])
        each.close()


def test_strided_tensors_are_noised_where_they_are() -> None:
    x = torch.zeros(50, 20)
    plain().add(0, "grad", x.t(), 1.0)
    assert torch.equal(x.t().reshape(-1), released(plain(), 0, torch.zeros(1000), 1.0))


def test_tensors_and_arrays_get_the_same_noise() -> None:
    for kind in (np.float32, np.float64):
        array = np.linspace(-1, 1, 100).astype(kind)
        tensor = torch.from_numpy(array.copy())
        plain().add(2, "grad", array, 0.4)
        plain().add(2, "grad", tensor, 0.4)
        assert np.array_equal(array, tensor.numpy())


def test_a_door_releases_trees_of_tensors_in_place():
    ledger = Ledger({})

    def release(values: Tensor) -> FlatTree:
        tree = Layout({"w": torch.zeros(2, 3), "b": torch.zeros(3)}).empty()
        tree.flat.copy_(values)
        door = Door(ledger, Gaussian(2.0), FullBatch(10), ADD, new_key(seed=3))
        part = Bounded(tree, Sensitivity.per_sample(1.0, "test"))
        assert door.release(0, {"grad": part}).values["grad"] is tree
        return tree

    first = release(torch.ones(9))
    assert not torch.equal(first["w"], torch.ones(2, 3))
    assert torch.equal(first.flat, release(torch.ones(9)).flat)
    with pytest.raises(LedgerError, match="another value"):
        release(torch.zeros(9))
    with pytest.raises(UnsoundRelease, match="finite"):
        release(torch.full((9,), math.inf))


@pytest.mark.parametrize("mechanism", [Gaussian(1.0), Laplace(1.0)])
def test_noise_is_added_in_the_dtype_of_the_value(mechanism):
    value = torch.full((4,), 7.0, dtype=torch.float64)
    parts = {"x": Bounded(value, Sensitivity.per_sample(1.0, "test", l1=1.0))}
    draw = NoiseOfStep(NoiseSource(7, prefetch=False), 3, {"x": 30})
    std = {"x": 2 * math.sqrt(2) if mechanism.law == "laplace" else 2.0}
    noised = mechanism.add_noise(parts, std, draw)
    alone = torch.zeros(4, dtype=torch.float64)
    NoiseSource(7, prefetch=False).add(3, "x", alone, 2.0, law=mechanism.law, bits=30)
    assert noised["x"] is value and value.dtype is torch.float64
    torch.testing.assert_close(value, 7 + alone, rtol=0, atol=2.0**-28)


# ------------------------------------------------------------------------------ correlated noise


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("bands", [1, 2, 5, 16])
def test_correlated_noise_has_the_bits_of_a_transcription_in_torch(dtype, bands):
    """`Tensor.sub_(x, alpha=a)` rounds once on processors with fused multiply-add."""
    fused = torch.ones(1, dtype=torch.float64).sub_(
        torch.tensor([1 + 2.0**-30], dtype=torch.float64), alpha=1 - 2.0**-30
    )
    same = np.array_equal if fused.item() != 0.0 else np.allclose
    layout = Layout({"w": torch.zeros(10, 7, dtype=dtype), "b": torch.zeros(13, dtype=dtype)})
    mechanism, past = BandedGaussian.of_bands(1.3, bands), []
    ours, theirs = (NoiseSource(7, prefetch=False) for _ in range(2))
    generator = torch.Generator().manual_seed(bands)
    for step in range(2 * bands + 3):
        total = torch.randn(83, generator=generator).to(dtype)
        tree = layout.over(total.clone())
        parts = {"grad": Bounded(tree, Sensitivity.per_sample(0.5 + 0.01 * step, "test"))}
        std, bits = on_grid(mechanism, parts, {"grad": 83})
        covered = mechanism.covered(parts, std, step)["grad"].copy()
        mechanism.add_noise(parts, std, NoiseOfStep(ours, step, bits))
        value = total.double() * mechanism.column[0]
        for entry, noise in zip(mechanism.column[1:], past, strict=False):
            value.sub_(noise, alpha=entry * std["grad"])
        assert same(covered, value.numpy())
        theirs.add_leaves(step, "grad", [value], std["grad"], bits=bits["grad"])
        value /= mechanism.column[0]
        past.insert(0, (value - total.double()) / std["grad"])
        assert same(tree.flat.double(), value.to(dtype).double())


def test_past_noises_of_a_checkpoint_are_tensors_and_load():
    first, again = (BandedGaussian.of_bands(1.0, 4) for _ in range(2))
    noises = [torch.ones(3).double() * k for k in (1, 2, 3)]
    first.load_state({"step": 5, "noises": {"grad": noises}})
    again.load_state(with_tensors(first.state()))
    kept, other = (each.state()["noises"]["grad"] for each in (first, again))
    assert all(isinstance(noise, np.ndarray) for noise in kept)
    assert np.array_equal(kept, other) and np.array_equal(kept, np.stack(noises))
