"""Losses and gradients of a few rows, computed without a trace.

The model runs on copies of its parameters and buffers, under a fixed seed, and afterwards every
attribute of every module is what it was. Where the model allows it the copies are float64: then
rows that do not mix agree to ten digits, and what differs by more is a dependence.

A forward pass that writes into a parameter or a buffer is refused: what it writes leaves with the
model, without noise.
"""

from __future__ import annotations

import copy
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from winsor.core.contract import LossError, UnsupportedModel

Loss = Callable[[nn.Module, Any], Tensor]
"""``loss(model, batch)`` gives one value per row."""
Collate = Callable[[list[Any]], Any]
Watch = Callable[[Any], AbstractContextManager[Any]]
"""Given the batch, what looks on while the loss is computed."""

LARGE = 1 << 26
"""Models with more numbers than this run as they are, uncopied and in their own precision."""
DROPOUTS = (
    torch.dropout,
    F.dropout,
    F.dropout1d,
    F.dropout2d,
    F.dropout3d,
    F.alpha_dropout,
    F.feature_alpha_dropout,
)


@dataclass(frozen=True)
class Played:
    """What a batch gave: all losses, and the gradient of the rows that were asked for."""

    losses: Tensor
    grads: dict[int, list[Tensor]]


class Rehearsal:
    """Plays batches of ``loss`` on ``model``, each from the same state."""

    def __init__(self, model: nn.Module, loss: Loss, collate: Collate, exact: bool) -> None:
        size = sum(p.numel() for p in model.parameters())
        self.model = model
        self.loss = loss
        self.collate = collate
        self.exact = exact and size <= LARGE
        self.quiet = False
        self._copies = _copies(model, torch.float64 if self.exact else None, share=size > LARGE)
        self._trained = [c for c in self._copies.values() if c.requires_grad]

    def without_dropout(self) -> Rehearsal:
        calm = copy.copy(self)
        calm.quiet = True
        return calm

    def play(
        self,
        samples: Sequence[Any],
        positions: Sequence[int],
        seed: int = 0,
        after: Sequence[Any] | None = None,
        watch: Watch | None = None,
    ) -> Played:
        """Losses of the batch of ``samples`` and gradients of the rows at ``positions``.

        With ``after``, another batch is played before, and nothing is put back in between.
        """
        with same_randomness(seed), torch.enable_grad(), _on_stage(self.model, self._copies):
            with _no_dropout(self.model) if self.quiet else nullcontext():
                if after is not None:
                    self.loss(self.model, self._batch(after))
                batch = self._batch(samples)
                with watch(batch) if watch is not None else nullcontext():
                    losses = _one_per_row(self.loss(self.model, batch), len(samples))
            grads = {i: self._gradient(losses[i]) for i in positions}
        return Played(losses.detach(), grads)

    def _batch(self, samples: Sequence[Any]) -> Any:
        batch = self.collate([copy.copy(sample) for sample in samples])
        return tree_map(_widened, batch) if self.exact else batch

    def _gradient(self, loss: Tensor) -> list[Tensor]:
        found = torch.autograd.grad(loss, self._trained, retain_graph=True, allow_unused=True)
        return [
            torch.zeros_like(p) if g is None else g
            for p, g in zip(self._trained, found, strict=True)
        ]


def _widened(x: Any) -> Any:
    return x.double() if isinstance(x, Tensor) and x.is_floating_point() else x


def _one_per_row(losses: Any, rows: int) -> Tensor:
    if not isinstance(losses, Tensor) or losses.numel() != rows or not losses.requires_grad:
        shape = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        raise LossError(
            f"loss(model, batch) must give one value per row, with its graph: shape ({rows},) for "
            f'{rows} rows. Got {shape} instead. Use reduction="none" and do not detach.'
        )
    return losses.reshape(rows)


# -------------------------------------------------------------------------------- randomness


@contextmanager
def same_randomness(seed: int) -> Iterator[None]:
    """Draw from ``seed``, and leave the user's random streams where they were."""
    numpy_state, python_state = np.random.get_state(), random.getstate()  # noqa: NPY002
    devices = list(range(torch.cuda.device_count()))
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002 - what a collate function may draw from
        random.seed(seed)
        try:
            yield
        finally:
            np.random.set_state(numpy_state)  # noqa: NPY002
            random.setstate(python_state)


