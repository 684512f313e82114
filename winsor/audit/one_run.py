"""How much does one training run betray? m canaries, one run, a lower bound on epsilon.

    toss a fair coin for each of m canaries; train with the winners in the dataset;
    score every canary from what the training released; guess "in" for the r/2 highest scores and
    "out" for the r/2 lowest; count the right guesses (r is fixed beforehand)

The bounds are those of `guesses.py`: Steinke, Nasr and Jagielski 2023 for (epsilon, delta)-DP, and
Mahloujifar, Melis and Chaudhuri 2024 for the whole curve, which is tighter. The latter needs a
family of curves: the run's own ledger with its noise scaled. With the stated confidence the run has
no more noise than the largest that is not refuted, hence at least that epsilon.

Two adversaries. "gradients" sees every released gradient, as the guarantee assumes, and knows the
data: its score is the sum over steps of the log-likelihood ratio of the release along the canary's
own clipped gradient. "model" sees the final model only: its score is minus the canary's loss.

What it says, and what it does not: the bound is a *lower* bound on the privacy loss of this
training, with the stated confidence. A low one does not prove anything; the certified epsilon does.
The audited twin trains on the private rows: its report is for the data holder's eyes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import Dataset

from winsor.audit.canaries import (
    GradientWatcher,
    Moment,
    model_scores,
    plant,
    random_canaries,
    size,
)
from winsor.audit.claims import Claim, certified_claim, gaussian_epsilon, measured_epsilon
from winsor.audit.curve import ALPHA as VERDICT_ALPHA
from winsor.audit.guesses import claim_refuted, gaussian_mu_bound, pointwise_epsilon
from winsor.core.contract import ConfigurationError, Neighbouring
from winsor.core.noise.laplace import Laplace
from winsor.core.noise.protocol import Choice
from winsor.core.sampling.samplers import FullBatch, Poisson, Sampler
from winsor.training.loop import PrivateTraining
from winsor.training.make_private import make_private

if TYPE_CHECKING:
    from winsor.core.events.registry import History

Loss = Callable[[nn.Module, Any], Tensor]
Make = Callable[[Dataset[Any]], PrivateTraining]
Floats = NDArray[np.float64]

ALPHA = 0.05
"""One-run bounds hold with 95 % confidence, as in the papers they come from. The verdict on the
certified curve does not: an accusation must be as rare here as in `curve.py`."""
LEAST_NOISE, MOST_NOISE = 0.25, 64.0
"""Noise is looked for between so many times what the ledger says."""


@dataclass(frozen=True)
class OneRunReport:
    """What the guesses prove about one training run. Every bound holds with confidence 1-alpha."""

    canaries: int
    guesses: int
    right: int
    delta: float
    alpha: float
    claimed_epsilon: float
    epsilon_pointwise: float  # Steinke, Nasr, Jagielski
    mu: float  # largest refuted mu, were this Gaussian DP
    epsilon_curve: float  # Mahloujifar, Melis, Chaudhuri
    family: str  # the curves of epsilon_curve: the "ledger" with its noise scaled, or "Gaussian DP"
    violated: bool  # the certified curve itself is refuted, with confidence 99.99 %

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain values."""
        return asdict(self)

    def __str__(self) -> str:
        verdict = "VIOLATED" if self.violated else "not violated"
        return (
            f"{self.right} of {self.guesses} guesses right ({self.canaries} canaries): epsilon >= "
            f"{self.epsilon_curve:.3g} (f-DP), >= {self.epsilon_pointwise:.3g} (SNJ) at delta "
            f"{self.delta:.3g}, confidence {1 - self.alpha:.0%}; claimed "
            f"{self.claimed_epsilon:.4g}: {verdict}"
        )


