"""Arguments of `transformers.Trainer` that cannot be kept sound, each refused by its name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from winsor.core.contract import ConfigurationError

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
