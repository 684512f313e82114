"""Trainings that tests run on several processes, with gloo, and what they leave behind."""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import forkserver
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from dp_accounting.dp_event import GaussianDpEvent
from selfaudit.trainings import TrainingExperiment
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Subset, TensorDataset

import winsor
from winsor import rules
from winsor.audit.curve import curve_test
from winsor.audit.suite import certified
from winsor.core.buffers import PartTree, leaves_of
from winsor.core.ledger.shared import SharedLedger
from winsor.core.noise.source import AHEAD
from winsor.tails import PrivateMonitor
from winsor.training.ranks import agreement as agreeing
from winsor.training.ranks import shared as shared_noise
from winsor.training.ranks.ranks import Ranks, fingerprint_of
from winsor.training.ranks.shard_sums import ShardingRanks

N = 96


def on_ranks(
    world: int, job: Callable[..., Any], *arguments: Any, patience: float = 240
) -> list[Any]:
    """``job(rank, *arguments)`` on ``world`` ranks; what each returned, or its error in words.

    Ranks that have not ended after ``patience`` seconds are killed, and say "gone".
    """
    with tempfile.TemporaryDirectory() as folder:
        context = _context_with_imports()
        processes = [
            context.Process(target=_one, args=(rank, world, folder, job, arguments, patience / 4))
            for rank in range(world)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join(timeout=patience)
            if process.is_alive():
                process.kill()
        paths = [Path(folder, f"{rank}.pt") for rank in range(world)]
        return [torch.load(p, weights_only=False) if p.exists() else "gone" for p in paths]


def _context_with_imports() -> Any:
    """Ranks are forked from a process that has imported this file, once, and has done nothing else:
    imports are what takes time."""
    context = mp.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    with mock.patch.dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)):
        forkserver.ensure_running()
    return context


def _one(
    rank: int, world: int, folder: str, job: Callable[..., Any], arguments: Any, waits: float
) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world,
        timeout=timedelta(seconds=waits),
    )  # fmt: skip
    try:
        result = job(rank, *arguments)
    except Exception as error:
        result = f"{type(error).__name__}: {error}"
        if not isinstance(error, winsor.core.contract.WinsorError):
            traceback.print_exc()
    torch.save(result, Path(folder, f"{rank}.pt"))
    dist.destroy_process_group()


# ------------------------------------------------------------------------------------- models


