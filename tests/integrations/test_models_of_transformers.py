"""Adapters, tied embeddings, recomputed activations, bfloat16, tables, units."""

import datasets
import peft
import pytest
import tiny_transformers as tiny
import torch
from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerFast
from transformers.utils import logging

from winsor.integrations.row_losses import row_losses


def with_adapters(model=None):
    torch.manual_seed(1)
    config = peft.LoraConfig(
        r=2, target_modules=["c_attn"], task_type="CAUSAL_LM", fan_in_fan_out=True
    )
    return peft.get_peft_model(model or tiny.gpt(), config)


def last_gradient(trainer):
    """The sum that the rule bounded, of the last batch, without noise: what privacy rests on."""
    private = trainer.private
    batch = tiny.padded([tiny.Sentences()[i] for i in range(5)])
    private._engine.recording(True)
    view = private._engine.view(row_losses(private.model, batch))
    norms = view.norms()
    private._engine.recording(False)
    return norms, batch


def norms_one_by_one(model, batch):
    found = []
    trained = [p for p in model.parameters() if p.requires_grad]
    for loss in row_losses(model, batch):
        grads = torch.autograd.grad(loss, trained, retain_graph=True)
        found.append(torch.stack([g.square().sum() for g in grads]).sum().sqrt())
    return torch.stack(found)


@pytest.mark.parametrize("kind", ["tied", "lora", "recomputed", "lora recomputed"])
def test_norms_are_those_of_each_row(kind):
    model = with_adapters() if "lora" in kind else tiny.gpt()
    if kind == "lora recomputed":
        model.enable_input_require_grads()
    args = tiny.arguments(max_steps=2, gradient_checkpointing="recomputed" in kind)
    trainer = tiny.trainer(model, args)
    trainer.train()
    assert trainer.spent().steps == 2
    found, batch = last_gradient(trainer)
    trainer.private.detach()
    assert torch.allclose(found, norms_one_by_one(model, batch).double(), rtol=1e-4)


def test_only_adapters_are_trained_saved_and_resumed(tmp_path):
    args = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4}
    base = tiny.gpt().state_dict()
    one = tiny.trainer(with_adapters(), tiny.arguments(str(tmp_path), **args))
    one.train()
    other = tiny.trainer(with_adapters(), tiny.arguments(str(tmp_path), **args))
    other.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert other.spent().steps == 4
    for name, value in one.model.state_dict().items():
        assert torch.equal(value, other.model.state_dict()[name]), name
        if "lora" not in name:
            plain = name.removeprefix("base_model.model.").replace(".base_layer", "")
            assert torch.equal(value, base[plain]), name


def test_bfloat16_activations():
    trainer = tiny.trainer(
        tiny.bert(), tiny.arguments(bf16=True), train_dataset=tiny.Sentences(labels=3)
    )
    trainer.train()
    assert trainer.spent().steps == 4
    assert all(p.dtype == torch.float32 and p.isfinite().all() for p in trainer.model.parameters())


def tokenizer():
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    words = {str(i): i for i in range(tiny.WORDS)}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="0")), pad_token="0", mask_token="1"
    )


def test_a_table_a_tokenizer_and_its_collator():
    """The shape of most scripts: datasets.Dataset, a tokenizer, DataCollatorForLanguageModeling."""
    table = datasets.Dataset.from_list([dict(tiny.Sentences()[i]) for i in range(tiny.ROWS)])
    parts = table.train_test_split(0.2, seed=0)
    trainer = tiny.trainer(
        train_dataset=parts["train"],
        eval_dataset=parts["test"],
        processing_class=tokenizer(),
        data_collator=DataCollatorForLanguageModeling(tokenizer(), mlm=False),
    )
    trainer.train()
    assert trainer.spent().steps == 4
    assert trainer.evaluate()["eval_loss"] > 0
    assert trainer.model.generate(
        torch.tensor([[3, 4]]), max_new_tokens=2, pad_token_id=0
    ).shape == (1, 4)


def test_persons_instead_of_rows():
    persons = [i // 2 for i in range(tiny.ROWS)]
    trainer = tiny.trainer(privacy=tiny.privacy(unit=persons))
    trainer.train()
    assert any("one unit" in each for each in trainer.spent().conditions)


def test_it_says_once_what_is_not_shown(caplog):
    from winsor.integrations.transformers import SAID, logger

    logger.warning_once.cache_clear()
    logging.enable_propagation()
    try:
        tiny.trainer(args=tiny.arguments(max_steps=1)).train()
    finally:
        logging.disable_propagation()
    assert SAID in caplog.text
