"""The processes of one training, and the few words they exchange.

Every rank holds the same key. So each knows the whole logical batch and takes its part of it, and
each draws the same noise for the same entry: what is released is the same everywhere, noised once.
Raw values cross between ranks only as sums of what each has bounded, or, for rules that must see
all rows, as norms and losses; the ranks of a training trust each other as its threads would.

Guarantee
---------
The release of W ranks has the law of one process: batches come from one draw, sums are added
before the one noise, and the ledger is written before any rank draws it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from winsor.core.buffers import FlatTree
from winsor.core.contract import ProtocolError
from winsor.core.noise.slices import DRAWN_AHEAD
from winsor.core.sampling.samplers import Indices
from winsor.gradients.buffers import Layout
from winsor.rules.rule import Sums

_Value = TypeVar("_Value")

# Renamed in torch 2.13, where the old names warn; before, there are only the old ones.
_GATHER = "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor"
_SCATTER = (
    "reduce_scatter_single" if hasattr(dist, "reduce_scatter_single") else "reduce_scatter_tensor"
)


class Ranks:
    """This process among the ``world`` that train together."""

    def __init__(self, device: torch.device | None = None) -> None:
        self.rank = dist.get_rank()
        self.world = dist.get_world_size()
        self.device = device or torch.device("cpu")

    @staticmethod
    def here(device: torch.device | None = None) -> Ranks | None:
        """Return the ranks of this process, or None without a process group of several ranks."""
        if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
            return None
        return Ranks(device)

    # ------------------------------------------------------------------------------- at the start

    def shared_key(self, key: bytes) -> bytes:
        """Share the key of rank 0 with every rank."""
        held = torch.tensor(list(key), dtype=torch.uint8, device=self.device)
        self._do(dist.broadcast, held, 0)
        return bytes(held.tolist())

    def from_first(self, value: Any) -> Any:
        """Share plain values of rank 0 with every rank."""
        held = [value]
        self._do(dist.broadcast_object_list, held, 0, device=self.device)
        return held[0]

    def from_all(self, value: Any) -> list[Any]:
        """Collect plain values of every rank, in their order."""
        found: list[Any] = [None] * self.world
        self._do(dist.all_gather_object, found, value)
        return found

    def agree(self, **facts: Any) -> None:
        """Refuse to go on unless every rank says the same; the error names what differs."""
        for rank, other in enumerate(self.from_all(facts)):
            for name, value in facts.items():
                if other.get(name) != value:
                    raise ProtocolError(
                        f"all ranks must have the same {name.replace('_', ' ')}. Got "
                        f"{_short(value)} on rank {self.rank} and {_short(other.get(name))} on "
                        f"rank {rank} instead. Give every rank the same model, dataset and "
                        "arguments."
                    )

    # -------------------------------------------------------------------------------- every step

    def part(self, rows: Indices) -> Indices:
        """Return this rank's share of a logical batch; it may be empty."""
        return np.array_split(rows, self.world)[self.rank]

    def add_up(self, sums: Sums) -> Sums:
        """Add up the sums of all ranks, in place of those of this one.

        How a rank holds its sums depends on its rows: those without any have no flat memory, and
        plain numbers. What is sent must not, nor what comes out: it is digested. All that a step
        has to add up is under way at once, so that ranks wait for each other once.
        """
        trees = {name: Sent(value) for name, value in sums.items() if isinstance(value, Mapping)}
        numbers = {
            name: torch.as_tensor(value, dtype=torch.float64, device=self.device).clone()
            for name, value in sums.items()
            if name not in trees
        }
        sent = [buffer for tree in trees.values() for buffer in tree.buffers]
        self._add_up_buffers([*sent, *numbers.values()])
        for name, held in numbers.items():
            value = sums[name]
            whole = held.to(value.dtype) if isinstance(value, Tensor) else held.item()
            sums[name] = int(whole) if isinstance(value, int) else whole
        sums |= {name: tree.received() for name, tree in trees.items()}
        return sums

    def _add_up_buffers(self, buffers: list[Tensor]) -> None:
        try:
            works = [dist.all_reduce(buffer, async_op=True) for buffer in buffers]
            for work in works:
                work.wait()
        except RuntimeError as error:
            _refuse_broken(error)

    def slice_of(self, size: int) -> slice:
        """Return the places of a vector that this rank answers for; perhaps none."""
        width = -(-size // self.world)
        return slice(min(size, self.rank * width), min(size, (self.rank + 1) * width))

    def gather_slices(self, flat: Tensor) -> None:
        """Gather every rank's slice of a vector, in place of what stood there."""
        width = -(-len(flat) // self.world)
        own = flat.new_zeros(width)
        part = flat[self.slice_of(len(flat))]
        own[: len(part)] = part
        wide = flat.new_empty(width * self.world)
        self._do(getattr(dist, _GATHER), wide, own)
        flat.copy_(wide[: len(flat)])

    def scatter_sum(self, own: Tensor, whole: Tensor) -> None:
        """Write this rank's slice of the sum of all ranks' ``whole`` into ``own``; slices are
        equal."""
        self._do(getattr(dist, _SCATTER), own, whole)

    def all_rows(self, values: Tensor) -> Tensor:
        """Map (rows of this rank, ...) to (all rows, ...), in the order of ranks."""
        sizes = self.row_counts(len(values))
        longest = max(sizes)
        if longest == 0:
            return values
        wide = values.new_zeros((longest, *values.shape[1:]))
        wide[: len(values)] = values
        found = [torch.empty_like(wide) for _ in range(self.world)]
        self._do(dist.all_gather, found, wide)
        return torch.cat([part[:size] for part, size in zip(found, sizes, strict=True)])

    def row_counts(self, count: int) -> list[int]:
        """Count the rows that each rank has."""
        own = torch.tensor([count], device=self.device)
        found = [torch.empty_like(own) for _ in range(self.world)]
        self._do(dist.all_gather, found, own)
        return [int(one) for one in found]

    def digest_of_all(self, digest: str) -> str:
        """Return what the ledger is to say of a release: every rank holds all of it."""
        return digest

    def same_release(self, run: str, step: int, digest: str, well: bool = True) -> bool:
        """Tell whether rank 0 is well; refuses unless every rank is about to cover the same value.

        One word for both: rank 0 speaks it when the release is in the ledger, or could not be.
        """
        named = hashlib.blake2b(f"{run} {step} {digest}".encode(), digest_size=16).digest()
        own = torch.tensor([*named, well], dtype=torch.uint8, device=self.device)
        found = [torch.empty_like(own) for _ in range(self.world)]
        self._do(dist.all_gather, found, own)
        first_is_well = bool(found[0][-1])
        if first_is_well and any(not torch.equal(one[:-1], own[:-1]) for one in found):
            raise ProtocolError(
                "every rank must release the same sum. Got different ones: the models or the rules "
                "of the ranks have come apart. Start all ranks from one checkpoint."
            )
        return first_is_well

    def all_well(self, well: bool) -> bool:
        """Tell whether rank 0 says so."""
        word = torch.tensor([int(well)], device=self.device)
        self._do(dist.broadcast, word, 0)
        return bool(word.item())

    def everyone(self, well: bool) -> bool:
        """Tell whether every rank says so."""
        word = torch.tensor([int(well)], device=self.device)
        self._do(dist.all_reduce, word, dist.ReduceOp.MIN)
        return bool(word.item())

    def _do(self, collective: Any, *arguments: Any, **options: Any) -> None:
        try:
            collective(*arguments, **options)
        except RuntimeError as error:
            _refuse_broken(error)


def on_all_ranks(ranks: Ranks | None, act: Callable[[], _Value], what: str) -> _Value:
    """Run ``act()`` on every rank; where it fails on one, it has failed on all of them."""
    if ranks is None:
        return act()
    try:
        done = act()
    except Exception:
        ranks.everyone(False)
        raise
    if not ranks.everyone(True):
        raise ProtocolError(
            f"every rank must be able to {what}. Got an error on another rank, which it reports; "
            "nothing was changed."
        )
    return done


def fingerprint_of(tensors: Mapping[str, Tensor]) -> str:
    """Name the bits of some tensors."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in tensors.items():
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
    return digest.hexdigest()


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else text[:117] + "..."


def _refuse_broken(error: RuntimeError) -> NoReturn:
    raise ProtocolError(
        "the ranks of a training must stay together. Got a broken connection instead: "
        f"{error}. What was recorded before is paid for; resume all ranks from a checkpoint."
    ) from error


IN_ONE_PIECE = DRAWN_AHEAD
"""Values of the largest tree that is sent in one piece: those whose noise is drawn ahead."""
TOGETHER = 1 << 15
"""Leaves of at most so many values share a buffer, in larger trees."""


class Sent:
    """A tree of sums as it crosses between ranks: buffers to be added up in place.

    A message between processes costs about as much as adding up ten thousand values, and models
    have many leaves that are smaller than that. So a tree travels in one piece, in which most lie
    already. Of larger trees the small leaves travel in one buffer and the large ones as they are.

    Guarantee
    ---------
    What is sent depends on names, shapes and types alone, so that every rank sends the same
    messages, whether it has rows or not.
    """

    def __init__(self, tree: Mapping[str, Tensor]) -> None:
        self._tree: dict[str, Tensor] = dict(tree)
        self._flat: FlatTree | None = None
        leaves = list(tree.values())
        alike = len({(leaf.dtype, leaf.device) for leaf in leaves}) == 1
        if alike and sum(leaf.numel() for leaf in leaves) <= IN_ONE_PIECE:
            self._flat = tree if isinstance(tree, FlatTree) else Layout(tree).joined(leaves)
            self.buffers = [self._flat.flat]
            return
        few = TOGETHER if alike else 0
        self._small = [leaf for leaf in leaves if leaf.numel() <= few]
        self._large = [leaf for leaf in leaves if leaf.numel() > few]
        self.buffers = [leaf.contiguous() for leaf in self._large]
        if self._small:
            self.buffers.append(torch.cat([leaf.reshape(-1) for leaf in self._small]))

    def received(self) -> dict[str, Tensor]:
        """Return the tree of what the buffers hold now."""
        if self._flat is not None:
            return self._flat
        for leaf, buffer in zip(self._large, self.buffers, strict=False):
            if buffer.data_ptr() != leaf.data_ptr():
                leaf.copy_(buffer)
        if self._small:
            parts = self.buffers[-1].split([leaf.numel() for leaf in self._small])
            for leaf, part in zip(self._small, parts, strict=True):
                leaf.copy_(part.view_as(leaf))
        return self._tree
