"""Fine-tuning a small GPT on E2E pairs, privately or not, and the BLEU of what it writes.

A model is first trained on public pairs (the development file), as GPT-2 is on public text in the
paper, and then fine-tuned on the private training file with Adam: all weights, or a low-rank
correction of the frozen model (`winsor.models.lora`). The unit of privacy is a row, one pair; a
meaning representation that occurs in several rows is not protected as a whole.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from winsor.models.gpt import SmallGPT
from winsor.models.lora import low_rank
from winsor.rules.rule import Rule
from winsor.training.make_private import make_private
from winsor_papers.reproductions.cells import Values, Wanted, cell, data_name
from winsor_papers.reproductions.dc_dpsgd.bleu import corpus_bleu
from winsor_papers.reproductions.dc_dpsgd.e2e_text import (
    END,
    PAD,
    PROMPT,
    Pair,
    Vocabulary,
    read_pairs,
    spoken,
    words,
)
from winsor_papers.reproductions.training_runs import PROBED_ROWS


@dataclass(frozen=True)
class TextSize:
    """How large the model is, how long it trains, and how much it writes."""

    layers: int
    width: int
    length: int
    public_rows: int | None
    public_epochs: int
    batch_size: int
    steps: int
    prompts: int | None
    """How many meaning representations of the test file are verbalised; None for all."""


QUICK = TextSize(
    layers=2,
    width=64,
    length=40,
    public_rows=1000,
    public_epochs=2,
    batch_size=256,
    steps=20,
    prompts=120,
)
FULL = TextSize(
    layers=4,
    width=128,
    length=64,
    public_rows=None,
    public_epochs=10,
    batch_size=1024,
    steps=411,  # the ten epochs of Li et al. 2022
    prompts=None,
)
RATES = {"full": 1e-3, "LoRA": 3e-3}
DELTA = 1e-5
BATCH = 32
"""Of the public training."""


@dataclass(frozen=True, eq=False)
class Corpus:
    """Public and private rows, test prompts with their references."""

    size: TextSize
    vocabulary: Vocabulary
    public: Tensor
    private: Tensor
    prompts: list[Pair]
    references: list[list[list[str]]]

    @cached_property
    def start(self) -> nn.Module:
        """Trained on the public rows, when it is first asked for: a plan of the table never is."""
        model = self.blank()
        fit(model, self.public, self.size.public_epochs, rate=3e-3)
        return model

    def blank(self) -> nn.Module:
        """The same network before any training: a probe of what steps cost starts here."""
        torch.manual_seed(0)
        size = self.size
        return SmallGPT(len(self.vocabulary), size.length, layers=size.layers, width=size.width)

    def model(self, tuning: str, trained: bool = True) -> nn.Module:
        """A copy of the start, ready to be fine-tuned."""
        model = copy.deepcopy(self.start) if trained else self.blank()
        return low_rank(model) if tuning == "LoRA" else model


def prepare(folder: Path, size: TextSize) -> Corpus:
    """Read the three files."""
    public, private = read_pairs(folder, "dev"), read_pairs(folder, "train")
    vocabulary = Vocabulary(public)
    rows = vocabulary.encode(public[: size.public_rows], size.length)
    by_mr: dict[str, list[Pair]] = {}
    for pair in read_pairs(folder, "test_w_refs"):
        by_mr.setdefault(pair.mr, []).append(pair)
    groups = list(by_mr.values())[: size.prompts]
    references = [[words(pair.ref, {}) for pair in group] for group in groups]
    prompts = [group[0] for group in groups]
    encoded = vocabulary.encode(private, size.length)
    return Corpus(size, vocabulary, rows, encoded, prompts, references)


def losses(model: nn.Module, tokens: Tensor) -> Tensor:
    """One loss per row: the mean over the tokens of its sentence, <end> included."""
    logits = model(tokens[:, :-1])
    targets = tokens[:, 1:].clone()
    targets[:, : PROMPT - 1] = 0  # the prompt is given, not learnt; 0 is <pad>
    flat = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    kept = (targets != 0).to(flat.dtype)
    return (flat.view_as(kept) * kept).sum(1) / kept.sum(1).clamp_min(1)


def fit(model: nn.Module, rows: Tensor, epochs: float, rate: float, batch: int = BATCH) -> None:
    """Plain Adam on shuffled rows, with a rate that falls to zero."""
    trained = [p for p in model.parameters() if p.requires_grad]
    optimiser = torch.optim.Adam(trained, lr=rate)
    batches = [part for _ in range(int(epochs)) for part in torch.randperm(len(rows)).split(batch)]
    scheduler = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.0, len(batches))
    for part in batches:
        optimiser.zero_grad()
        losses(model, rows[part]).mean().backward()
        optimiser.step()
        scheduler.step()


def private_bleu(
    corpus: Corpus, tuning: str, rule: Rule, noise_multiplier: float, seed: int
) -> tuple[float, float]:
    """BLEU in per cent after private fine-tuning, and the certified epsilon: one cell."""

    def run() -> Values:
        model = corpus.model(tuning)
        epsilon = _fine_tune(model, corpus, tuning, rule, noise_multiplier, seed, steps)
        return {"bleu": bleu(model, corpus), "epsilon": epsilon}

    def part(count: int) -> None:
        model, small = corpus.model(tuning, trained=False), replace(corpus.size, batch_size=few)
        few_rows = replace(corpus, size=small)
        _fine_tune(model, few_rows, tuning, rule, noise_multiplier, seed, count)

    few = min(PROBED_ROWS, corpus.size.batch_size)
    steps = corpus.size.steps
    found = cell(
        Wanted(
            f"E2E, {tuning}, {type(rule).__name__}, {steps} steps of {corpus.size.batch_size}",
            {**_identity(corpus), "rule": repr(rule), "noise": noise_multiplier, "seed": seed},
            run,
            {"bleu": 50.0, "epsilon": 1.0},
            steps,
            part,
            corpus.size.batch_size / few,
        )
    )
    return found["bleu"], found["epsilon"]


def _identity(corpus: Corpus) -> dict[str, Any]:
    return {"size": asdict(corpus.size), "data": data_name(corpus.public, corpus.private)}


def _fine_tune(
    model: nn.Module,
    corpus: Corpus,
    tuning: str,
    rule: Rule,
    noise_multiplier: float,
    seed: int,
    steps: int,
) -> float:
    """Train ``model`` privately; the certified epsilon."""
    torch.manual_seed(seed)
    trained = [p for p in model.parameters() if p.requires_grad]
    private = make_private(
        model=model,
        optimizer=torch.optim.Adam(trained, lr=RATES[tuning]),
        dataset=TensorDataset(corpus.private),
        rule=rule,
        batch_size=corpus.size.batch_size,
        delta=DELTA,
        noise_multiplier=noise_multiplier,
        steps=steps,
        seed=seed,
        max_physical_batch_size=256,
    )
    for (tokens,) in private.batches():
        private.step(losses(model, tokens))
    epsilon = private.spent().epsilon
    private.detach()
    return epsilon


def plain_bleu(corpus: Corpus, tuning: str, seed: int) -> float:
    """The same number of rows without privacy, in batches an eighth as large: more steps."""

    def run(steps: int, trained: bool = True) -> nn.Module:
        torch.manual_seed(seed)
        model = corpus.model(tuning, trained)
        rows = corpus.size.batch_size * steps
        chosen = torch.randperm(len(corpus.private))[: min(rows, len(corpus.private))]
        epochs = max(1, round(rows / len(chosen)))
        fit(model, corpus.private[chosen], epochs, RATES[tuning], corpus.size.batch_size // 8)
        return model

    steps = corpus.size.steps
    found = cell(
        Wanted(
            f"E2E, {tuning}, not private, {steps} times {corpus.size.batch_size} rows",
            {**_identity(corpus), "seed": seed},
            lambda: {"bleu": bleu(run(steps), corpus)},
            {"bleu": 50.0},
            steps,
            lambda count: run(count, trained=False),
        )
    )
    return float(found["bleu"])


def public_bleu(corpus: Corpus) -> float:
    """BLEU before any fine-tuning, with the public training that leads there: one cell."""
    found = cell(
        Wanted(
            "E2E, public training",
            _identity(corpus),
            lambda: {"bleu": bleu(corpus.start, corpus)},
            {"bleu": 50.0},
            corpus.size.public_epochs * len(corpus.public) // BATCH,
            lambda steps: fit(corpus.blank(), corpus.public[: steps * BATCH], 1, 3e-3),
        )
    )
    return float(found["bleu"])


def bleu(model: nn.Module, corpus: Corpus) -> float:
    """Corpus BLEU-4 in per cent of greedy sentences for the test prompts."""
    written = generate(model, corpus.vocabulary, corpus.prompts, corpus.size.length)
    return 100 * corpus_bleu(written, corpus.references)


@torch.no_grad()
def generate(
    model: nn.Module, vocabulary: Vocabulary, prompts: Sequence[Pair], length: int
) -> list[list[str]]:
    """The likeliest next token, again and again, until <end>."""
    tokens = torch.tensor([vocabulary.prompt(pair.slots) for pair in prompts])
    ended = torch.zeros(len(prompts), dtype=torch.bool)
    while tokens.shape[1] < length and not ended.all():
        following = model(tokens)[:, -1].argmax(1)
        following[ended] = vocabulary.number[PAD]
        ended |= following == vocabulary.number[END]
        tokens = torch.cat([tokens, following[:, None]], dim=1)
    sentences = []
    for row, pair in zip(tokens[:, PROMPT:].tolist(), prompts, strict=True):
        said = [vocabulary.tokens[i] for i in row if vocabulary.tokens[i] not in (PAD, END)]
        sentences.append(spoken(said, pair.slots))
    return sentences
