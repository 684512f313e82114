"""w_-1 of Algorithm 1: the iterate that stands before the start.

It must be public, as the start is: another draw of the initialisation, zero, public weights.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from winsor.core.contract import ConfigurationError


class Earlier:
    """Given weights, {name of parameter: tensor}. Its text names their content.

    >>> import torch
    >>> Earlier({"weight": torch.zeros(2)})
    Earlier(weights=0afa025a5d77472d)
    """

    def __init__(self, weights: Mapping[str, Any]) -> None:
        self.weights = {name: tensor.detach().clone() for name, tensor in weights.items()}
        digest = hashlib.blake2b(digest_size=8)
        for name, tensor in self.weights.items():
            digest.update(f"{name} {tuple(tensor.shape)} ".encode())
            digest.update(tensor.cpu().contiguous().numpy().tobytes())
        self._digest = digest.hexdigest()

    def __repr__(self) -> str:
        return f"Earlier(weights={self._digest})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Earlier) and self._digest == other._digest

    def __hash__(self) -> int:
        return hash(self._digest)


def before_the_start(earlier: Earlier | str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """w_-1 for a run that starts at ``parameters``: copies, in their shapes and types."""
    if isinstance(earlier, str):
        factor = 1.0 if earlier == "start" else 0.0
        return {name: tensor.detach() * factor for name, tensor in parameters.items()}
    found = {}
    for name, tensor in parameters.items():
        given = earlier.weights.get(name)
        if given is None or given.shape != tensor.shape or not bool(given.isfinite().all()):
            raise ConfigurationError(
                f"earlier must hold finite weights of shape {tuple(tensor.shape)} for {name!r}, "
                f"as the model does. Got {None if given is None else tuple(given.shape)} instead. "
                "Build it from a model of the same kind: Earlier(dict(other.named_parameters()))."
            )
        found[name] = given.to(tensor.detach(), copy=True)
    return found
