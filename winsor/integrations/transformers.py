"""`PrivateTrainer`: a `transformers.Trainer` whose training is private. One argument differs.

    trainer = PrivateTrainer(model, args, train_dataset=rows, data_collator=collate,
                             privacy=Privacy(epsilon=8.0, delta=1e-5, rule=winsor.rules.Flat(1.0)))
    trainer.train()
    print(trainer.spent())

The loop is winsor's: batches come from its sampler and updates from its door; everything around
them (optimiser, schedule, callbacks, evaluation, checkpoints, hub) is the trainer's own. A logical
batch has ``per_device_train_batch_size x gradient_accumulation_steps x processes`` rows on average,
of which a device holds ``per_device_train_batch_size`` at a time.

Guarantee
---------
`spent()` certifies every model and checkpoint of the run. Nothing else that was computed from
private rows is logged: `loss`, `grad_norm`, `total_flos` and numbers of tokens, which `Trainer`
shows, never passed the door and are left out.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset
from transformers import Trainer, TrainingArguments
from transformers.trainer_utils import TrainOutput
from transformers.utils import logging

from winsor.core.contract import ConfigurationError, Guarantee, LedgerError, ProtocolError
from winsor.integrations import row_losses
from winsor.integrations.privacy import Privacy, RunLength, run_length
from winsor.integrations.refusals import (
    PUBLIC_EVALUATION,
    refuse_private_evaluation,
    refuse_unsound,
)
from winsor.training.loop import PrivateTraining
from winsor.training.make_private import make_private
from winsor.training.saving import file as saving
from winsor.training.saving.settings import refuse_different, settings_of_model

logger = logging.get_logger(__name__)

PRIVATE_STATE = "winsor.pt"
"""In each checkpoint: account, key and random streams. Readable by its owner only."""
UNRELEASED = ("loss", "train_loss", "grad_norm", "total_flos")
"""What `Trainer` logs of private rows although it never passed the door."""
SAID = (
    "PrivateTrainer: the training loss is not shown, because it is computed from private rows "
    "without noise; evaluate on public rows instead. max_grad_norm is not used: the rule bounds "
    "the gradient of each row."
)


class PrivateTrainer(Trainer):
    """Train a model of `transformers` with differential privacy.

    Parameters
    ----------
    model, args, data_collator, train_dataset, ...
        As in `transformers.Trainer`; ``train_dataset`` is map-style and holds the private rows.
        What cannot be kept sound is refused by its name (`training_arguments.py`).
        ``compute_loss_func`` must give one value per row.
    privacy
        How much, and by which rule: `winsor.integrations.privacy.Privacy`.

    Notes
    -----
    Subclasses override `row_losses`, in place of `compute_loss`. ``trainer.private`` is the
    `winsor.PrivateTraining` of the run, from the first step on.
    """

    model: Any
    optimizer: Any
    lr_scheduler: Any

    def __init__(
        self,
        model: nn.Module | None = None,
        args: TrainingArguments | None = None,
        *others: Any,
        privacy: Privacy,
        **named: Any,
    ) -> None:
        if not isinstance(privacy, Privacy):
            raise ConfigurationError(
                "privacy must be winsor.integrations.privacy.Privacy(epsilon=..., delta=..., "
                f"rule=...). Got {privacy!r} instead."
            )
        if args is not None:
            refuse_unsound(args)
        super().__init__(model, args, *others, **named)
        refuse_unsound(self.args)
        self._refuse_other_losses()
        if self.train_dataset is not None:
            _refuse_streams(self.train_dataset)
            refuse_private_evaluation(self.train_dataset, self.eval_dataset, "eval_dataset")
        self.privacy = privacy
        self.private: PrivateTraining | None = None
        self._looked = False
        self._own_optimizer = self.optimizer is None

    # ------------------------------------------------------------------------------ what is asked

    def spent(self, delta: float | None = None) -> Guarantee:
        """Certify the guarantee for every step so far, with what it rests on."""
        found = self._begun().spent(delta)
        more = (PUBLIC_EVALUATION,) if self._looked else ()
        return replace(found, conditions=(*found.conditions, *more))

    def row_losses(self, model: nn.Module, inputs: Mapping[str, Any]) -> Tensor:
        """Compute (rows,) losses of a batch, with their graph. Override it for losses of your own.

        No row may depend on another: average within a row only.
        """
        inputs = dict(self._prepare_inputs(dict(inputs)))
        with self.accelerator.autocast():
            if self.compute_loss_func is None:
                return row_losses.row_losses(model, inputs)
            labels = inputs.pop("labels", None)
            found: Tensor = self.compute_loss_func(model(**inputs), labels, num_items_in_batch=None)
            return found

    def _begun(self) -> PrivateTraining:
        if self.private is None:
            raise ProtocolError("trainer.train() must come first. Got no training yet.")
        return self.private

    # ----------------------------------------------------------------------------------- the loop

    def train(  # type: ignore[override]
        self, resume_from_checkpoint: str | bool | None = None, **named: Any
    ) -> TrainOutput:
        """Train as `Trainer.train` does. A second call continues from a checkpoint, or is
        refused."""
        if named.get("trial") is not None:
            self.hyperparameter_search()
        if self.private is not None and not resume_from_checkpoint:
            raise ProtocolError(
                "trainer.train() must be called once. Got a second call, which would start from "
                "weights that come from these rows. Plan more steps, or give "
                "resume_from_checkpoint=."
            )
        return super().train(resume_from_checkpoint, **named)

    def _inner_training_loop(
        self,
        batch_size: int | None = None,
        args: TrainingArguments | None = None,
        resume_from_checkpoint: str | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainOutput:
        """Run the loop of `Trainer` around winsor's batches and updates."""
        del batch_size, args, trial
        logger.warning_once(SAID)
        self.accelerator.free_memory()
        length = self._length()
        self._init_training_state(
            length.steps, length.per_epoch, length.epochs, resume_from_checkpoint, None
        )
        private = self.private = self._built(length, resume_from_checkpoint)
        private.check(self.row_losses)
        started = self._begin()
        told = self._tell_of_updates()
        self.control = self.callback_handler.on_train_begin(self.args, self.state, self.control)
        if self.args.eval_on_start:
            self._evaluate(None, ignore_keys_for_eval, skip_scheduler=True)
        try:
            self._run(private, length, started, ignore_keys_for_eval)
        finally:
            for handle in told:
                handle.remove()
        private.load_released_iterate()
        return self._ended(length, started)

    def _run(
        self, private: PrivateTraining, length: RunLength, started: float, ignored: list[str] | None
    ) -> None:
        """Run all steps. Where workers load rows ahead, they go on over the ends of steps."""
        workers = self.args.dataloader_num_workers > 0 and self.args.world_size == 1
        left = length.steps - private.steps_done
        ahead = private.batches(left) if workers and left > 0 else None
        while private.steps_done < length.steps and not self.control.should_training_stop:
            self._begin_step(length)
            rate = self._get_learning_rate()
            self._one_step(private, private.batches(1) if ahead is None else ahead, ahead is None)
            while self.state.global_step < private.steps_done:  # more than one: empty batches
                self._end_step(length, rate, started, ignored)

    def _one_step(self, private: PrivateTraining, batches: Iterator[Any], alone: bool) -> None:
        """Train on one logical batch, in as many physical ones as it takes."""
        self.model.train()
        for batch in batches:
            if not private.step(self.row_losses(self.model, batch)):
                self.control = self.callback_handler.on_substep_end(
                    self.args, self.state, self.control
                )
            elif not alone:
                return

    # ---------------------------------------------------------------------- what callbacks are told

    def _begin(self) -> float:
        """Keep empty what `Trainer` keeps about losses: they are private."""
        self._initial_num_input_tokens_seen = 0
        self._initial_global_step = self._globalstep_last_logged = self.state.global_step
        self._tr_loss = torch.tensor(float("nan"))
        self._total_loss_scalar = 0.0
        self.state.epoch = 0.0
        for name in ("model", "optimizer", "lr_scheduler"):
            setattr(self.callback_handler, name, getattr(self, name))
        self.callback_handler.train_dataloader = None  # there is none: rows come from the sampler
        return time.time()

    def _begin_step(self, length: RunLength) -> None:
        if self.state.global_step % length.per_epoch == 0:
            self.control = self.callback_handler.on_epoch_begin(self.args, self.state, self.control)
        self.control = self.callback_handler.on_step_begin(self.args, self.state, self.control)

    def _end_step(
        self, length: RunLength, rate: float, started: float, ignored: list[str] | None
    ) -> None:
        self.state.global_step += 1
        self.state.epoch = self.state.global_step / length.per_epoch
        self.control = self.callback_handler.on_step_end(self.args, self.state, self.control)
        self._look(rate, started, ignored)
        ended = self.state.global_step % length.per_epoch == 0
        if ended or self.state.global_step == length.steps:
            self.control = self.callback_handler.on_epoch_end(self.args, self.state, self.control)
            self._look(rate, started, ignored)

    def _look(self, rate: float, started: float, ignored: list[str] | None) -> None:
        """Log, evaluate and save, if a callback asked for it."""
        if self.control.should_log and self.state.global_step > self._globalstep_last_logged:
            self._globalstep_last_logged = self.state.global_step
            self.log({"learning_rate": rate, "epsilon": self.spent().epsilon}, started)
        self.control.should_log = False
        epoch = self.state.epoch or 0.0
        self._maybe_log_save_evaluate(
            self._tr_loss, None, self.model, None, epoch, ignored, started, rate
        )

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log as `Trainer.log` does, without what was computed from private rows and never
        released."""
        super().log(_released(logs), start_time)

    def _tell_of_updates(self) -> list[Any]:
        """Tell callbacks of each update, before and after. Gradients are released ones then."""
        handler = self.callback_handler

        def before(*_: Any) -> None:
            self.control = handler.on_pre_optimizer_step(self.args, self.state, self.control)

        def after(*_: Any) -> None:
            self.control = handler.on_optimizer_step(self.args, self.state, self.control)

        optimizer = self.optimizer
        return [
            optimizer.register_step_pre_hook(before),
            optimizer.register_step_post_hook(after),
        ]

    def _ended(self, length: RunLength, started: float) -> TrainOutput:
        found = self._finalize_training(None, length.steps * length.batch, started)
        metrics = _released(found.metrics) | {"epsilon": self.spent().epsilon}
        return TrainOutput(found.global_step, float("nan"), metrics)

    # --------------------------------------------------------------------------- how it is built

    def _length(self) -> RunLength:
        args = self.args
        batch = self.get_total_train_batch_size(args)
        asked = (None, args.max_steps) if args.max_steps > 0 else (args.num_train_epochs, None)
        return run_length(self._dataset(), batch, self.privacy, *asked)

    def _dataset(self) -> Dataset[Any]:
        if self.train_dataset is None:
            raise ConfigurationError("train_dataset must hold the private rows. Got none.")
        dataset: Dataset[Any] = self.train_dataset
        return dataset

    def _rows(self) -> tuple[Dataset[Any], Callable[[list[Any]], Any]]:
        """Return the dataset and the collator, without columns that the model does not take."""
        dataset, collate = self._dataset(), self.data_collator
        if hasattr(dataset, "remove_columns"):
            dataset = self._remove_unused_columns(dataset, description="training")
        else:
            collate = self._get_collator_with_removed_columns(collate, description="training")
        return dataset, lambda rows: dict(collate(rows))

    def _built(self, length: RunLength, checkpoint: str | None) -> PrivateTraining:
        earlier = self.private
        if earlier is not None:
            earlier.detach()
        if self._own_optimizer:
            self.optimizer = None
        if self._created_lr_scheduler:
            self.lr_scheduler, self._created_lr_scheduler = None, False
        self.create_optimizer_and_scheduler(length.steps)
        dataset, collate = self._rows()
        self.model.train()
        private = make_private(
            model=self.model,
            optimizer=self.optimizer,
            scheduler=self.lr_scheduler,
            dataset=dataset,
            collate_fn=collate,
            batch_size=length.batch,
            steps=length.steps,
            max_physical_batch_size=self.args.per_device_train_batch_size,
            num_workers=self.args.dataloader_num_workers,
            **self.privacy.arguments(),
        )
        if checkpoint is not None:
            self._continue(private, checkpoint, earlier)
        return private

    # ------------------------------------------------------------------------------- checkpoints

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """Save the private part beside them: account, key and random streams."""
        super()._save_optimizer_and_scheduler(output_dir)
        private = self._begun()
        if self.args.should_save:
            settings = settings_of_model(self.model) | private._built_with
            state = {"settings": settings, "private": private.state_dict()}
            saving.write(os.path.join(output_dir, PRIVATE_STATE), state)

    def _continue(
        self, private: PrivateTraining, checkpoint: str, earlier: PrivateTraining | None
    ) -> None:
        path = os.path.join(checkpoint, PRIVATE_STATE)
        if not os.path.exists(path):
            raise LedgerError(
                f"a checkpoint must hold {PRIVATE_STATE}, the account of the run. Got {checkpoint} "
                "without it. Resume from one that PrivateTrainer saved with save_only_model=False."
            )
        state = saving.read(path)
        here = settings_of_model(self.model) | private._built_with
        refuse_different(state["settings"], here)
        self._load_optimizer_and_scheduler(checkpoint)
        private.load_state_dict(state["private"])
        if earlier is not None:  # what this process released since is spent, too
            private.ledger.load_state_dict(earlier.ledger.state_dict())
        self.state.global_step = private.steps_done
        if self.args.world_size > 1:
            self._load_rng_state(checkpoint)  # each rank has random streams of its own

    def _load_best_model(self) -> None:
        """Load an earlier iterate, chosen on public rows."""
        with self._begun().replacing_weights():
            super()._load_best_model()

    # ------------------------------------------------------------------------------- evaluation

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """Load public rows for evaluation; refuse private ones."""
        looked_at = eval_dataset if eval_dataset is not None else self.eval_dataset
        if isinstance(looked_at, str) and isinstance(self.eval_dataset, dict):
            looked_at = self.eval_dataset[looked_at]
        self._refuse_private_rows(looked_at, "evaluate()")
        return super().get_eval_dataloader(eval_dataset)

    def get_test_dataloader(self, test_dataset: Any) -> Any:
        """Load public rows for a test; refuse private ones."""
        self._refuse_private_rows(test_dataset, "predict()")
        return super().get_test_dataloader(test_dataset)

    def _refuse_private_rows(self, looked_at: Any, purpose: str) -> None:
        refuse_private_evaluation(self.train_dataset, looked_at, purpose)
        self._looked = True

    # --------------------------------------------------------------------------- what is refused

    def get_train_dataloader(self) -> NoReturn:
        """Refuse: private batches come from the sampler."""
        raise ProtocolError(
            "private rows must be drawn by winsor's sampler. Got a request for a plain loader of "
            "them. Use trainer.train()."
        )

    def hyperparameter_search(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse: a search over private runs must be paid for."""
        raise ProtocolError(
            "a search over settings must pay for every trial. Got hyperparameter_search, which "
            "pays for none. Use winsor.tune, whose account covers the choice."
        )

    def _refuse_other_losses(self) -> None:
        for name in ("compute_loss", "training_step"):
            if getattr(type(self), name) is not getattr(Trainer, name):
                raise ConfigurationError(
                    f"{name} must not be overridden for private training: it is a mean over the "
                    f"batch. Got {type(self).__name__}.{name}. Override row_losses(model, inputs), "
                    "with one value per row."
                )
        own = type(self).row_losses is not PrivateTrainer.row_losses
        if not own and self.compute_loss_func is None:
            row_losses.refuse_without_row_losses(self.model)


def _released(logs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in logs.items() if name not in UNRELEASED}


def _refuse_streams(dataset: Any) -> None:
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        raise ConfigurationError(
            "train_dataset must be map-style, with a length: a sampling rate needs a number of "
            f"rows. Got {type(dataset).__name__} instead."
        )
