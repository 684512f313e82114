"""Replay on another library's DP-SGD: Opacus.

    report = replay(train, dataset, adapters=[opacus_adapter()])

Opacus adds its noise in ``DPOptimizer.add_noise`` (``p.summed_grad`` -> ``p.grad``) and draws its
batches in ``UniformWithReplacementSampler``. Both are tapped; what follows the noise (division by
``expected_batch_size``, the optimiser's step, an adaptive clipping norm) is post-processing and
must come out the same, so a division by the *realised* size of a batch is seen: AdaClip's optimiser
divides its noisy count by ``sample_size``, the number of rows in the batch, and the next clipping
norm then depends on it.

Nothing here imports Opacus before the adapter is used. ``optimizer`` and ``sampler`` may be any
classes of the same shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any

import numpy as np
import torch

from winsor.audit.replaying.rows import Rows, patched, with_own
from winsor.audit.replaying.session import Adapter
from winsor.audit.replaying.transcript import Claim, Transcript, part_of
from winsor.core.contract import ConfigurationError, Neighbouring, Sensitivity

PROOF = "per-sample clipping, as the library claims"
COUNT = "the noise of the count is accounted as if one row moved it by 1/2"


def opacus_adapter(optimizer: type | None = None, sampler: type | None = None) -> Adapter:
    """Return taps on Opacus' optimisers and Poisson sampler, or on classes of the same shape."""
    optimizer = optimizer or _found("opacus.optimizers", "DPOptimizer")
    sampler = sampler or _found("opacus.utils.uniform_sampler", "UniformWithReplacementSampler")

    def adapter(transcript: Transcript, rows: Rows) -> AbstractContextManager[None]:
        taps = _Taps(transcript, rows)
        noises = [(cls, "add_noise", taps.add_noise) for cls in with_own(optimizer, "add_noise")]
        draws = [(cls, "__iter__", taps.batches) for cls in with_own(sampler, "__iter__")]
        return patched([*noises, *draws])

    return adapter


class _Taps:
    def __init__(self, transcript: Transcript, rows: Rows) -> None:
        self._transcript, self._rows = transcript, rows
        self._steps = 0
        self._held_back = False
        self._inside = False
        self._optimizers: list[Any] = []
        rows.on_held_back.append(self._note)

    def _note(self) -> None:
        self._held_back = True

    def _see_weights(self, optimizer: Any) -> None:
        """What the optimiser owns is compared at every release."""
        if optimizer not in self._optimizers:
            self._optimizers.append(optimizer)
            self._transcript.witnesses.append(torch.nn.ParameterList(optimizer.params))

    def batches(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def batches(sampler: Any) -> Iterator[list[int]]:
            for batch in original(sampler):
                yield self._rows.arranged(np.asarray(batch, dtype=np.int64)).tolist()

        return batches

    def add_noise(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def add_noise(optimizer: Any) -> None:
            if self._inside:  # a subclass that calls its parent
                original(optimizer)
                return
            self._see_weights(optimizer)
            first = self._transcript.passing(
                "opacus", self._steps, _parts(optimizer), _facts(optimizer), self._held_back
            )
            self._steps += 1
            self._inside = True
            try:
                original(optimizer)
            finally:
                self._inside = False
            if first is not None:
                _overwrite(optimizer, first.noisy)
            std = _norm(optimizer) * float(optimizer.noise_multiplier)
            self._transcript.passed(_noisy(optimizer), {"grad": std})

        return add_noise


def _claim(bound: float, proof: str) -> Claim:
    return Claim(Sensitivity.per_sample(bound, proof), Neighbouring.ADD_OR_REMOVE_ONE)


def _norm(optimizer: Any) -> float:
    """The claimed norm of a row: of per-layer clipping, that of all layers together."""
    bounds = np.atleast_1d(np.asarray(optimizer.max_grad_norm, dtype=np.float64))
    return float(np.linalg.norm(bounds))


def _parts(optimizer: Any) -> dict[str, Any]:
    sums = {str(i): p.summed_grad for i, p in enumerate(optimizer.params)}
    parts = {"grad": part_of(sums, _claim(_norm(optimizer), PROOF))}
    if hasattr(optimizer, "unclipped_num"):
        count = torch.as_tensor(optimizer.unclipped_num)
        parts["count"] = part_of(count, _claim(0.5, COUNT))
    return parts


def _facts(optimizer: Any) -> dict[str, str]:
    return {
        "clipping norm": repr(_norm(optimizer)),
        "noise multiplier": repr(float(optimizer.noise_multiplier)),
        "expected batch size": repr(getattr(optimizer, "expected_batch_size", None)),
    }


def _noisy(optimizer: Any) -> dict[str, Any]:
    grads = {str(i): p.grad.clone() for i, p in enumerate(optimizer.params)}
    found: dict[str, Any] = {"grad": grads}
    if hasattr(optimizer, "unclipped_num"):
        found["count"] = torch.as_tensor(optimizer.unclipped_num).clone()
    return found


def _overwrite(optimizer: Any, noisy: dict[str, Any]) -> None:
    for parameter, grad in zip(optimizer.params, noisy["grad"].values(), strict=True):
        parameter.grad.copy_(grad)
    if "count" in noisy:
        optimizer.unclipped_num = noisy["count"].clone()


def _found(module: str, name: str) -> type:
    try:
        found: type = getattr(import_module(module), name)
        return found
    except ImportError as error:
        raise ConfigurationError(
            f"opacus must be installed for its adapter. Got {error} instead. Install it with "
            '`pip install "opacus>=1.6,<1.7"`, or pass optimizer= and sampler=.'
        ) from error
