"""Rules, thresholds and learning rates, ranked by short dry runs on public or synthetic rows.

    found = winsor.tuning.recommend(
        model, public_rows, RunBudget(n=60_000, epsilon=3.0, delta=1e-6, batch_size=256, steps=2000)
    )
    print(found)                       # ranked; found.best.rule goes into make_private

1. The gradient norms of the sample at the given model are fitted (`fit.py`); their quantiles and
   the guide's private quantile propose thresholds.
2. For each rule the noise multiplier is calibrated for the *real* run: its n, batch size, steps.
3. Each rule with each learning rate trains a copy of the model on part of the sample for a few
   steps, with the optimiser of `recipe.py` (momentum, learning rate falling to zero) and the noise
   per averaged gradient that the real run will have, and is scored by its loss on the rest.

The sample stands in for the private rows; nothing here takes those rows, only their public number,
so the recommendation costs no privacy. Rows that are not public must not be passed.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset

from winsor.core.checks import as_delta
from winsor.core.contract import ConfigurationError
from winsor.gradients import Need, make_engine, trainable_parameters
from winsor.planning.run import PlannedRun
from winsor.rules import Automatic, Flat
from winsor.rules.quantile import UnitLength
from winsor.rules.rule import Rule, dry_run
from winsor.tails.fitting import TailFit, fit
from winsor.tails.guide import MOMENTUM
from winsor.tuning.recipes import falling, recipe

Loss = Callable[[nn.Module, Any], Tensor]
LENGTHS = (0.05, 0.2, 0.8)
"""Learning rates tried, as the length of a step along a gradient of the rule's full norm."""

SMALLEST = 100


@dataclass(frozen=True)
class RunBudget:
    """The real run: public numbers only."""

    n: int
    epsilon: float
    delta: float
    batch_size: int
    steps: int
    allow_large_delta: bool = False

    def __post_init__(self) -> None:
        as_delta(self.delta, self.n, self.allow_large_delta)


@dataclass(frozen=True)
class Candidate:
    """A rule and a learning rate with its held-out loss after the dry run."""

    rule: Rule
    learning_rate: float
    noise_multiplier: float
    loss: float
    threshold: float
    """The bound on one record's gradient, at the start of the run."""
    momentum: float = MOMENTUM

    def describe(self) -> str:
        """Name the rule in a few words."""
        if isinstance(self.rule, UnitLength):
            return "winsor.tuning.recipes (private quantile)"
        return repr(self.rule)

    def __str__(self) -> str:
        return f"loss {self.loss:.4g}: {self.describe()}, learning rate {self.learning_rate:.3g}"


@dataclass(frozen=True)
class Recommendation:
    """Candidates from best to worst, the tail they were built from, and the loss to beat."""

    candidates: tuple[Candidate, ...]
    tail: TailFit
    untrained_loss: float

    @property
    def best(self) -> Candidate:
        """The candidate with the lowest loss."""
        return self.candidates[0]

    def __str__(self) -> str:
        lines = [f"tail {self.tail.verdict}; untrained loss {self.untrained_loss:.4g}"]
        lines += [f"{place}. {c}" for place, c in enumerate(self.candidates[:5], start=1)]
        if self.best.loss >= self.untrained_loss:
            lines.append("no candidate learned in the dry run: take more steps or a larger sample")
        return "\n".join(lines)


