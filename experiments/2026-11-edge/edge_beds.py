"""The six test beds of `edge.py`: small tasks whose per-sample gradients have heavy tails.

Each bed gives, for a seed, private training rows, validation rows (for tuning) and test rows (for
evaluation), a model, one loss per row, and scores of which larger is better. A run takes one to
three seconds of one core, so that every method can have the same trials and seeds.

    fashion_lt   Fashion-MNIST, classes from 4,800 down to 48 rows, oriented gradients, small MLP;
                 balanced accuracy, and the accuracy of the three rarest classes
    mnist_ht     MNIST with the same profile, LDAM with deferred re-weighting; balanced accuracy
    injury       Australian injury claims, Gamma deviance of a small network; share explained
    french       French motor claims, the same
    synthetic    linear regression with Student noise of 2.5 degrees of freedom: gradients of tail
                 index 2.5; minus the logarithm of the squared distance from the truth
    e2e          words of restaurant texts from the two before them; minus the loss per word

The long-tailed rows are drawn anew for each seed, and so are the synthetic ones. The claims have
one split into training and test, and the texts too; there a seed sets the start, the batches
and the noise. Public knowledge: class profiles, ranges of columns, the scale of the amounts (10,000
and 2,000), the vocabulary (from the development texts, which train nothing).
"""

from __future__ import annotations

import csv
import functools
import gzip
import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from winsor.features.oriented import oriented_gradients
from winsor.losses import LdamDrw, LogitAdjusted, exponential_profile

DATA = Path("/work/shared/data")
CACHE = Path.home() / ".cache" / "winsor" / "edge"
CLASSES, LARGEST, RATIO = 10, 4800, 100.0
VOCABULARY, WORDS = 200, 12

Rows = tuple[Tensor, ...]
Losses = Callable[[nn.Module, Rows, float], Tensor]


@dataclass(frozen=True)
class Task:
    """What one seed of a bed is."""

    train: Rows
    validation: Rows
    test: Rows
    model: Callable[[], nn.Module]
    losses: Losses
    scores: Callable[[nn.Module, Rows], dict[str, float]]


@dataclass(frozen=True)
class Bed:
    """A bed with the plan of its runs. ``thresholds`` and ``lengths`` are what tuning may try."""

    name: str
    task: Callable[[int], Task]
    batch: int
    steps: int
    thresholds: tuple[float, float]
    lengths: tuple[float, float]
    """lr times threshold: how far one clipped row would move the model."""
    profile: tuple[int, ...] | None = None


# ------------------------------------------------------------------------------- long tails


@functools.cache
def features(name: str) -> dict[str, Tensor]:
    """Oriented gradients of the images, computed once and kept on disk."""
    path = CACHE / f"{name}_oriented.pt"
    if path.exists():
        kept: dict[str, Tensor] = torch.load(path, weights_only=True)
        return kept
    with np.load(DATA / f"{name}.npz") as arrays:
        raw = {key: torch.from_numpy(arrays[key]) for key in arrays.files}
    found = {
        part: torch.cat(
            [oriented_gradients(x.unsqueeze(1).float() / 255) for x in raw[f"x_{part}"].split(5000)]
        )
        for part in ("train", "test")
    }
    found |= {f"y_{part}": raw[f"y_{part}"].long() for part in ("train", "test")}
    CACHE.mkdir(parents=True, exist_ok=True)
    torch.save(found, path)
    return found


def profile() -> tuple[int, ...]:
    return exponential_profile(LARGEST, CLASSES, RATIO)


def long_tailed(name: str, loss: Callable[..., Tensor]) -> Callable[[int], Task]:
    def task(seed: int) -> Task:
        table = features(name)
        x, y = table["train"] * 7.0, table["y_train"]  # rows of norm 7: coordinates near 1/3
        generator = torch.Generator().manual_seed(seed)
        chosen = [
            places[torch.randperm(len(places), generator=generator)[:count]]
            for label, count in enumerate(profile())
            for places in [(y[:50_000] == label).nonzero()[:, 0]]
        ]
        rows = torch.cat(chosen)
        return Task(
            (x[rows], y[rows]),
            (x[50_000:54_000], y[50_000:54_000]),
            (table["test"] * 7.0, table["y_test"]),
            lambda: network(x.shape[1], 32, CLASSES),
            lambda model, batch, progress: loss(model(batch[0]), batch[1], progress),
            class_scores,
        )

    return task


