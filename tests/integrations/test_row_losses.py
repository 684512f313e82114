"""One loss per row: equal to what the model itself says of that row alone."""

import pytest
import tiny_transformers as tiny
import torch
from torch.nn import functional as F
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForQuestionAnswering,
    BertForTokenClassification,
    BertModel,
    T5Config,
    T5ForConditionalGeneration,
)

from winsor.core.contract import LossError, UnsupportedModel
from winsor.integrations.row_losses import refuse_without_row_losses, row_losses

SMALL = {
    "vocab_size": tiny.WORDS, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 16, "max_position_embeddings": 16, "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}  # fmt: skip


def alone(batch, i):
    """The row without the padding that others made it carry."""
    length = int(batch["attention_mask"][i].sum())
    return {
        name: value[i : i + 1, :length] if value.ndim == 2 else value[i : i + 1]
        for name, value in batch.items()
    }


def said_by_the_model(model, batch):
    return torch.stack([model(**alone(batch, i)).loss for i in range(len(batch["input_ids"]))])


def batch_of(labels=None):
    return tiny.padded([tiny.Sentences(labels=labels)[i] for i in range(6)])


@pytest.mark.parametrize("kind", ["causal", "masked", "tokens"])
def test_losses_over_words(kind):
    torch.manual_seed(0)
    model = {
        "causal": tiny.gpt,
        "masked": lambda: BertForMaskedLM(BertConfig(**SMALL)),
        "tokens": lambda: BertForTokenClassification(BertConfig(**SMALL, num_labels=tiny.WORDS)),
    }[kind]()
    batch = batch_of()
    batch["labels"][:, 1] = -100  # a mask of the user's
    found = row_losses(model, batch)
    assert found.shape == (6,) and found.requires_grad
    assert torch.allclose(found, said_by_the_model(model, batch), atol=1e-6)


def test_a_row_without_labels_counts_nothing():
    batch = batch_of()
    batch["labels"][2] = -100
    found = row_losses(tiny.gpt(), batch)
    assert found[2] == 0 and found.isfinite().all()


@pytest.mark.parametrize("kind", ["one of three", "several", "number", "numbers"])
def test_losses_of_whole_rows(kind):
    batch = batch_of(3)
    if kind == "several":
        batch["labels"] = F.one_hot(batch["labels"], 3).float()
    elif kind == "number":
        batch["labels"] = batch["labels"].float()
    elif kind == "numbers":
        batch["labels"] = torch.randn(6, 2)
    model = {
        "one of three": lambda: tiny.bert(3),
        "several": lambda: tiny.bert(3),
        "number": lambda: tiny.bert(1),
        "numbers": lambda: tiny.bert(2, problem_type="regression"),
    }[kind]()
    found = row_losses(model, batch)
    assert model.config.problem_type in (None, "regression")  # nothing is noted from rows
    assert torch.allclose(found, said_by_the_model(model, batch), atol=1e-6)


def test_losses_of_questions():
    torch.manual_seed(0)
    model = BertForQuestionAnswering(BertConfig(**SMALL))
    batch = batch_of()
    del batch["labels"]
    batch |= {
        "start_positions": torch.tensor([0, 1, 2, 0, 1, 99]),
        "end_positions": torch.ones(6).long(),
    }
    padded = [
        model(**{name: value[i : i + 1] for name, value in batch.items()}).loss for i in range(5)
    ]
    found = row_losses(model, batch)
    assert torch.allclose(found[:5], torch.stack(padded), atol=1e-6)
    assert found[5].isfinite()  # an answer outside of the text counts nothing


def test_rows_do_not_mix_where_the_trainer_mixes_them():
    """`Trainer` divides by the labels of the batch; a long row makes others lighter."""
    model, batch = tiny.gpt(), batch_of()
    longer = {name: value.clone() for name, value in batch.items()}
    longer["labels"][1:, :2] = -100
    assert row_losses(model, batch)[0] == row_losses(model, longer)[0]


def test_models_without_a_known_loss_are_refused():
    small = T5Config(vocab_size=20, d_model=8, d_ff=8, num_layers=1, num_heads=1, d_kv=8)
    for model in (T5ForConditionalGeneration(small), BertModel(BertConfig(**SMALL))):
        with pytest.raises(UnsupportedModel, match="row by row"):
            refuse_without_row_losses(model)
    with pytest.raises(LossError, match="labels"):
        row_losses(tiny.gpt(), {"input_ids": torch.ones(2, 3).long()})
