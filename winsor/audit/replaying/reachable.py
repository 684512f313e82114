"""What can be read after a run: weights, buffers, attributes, returned values, files, text.

Everything is laid out as path -> leaf; two runs that received the same releases must leave the
same leaves, bit for bit.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import sparse
from sklearn.base import BaseEstimator
from torch import Tensor, nn

from winsor.core.door import Door
from winsor.core.ledger.ledger import Ledger
from winsor.core.prepaid import PrepaidDoor, Receipt
from winsor.core.sampling.samplers import Sampler
from winsor.rules.rule import Rule
from winsor.training.feeding.feed import Feed
from winsor.training.loop import PrivateTraining

_DEEPEST = 12
_SEALED = {"digest", "digests", "mac", "chain"}
"""Names under which a ledger keeps keyed digests of the sums it paid for: secret without the key,
and different for different sums by design."""
_OPAQUE = (
    type, ModuleType, FunctionType, BuiltinFunctionType, MethodType, torch.Generator,
    np.random.Generator, np.random.RandomState, Door, PrepaidDoor, Receipt, Feed,
)  # fmt: skip
_OF_MODULES = {"_parameters", "_buffers", "_modules"}


class Leaf(NamedTuple):
    """A value that can be compared: arrays by digest, with a copy if they are small."""

    text: str
    array: np.ndarray[Any, Any] | None = None


def weights_of(witnesses: list[Any]) -> dict[str, Leaf]:
    """Return the parameters (frozen ones too) and buffers of every training."""
    found: dict[str, Leaf] = {}
    for number, witness in enumerate(witnesses):
        model = witness if isinstance(witness, nn.Module) else getattr(witness, "model", None)
        if isinstance(model, nn.Module):
            for name, tensor in (*model.named_parameters(), *model.named_buffers()):
                found[f"model {number}: {name}"] = _tensor(tensor)
    return found


def leaves(value: Any, name: str) -> dict[str, Leaf]:
    """Return everything reachable from ``value``."""
    return dict(_walk(value, name, set(), 0))


def files(folder: Path) -> dict[str, Leaf]:
    """Return everything below ``folder``."""
    found: dict[str, Leaf] = {}
    for path in sorted(folder.rglob("*")):
        name = f"file {path.relative_to(folder).as_posix()}"
        if path.is_dir():
            found[name] = Leaf("a folder")
        else:
            found |= _file(name, path)
    return found


def difference(first: Mapping[str, Leaf], second: Mapping[str, Leaf]) -> Iterator[tuple[str, str]]:
    """Return (path, what differs) for every path that is not the same in both."""
    for name in sorted(first.keys() | second.keys()):
        a, b = first.get(name), second.get(name)
        if a is None or b is None:
            yield name, f"is there in the {'second' if a is None else 'first'} run only"
        elif a.text != b.text:
            yield name, _said(a, b)


def _said(a: Leaf, b: Leaf) -> str:
    if a.array is None or b.array is None or a.array.shape != b.array.shape:
        return f"differs: {a.text[:80]} in the first run, {b.text[:80]} in this one"
    with np.errstate(invalid="ignore", over="ignore"):
        gap = float(np.nanmax(np.abs(a.array.astype(np.float64) - b.array.astype(np.float64))))
    return f"differs by up to {gap:.6g}"


# ------------------------------------------------------------------------------------------ walk


def _walk(value: Any, name: str, seen: set[int], depth: int) -> Iterator[tuple[str, Leaf]]:
    if isinstance(value, _OPAQUE) or depth > _DEEPEST:
        return
    if isinstance(value, Tensor):
        yield name, _tensor(value)
    elif isinstance(value, np.ndarray | np.generic) or sparse.issparse(value):
        yield name, _array(value.toarray() if sparse.issparse(value) else np.asarray(value))
    elif value is None or isinstance(value, bool | int | float | complex | str | bytes):
        yield name, Leaf(repr(value), np.array(value) if isinstance(value, int | float) else None)
    elif isinstance(value, Ledger):
        yield name, Leaf(repr([(repr(event), count) for event, count in value.history()]))
    elif isinstance(value, Rule | Sampler):
        yield name, Leaf(repr(value))
    elif id(value) not in seen:
        seen.add(id(value))
        for key, child in _children(value):
            if not (key in _SEALED and "ledger" in name):
                yield from _walk(child, f"{name}.{key}", seen, depth + 1)


def _children(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return [(str(key), child) for key, child in value.items()]
    if isinstance(value, tuple | list):
        return [(str(i), child) for i, child in enumerate(value)]
    if isinstance(value, set | frozenset):
        return [(str(i), child) for i, child in enumerate(sorted(value, key=repr))]
    if isinstance(value, PrivateTraining):
        return _of_training(value)
    if isinstance(value, nn.Module):
        return _of_module(value)
    if isinstance(value, torch.optim.Optimizer):
        return [("state", value.state_dict())]
    if dataclasses.is_dataclass(value):
        return [(f.name, getattr(value, f.name)) for f in dataclasses.fields(value)]
    if isinstance(value, BaseEstimator) or hasattr(value, "__dict__"):
        return [*vars(value).items()]
    return []


def _of_training(private: PrivateTraining) -> list[tuple[str, Any]]:
    """What a run shows and what it saves. Its feed and its open batch stay inside."""
    return [
        ("model", private.model),
        ("optimizer", getattr(private._update, "optimizer", None)),
        ("steps_done", private.steps_done),
        ("rule_state", private.rule_state),
        ("ledger", private.ledger),
    ]


def _of_module(model: nn.Module) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = [*model.named_parameters(), *model.named_buffers()]
    found += [(f"{name}.grad", p.grad) for name, p in model.named_parameters()]
    for prefix, module in model.named_modules():
        found += [
            (f"{prefix}.{name}", child)
            for name, child in vars(module).items()
            if name not in _OF_MODULES and not name.endswith("_hooks") and "_hooks_" not in name
            and isinstance(child, bool | int | float | str | Tensor | np.ndarray | list | dict)
        ]  # fmt: skip
    return found


def _tensor(tensor: Tensor) -> Leaf:
    plain = tensor.detach().cpu()
    if plain.is_sparse or plain.is_quantized:
        plain = plain.to_dense()
    if plain.dtype is torch.bfloat16:
        plain = plain.float()
    return _array(plain.numpy())


def _array(array: np.ndarray[Any, Any]) -> Leaf:
    plain = np.ascontiguousarray(array)
    content = repr(plain.tolist()).encode() if plain.dtype == object else plain.tobytes()
    digest = hashlib.blake2b(content, digest_size=12).hexdigest()
    small = plain.copy() if plain.size <= 1 << 16 and plain.dtype.kind in "biuf" else None
    return Leaf(f"{plain.dtype}{array.shape} {digest}", small)


def _file(name: str, path: Path) -> dict[str, Leaf]:
    content = path.read_bytes()
    if content.startswith(b'{"winsor_ledger"'):
        return leaves(Ledger.read(path), name)  # without the digests, which only the key can read
    if content.startswith(b"PK"):
        try:
            saved = torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
            found = leaves(saved, name)  # but for digests, which only the key can read
            return {at: leaf for at, leaf in found.items() if not at.endswith((".rows", ".mac"))}
        except Exception:  # not a checkpoint, or not one of plain values: compare its bytes
            pass
    digest = hashlib.blake2b(content, digest_size=12).hexdigest()
    return {name: Leaf(f"{len(content)} bytes {digest}: {content[:60]!r}")}
