"""`PrivateModule`: a `LightningModule` whose training is private.

    class Digits(PrivateModule):
        def row_losses(self, batch):                 # in place of training_step
            return F.cross_entropy(self.network(batch[0]), batch[1], reduction="none")

    privacy = Privacy(epsilon=3.0, delta=1e-5, rule=winsor.rules.Flat(1.0))
    module = Digits(dataset=rows, batch_size=256, privacy=privacy)
    Trainer(max_epochs=20).fit(module)
    print(module.spent())

Lightning's loop counts logical steps: what it hands to `training_step` and to callbacks is the
number of the step, never rows. The step then draws its rows from winsor's sampler and updates
through its door, with Lightning's own optimiser, so `global_step`, checkpoints and profilers go on
as usual. With ``strategy="ddp"`` ranks share each logical batch.

Guarantee
---------
`spent()` certifies every checkpoint of the run. Values of private rows are not logged: `self.log`
inside `row_losses` is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor, nn
from torch.utils.data import Dataset

from winsor.core.checks import choice
from winsor.core.contract import (
    ConfigurationError,
    Guarantee,
    LedgerError,
    ProtocolError,
    UnsoundRelease,
)
from winsor.integrations.privacy import Privacy, run_length
from winsor.integrations.refusals import PUBLIC_EVALUATION, refuse_private_evaluation
from winsor.training.loop import PrivateTraining
from winsor.training.make_private import make_private
from winsor.training.ranks.sharded import inside
from winsor.training.saving.settings import refuse_different, settings_of_model

KEPT_AS = "winsor"
"""The private part of a checkpoint: account, key and random streams. Guard it like the data."""


class Step(int):
    """What Lightning takes for a batch: the number of a step in its epoch."""


class Steps:
    """What Lightning takes for a loader: the steps of an epoch."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Step]:
        return map(Step, range(self._count))


