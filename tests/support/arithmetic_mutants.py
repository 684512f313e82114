"""Mistakes that can be made in the arithmetic between rows and noise, as patches.

`mutant(name)` puts one in place for the length of a block. Most take the place of the backend of
`winsor/gradients/arithmetic.py`, which all norms and sums of recorded rows go through.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from winsor.gradients import arithmetic

_library = arithmetic.library  # mistakes take its place


class _Backend:
    """The real one, for everything that a mistake leaves as it is."""

    def __getattr__(self, name: str) -> Any:
        return getattr(_library() or arithmetic.PLAIN, name)

    def sums_of_maps(self, maps: Any, weights: Tensor, sums: Any) -> None:
        """Sums of several maps, one after the other, by the functions that were changed."""
        for (e, x, _), (weight, bias) in zip(maps, sums, strict=True):
            if weight is not None:
                self.weigh_products(weights, e, x, weight, False)
            if bias is not None:
                self.weigh_rows(weights, e, bias, False)


def _narrow(x: Tensor) -> Tensor:
    return x.detach().to(torch.float32)


class NarrowNorms(_Backend):
    """Squares and Gram matrices in float32."""

    def squares(self, x: Tensor, root: bool = False) -> Tensor:
        found = _narrow(x).reshape(len(x), x[0].numel() if len(x) else 0).square().sum(1)
        return (found.sqrt() if root else found).double()

    def factor_norms(self, lefts: Any, right: Tensor) -> tuple[Tensor, Tensor]:
        x = _narrow(right)
        total, reaches, inner = x.new_zeros(len(x)), [], torch.bmm(x, x.mT)
        for e in map(_narrow, lefts):
            total = total + (torch.bmm(e, e.mT) * inner).sum((1, 2))
            reaches.append((e.square().sum(2).sqrt() * x.square().sum(2).sqrt()).sum(1))
        return total.clamp_min(0.0).double(), torch.stack(reaches, 1).double()

    def norms_of_maps(self, maps: Any, losses: Tensor) -> tuple[Tensor, bool]:
        total = torch.zeros(len(losses))
        for e, x, has_bias in maps:
            inner = 0.0 if x is None else x.detach().square().sum(1)
            total = total + e.detach().square().sum(1) * (inner + float(has_bias))
        norms = total.sqrt().double()
        return norms, bool(norms.isfinite().all() and losses.isfinite().all())


class NarrowProducts(_Backend):
    """w e in float32, before it meets x in float64."""

    def weigh_rows(self, weights: Any, rows: Tensor, out: Tensor, add: bool) -> None:
        super().__getattr__("weigh_rows")(None, _scaled(weights, rows), out, add)

    def weigh_products(
        self, weights: Any, left: Tensor, right: Tensor, out: Tensor, add: bool
    ) -> None:
        right = right if right.dtype is torch.float64 else _narrow(right)
        scaled = _scaled(weights, left).to(right.dtype)
        super().__getattr__("weigh_products")(None, scaled, right, out, add)

    def scatter(self, weights: Any, right: Tensor, index: Tensor, out: Tensor) -> None:
        super().__getattr__("scatter")(None, _scaled(weights, right), index, out)


def _scaled(weights: Tensor | None, x: Tensor) -> Tensor:
    if weights is None:
        return _narrow(x)
    return _narrow(x) * _narrow(weights).view(-1, *[1] * (x.dim() - 1))


class NarrowSums(_Backend):
    """w e in float64, and its sums and products in float32."""

    def weigh_rows(self, weights: Any, rows: Tensor, out: Tensor, add: bool) -> None:
        _write(_weighed(weights, rows).flatten(1).sum(0), out, add)

    def weigh_products(
        self, weights: Any, left: Tensor, right: Tensor, out: Tensor, add: bool
    ) -> None:
        e, x = _weighed(weights, left), _narrow(right)
        _write(e.reshape(-1, e.shape[-1]).T @ x.reshape(-1, x.shape[-1]), out, add)

    def scatter(self, weights: Any, right: Tensor, index: Tensor, out: Tensor) -> None:
        values, kept = _weighed(weights, right).flatten(0, 1), index.flatten() >= 0
        sums = torch.zeros(out.shape, dtype=torch.float32)
        out += sums.index_add_(0, index.flatten()[kept], values[kept])


def _weighed(weights: Tensor | None, x: Tensor) -> Tensor:
    wide = arithmetic.wide(x)
    if weights is not None:
        wide = wide * weights.double().view(-1, *[1] * (x.dim() - 1))
    return _narrow(wide.unsqueeze(-1) if wide.dim() == 1 else wide)


def _write(found: Tensor, out: Tensor, add: bool) -> None:
    found = found.double().view(out.shape)
    out.add_(found) if add else out.copy_(found)


class RoundedSums(_Backend):
    """Sums in float64, rounded to float32 before the noise."""

    def weigh_rows(self, weights: Any, rows: Tensor, out: Tensor, add: bool) -> None:
        super().__getattr__("weigh_rows")(weights, rows, out, add)
        out.copy_(_narrow(out))

    def weigh_products(
        self, weights: Any, left: Tensor, right: Tensor, out: Tensor, add: bool
    ) -> None:
        super().__getattr__("weigh_products")(weights, left, right, out, add)
        out.copy_(_narrow(out))

    def scatter(self, weights: Any, right: Tensor, index: Tensor, out: Tensor) -> None:
        super().__getattr__("scatter")(weights, right, index, out)
        out.copy_(_narrow(out))


def _backend(kind: type[_Backend]) -> Callable[[ExitStack], None]:
    def enter(stack: ExitStack) -> None:
        found = kind()
        stack.enter_context(mock.patch.object(arithmetic, "_for", lambda *tensors: found))
        stack.enter_context(mock.patch.object(arithmetic, "library", lambda: found))

    return enter


def _no_term(stack: ExitStack) -> None:
    """No share of what a row's places hold in its norm."""
    for name, module in list(sys.modules.items()):
        if name.startswith("winsor.") and "THETA" in vars(module):
            stack.enter_context(mock.patch.object(module, "THETA", 0.0))


MUTANTS: dict[str, Callable[[ExitStack], None]] = {
    "norms in float32": _backend(NarrowNorms),
    "no term for places that cancel": _no_term,
    "w e in float32": _backend(NarrowProducts),
    "sums in float32": _backend(NarrowSums),
    "sums rounded to float32 before the noise": _backend(RoundedSums),
}


@contextmanager
def mutant(name: str) -> Iterator[None]:
    """Make one of the `MUTANTS`, for the length of a block."""
    with ExitStack() as stack:
        MUTANTS[name](stack)
        yield
