"""Models sharded by FSDP2: whole weights to train with, shards for the optimiser.

`fully_shard` would gather weights in every forward pass and scatter gradients in every backward
pass: raw ones, which no rank may see of another's rows, and from ranks that may have no rows at
all. So while a run is private, each rank holds the weights whole, FSDP's hooks are taken off, and

    shard of a weight      = this rank's slice of the weight          no rank is asked
    optimiser step           on shards alone, with slices of the release
    whole weights          = the shards of all ranks                  one all-gather

The optimiser's state (twice the model for Adam) stays sharded, and so does the clipped sum over all
rows, for most rules (`shard_sums.py`); weights do not, because ranks have different numbers of rows
and of passes, or none, and could not gather together. `give_back` makes the model FSDP's again.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from winsor.core.contract import UnsupportedModel

_GATHERED: weakref.WeakKeyDictionary[nn.Module, Shards] = weakref.WeakKeyDictionary()


class Shards:
    """Each parameter of a model whole, as the model has it, and its shard, as FSDP made it."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._places = list(_sharded_places(model))
        _refuse_other_parallelism(model, [shard for _, _, shard in self._places])
        self._whole: dict[int, nn.Parameter] = {}
        self._shards: dict[int, Any] = {}
        for _, _, shard in self._places:
            if id(shard) not in self._whole:
                whole = nn.Parameter(shard.detach().full_tensor(), shard.requires_grad)
                self._whole[id(shard)], self._shards[id(whole)] = whole, shard
        for module, name, shard in self._places:
            module._parameters[name] = self._whole[id(shard)]
        self._hooks = [_take_off(handle) for handle in _hook_handles(model)]

    @staticmethod
    def of(model: nn.Module) -> Shards | None:
        """Find the model's shards and make its weights whole; None if it has none."""
        known = _GATHERED.get(model)
        if known is None and any(_sharded_places(model)):
            known = _GATHERED[model] = Shards(model)
        return known

    def owned_by_optimizer(self, parameters: Mapping[str, nn.Parameter]) -> dict[str, Any]:
        """Return, for each whole parameter, what the user's optimiser holds."""
        return {name: self._shards.get(id(p), p) for name, p in parameters.items()}

    def by_name(self) -> dict[str, Any]:
        """Return the shard of each parameter, by every name the model has for it."""
        named = self._model.named_parameters(remove_duplicate=False)
        return {name: self._shards[id(p)] for name, p in named if id(p) in self._shards}

    @torch.no_grad()
    def slice(self) -> None:
        """Set the shards to the whole weights: those are what the run's guard watches."""
        for shard in self._shards.values():
            shard.copy_(sliced(self._whole[id(shard)].detach(), shard))

    @torch.no_grad()
    def gather(self) -> None:
        """Fill the whole weights from the shards of all ranks."""
        for shard in self._shards.values():
            if shard.requires_grad:  # an optimiser does not move what is frozen
                self._whole[id(shard)].copy_(shard.detach().full_tensor())

    def give_back(self) -> None:
        """Give back the model with shards and hooks as FSDP had left it."""
        if _GATHERED.pop(self._model, None) is None:
            return
        self.slice()
        for module, name, shard in self._places:
            module._parameters[name] = shard
        for hooks, place, hook, is_first in self._hooks:
            hooks[place] = hook
            hooks.move_to_end(place, last=not is_first)


class ShardedOptimizer:
    """What a checkpoint keeps of an optimiser of shards: its state in whole tensors, if it
    is to be ``gathered``, or as this rank has it.

    All ranks take part, and any number of ranks can go on from it.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, gathered: bool = True) -> None:
        self._optimizer = optimizer
        self._gathered = gathered

    def state_dict(self) -> dict[str, Any]:
        """Return the optimiser's state by parameter, gathered if asked for."""
        state = self._optimizer.state_dict()
        if not self._gathered:
            return state
        kept = {
            place: {name: _whole(value) for name, value in values.items()}
            for place, values in state["state"].items()
        }
        return {**state, "state": kept}

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        """Load a state that `state_dict` returned, whole or in shards."""
        owned = [p for group in self._optimizer.param_groups for p in group["params"]]
        kept = {
            place: {name: _as(owned[place], value) for name, value in values.items()}
            for place, values in state_dict["state"].items()
        }
        self._optimizer.load_state_dict({**state_dict, "state": kept})


def sliced(whole: Tensor, like: Any) -> Tensor:
    """Return this rank's part of a tensor that every rank has whole, sharded as ``like`` is."""
    from torch.distributed.tensor import distribute_tensor

    part: Tensor = distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None)
    return part


