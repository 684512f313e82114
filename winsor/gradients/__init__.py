"""How per-sample information is obtained: engines turn losses into views."""

from __future__ import annotations

from winsor.gradients.engine import ENGINES, make_engine
from winsor.gradients.parameters import trainable_parameters
from winsor.gradients.support import refuse_unsupported, replace_batchnorm
from winsor.gradients.view import Directions, Engine, Need, View

__all__ = [
    "ENGINES",
    "Directions",
    "Engine",
    "Need",
    "View",
    "make_engine",
    "refuse_unsupported",
    "replace_batchnorm",
    "trainable_parameters",
]
