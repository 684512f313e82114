"""How per-sample information is obtained: engines turn losses into views."""

from __future__ import annotations

from winsor.grads.engine import ENGINES, make_engine
from winsor.grads.parameters import trainable_parameters
from winsor.grads.replace import replace_batchnorm
from winsor.grads.support import refuse_unsupported
from winsor.grads.view import Directions, Engine, Need, View

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
