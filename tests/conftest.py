"""One profile for every property test: reproducible, and never failed by a busy machine."""

import sys

import torch
from hypothesis import HealthCheck, settings

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