def audit_training(
    private: PrivateTraining,
    loss: Loss,
    *,
    canaries: int | Dataset[Any] = 1000,
    guesses: int | None = None,
    access: str = "gradients",
    seed: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    make: Make | None = None,
) -> OneRunReport:
    """Audit a run that `make_private` built, before it is trained: a twin is trained instead.

    The twin has copies of the model and the optimiser, the same rule, noise, sampling rate and
    number of steps, and the dataset with canaries in it. ``private`` itself is left as it is.

    Parameters
    ----------
    loss
        ``loss(model, batch)``: one value per row.
    canaries
        How many, or a dataset of your own with the same fields as the training data.
    guesses
        How many coins the adversary guesses; default a fifth of the canaries.
    access
        ``"gradients"`` or ``"model"``: what the adversary sees.
    seed
        None: fresh coins, canaries, batches and noise.
    progress
        Called with (steps done, steps planned).
    make
        Builds the run to be trained from the dataset with canaries, in place of the twin.
    """
    if access not in ("gradients", "model"):
        raise ConfigurationError(f'access must be "gradients" or "model". Got {access!r} instead.')
    dataset = private._feed.dataset
    if isinstance(canaries, int):
        canaries = random_canaries(dataset, canaries, seed=seed)
    planted = plant(dataset, canaries, seed)
    m = size(canaries)
    guesses = max(2, m // 5) if guesses is None else guesses
    if not 1 <= guesses <= m:
        raise ConfigurationError(f"guesses must be between 1 and {m}. Got {guesses!r} instead.")
    audited = twin(private, planted.dataset, seed) if make is None else make(planted.dataset)
    if access == "gradients":
        watcher = GradientWatcher(audited, loss, canaries, dataset)
        _train(audited, loss, progress, watcher)
        scores = watcher.scores
    else:
        _train(audited, loss, progress)
        scores = model_scores(audited.load_released_iterate(), loss, canaries)
    right = correct_guesses(scores, planted.coins, guesses)
    return report(audited, m, guesses, right)


def correct_guesses(scores: Floats, coins: NDArray[np.bool_], guesses: int) -> int:
    """Guess "in" for the highest scores and "out" for the lowest; count the hits."""
    order = np.argsort(scores, kind="stable")
    out = guesses // 2
    hits = np.count_nonzero(~coins[order[:out]])
    return int(hits + np.count_nonzero(coins[order[len(order) - (guesses - out) :]]))


def report(private: PrivateTraining, m: int, guesses: int, right: int) -> OneRunReport:
    """Return the bounds that so many right guesses give, beside the run's certified claim."""
    delta = private.budget.delta
    history, relation = private.ledger.history(), private._door.relation
    mu = gaussian_mu_bound(m, guesses, right, ALPHA)
    epsilon, family = curve_epsilon(history, relation, delta, (m, guesses, right)), "ledger"
    if epsilon is None:
        epsilon, family = gaussian_epsilon(mu, delta), "Gaussian DP"
    claim = certified_claim(history, relation)
    return OneRunReport(
        canaries=m,
        guesses=guesses,
        right=right,
        delta=delta,
        alpha=ALPHA,
        claimed_epsilon=private.spent().epsilon,
        epsilon_pointwise=pointwise_epsilon(m, guesses, right, delta, ALPHA),
        mu=mu,
        epsilon_curve=epsilon,
        family=family,
        violated=claim_refuted(claim, m, guesses, right, VERDICT_ALPHA),
    )


def curve_epsilon(
    history: History, relation: Neighbouring, delta: float, counts: tuple[int, int, int]
) -> float | None:
    """Return epsilon of the ledger at the largest noise that the guesses do not refute.

    None if the events of the ledger do not form a family.
    """

    def refuted(claim: Claim) -> bool:
        return claim_refuted(claim, *counts, ALPHA)

    return measured_epsilon(history, relation, delta, refuted, (LEAST_NOISE, MOST_NOISE))


# ------------------------------------------------------------------------------------ training


@runtime_checkable
class Stepped(Protocol):
    """An update that takes its learning rates, or its whole step, from an optimiser."""

    optimizer: torch.optim.Optimizer
    scheduler: torch.optim.lr_scheduler.LRScheduler | None


@runtime_checkable
class Chosen(Protocol):
    """A mechanism that a `Choice` built."""

    mix: Choice


def twin(private: PrivateTraining, dataset: Dataset[Any], seed: int | None) -> PrivateTraining:
    """Build the same training on another dataset, with copies of model and optimiser."""
    update, feed = private._update, private._feed
    if not isinstance(update, Stepped):
        raise ConfigurationError(
            "audit_training copies runs with an optimiser of their own. Got "
            f"{type(update).__name__} instead: give make, a function that builds the run."
        )
    private._engine.detach()  # copies must be plain modules
    model, optimizer, scheduler = copy.deepcopy((private.model, update.optimizer, update.scheduler))
    private._engine.attach()
    if scheduler is not None:
        _mark_for_schedulers(optimizer)
    sampler = _same_rate(private.sampler, size(dataset))
    return make_private(
        model=model,
        optimizer=optimizer,
        dataset=dataset,
        rule=private.rule,
        batch_size=sampler.expected_size,  # type: ignore[arg-type]
        delta=private.budget.delta,
        noise_multiplier=private.noise_multiplier,
        steps=private.budget.planned_steps,
        sampling=sampler,
        relation=private._door.relation,
        mechanism=_same_kind(private),
        max_physical_batch_size=feed.limit,
        collate_fn=feed.collate_fn,
        num_workers=feed.num_workers,
        iterate=private._iterates.kind,
        ball=private._ball,
        scheduler=scheduler,
        allow_large_delta=True,
        seed=seed,
    )


def _mark_for_schedulers(optimizer: Any) -> None:
    """Put back what schedulers put on an optimiser's step to see that it is called before theirs.

    A copy of an optimiser loses it, and torch would warn.
    """
    step = optimizer.step

    def marked(*arguments: Any) -> Any:
        optimizer._opt_called = True
        return step(*arguments)

    marked._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    optimizer.step = marked


def _same_kind(private: PrivateTraining) -> str | Choice:
    """What `make_private` must be told to build the same mechanism."""
    mechanism = private._door.mechanism
    if isinstance(mechanism, Chosen):
        return mechanism.mix
    return "laplace" if isinstance(mechanism, Laplace) else "gaussian"


def _same_rate(sampler: Sampler, n: int) -> Sampler:
    if isinstance(sampler, Poisson):
        return Poisson(n, sampler.q)
    if isinstance(sampler, FullBatch):
        return FullBatch(n)
    raise ConfigurationError(
        "a one-run audit needs Poisson or full-batch sampling: canaries that join or stay out "
        f"change the number of records. Got {sampler} instead."
    )


def _train(
    private: PrivateTraining, loss: Loss, progress: Any, watcher: GradientWatcher | None = None
) -> None:
    """Train, and let the adversary look at every released gradient."""
    moment: Moment | None = None
    for batch in private.batches():
        if watcher is not None and moment is None:
            moment = watcher.moment()  # here, because an empty batch is a step in silence
        if private.step(loss(private.model, batch)):
            if watcher is not None and moment is not None:
                watcher.observe(moment)
            moment = None
            if progress is not None:
                progress(private.steps_done, private.budget.planned_steps)
