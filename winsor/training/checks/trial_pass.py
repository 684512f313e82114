"""Losses and gradients of a few rows, computed without a trace.

The model runs on copies of its parameters and buffers, under a fixed seed, and afterwards every
attribute of every module is what it was. Where the model allows it the copies are float64: then
rows that do not mix agree to ten digits, and what differs by more is a dependence.

A forward pass that writes into a parameter or a buffer is refused: what it writes leaves with the
model, without noise.
"""

from __future__ import annotations

import copy
import itertools
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from winsor.core.contract import LossError, UnsupportedModel

Loss = Callable[[nn.Module, Any], Tensor]
"""``loss(model, batch)`` gives one value per row."""
Collate = Callable[[list[Any]], Any]
Watch = Callable[[Any], AbstractContextManager[Any]]
"""Given the batch, what looks on while the loss is computed."""

LARGEST_COPIED_MODEL = 1 << 26
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
class PassResult:
    """What a batch gave: all losses, and the gradient of the rows that were asked for."""

    losses: Tensor
    grads: dict[int, list[Tensor]]


class TrialPass:
    """Runs batches of ``loss`` on ``model``, each from the same state."""

    def __init__(self, model: nn.Module, loss: Loss, collate: Collate, exact: bool) -> None:
        size = sum(p.numel() for p in model.parameters())
        self.model = model
        self.loss = loss
        self.collate = collate
        self.exact = exact and size <= LARGEST_COPIED_MODEL
        self.quiet = False
        self._copies = _copies(
            model, torch.float64 if self.exact else None, share=size > LARGEST_COPIED_MODEL
        )
        self._trained = [c for c in self._copies.values() if c.requires_grad]

    def without_dropout(self) -> TrialPass:
        """Return the same pass with dropout switched off."""
        calm = copy.copy(self)
        calm.quiet = True
        return calm

    def run(
        self,
        samples: Sequence[Any],
        positions: Sequence[int],
        seed: int = 0,
        after: Sequence[Any] | None = None,
        watch: Watch | None = None,
    ) -> PassResult:
        """Compute losses of the batch of ``samples`` and gradients of the rows at ``positions``.

        With ``after``, another batch is result before, and nothing is put back in between.
        """
        with same_randomness(seed), torch.enable_grad(), _on_copies(self.model, self._copies):
            with _no_dropout(self.model) if self.quiet else nullcontext():
                if after is not None:
                    self.loss(self.model, self._batch(after))
                batch = self._batch(samples)
                with watch(batch) if watch is not None else nullcontext():
                    losses = _one_per_row(self.loss(self.model, batch), len(samples))
            grads = {i: self._gradient(losses[i]) for i in positions}
        return PassResult(losses.detach(), grads)

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
    """Switch dropout off; `_on_copies` puts the attributes back."""
    for module in model.modules():
        if isinstance(module, nn.MultiheadAttention | nn.RNNBase):
            module.dropout = 0.0
    with _NoDropout():
        yield


# ------------------------------------------------------------------------------------- copies


def _copies(model: nn.Module, dtype: torch.dtype | None, share: bool) -> dict[int, Tensor]:
    """Return a stand-in for each parameter and buffer, by the identity of what it stands for."""
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
def _on_copies(model: nn.Module, copies: dict[int, Tensor]) -> Iterator[None]:
    """Run the model on its copies. In the end all is put back; a copy that changed is refused."""
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


@dataclass(frozen=True)
class Tolerance:
    """How far values of one row may lie apart when nothing but rounding parts them."""

    relative: float
    absolute: float

    def same(self, one: Tensor, other: Tensor) -> bool:
        """Compare two vectors. Entries that are not finite in either must be so in both."""
        if one.shape != other.shape:
            return False
        one, other = one.detach().double(), other.detach().double()
        broken = ~(one.isfinite() & other.isfinite())
        if broken.any():
            if not torch.equal(one[broken].nan_to_num(7e77), other[broken].nan_to_num(7e77)):
                return False
            one, other = one[~broken], other[~broken]
        size = max(float(one.norm()), float(other.norm()))
        return float((one - other).norm()) <= self.relative * size + self.absolute


