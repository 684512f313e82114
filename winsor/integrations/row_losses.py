"""One loss per row from the models of `transformers`, whose own losses are means over the batch.

    causal language model     mean over the row's tokens of -log p(next token)
    masked language model,    mean over the row's labelled tokens
    token classification
    classification            cross-entropy; BCE for several labels; squared error for regression
    question answering        mean of the cross-entropies of start and end

Labels of -100 count nothing. `Trainer` divides by the number of labelled tokens of the *batch*: one
long row then makes all others lighter, so rows mix. Here each row is divided by its own number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.models.auto import modeling_auto as names

from winsor.core.contract import LossError, UnsupportedModel

IGNORED = -100


def row_losses(model: nn.Module, inputs: Mapping[str, Any]) -> Tensor:
    """Compute (rows,) losses of ``inputs`` as a collator gives them, with their graph."""
    return _loss_of(model)(model, dict(inputs))


def refuse_without_row_losses(model: nn.Module) -> None:
    """Say before training that the losses of this model are not known row by row."""
    _loss_of(model)


def causal(model: nn.Module, inputs: dict[str, Any]) -> Tensor:
    """Compute the mean negative log-probability of the next token over each row's tokens."""
    labels = _taken(inputs, "labels")
    logits = model(**inputs).logits[:, : labels.shape[1]]  # (rows, places, words)
    following = F.pad(labels[:, 1:], (0, 1), value=IGNORED)  # cutting logits would copy them
    return _mean_over_places(logits, following)


def tokens(model: nn.Module, inputs: dict[str, Any]) -> Tensor:
    """Compute the mean cross-entropy over each row's labelled tokens."""
    labels = _taken(inputs, "labels")
    return _mean_over_places(model(**inputs).logits, labels)


def classification(model: nn.Module, inputs: dict[str, Any]) -> Tensor:
    """Compute the loss of each row by the kind of problem: squared error, BCE or cross-entropy."""
    labels = _taken(inputs, "labels")
    logits = model(**inputs).logits.float()  # (rows, classes)
    kind = getattr(_inner(model).config, "problem_type", None) or _problem(logits, labels)
    if kind == "regression":
        wide = labels.reshape(logits.shape).to(logits.dtype)
        return (logits - wide).square().mean(1)
    if kind == "multi_label_classification":
        given = labels.to(logits.dtype)
        return F.binary_cross_entropy_with_logits(logits, given, reduction="none").mean(1)
    return F.cross_entropy(logits, labels.reshape(-1), ignore_index=IGNORED, reduction="none")


def question_answering(model: nn.Module, inputs: dict[str, Any]) -> Tensor:
    """Compute the mean of the cross-entropies of each row's start and end."""
    starts, ends = _taken(inputs, "start_positions"), _taken(inputs, "end_positions")
    found = model(**inputs)
    outside = found.start_logits.shape[1]  # a place beyond the text counts nothing
    both = [
        F.cross_entropy(
            logits.float(),
            places.reshape(-1).clamp(0, outside),
            ignore_index=outside,
            reduction="none",
        )
        for logits, places in ((found.start_logits, starts), (found.end_logits, ends))
    ]
    return (both[0] + both[1]) / 2


Kind = Callable[[nn.Module, dict[str, Any]], Tensor]

_KINDS: tuple[tuple[Mapping[str, Any], str, Kind], ...] = (
    (names.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, "ForCausalLM", causal),
    (names.MODEL_FOR_MASKED_LM_MAPPING_NAMES, "ForMaskedLM", tokens),
    (names.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES, "ForTokenClassification", tokens),
    (
        names.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
        "ForSequenceClassification",
        classification,
    ),
    (
        names.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
        "ForImageClassification",
        classification,
    ),
    (
        names.MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES,
        "ForQuestionAnswering",
        question_answering,
    ),
)
"""The library's list of such models, how their classes are called, and the loss of a row."""


def _loss_of(model: nn.Module) -> Kind:
    inner = _inner(model)
    name = type(inner).__name__
    if not getattr(getattr(inner, "config", None), "is_encoder_decoder", False):
        for listed, ending, loss in _KINDS:
            if name.endswith(ending) or name in _flat(listed):
                return loss
    raise UnsupportedModel(
        "model must be for causal or masked language modelling, classification of rows, images or "
        f"tokens, or question answering, without an encoder-decoder. Got {name} instead, whose "
        "loss is not known row by row. Override PrivateTrainer.row_losses(model, inputs), or pass "
        "compute_loss_func=, with one value per row."
    )


def _flat(listed: Mapping[str, Any]) -> set[str]:
    """List the names of classes; a model type may have several."""
    return {
        name
        for value in listed.values()
        for name in ((value,) if isinstance(value, str) else value)
    }


def _inner(model: nn.Module) -> nn.Module:
    """Return the model that adapters (PEFT) are put around."""
    get_base = getattr(model, "get_base_model", None)
    return get_base() if callable(get_base) else model


def _taken(inputs: dict[str, Any], name: str) -> Tensor:
    labels = inputs.pop(name, None)
    if not isinstance(labels, Tensor):
        raise LossError(
            f"a batch must have {name!r} for a loss to be computed. Got {sorted(inputs)} instead. "
            "Let the dataset or the collator give it."
        )
    return labels


def _mean_over_places(logits: Tensor, labels: Tensor) -> Tensor:
    """Map (rows, places, classes) and (rows, places) to (rows,). A row without labels has loss 0.

    Places are flattened: with classes in the middle, the softmax takes four times as long.
    """
    each = F.cross_entropy(
        logits.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORED, reduction="none"
    )
    return each.view_as(labels).sum(1) / (labels != IGNORED).sum(1).clamp(min=1)


def _problem(logits: Tensor, labels: Tensor) -> str:
    """Guess the problem as `transformers` does: from the number of outputs and the labels' type."""
    if logits.shape[1] == 1:
        return "regression"
    whole = labels.dtype in (torch.long, torch.int)
    return "single_label_classification" if whole else "multi_label_classification"