class PrivateModule(LightningModule):
    """A `LightningModule` that trains with differential privacy.

    Subclasses write `row_losses` in place of `training_step`, and `configure_optimizers` with one
    optimiser.

    Parameters
    ----------
    dataset
        The private rows, map-style; they are given here, not to ``Trainer.fit``.
    batch_size
        Rows of a logical batch, on average, over all devices.
    privacy
        How much, and by which rule: `winsor.integrations.privacy.Privacy`.
    max_physical_batch_size
        Rows per forward pass on one device; default: no limit.
    collate_fn
        What makes a batch of rows; default: as `DataLoader` does.
    scheduler_interval
        When a learning-rate schedule steps: each ``"epoch"``, as Lightning does, or each logical
        ``"step"``.
    """

    def __init__(
        self,
        *,
        dataset: Dataset[Any],
        batch_size: int,
        privacy: Privacy,
        max_physical_batch_size: int | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        scheduler_interval: str = "epoch",
    ) -> None:
        super().__init__()
        for name in ("training_step", "train_dataloader"):
            if getattr(type(self), name) is not getattr(PrivateModule, name):
                raise ConfigurationError(
                    f"{name} must not be overridden for private training. Got "
                    f"{type(self).__name__}.{name}. Write row_losses(batch), with one value per "
                    "row, and give the rows as dataset=."
                )
        self.automatic_optimization = False
        self.private: PrivateTraining | None = None
        self._rows = dataset
        self._batch_size = batch_size
        self._privacy = privacy
        self._limit = max_physical_batch_size
        self._collate = collate_fn
        self._interval = choice("scheduler_interval", scheduler_interval, ("epoch", "step"))
        self._to_continue: dict[str, Any] | None = None
        self._rows_are_open = False
        self._looked = False

    # ------------------------------------------------------------------------------ what is asked

    def row_losses(self, batch: Any) -> Tensor:
        """Compute (rows,) losses of a batch, with their graph. No row may depend on another."""
        raise ConfigurationError(
            "a PrivateModule must have row_losses(batch), with one value per row. Got "
            f"{type(self).__name__} without it. Write it in place of training_step."
        )

    def spent(self, delta: float | None = None) -> Guarantee:
        """Certify the guarantee for every step so far, with what it rests on."""
        found = self._begun().spent(delta)
        more = (PUBLIC_EVALUATION,) if self._looked else ()
        return replace(found, conditions=(*found.conditions, *more))

    def log(self, name: str, value: Any, *others: Any, **named: Any) -> None:
        """Log as in Lightning, but not values of private rows."""
        if self._rows_are_open:
            raise UnsoundRelease(
                f"row_losses must not log. Got self.log({name!r}, ...): the value was computed "
                "from private rows and never passed the door. Log metrics of public rows in "
                "validation_step, or measure private ones with winsor.metrics."
            )
        super().log(name, value, *others, **named)

    def _begun(self) -> PrivateTraining:
        if self.private is None:
            raise ProtocolError("Trainer.fit(module) must come first. Got no training yet.")
        return self.private

    # ----------------------------------------------------------------------------------- the loop

    def train_dataloader(self) -> Steps:
        """Yield the steps of an epoch. Rows are drawn inside of a step."""
        return Steps(self._length()[1])

    def training_step(self, batch: Any, batch_idx: int = 0) -> None:
        """Train on one logical batch, in as many physical ones as it takes, and update."""
        del batch_idx
        if not isinstance(batch, Step):
            raise ProtocolError(
                "private rows must be drawn by winsor's sampler. Got a batch of another loader: "
                "give the rows as PrivateModule(dataset=...), not to Trainer.fit."
            )
        private = self._begun()
        with torch.autocast(self.device.type, enabled=False):  # bounds and updates in full numbers
            for rows in private.batches(1):
                private.step(self._losses(self, rows))

    def _losses(self, module: nn.Module, rows: Any) -> Tensor:
        del module  # this one, on the stage of a check too
        rows = self.trainer.strategy.batch_to_device(rows)
        self._rows_are_open = True
        try:
            with self.trainer.precision_plugin.forward_context():
                return self.row_losses(rows)
        finally:
            self._rows_are_open = False

    def on_train_epoch_end(self) -> None:
        """Step the schedule, and log the epsilon so far. Subclasses call it with ``super()``."""
        if self._interval == "epoch":
            for config in self.trainer.lr_scheduler_configs:
                config.scheduler.step()  # type: ignore[call-arg]
        self.log("epsilon", self.spent().epsilon)

    # --------------------------------------------------------------------------- how it is built

    def on_fit_start(self) -> None:
        """Build the run, once the model is where it is trained."""
        self._refuse_unsound_trainer()
        earlier = self.private
        if earlier is not None and self._to_continue is None:
            raise ProtocolError(
                "Trainer.fit must be called once. Got a second call, which would start from "
                "weights that come from these rows. Plan more epochs, or give ckpt_path=."
            )
        if earlier is not None:
            earlier.detach()
        inside(self.trainer.strategy.model)  # type: ignore[arg-type]
        self.private = make_private(
            model=self,
            optimizer=self._optimizer(),
            scheduler=self._scheduler(),
            dataset=self._rows,
            collate_fn=self._collate,
            batch_size=self._batch_size,
            steps=self._length()[0],
            max_physical_batch_size=self._limit,
            **self._privacy.arguments(),
        )
        if earlier is not None:  # what this process released is spent, whatever a checkpoint says
            self.private.ledger.load_state_dict(earlier.ledger.state_dict())

    def on_train_start(self) -> None:
        """Continue a checkpoint, if there is one, and look whether rows mix."""
        private, state = self._begun(), self._to_continue
        if state is not None:
            refuse_different(state["settings"], self._settings())
            private.load_state_dict(state["private"])
            self._to_continue = None
        private.check(self._losses)

    def _length(self) -> tuple[int, int]:
        """Return (steps of the run, steps of an epoch)."""
        epochs, steps = self.trainer.max_epochs or -1, self.trainer.max_steps
        if epochs < 1 and steps < 1:
            raise ConfigurationError(
                "Trainer must have max_epochs or max_steps: noise is chosen for a planned length. "
                "Got neither."
            )
        asked = (1, None) if steps < 1 else (None, steps)
        found = run_length(self._rows, self._batch_size, self._privacy, *asked)
        limits = (epochs * found.per_epoch, steps)
        return min(each for each in limits if each > 0), found.per_epoch

    def _optimizer(self) -> Any:
        found = self.optimizers()
        if isinstance(found, list):
            raise ConfigurationError(
                "configure_optimizers must give one optimiser, of all trainable parameters. Got "
                f"{len(found)} instead."
            )
        return found

    def _scheduler(self) -> Any:
        configs = self.trainer.lr_scheduler_configs
        if len(configs) > 1 or any(_waits_for_metrics(each.scheduler) for each in configs):
            raise ConfigurationError(
                "configure_optimizers must give one schedule at most, of steps or epochs. Got "
                f"{[type(each.scheduler).__name__ for each in configs]} instead."
            )
        return configs[0].scheduler if configs and self._interval == "step" else None

    def _refuse_unsound_trainer(self) -> None:
        strategy = self.trainer.strategy
        if not isinstance(strategy, SingleDeviceStrategy | DDPStrategy):
            raise ConfigurationError(
                'strategy must be "auto" on one device, or "ddp". Got '
                f"{type(strategy).__name__} instead, which would shard or update behind winsor's "
                "back."
            )
        if getattr(self.trainer.precision_plugin, "scaler", None) is not None:
            raise ConfigurationError(
                'precision must be "32-true" or "bf16-mixed". Got '
                f"{self.trainer.precision!r} instead: its scaler skips steps whose gradients "
                "overflow, which depends on private rows."
            )

    # ------------------------------------------------------------------------------- checkpoints

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Put the private part into checkpoints that can be resumed; it holds the key."""
        if self.private is not None and "optimizer_states" in checkpoint:
            state = {"settings": self._settings(), "private": self.private.state_dict()}
            checkpoint[KEPT_AS] = state

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the private part for `on_train_start`, when optimisers are restored."""
        if self._trainer is None or self.trainer.state.fn != TrainerFn.FITTING:
            return
        if KEPT_AS not in checkpoint:
            raise LedgerError(
                f"a checkpoint must hold {KEPT_AS!r}, the account of the run. Got one without it. "
                "Resume from one that a PrivateModule saved with its optimiser."
            )
        self._to_continue = checkpoint[KEPT_AS]

    def _settings(self) -> dict[str, str]:
        return settings_of_model(self) | self._begun()._built_with

    # -------------------------------------------------------------------------------- evaluation

    def on_validation_start(self) -> None:
        """Refuse private rows for validation."""
        self._refuse_private_rows(self.trainer.val_dataloaders, "validation")

    def on_test_start(self) -> None:
        """Refuse private rows for a test."""
        self._refuse_private_rows(self.trainer.test_dataloaders, "testing")

    def on_predict_start(self) -> None:
        """Refuse private rows for predictions."""
        self._refuse_private_rows(self.trainer.predict_dataloaders, "prediction")

    def _refuse_private_rows(self, loaders: Any, purpose: str) -> None:
        several = loaders.values() if isinstance(loaders, Mapping) else loaders
        for loader in several if isinstance(several, list | tuple) else [several]:
            refuse_private_evaluation(self._rows, getattr(loader, "dataset", None), purpose)
        self._looked = True


def _waits_for_metrics(scheduler: Any) -> bool:
    return isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)