def plain_loss(logits: Tensor, labels: Tensor, progress: float) -> Tensor:
    del progress
    return F.cross_entropy(logits, labels, reduction="none")


def network(inputs: int, hidden: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, outputs))


@torch.no_grad()
def class_scores(model: nn.Module, rows: Rows) -> dict[str, float]:
    right = (model(rows[0]).argmax(1) == rows[1]).float()
    by_class = [float(right[rows[1] == label].mean()) * 100 for label in range(CLASSES)]
    return {"score": sum(by_class) / CLASSES, "rarest_three": sum(by_class[-3:]) / 3}


# ----------------------------------------------------------------------------------- claims


def gamma_losses(model: nn.Module, batch: Rows, progress: float) -> Tensor:
    """y / mu + log mu of a log-linear output: half the Gamma deviance up to a constant."""
    del progress
    log_mean = model(batch[0])[:, 0].clamp(-6, 6)
    return batch[1] * torch.exp(-log_mean) + log_mean


@torch.no_grad()
def explained_deviance(model: nn.Module, rows: Rows) -> dict[str, float]:
    """100 times the share of the Gamma deviance that is explained beyond the rows' own mean."""
    amount = rows[1].double()
    log_mean = model(rows[0])[:, 0].clamp(-6, 6).double()
    deviance = (amount * torch.exp(-log_mean) - 1 - (amount.log() - log_mean)).mean()
    null = (-(amount / amount.mean()).log()).mean()
    ratio = float(log_mean.exp().mean() / amount.mean())
    return {"score": 100 * float(1 - deviance / null), "mean_ratio": ratio}


def claims(x: Tensor, y: Tensor, split: Tensor) -> Callable[[int], Task]:
    """Training rows without every eighth, which are for tuning."""
    train = (split == 0).nonzero()[:, 0]
    held = torch.arange(len(train)) % 8 == 7
    parts = (train[~held], train[held], (split == 1).nonzero()[:, 0])

    def task(seed: int) -> Task:
        del seed
        rows = [(x[part], y[part]) for part in parts]
        return Task(
            *rows, lambda: network(x.shape[1], 16, 1), gamma_losses, explained_deviance
        )  # fmt: skip

    return task


@functools.cache
def injury() -> Callable[[int], Task]:
    with np.load(DATA / "aus_injury_claims.npz") as arrays:
        x, y, split = (torch.from_numpy(arrays[name]) for name in ("x", "y", "split"))
    x = x.float().clone()
    x[:, 0] = x[:, 0] / 50 - 1  # operational time, 0 to 100
    x[:, 1] = x[:, 1].clamp(1, 5) - 1
    x[:, 2] = x[:, 2] / 60 - 1  # month of the accident
    x[:, 3:5] = torch.log1p(x[:, 3:5].clamp(0, 120)) / 2 - 1
    return claims(x, (y / 10_000).float(), split)


@functools.cache
def french() -> Callable[[int], Task]:
    names = ("claim_x", "claim_y", "claim_split")
    with np.load(DATA / "fremtpl2.npz") as arrays:
        x, y, split = (torch.from_numpy(arrays[name]) for name in names)
    x = x.float().clone()
    x[:, 0] = x[:, 0] / 5 - 1.4
    x[:, 1] = x[:, 1].clamp(0, 20) / 10 - 1
    x[:, 2] = x[:, 2] / 25 - 2
    x[:, 3] = x[:, 3] / 50 - 1.2
    x[:, 4] = torch.log1p(x[:, 4]) / 3 - 2
    return claims(x, (y / 2_000).float(), split)


# -------------------------------------------------------------------------------- synthetic