class _NoDropout(TorchFunctionMode):
    """Dropout hands its input through, in modules and as functions."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in DROPOUTS:
            return args[0] if args else kwargs["input"]
        if func is F.scaled_dot_product_attention:
            if len(args) > 4:  # (query, key, value, mask, dropout_p, ...)
                args = (*args[:4], 0.0, *args[5:])
            else:
                kwargs = {**kwargs, "dropout_p": 0.0}
        return func(*args, **kwargs)


@contextmanager
def _no_dropout(model: nn.Module) -> Iterator[None]:
    """On stage only: the attributes set here are put back with all others."""
    for module in model.modules():
        if isinstance(module, nn.MultiheadAttention | nn.RNNBase):
            module.dropout = 0.0
    with _NoDropout():
        yield


# ------------------------------------------------------------------------------------- copies


def _copies(model: nn.Module, dtype: torch.dtype | None, share: bool) -> dict[int, Tensor]:
    """A stand-in for each parameter and buffer, by the identity of what it stands for."""
    found: dict[int, Tensor] = {}
    for p in model.parameters():
        wide = dtype if p.is_floating_point() else None
        value = p.detach() if share else p.detach().to(wide or p.dtype, copy=True)
        found[id(p)] = nn.Parameter(value, requires_grad=p.requires_grad)
    for b in model.buffers():
        wide = dtype if b.is_floating_point() else None
        found[id(b)] = b.detach().to(wide or b.dtype, copy=True)
    return found


@dataclass(frozen=True)
class _Saved:
    """A module as it was: its attributes, and what its containers held."""

    path: str
    module: nn.Module
    attributes: dict[str, Any]
    contents: dict[str, Any]

    @classmethod
    def of(cls, path: str, module: nn.Module) -> _Saved:
        attributes = dict(module.__dict__)
        containers = (list, dict, set, deque)
        held = {k: copy.copy(v) for k, v in attributes.items() if isinstance(v, containers)}
        return cls(path, module, attributes, held)

    def put_back(self) -> None:
        for name, before in self.contents.items():
            container = self.attributes[name]
            container.clear()
            fill = container.extend if isinstance(container, list | deque) else container.update
            fill(before)
        self.module.__dict__.clear()
        self.module.__dict__.update(self.attributes)


@contextmanager
def _on_stage(model: nn.Module, copies: dict[int, Tensor]) -> Iterator[None]:
    """The model on its copies. At the end all is put back, and a copy that changed is refused."""
    saved = [_Saved.of(path, module) for path, module in model.named_modules()]
    versions = {key: stand_in._version for key, stand_in in copies.items()}
    try:
        for one in saved:
            for holder in (one.module._parameters, one.module._buffers):
                for name, tensor in holder.items():
                    if tensor is not None:
                        holder[name] = copies[id(tensor)]  # type: ignore[assignment]
        yield
        for one in saved:
            _refuse_written(one, copies, versions)
    finally:
        for one in saved:
            one.put_back()


def _refuse_written(one: _Saved, copies: dict[int, Tensor], versions: dict[int, int]) -> None:
    for kind, holder in (("_parameters", "parameter"), ("_buffers", "buffer")):
        before, now = one.contents[kind], one.module.__dict__[kind]
        for name in (*before, *(key for key in now if key not in before)):
            source, value = before.get(name), now.get(name)
            if source is None and value is None:
                continue
            if source is not None and value is not None and _kept(source, value, copies, versions):
                continue
            path = f"{one.path}.{name}" if one.path else name
            raise UnsupportedModel(
                f"a forward pass must not write into what leaves with the model. Got the {holder} "
                f"{path} (of {type(one.module).__name__}) changed by it: values computed from "
                "private rows would be in state_dict() without noise. Keep no statistics of the "
                "batch, freeze them with .eval(), or pass them as public constants."
            )


def _kept(source: Tensor, value: Tensor, copies: dict[int, Tensor], was: dict[int, int]) -> bool:
    stand_in = copies[id(source)]
    if value is stand_in and stand_in.data_ptr() == source.data_ptr() and source.numel():
        return value._version == was[id(source)]  # shared: there is nothing to compare with
    if value.shape != source.shape:
        return False
    wide = source.detach().to(value.dtype)
    return bool(((value == wide) | ((value != value) & (wide != wide))).all())