def own_part(local: Tensor, like: Any) -> Tensor:
    """Wrap this rank's part as a tensor that is sharded as ``like`` is."""
    from torch.distributed.tensor import DTensor

    part: Tensor = DTensor.from_local(
        local,
        like.device_mesh,
        like.placements,
        run_check=False,
        shape=like.shape,
        stride=like.stride(),
    )
    return part


def _whole(value: Any) -> Any:
    return value.full_tensor() if is_sharded(value) else value


def _as(owner: Any, value: Any) -> Any:
    alike = isinstance(value, Tensor) and value.shape == owner.shape and value.ndim > 0
    to_slice = alike and is_sharded(owner) and not is_sharded(value)
    return sliced(value, owner) if to_slice else value


def is_sharded(value: Any) -> bool:
    """Tell whether ``value`` is a tensor of which each rank holds a part."""
    if not dist.is_available():
        return False
    from torch.distributed.tensor import DTensor  # slow to import: only where it can be needed

    return isinstance(value, DTensor)


def _sharded_places(model: nn.Module) -> Iterator[tuple[nn.Module, str, Any]]:
    """Find the places where the model holds a parameter that is a DTensor."""
    plain = (nn.Parameter, torch.Tensor)
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and type(parameter) not in plain and is_sharded(parameter):
                yield module, name, parameter


def _fsdp_states(model: nn.Module) -> list[Any]:
    from torch.distributed.fsdp import FSDPModule

    states = [m._get_fsdp_state() for m in model.modules() if isinstance(m, FSDPModule)]
    return list(dict.fromkeys(states))


def _hook_handles(model: nn.Module) -> Iterator[Any]:
    """Find the hooks that gather and scatter around passes and expect shards in the model."""
    for state in _fsdp_states(model):
        yield state._pre_forward_hook_handle
        yield state._post_forward_hook_handle
        for group in state._fsdp_param_groups:
            yield from (one._post_load_hook_handle for one in group.fsdp_params)


def _take_off(handle: Any) -> tuple[Any, int, Any, bool]:
    """Take off a hook; return where it stood, its number, the hook, and whether it came first."""
    hooks, place = handle.hooks_dict_ref(), handle.id
    is_first = next(iter(hooks)) == place
    return hooks, place, hooks.pop(place), is_first


def _refuse_other_parallelism(model: nn.Module, shards: list[Any]) -> None:
    """Refuse what `Shards` does not serve: other than FSDP2 over all ranks in one precision."""
    from torch.distributed.tensor import Shard

    states = _fsdp_states(model)
    managed = {
        id(one.sharded_param)
        for state in states
        for group in state._fsdp_param_groups
        for one in group.fsdp_params
    }
    world = dist.get_world_size()
    for shard in shards:
        mesh, placements = shard.device_mesh, shard.placements
        plain = mesh.ndim == 1 and mesh.size() == world and isinstance(placements[0], Shard)
        if id(shard) not in managed or not plain:
            raise UnsupportedModel(
                "sharded parameters must come from torch.distributed.fsdp.fully_shard over all "
                f"ranks. Got a DTensor with {placements} on a mesh of shape {tuple(mesh.shape)} "
                f"among {world} ranks instead: with tensor, pipeline or hybrid parallelism no rank "
                "sees whole rows' gradients. Use fully_shard(model), or plain data parallelism."
            )
    for state in states:
        if state._mp_policy.param_dtype is not None or len(state._modules) != 1:
            raise UnsupportedModel(
                "fully_shard must keep one module and its own precision. Got "
                f"{state._mp_policy} for {len(state._modules)} modules instead. Use "
                "torch.autocast for mixed precision, and shard modules one by one."
            )


def inside(model: nn.Module) -> nn.Module:
    """Return the model that a wrapper holds, with the wrapper's reduction switched off for good.

    winsor reads the gradient of each row and adds up what it has bounded. The reduction of
    DistributedDataParallel would carry gradients without bound and noise to other ranks, and would
    wait for ranks that have no rows in a step.
    """
    if isinstance(model, DataParallel):
        raise UnsupportedModel(
            "model must run in one process per device. Got DataParallel instead, which splits "
            "batches over threads behind the engine's back. Start one process per device with "
            "torchrun."
        )
    if not isinstance(model, DistributedDataParallel):
        return model
    model.require_backward_grad_sync = False
    model.require_forward_param_sync = False  # ranks without rows do not come to it
    inner: nn.Module = model.module
    return inner