class TinyGPT(nn.Module):
    """Six tokens, one causal layer, one prediction."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(9, 8), nn.Embedding(6, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = (x.clamp(-2, 2) * 2 + 4).long()
        places = torch.arange(6).expand(len(x), 6)
        hidden = self.token(tokens) + self.place(places)
        mask = nn.Transformer.generate_square_subsequent_mask(6, dtype=hidden.dtype)
        return self.head(self.layer(hidden, src_mask=mask, is_causal=True)[:, -1])


MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)),
    "cnn": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 4, 2), nn.GroupNorm(2, 4), nn.ReLU(),
        nn.Flatten(), nn.Linear(8, 3),
    ),
    "transformer": lambda: nn.Sequential(
        nn.Unflatten(1, (3, 2)), nn.Linear(2, 8),
        nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True),
        nn.Flatten(), nn.Linear(24, 3),
    ),
    "gpt": TinyGPT,
}  # fmt: skip

RULES: dict[str, Callable[[], Any]] = {
    "flat": lambda: rules.Flat(0.5),
    "quantile": lambda: rules.Quantile(0.5),
    "per layer": lambda: rules.PerLayer(0.5, joint=True),
    "averaged": lambda: rules.Averaged(0.5),
    "rank": lambda: rules.Discriminative(0.5, 0.1, selection="rank", rank_by="norm"),
    "monitored": lambda: PrivateMonitor(rules.Flat(0.5), share=0.05),
    "dc": lambda: rules.Discriminative(0.5, 0.1),
}

MECHANISMS: dict[str, Callable[[], Any]] = {
    "modelmix": lambda: winsor.ModelMix(0.1),
    "banded": lambda: winsor.Banded(bands=4),
    "laplace": lambda: "laplace",
}


def rows(shift: float = 0.0, dtype: torch.dtype = torch.float32) -> TensorDataset:
    x = (torch.randn(N, 6, generator=torch.Generator().manual_seed(0)) + shift).to(dtype)
    return TensorDataset(x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long())


def build(model: nn.Module, rule: Any, steps: int, **options: Any) -> Any:
    chosen = {"noise_multiplier": 0.8, "seed": 5, "batch_size": 16, "dataset": rows()}
    chosen["optimizer"] = torch.optim.SGD(model.parameters(), lr=0.1)
    return winsor.make_private(
        model=model, rule=rule, steps=steps, delta=1e-4, **(chosen | options)
    )


def train(private: Any, model: nn.Module, steps: int | None = None) -> None:
    for x, y in private.batches(steps):
        private.step(F.cross_entropy(model(x), y, reduction="none"))


def trained(
    rank: int, kind: str = "mlp", rule: str = "flat", steps: int = 30, wrapper: str = "none",
    sliced: bool = False, double: bool = False, nudged: bool = False, **options: Any,
) -> dict[str, Any]:  # fmt: skip
    """A whole training; weights, account and noise of it."""
    torch.manual_seed(1)
    shared_noise.SLICED_FROM = 0 if sliced else AHEAD
    model = MODELS[kind]()
    if double:
        model, options["dataset"] = model.double(), rows(dtype=torch.float64)
    if nudged:
        nudge(model)
    shown = wrapped(model, wrapper)
    if options.get("optimizer") == "adam":
        options["optimizer"] = torch.optim.Adam(shown.parameters(), lr=0.01)
    if "mechanism" in options:
        options["mechanism"] = MECHANISMS[options["mechanism"]]()
    private = build(shown, RULES[rule](), steps, **options)
    for parameter in private._update.parameters.values():
        parameter.register_post_accumulate_grad_hook(_raw_sum_in_a_weight)
    noises = noted_noise(private)
    train(private, shown)
    result = {
        "weights": {name: whole(p).clone() for name, p in model.named_parameters()},
        "spent": str(private.spent()),
        "history": [(str(event), count) for event, count in private.ledger.history()],
        "noise": of_all_ranks(private, torch.stack(noises)),
        "in_parts": isinstance(private._ranks, ShardingRanks),
        "bits": noise_bits(private, steps),
    }
    if wrapper == "fsdp":
        check_given_back(private, model)
        assert str(private.spent()) == result["spent"]
    return result


@torch.no_grad()
def nudge(model: nn.Module) -> None:
    """Move every weight to a number next to it: up, down or not at all."""
    chance = torch.Generator().manual_seed(3)
    for p in model.parameters():
        way = torch.randint(-1, 2, p.shape, generator=chance)
        p.copy_(torch.nextafter(p, p + way))


def wrapped(model: nn.Module, wrapper: str) -> nn.Module:
    """The model as users of several processes have it."""
    if wrapper == "ddp":
        return DistributedDataParallel(model)
    if wrapper == "fsdp":
        for layer in model.children():
            if any(True for _ in layer.parameters()):
                fully_shard(layer)
        fully_shard(model)
        FSDPParamGroup.post_backward = _raw_gradients_are_reduced
    return model


def _raw_gradients_are_reduced(*_: Any) -> None:
    raise AssertionError("FSDP reduces raw gradients behind the door")


def _raw_sum_in_a_weight(parameter: torch.Tensor) -> None:
    raise AssertionError("a backward pass leaves a sum that nobody has clipped in a weight's grad")


def whole(parameter: torch.Tensor) -> torch.Tensor:
    held = parameter.detach()
    return held.full_tensor() if isinstance(held, DTensor) else held


def check_given_back(private: Any, model: nn.Module) -> None:
    """After the run, the model is FSDP's again, with the weights of the run."""
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    private.detach()
    for name, p in model.named_parameters():
        assert isinstance(p, DTensor)
        assert torch.equal(whole(p), before[name])
    with torch.no_grad():
        assert torch.isfinite(model(rows().tensors[0][:4])).all()
    check_kept_in_shards(model, before)


@torch.no_grad()
def check_kept_in_shards(model: nn.Module, weights: dict[str, torch.Tensor]) -> None:
    """`torch.distributed.checkpoint` writes and reads the model that was given back."""
    place = [tempfile.mkdtemp()]
    dist.broadcast_object_list(place, 0)
    checkpoint.save({"model": model.state_dict()}, checkpoint_id=place[0])
    for parameter in model.parameters():
        parameter.zero_()
    state = {"model": model.state_dict()}
    checkpoint.load(state, checkpoint_id=place[0])
    model.load_state_dict(state["model"])
    for name, parameter in model.named_parameters():
        assert torch.equal(whole(parameter), weights[name])


def noted_noise(private: Any) -> list[torch.Tensor]:
    """The noise of every release, as it is added."""
    noises: list[torch.Tensor] = []
    mechanism = private._door.mechanism
    add = mechanism.add_noise

    def noted(parts: Any, std: Any, draw: Any) -> Any:
        def flat() -> torch.Tensor:
            return torch.cat([in_place(part.value) for part in parts.values()])

        before = flat().clone()
        released = add(parts, std, draw)
        noises.append(flat() - before)
        return released

    object.__setattr__(mechanism, "add_noise", noted)
    return noises


