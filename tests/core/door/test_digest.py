"""Digests are those of AES-GCM, whoever computes them, and only finite values have one."""

from __future__ import annotations

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from winsor.core.door import Digest

SIZES = [0, 1, 2, 3, 4, 5, 31, 32, 33, 63, 64, 65, 127, 1000, 7850, 100_001]


def both() -> list[Digest]:
    pure = Digest(bytes(range(16)))
    pure._kernel = None
    return [Digest(bytes(range(16))), pure]


def test_this_machine_has_the_kernel():
    assert both()[0]._kernel is not None


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("size", SIZES)
def test_tags_are_those_of_the_library(size, dtype):
    value = np.random.default_rng(size).standard_normal(size).astype(dtype)
    data = value.tobytes()
    for step in range(3):
        nonce = step.to_bytes(12, "little")
        expected = AESGCM(bytes(range(16))).encrypt(nonce, b"", data)
        assert [digest.tag(nonce, value) for digest in both()] == [expected, expected]


def test_random_keys_and_nonces_agree():
    rng = np.random.default_rng(0)
    for _ in range(200):
        key, nonce = rng.bytes(16), rng.bytes(12)
        value = rng.normal(size=int(rng.integers(1, 300))).astype(np.float32)
        expected = AESGCM(key).encrypt(nonce, b"", value.tobytes())
        assert Digest(key).tag(nonce, value) == expected


def test_tensors_are_read_in_their_own_order():
    value = np.random.default_rng(0).standard_normal((6, 5))
    for digest in both():
        whole = digest.tag(bytes(12), np.ascontiguousarray(value.T))
        assert digest.tag(bytes(12), value.T) == whole != digest.tag(bytes(12), value)


@pytest.mark.parametrize("bad", [float("inf"), -float("inf"), float("nan")])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [1, 40, 200])
def test_what_is_not_finite_has_no_tag(size, dtype, bad):
    for place in {0, size // 2, size - 1}:
        value = np.full(size, np.finfo(dtype).max, dtype)
        assert all(digest.tag(bytes(12), value) for digest in both())
        value[place] = bad
        assert not any(digest.tag(bytes(12), value) for digest in both())


@pytest.mark.parametrize("size", [1, 63, 64, 65, 300, 7850])
def test_processors_with_and_without_wide_products_give_the_same_tags(size):
    value = np.random.default_rng(size).standard_normal(size).astype(np.float32)
    digest = both()[0]
    wide = digest.tag(bytes(12), value)
    library = digest._kernel._library
    library.winsor_narrow()
    try:
        assert digest.tag(bytes(12), value) == wide
        value[size // 2] = float("nan")
        assert digest.tag(bytes(12), value) is None
    finally:
        library.winsor_supported()  # looks at the processor again
