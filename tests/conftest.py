"""One profile for every property test: reproducible, and never failed by a busy machine."""

import os
import sys

import torch
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
torch.set_num_threads(1)


def pytest_runtest_setup() -> None:
    """Tests share tables; none should be warned of what another one fitted."""
    surroundings = sys.modules.get("winsor.ledger.surroundings")
    if surroundings is not None:
        surroundings._SEEN.clear()