def recommend(
    model: nn.Module,
    sample: Dataset[Any],
    budget: RunBudget,
    *,
    loss: Loss | None = None,
    rules: Sequence[Rule] | None = None,
    lengths: Sequence[float] = LENGTHS,
    dry_steps: int = 60,
    seed: int = 0,
) -> Recommendation:
    """Rank rules and learning rates on a PUBLIC or synthetic sample.

    Parameters
    ----------
    model : left untouched; every dry run trains a copy.
    sample : at least 100 rows, public or synthetic; a quarter is held out for the score.
    budget : the real run.
    loss : ``loss(model, batch)`` gives one value per row; default cross-entropy.
    rules : candidates; default: Flat at three quantiles of the norms, AUTO-S, private quantile.
    lengths : learning rates as step lengths; each rule divides them by its threshold.
    dry_steps : steps of each dry run.
    seed : of the split, the batches and the noise.

    Examples
    --------
    >>> import torch
    >>> from torch.utils.data import TensorDataset
    >>> x = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
    >>> public = TensorDataset(x, (x[:, 0] > 0).long())
    >>> budget = RunBudget(n=10_000, epsilon=3.0, delta=1e-6, batch_size=100, steps=100)
    >>> found = recommend(torch.nn.Linear(4, 2), public, budget, lengths=(0.3, 1.0), dry_steps=10)
    >>> found.best.loss <= found.untrained_loss
    True
    """
    from winsor.training.fit import cross_entropy

    size = len(sample)  # type: ignore[arg-type]
    if size < SMALLEST:
        raise ConfigurationError(
            f"sample must have at least {SMALLEST} rows. Got {size} instead. Make synthetic ones."
        )
    if dry_steps < 1 or not lengths:
        raise ConfigurationError("dry_steps must be at least 1 and lengths must not be empty.")
    loss = cross_entropy if loss is None else loss
    order = torch.randperm(size, generator=torch.Generator().manual_seed(seed)).tolist()
    held, train = Subset(sample, order[: size // 4]), Subset(sample, order[size // 4 :])
    tail = fit(gradient_norms(model, train, loss))
    tried = default_rules(tail, budget, model) if rules is None else list(rules)
    found: list[Candidate] = []
    known: dict[str, float] = {}
    for rule in tried:
        multiplier = real_noise(rule, model, budget, known)
        threshold = _threshold(rule, model)
        for length in lengths:
            rate = length if isinstance(rule, UnitLength) else length / threshold
            trained = _dry_run(model, train, rule, rate, multiplier, budget, loss, dry_steps, seed)
            score = held_out_loss(trained, held, loss)
            found.append(Candidate(rule, rate, multiplier, score, threshold))
    found.sort(key=lambda candidate: candidate.loss)
    return Recommendation(tuple(found), tail, held_out_loss(model, held, loss))


def default_rules(tail: TailFit, budget: RunBudget, model: nn.Module) -> list[Rule]:
    """Return Flat at the quartiles of the sample's norms, AUTO-S, and the private quantile."""
    guided = recipe(
        budget.n,
        sum(p.numel() for p in trainable_parameters(model).values()),
        budget.epsilon,
        budget.delta,
        fitted=tail,
        batch_size=budget.batch_size,
        steps=budget.steps,
    )
    quartiles = [float(f"{max(tail.body_quantile(p), 1e-6):.3g}") for p in (0.25, 0.5, 0.75)]
    return [guided.rule, Automatic(1.0), *(Flat(q) for q in quartiles)]


def real_noise(
    rule: Rule, model: nn.Module, budget: RunBudget, known: dict[str, float] | None = None
) -> float:
    """Return the noise multiplier that the real run will need with this rule.

    ``known`` remembers multipliers by event: rules with the same event need the same noise.
    """
    run = PlannedRun.of_numbers(
        budget.n,
        budget.batch_size,
        steps=budget.steps,
        delta=budget.delta,
        parts_of=partial(dry_run, rule, trainable_parameters(model)),
    )
    known = {} if known is None else known
    kind = repr(run.history(1.0))
    if kind not in known:
        known[kind] = run.noise_for(budget.epsilon)
    return known[kind]


def gradient_norms(model: nn.Module, rows: Dataset[Any], loss: Loss) -> Any:
    """Return per-sample gradient norms of (public) rows at the model, as a NumPy vector."""
    twin = copy.deepcopy(model)
    engine = make_engine(twin, trainable_parameters(twin), "auto", Need.NORMS)
    engine.attach()
    engine.recording(True)
    try:
        found = [
            engine.view(loss(twin, batch)).norms().detach()
            for batch in DataLoader(rows, batch_size=256)
        ]
    finally:
        engine.recording(False)
        engine.detach()
    return torch.cat(found).double().cpu().numpy()


def held_out_loss(model: nn.Module, rows: Dataset[Any], loss: Loss) -> float:
    """Return the mean loss over rows; infinity if the model diverged."""
    total = count = 0.0
    with torch.no_grad():
        for batch in DataLoader(rows, batch_size=512):
            values = loss(model, batch)
            total, count = total + float(values.sum()), count + values.numel()
    return total / count if math.isfinite(total) else math.inf


def _threshold(rule: Rule, model: nn.Module) -> float:
    """The L2 bound of one record's gradient, which sets the scale of a step."""
    parts = dry_run(rule, trainable_parameters(model), 1.0)
    squares = [p.sensitivity.add_remove**2 for name, p in parts.items() if name.startswith("grad")]
    return math.sqrt(sum(squares))


def _dry_run(
    model: nn.Module,
    rows: Dataset[Any],
    rule: Rule,
    rate: float,
    multiplier: float,
    budget: RunBudget,
    loss: Loss,
    steps: int,
    seed: int,
) -> nn.Module:
    """Train a copy on public rows with the noise per averaged gradient of the real run.

    A sample smaller than the real batch uses smaller batches; the noise on their mean is kept by
    scaling the multiplier with the batch.
    """
    from winsor.training.make_private import make_private

    twin = copy.deepcopy(model)
    size = len(rows)  # type: ignore[arg-type]
    batch = min(budget.batch_size, max(1, size // 2))
    trained = [p for p in twin.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=rate, momentum=MOMENTUM)
    private = make_private(
        model=twin,
        optimizer=optimizer,
        scheduler=falling(optimizer, steps),
        dataset=rows,
        rule=rule,
        batch_size=batch,
        noise_multiplier=multiplier * batch / budget.batch_size,
        delta=budget.delta,
        steps=steps,
        seed=seed,
        allow_large_delta=True,
    )
    for rows_of_step in private.batches():
        private.step(loss(twin, rows_of_step))
    return private.detach()
