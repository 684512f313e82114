"""What all tests share: property tests that are reproducible and never failed by a busy machine,
and secret keys that are the same each time a test is run."""

import os
import random
import secrets
import sys

import pytest
from hypothesis import HealthCheck, settings

# Some virtual processors announce AMX and their kernel refuses it: torch's own bfloat16 products
# then fail ("could not create a primitive"). oneDNN reads this when it is first used.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

settings.register_profile(
    "winsor",
    derandomize=True,
    deadline=None,
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("winsor")
try:
    import torch

    torch.set_num_threads(1)
except ModuleNotFoundError:  # `make test-light` runs what needs no torch where there is none
    pass


_keys = random.Random()


def _key(nbytes: int | None = None) -> bytes:
    """Instead of `secrets.token_bytes`: a test that trains with a secret key draws the same noise
    in every run of the suite, so that none fails once in a hundred runs."""
    return _keys.randbytes(32 if nbytes is None else nbytes)


secrets.token_bytes = _key


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Every test has keys of its own. Tests share tables; none should be warned of what another
    one fitted."""
    _keys.seed(item.nodeid)
    surroundings = sys.modules.get("winsor.tables.surroundings")
    if surroundings is not None:
        surroundings._SEEN.clear()