@dataclass(frozen=True)
class RowInBatch:
    """One row's place in a batch."""

    samples: Sequence[Any]
    position: int

    def of(self, x: Tensor) -> Tensor:
        """Return a copy of the row's part of ``x``, whose first dimension is the batch."""
        return x.detach()[self.position].clone()


@dataclass(frozen=True)
class _Event:
    """What one module received or returned for the row."""

    module: str
    leaving: bool
    values: list[Tensor]


@dataclass
class _Report:
    """The row in the batch, and then from module to module."""

    batch: list[Tensor] = field(default_factory=list)
    events: list[_Event] = field(default_factory=list)


def name_the_place(
    trial_pass: TrialPass, one: RowInBatch, other: RowInBatch, tolerance: Tolerance, seed: int
) -> str:
    """Name the first place at which a row looks different in another batch.

    Two batches hold the same row. Every module reports what it receives and returns for that row,
    in the order in which that happens; up to the place where rows mix, the two reports agree. The
    place is a module, the stretch between two modules, the collate function or the loss.
    """
    close = Tolerance(tolerance.relative / 10, tolerance.absolute / 10)
    here, there = (_reported(trial_pass, place, seed) for place in (one, other))
    if not _agree(here.batch, there.batch, close):
        return "in the collate function: the row is not the same in the two batches"
    last: _Event | None = None
    for a, b in itertools.zip_longest(here.events, there.events):
        if a is None or b is None or (a.module, a.leaving) != (b.module, b.leaving):
            return f"after {_told(last)}: which module comes next depends on the batch"
        if not _agree(a.values, b.values, close):
            return _between(last, a)
        last = a
    return f"in the loss function, after {_told(last)}"


def _between(last: _Event | None, now: _Event) -> str:
    if last is None:
        return f"before {now.module} is called: in the loss function, or in what it is given"
    if last.module == now.module and now.leaving and not last.leaving:
        return f"in {now.module}"
    if now.leaving:
        return f"in the forward of {now.module}, after {_told(last)}"
    if not last.leaving:
        return f"in the forward of {last.module}, before {now.module}"
    return f"between {_told(last)} and {now.module}"


def _told(event: _Event | None) -> str:
    return "the model" if event is None else event.module


def _agree(one: list[Tensor], other: list[Tensor], tolerance: Tolerance) -> bool:
    """Compare values; those of another shape (a padded length) or number count as equal."""
    if len(one) != len(other):
        return True
    pairs = zip(one, other, strict=True)
    return all(a.shape != b.shape or tolerance.same(a, b) for a, b in pairs)


def _reported(trial_pass: TrialPass, place: RowInBatch, seed: int) -> _Report:
    report = _Report()

    @contextmanager
    def watch(batch: Any) -> Iterator[None]:
        report.batch = _row(batch, place)
        with _listening(trial_pass.model, place, report.events):
            yield

    trial_pass.run(place.samples, (), seed, watch=watch)
    return report


@contextmanager
def _listening(model: nn.Module, place: RowInBatch, events: list[_Event]) -> Iterator[None]:
    handles = []
    for path, module in model.named_modules():
        name = f"{path or 'the model itself'} ({type(module).__name__})"

        def enter(_: nn.Module, args: Any, kwargs: Any, name: str = name) -> None:
            events.append(_Event(name, False, _row((args, kwargs), place)))

        def leave(_: nn.Module, args: Any, result: Any, name: str = name) -> None:
            events.append(_Event(name, True, _row(result, place)))

        handles.append(module.register_forward_pre_hook(enter, with_kwargs=True))
        handles.append(module.register_forward_hook(leave))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _row(values: Any, place: RowInBatch) -> list[Tensor]:
    """Return the row's part of every tensor whose first dimension is the batch."""
    n = len(place.samples)
    tensors = (x for x in tree_leaves(values) if isinstance(x, Tensor) and x.dim())
    return [place.of(x) for x in tensors if len(x) == n]
