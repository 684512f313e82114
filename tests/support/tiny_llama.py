"""A language model of a few thousand numbers that knows the words of some rows, in the files that
`transformers` reads."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast


def write(folder: Path, rows: Iterable[tuple[str, str]], layers: int = 1) -> Path:
    """``rows`` are prompts and sentences, with spaces between their words."""
    words = " ".join(" ".join(row) for row in rows).replace("[", " [ ").split()
    known = dict.fromkeys(["<unk>", "<end>", "[", "]", "],", *words])
    numbers = {word: i for i, word in enumerate(known)}
    tokenizer = Tokenizer(WordLevel(numbers, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<end>", unk_token="<unk>"
    ).save_pretrained(folder)
    torch.manual_seed(0)
    small = LlamaConfig(
        vocab_size=len(numbers), hidden_size=16, intermediate_size=16, num_hidden_layers=layers,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=128,
        bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    LlamaForCausalLM(small).save_pretrained(folder)
    return folder
