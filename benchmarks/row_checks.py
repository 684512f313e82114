"""False alarms of the check of rows under bfloat16, and planted mixing that it must find.

    python benchmarks/row_checks.py [RUNS]      200 runs by default, about three minutes

Tiny transformers with low-rank corrections and dropout train under `torch.autocast`, until their
predictions are sure and long after, and are checked at the start and at the steps that keys choose.
Half of them refuse float64, so that their rows are compared in bfloat16 itself.
"""

from __future__ import annotations

import itertools
import sys

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import winsor
from winsor.core.contract import UnsupportedModel


class Network(nn.Module):
    """Attention and a perceptron with dropout; ``weight`` mixes rows, and ``narrow`` refuses
    float64."""

    def __init__(self, dropout: float, narrow: bool = False, weight: float = 0.0) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(20, 16), nn.Linear(16, 4)
        self.query, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)
        self.one, self.two, self.drop = nn.LayerNorm(16), nn.LayerNorm(16), nn.Dropout(dropout)
        self.narrow, self.weight = narrow, weight

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.tokens(tokens)
        if self.narrow and h.dtype is torch.float64:
            raise TypeError("float32 only")
        parts = [part[:, None] for part in self.query(self.one(h)).chunk(3, -1)]
        seen = F.scaled_dot_product_attention(*parts, dropout_p=self.drop.p)
        h = h + self.drop(self.out(seen[:, 0]))
        h = (h + self.drop(self.down(self.up(self.two(h)).relu()))).mean(1)
        return self.head(h - self.weight * h.mean(0).detach())


def train(seed: int, rate: float, steps: int = 40, **network: float) -> None:
    """Train for ``steps`` steps; raise `UnsupportedModel` where rows are found to mix."""
    torch.manual_seed(seed)
    rows = torch.randint(0, 20, (200, 6))
    model = winsor.models.low_rank(Network(**network), rank=2, train=("head",))
    trained = [p for p in model.parameters() if p.requires_grad]
    private = winsor.make_private(
        model=model, optimizer=torch.optim.SGD(trained, lr=rate), batch_size=32, steps=steps,
        dataset=TensorDataset(rows, rows[:, 0] % 4), rule=winsor.rules.Flat(1.0),
        noise_multiplier=1.0, delta=1e-4, seed=seed,
    )  # fmt: skip

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return F.cross_entropy(model(batch[0]), batch[1], reduction="none")

    private.check(loss)
    for batch in private.batches():
        private.step(loss(model, batch))


def alarms(runs: int, **changes: float) -> int:
    """Count the runs in which rows were found to mix."""
    settings = itertools.cycle(itertools.product((0.1, 0.3), (False, True), (1.0, 10.0, 30.0)))
    found = 0
    for seed, (dropout, narrow, rate) in zip(range(runs), settings, strict=False):
        try:
            train(seed, rate, dropout=dropout, narrow=narrow, **changes)
        except UnsupportedModel:
            found += 1
    return found


def main() -> None:
    """Print both counts."""
    torch.set_num_threads(1)
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    print(f"false alarms: {alarms(runs)} of {runs}")
    print(f"planted mixing found: {alarms(20, weight=0.2)} of 20")


if __name__ == "__main__":
    main()