def synthetic(seed: int) -> Task:
    n, d = 8000, 50
    generator = np.random.default_rng(10_000 + seed)
    truth = generator.standard_normal(d) / math.sqrt(d) * 3

    def draw(count: int) -> Rows:
        x = generator.standard_normal((count, d))
        y = x @ truth + generator.standard_t(2.5, size=count)
        return torch.from_numpy(x).float(), torch.from_numpy(y).float()

    def model() -> nn.Module:
        layer = nn.Linear(d, 1)
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
        return layer

    def losses(model: nn.Module, batch: Rows, progress: float) -> Tensor:
        del progress
        return (model(batch[0])[:, 0] - batch[1]).square() / 2

    @torch.no_grad()
    def distance(model: nn.Module, rows: Rows) -> dict[str, float]:
        del rows
        gap = model.weight[0].double() - torch.from_numpy(truth)
        square = float(gap.square().sum() + model.bias.double().square().sum())
        return {"score": -math.log(square)}

    nothing = draw(1)
    return Task(draw(n), nothing, nothing, model, losses, distance)


# ------------------------------------------------------------------------------------ texts


class Trigrams(nn.Module):
    """The next word from the two before it."""

    def __init__(self, width: int = 16, hidden: int = 32) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, width)
        self.hidden = nn.Linear(2 * width, hidden)
        self.head = nn.Linear(hidden, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        known = self.words(tokens)  # (rows, t, width)
        pairs = torch.cat([known[:, :-1], known[:, 1:]], dim=2)
        out: Tensor = self.head(torch.tanh(self.hidden(pairs)))
        return out


def word_losses(model: nn.Module, batch: Rows, progress: float) -> Tensor:
    """The mean loss of a row's words."""
    del progress
    logits = model(batch[0][:, :-1])
    losses = F.cross_entropy(logits.transpose(1, 2), batch[0][:, 2:], reduction="none")
    return losses.mean(1)


@torch.no_grad()
def word_scores(model: nn.Module, rows: Rows) -> dict[str, float]:
    return {"score": -float(word_losses(model, rows, 1.0).mean())}


@functools.cache
def e2e() -> Callable[[int], Task]:
    dev = _texts("e2e_dev.csv.gz")
    common = Counter(word for text in dev for word in text).most_common(VOCABULARY - 2)
    numbers = {word: place + 2 for place, (word, _) in enumerate(common)}  # 0 start and end, 1 rare

    def encoded(texts: list[list[str]]) -> Rows:
        table = torch.zeros(len(texts), WORDS + 2, dtype=torch.long)
        for row, text in enumerate(texts):
            for place, word in enumerate(text[:WORDS]):
                table[row, place + 2] = numbers.get(word, 1)
        return (table,)

    train, test = encoded(_texts("e2e_train.csv.gz")), encoded(_texts("e2e_test_w_refs.csv.gz"))
    validation = encoded(dev[:2000])
    task = Task(train, validation, test, Trigrams, word_losses, word_scores)
    return lambda seed: task


def _texts(name: str) -> list[list[str]]:
    with gzip.open(DATA / name, "rt", encoding="utf-8") as file:
        return [re.findall(r"[a-z']+|[^\sa-z]", row["ref"].lower()) for row in csv.DictReader(file)]


# -------------------------------------------------------------------------------- all of them


def beds() -> dict[str, Bed]:
    """By name. Data are read when a bed's task is asked for."""
    drw = LdamDrw(profile())
    listed = (
        Bed("fashion_lt", long_tailed("fashion_mnist", plain_loss), 600, 150, (0.3, 30), (2, 40),
            profile()),
        Bed("mnist_ht", long_tailed("mnist", drw), 600, 150, (0.3, 30), (2, 40), profile()),
        Bed("injury", lambda seed: injury()(seed), 800, 200, (1, 100), (0.3, 10)),
        Bed("french", lambda seed: french()(seed), 800, 200, (3, 300), (0.3, 10)),
        Bed("synthetic", synthetic, 800, 150, (1, 40), (0.3, 5)),
        Bed("e2e", lambda seed: e2e()(seed), 256, 150, (0.3, 10), (4, 40)),
    )  # fmt: skip
    return {bed.name: bed for bed in listed}


def adjusted(counts: tuple[float, ...], tau: float) -> Losses:
    """Cross-entropy with logits shifted by released ``counts``, for a bed of classes."""
    loss = LogitAdjusted(counts, tau)
    return lambda model, batch, progress: loss(model(batch[0]), batch[1], progress)
