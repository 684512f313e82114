"""What a trainer must not do in a private run: arguments that are unsound, metrics on private rows.

Rows for evaluation are found to be private if they are the same object, a `Subset` of it, or a
`datasets.Dataset` over the same table (a split, a selection, a shuffle). Rows that were copied
cannot be found, so the guarantee names evaluation among its conditions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Subset

from winsor.core.contract import ConfigurationError, UnsoundRelease

Test = Callable[[Any], bool]


def _given(value: Any) -> bool:
    return bool(value)


def _other_than(*accepted: Any) -> Test:
    return lambda value: str(getattr(value, "value", value)) not in accepted


def _holds(*words: str) -> Test:
    return lambda value: any(word in str(getattr(value, "value", value)) for word in words)


REFUSED: dict[str, tuple[Test, str, str]] = {
    "train_sampling_strategy": (
        _other_than("random"),
        "batches are drawn by winsor's sampler, whose rate the guarantee rests on",
        "Leave it at 'random'",
    ),
    "group_by_length": (
        _given,
        "which rows meet in a batch would depend on the other rows",
        "Leave it out",
    ),
    "label_smoothing_factor": (
        _given,
        "it divides by the number of labels in the batch, so rows would mix",
        "Smooth each row's loss in compute_loss_func, with one value per row",
    ),
    "fp16": (
        _given,
        "its scaler skips steps whose gradients overflow, which depends on private rows",
        "Use bf16=True",
    ),
    "neftune_noise_alpha": (
        _given,
        "its noise is scaled by the longest row of the batch, so rows would mix",
        "Leave it out",
    ),
    "auto_find_batch_size": (
        _given,
        "what does not fit into memory depends on private rows, and each attempt reads them",
        "Set per_device_train_batch_size; accumulation makes the logical batch",
    ),
    "include_num_input_tokens_seen": (
        _other_than("no", "False"),
        "exact counts of private tokens would be logged",
        "Leave it at 'no'",
    ),
    "deepspeed": (_given, "its engine averages and updates behind winsor's back", "Use torchrun"),
    "fsdp": (
        _given,
        "the trainer would shard the model behind winsor's back",
        "Use torchrun, which trains data parallel",
    ),
    "parallelism_config": (_given, "rows or layers would be split behind winsor's back", ""),
    "torch_compile": (_given, "layers of a compiled model cannot be recorded", "Leave it out"),
    "use_liger_kernel": (
        _given,
        "its fused losses are means over the batch",
        "Leave it out",
    ),
    "optim": (
        _holds("layerwise", "lomo", "schedule_free"),
        "it changes weights during the backward pass or outside of steps",
        "Use 'adamw_torch', 'sgd' or another optimiser that steps once",
    ),
    "lr_scheduler_type": (
        _holds("plateau", "greedy"),
        "it waits for metrics and keeps no plan",
        "Use a schedule of steps, such as 'cosine'",
    ),
    "debug": (_given, "it prints what layers compute from private rows", "Leave it out"),
    "enable_jit_checkpoint": (
        _given,
        "it saves in the middle of a logical batch",
        "Use save_steps",
    ),
}
"""Argument -> (when it is refused, why, what to do)."""


def refuse_unsound(args: Any) -> None:
    """Refuse `TrainingArguments` under which the guarantee would not hold."""
    for name, why, remedy in _found(args):
        value = getattr(args, name)
        hint = f" {remedy}." if remedy else ""
        raise ConfigurationError(
            f"{name} must not be used for private training: {why}. Got {name}="
            f"{getattr(value, 'value', value)!r} instead.{hint}"
        )
    if args.n_gpu > 1:
        raise ConfigurationError(
            f"a private run must have one process per device. Got {args.n_gpu} devices in this "
            "one, over which DataParallel would split batches. Start it with torchrun."
        )
    hub = str(getattr(args.hub_strategy, "value", args.hub_strategy))
    if args.push_to_hub and hub in ("checkpoint", "all_checkpoints"):
        raise ConfigurationError(
            f"hub_strategy must be 'end' or 'every_save'. Got {hub!r} instead: checkpoints hold "
            "the key of the noise, and must stay where the data are."
        )


def _found(args: Any) -> Iterator[tuple[str, str, str]]:
    for name, (refused, why, remedy) in REFUSED.items():
        if hasattr(args, name) and refused(getattr(args, name)):
            yield name, why, remedy


PUBLIC_EVALUATION = "rows for evaluation are public: metrics on them are shown as they are"


def refuse_private_evaluation(private: Any, looked_at: Any, purpose: str) -> None:
    """Refuse ``looked_at`` (a dataset, or several by name) where it holds rows of ``private``."""
    several = looked_at.values() if isinstance(looked_at, Mapping) else [looked_at]
    if any(one is not None and _share(private, one) for one in several):
        raise UnsoundRelease(
            f"{purpose} must not use private rows. Got rows of train_dataset, whose metrics would "
            "leave without noise. Give public rows, or measure private ones through the door: "
            "winsor.metrics, winsor.fit(evaluate=...)."
        )


def _share(one: Any, other: Any) -> bool:
    (first, chosen), (second, looked_at) = _inside(one), _inside(other)
    if first is second:
        return chosen is None or looked_at is None or bool(set(chosen) & set(looked_at))
    tables = [getattr(getattr(each, "_data", None), "table", None) for each in (first, second)]
    names = [set(table.column_names) for table in tables if table is not None]
    common = sorted(names[0] & names[1]) if len(names) == 2 else []
    return any(
        np.intersect1d(_addresses(first, name, chosen), _addresses(second, name, looked_at)).size
        for name in common
    )


def _inside(dataset: Any) -> tuple[Any, list[int] | None]:
    """Return the dataset inside of `Subset`s, and which rows of it: None for all."""
    chosen: list[int] | None = None
    while isinstance(dataset, Subset):
        here = list(dataset.indices)
        chosen = here if chosen is None else [here[i] for i in chosen]
        dataset = dataset.dataset
    return dataset, chosen


def _addresses(dataset: Any, column: str, chosen: list[int] | None) -> NDArray[np.int64]:
    """Find where in memory each row of a `datasets.Dataset` lies: views of a table share it."""
    found = [np.empty(0, np.int64)]
    for chunk in dataset._data.table.column(column).chunks:
        values = chunk.buffers()[1]
        if values is None:
            return found[0]  # a column without values
        found.append(values.address + chunk.offset + np.arange(len(chunk), dtype=np.int64))
    rows = np.concatenate(found)
    if dataset._indices is not None:
        rows = rows[dataset._indices.column(0).to_numpy().astype(np.int64)]
    return rows if chosen is None else rows[chosen]
