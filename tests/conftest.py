"""One profile for every property test: reproducible, and never failed by a busy machine."""

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
