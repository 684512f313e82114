"""E2E generation: text, low-rank correction, training and verdict, on a few made-up rows."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import pytest
import torch
from torch import nn
from winsor_papers.reproductions.dc_dpsgd import e2e as dc_e2e
from winsor_papers.reproductions.dc_dpsgd.e2e_runs import TextSize, losses
from winsor_papers.reproductions.dc_dpsgd.e2e_text import (
    END,
    NAME,
    PROMPT,
    Vocabulary,
    read_pairs,
    spoken,
    words,
)
from winsor_papers.reproductions.reproduction import Line, Measured, Request

from winsor.core.contract import ConfigurationError
from winsor.models.gpt import SmallGPT
from winsor.models.lora import LowRank, low_rank

SIZE = TextSize(1, 16, 24, None, 8, batch_size=20, steps=3, prompts=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("e2e")
    rows = []
    for i in range(60):
        kind, area = ("pub", "restaurant")[i % 2], ("riverside", "city centre")[i // 2 % 2]
        mr = f"name[Blue Spice], eatType[{kind}], area[{area}], near[Café Rouge]"
        rows.append((mr, f"Blue Spice is a {kind} in the {area}, near Café Rouge."))
    for part in ("train", "dev", "test_w_refs"):
        with gzip.open(folder / f"e2e_{part}.csv.gz", "wt", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("mr", "ref"), *rows])
    return folder


def test_pairs_are_read_with_their_slots(folder: Path) -> None:
    pair = read_pairs(folder, "dev", rows=3)[2]
    assert pair.slots == {
        "name": "Blue Spice",
        "eatType": "pub",
        "area": "city centre",
        "near": "Café Rouge",
    }
    with pytest.raises(ConfigurationError, match=r"data must hold e2e_other.csv.gz"):
        read_pairs(folder, "other")


def test_names_become_tokens_and_come_back(folder: Path) -> None:
    pair = read_pairs(folder, "dev", rows=1)[0]
    tokens = words(pair.ref, pair.slots)
    assert tokens[:4] == [NAME, "is", "a", "pub"]
    assert spoken(tokens, pair.slots) == words(pair.ref, {})


def test_rows_are_prompt_sentence_end(folder: Path) -> None:
    pairs = read_pairs(folder, "dev")
    vocabulary = Vocabulary(pairs)
    rows = vocabulary.encode(pairs, 24)
    said = [vocabulary.tokens[i] for i in rows[0].tolist()]
    assert said[:2] == ["eatType[pub]", "priceRange[?]"]
    assert said[PROMPT - 1] == "<text>" and said[PROMPT] == NAME
    assert END in said and said[-1] == "<pad>"
    strange = dict(pairs[0].slots, eatType="bakery")
    assert vocabulary.tokens[vocabulary.prompt(strange)[0]] == "eatType[?]"


def test_the_loss_of_a_row_ignores_prompt_and_padding() -> None:
    torch.manual_seed(0)
    model = SmallGPT(12, 14, layers=1, width=8)
    tokens = torch.randint(1, 12, (3, 14))
    tokens[1, 10:] = 0
    values = losses(model, tokens)
    logits = model(tokens[:, :-1]).log_softmax(-1)
    for row, last in ((0, 14), (1, 10)):
        places = torch.arange(PROMPT, last)
        expected = -logits[row, places - 1, tokens[row, places]].mean()
        torch.testing.assert_close(values[row], expected)


def test_a_low_rank_correction_starts_at_nothing_and_freezes_the_rest() -> None:
    torch.manual_seed(0)
    model = SmallGPT(12, 14, layers=1, width=8)
    tokens = torch.randint(0, 12, (2, 14))
    before = model(tokens)
    low_rank(model, rank=2)
    torch.testing.assert_close(model(tokens), before)
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert trained and all(name.endswith(("down.weight", "up.weight")) for name in trained)
    corrected = [m for m in model.modules() if isinstance(m, LowRank)]
    assert len(corrected) == 5  # qkv, out, two of the MLP, head
    nn.init.ones_(corrected[0].up.weight)
    assert not torch.allclose(model(tokens), before)


def test_the_table_from_files_to_verdict(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dc_e2e, "QUICK", SIZE)
    result = dc_e2e.e2e(Request(quick=True, data=folder))
    assert len(result.lines) == 6
    for line in result.lines:
        assert {"full", "LoRA"} >= {line.label["tuning"]}
        if line.certified is not None:
            assert 0 <= line.certified.mean <= 100
            assert line.certified_epsilon is not None and line.certified_epsilon <= 8
    assert (
        "DC clipping ahead of flat clipping when certified: Undecided in 2 of 2" in result.verdict
    )


def _line(tuning: str, method: str, mean: float) -> Line:
    measured = Measured(mean, 1.0, 3)
    return Line({"tuning": tuning, "method": method}, certified=measured, published_certifies=20.0)


@pytest.mark.parametrize(
    ("ours", "word"), [(60.0, "Reproduced in 2"), (40.0, "Not reproduced at our size in 2")]
)
def test_the_verdict_follows_the_numbers(ours: float, word: str) -> None:
    lines = [
        _line(tuning, method, mean)
        for tuning in ("full", "LoRA")
        for method, mean in (("DP-SGD", 50.0), ("DC-DPSGD", ours))
    ]
    assert word in dc_e2e.verdict(lines, untouched=30.0)