def in_place(value: Any) -> torch.Tensor:
    """A release as one vector; of a rank's part of it, with zeros in the place of the others'."""
    leaves = [leaf.reshape(-1).double() for leaf in leaves_of(value)]
    if not isinstance(value, PartTree):
        return torch.cat(leaves)
    whole = torch.zeros(value.whole_size, dtype=torch.float64)
    for place, leaf in zip(value.places, leaves, strict=True):
        whole[place : place + len(leaf)] = leaf
    return whole


def of_all_ranks(private: Any, vectors: torch.Tensor) -> torch.Tensor:
    """Vectors of which each rank knows its part, in whole. What all know (counts) comes last."""
    if isinstance(private._ranks, ShardingRanks):
        size = sum(p.numel() for p in private._update.parameters.values())
        parts = vectors[..., :size].contiguous()
        dist.all_reduce(parts)
        vectors[..., :size] = parts
    return vectors


def noise_bits(private: Any, steps: int) -> list[str]:
    """Names the noise of the first, a middle and the last step, where no sum rounds it."""
    found = []
    for entry in (0, steps // 2, steps - 1):
        tree: Any = {name: torch.zeros(p.shape) for name, p in private._update.parameters.items()}
        if isinstance(private._ranks, ShardingRanks):
            tree = private._ranks.add_up({"grad": tree})["grad"]
        private._door.noise.add_leaves(entry, "grad", leaves_of(tree), 1.0)
        found.append(fingerprint_of({"noise": of_all_ranks(private, in_place(tree))}))
    return found


# ------------------------------------------------------------------------- what tests ask of ranks


def many(rank: int, settings: list[dict[str, Any]]) -> list[Any]:
    """Several trainings, one after the other: starting processes is what takes time."""
    return [trained(rank, **setting) for setting in settings]


def refused(rank: int, kinds: list[str]) -> list[str]:
    """What each rank is told when rank 1 differs from rank 0."""
    return [_refusal(rank, kind) for kind in kinds]


def _refusal(rank: int, kind: str) -> str:
    torch.manual_seed(1 + (kind == "weights" and rank))
    model = MODELS["mlp"]()
    odd = rank == 1
    options: dict[str, Any] = {
        "rule": {"noise_multiplier": 0.8},
        "noise": {"noise_multiplier": 0.8 + odd * 0.1},
        "data": {"dataset": rows(0.5 * odd)},
        "weights": {},
        "optimizer": {"optimizer": torch.optim.SGD(model.parameters(), lr=0.1 + odd)},
        "unit": {"unit": np.arange(N) // 2 if odd else np.arange(N) % (N // 2), "batch_size": 8},
        "seed": {"seed": 5 + odd},
        "secret": {"seed": None if odd else 5},
        "version": {},
        "length": {"dataset": Subset(rows(), range(N - odd))},
    }[kind]
    rule = rules.Flat(0.5 + odd * (kind == "rule"))
    own = agreeing.__version__
    agreeing.__version__ = "another" if kind == "version" and odd else own
    try:
        build(model, rule, 5, **options)
    except winsor.core.contract.WinsorError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        agreeing.__version__ = own
    return "accepted"


def refused_models(rank: int) -> dict[str, str]:
    """What is said of models that are split in ways that no rank sees whole gradients in."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))

    def tensor_parallel(model: nn.Module) -> dict[str, Any]:
        parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
        return {}

    def low_precision(model: nn.Module) -> dict[str, Any]:
        fully_shard(model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
        return {}

    def hybrid(model: nn.Module) -> dict[str, Any]:
        two = init_device_mesh("cpu", (1, dist.get_world_size()), mesh_dim_names=("copy", "shard"))
        fully_shard(model, mesh=two)
        return {}

    def mixing(model: nn.Module) -> dict[str, Any]:
        fully_shard(model)
        return {"mechanism": winsor.ModelMix(0.1)}

    found = {}
    for split in (tensor_parallel, low_precision, hybrid, mixing):
        torch.manual_seed(1)
        model = MODELS["mlp"]()
        options = split(model)
        try:
            build(model, rules.Flat(0.5), 5, **options)
            found[split.__name__] = "accepted"
        except winsor.core.contract.WinsorError as error:
            found[split.__name__] = f"{type(error).__name__}: {error}"
    return found


def with_ledger(rank: int, path: str, dies_at: int | None = None) -> dict[str, Any]:
    """A training with a ledger on disk; rank 1 dies before a step, if it is told to."""
    torch.manual_seed(1)
    model = MODELS["mlp"]()
    private = build(model, rules.Flat(0.5), 12, ledger=path)
    told, released = "", 0
    try:
        for x, y in private.batches():
            if rank == 1 and private.steps_done == dies_at:
                os._exit(9)
            private.step(F.cross_entropy(model(x), y, reduction="none"))
            released = private.steps_done
    except winsor.core.contract.WinsorError as error:
        told = f"{type(error).__name__}: {error}"
    return {"told": told, "released": released, "entries": len(private.ledger)}


def one_word_before_noise(rank: int, path: str) -> dict[str, Any]:
    """What the shared ledger says when ranks differ, and when rank 0 cannot write."""
    ledger = SharedLedger({"n": 1}, path, Ranks.here())
    collectives = [0]
    gather, broadcast = dist.all_gather, dist.broadcast

    def counted(act: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*given: Any, **named: Any) -> Any:
            collectives[0] += 1
            return act(*given, **named)

        return counting

    dist.all_gather, dist.broadcast = counted(gather), counted(broadcast)
    event = GaussianDpEvent(1.0)
    ledger.record("run", 0, event, "00" * 16)
    found: dict[str, Any] = {"collectives": collectives[0]}
    for name, digest in {"differ": f"0{rank}" * 16, "cannot write": "02" * 16}.items():
        if name == "cannot write" and rank == 0:
            ledger._write = _full  # type: ignore[method-assign]
        try:
            ledger.record("other run", int(rank == 0 and name != "differ"), event, digest)
        except (winsor.core.contract.WinsorError, OSError) as error:
            found[name] = f"{type(error).__name__}: {error}"
    dist.all_gather, dist.broadcast = gather, broadcast
    return found | {"entries": len(ledger)}


def _full(text: bytes) -> None:
    raise OSError("no space left")


def replayed(rank: int, mutants: list[str], repeats: int, first: int = 0) -> dict[str, int]:
    """How often replay raises an alarm for each mutant of the noise of several ranks."""
    seeds = range(first, first + repeats)
    return {mutant: sum(not _replay(mutant, seed).passed for seed in seeds) for mutant in mutants}


def _replay(mutant: str, seed: int) -> Any:
    def fit(data: TensorDataset) -> nn.Module:
        torch.manual_seed(1)
        model = MODELS["mlp"]()
        private = build(model, rules.Flat(0.5), 5, dataset=data, seed=None)
        _spoil(private, mutant)
        train(private, model)
        return model

    return winsor.audit.replay(fit, rows(), seed=seed, first_only=mutant != "honest")


def curve_tested(rank: int, mutants: list[str], repeats: int, first: int = 0) -> dict[str, int]:
    """How often the curve test refutes the certificate that two ranks print."""
    found = {}
    for mutant in mutants:
        numbers = range(first, first + repeats)
        experiments = [SpoiltRanks(1.0, q=1.0, mutant=mutant, repeat=i) for i in numbers]
        claim = certified(experiments[0], "a record that speaks among silent ones").claim
        runs = RUNS["none" if mutant == "none" else "other"]
        found[mutant] = sum(curve_test(one, claim, runs).violated for one in experiments)
    return found


RUNS = {"none": 150, "other": 600}
"""On each dataset: enough to tell halved noise from whole noise every time (300 missed it in 3 of
50 repeats); a quarter of them tell no noise."""


@dataclass(frozen=True, eq=False)
class SpoiltRanks(TrainingExperiment):
    """Steps of a training over all ranks, with the mistake called ``mutant``."""

    mutant: str = "honest"
    repeat: int = 0

    def training(self, dataset: int, steps: int, part: int) -> Any:
        torch.manual_seed(1)
        private, optimizer = super().training(dataset, steps, part + 8 * self.repeat)
        _spoil(private, self.mutant)
        return private, optimizer


def _spoil(private: Any, mutant: str) -> None:
    mechanism, ranks = private._door.mechanism, private._ranks
    add = mechanism.add_noise

    def scaled(parts: Any, std: Any, draw: Any) -> Any:
        return add(parts, {name: s / ranks.world for name, s in std.items()}, draw)

    def none(parts: Any, std: Any, draw: Any) -> Any:
        return {name: part.value for name, part in parts.items()}

    def by_every_rank(parts: Any, std: Any, draw: Any) -> Any:
        """The others' noise as well: what is left when noise is added before sums are."""
        released = add(parts, std, draw)
        for name, value in released.items():
            for leaf in value.values():
                leaf += std[name] * (ranks.world - 1) ** 0.5 * torch.randn_like(leaf)
        return released

    spoilt = {"scaled by 1/world": scaled, "none": none, "on every rank": by_every_rank}
    if mutant != "honest":
        object.__setattr__(mechanism, "add_noise", spoilt[mutant])
