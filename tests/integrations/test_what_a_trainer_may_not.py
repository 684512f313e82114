"""What cannot be kept sound is refused by its name."""

import datasets
import pytest
import tiny_transformers as tiny
import torch
from torch.utils.data import IterableDataset, Subset

from winsor.core.contract import (
    ConfigurationError,
    LossError,
    ProtocolError,
    UnknownArgument,
    UnsoundRelease,
    UnsupportedModel,
)
from winsor.integrations.privacy import Privacy
from winsor.integrations.refusals import REFUSED
from winsor.integrations.transformers import PrivateTrainer
from winsor.rules.flat import Flat

UNSOUND = {
    "train_sampling_strategy": "group_by_length",
    "label_smoothing_factor": 0.1,
    "neftune_noise_alpha": 5.0,
    "auto_find_batch_size": True,
    "include_num_input_tokens_seen": "all",
    "torch_compile": True,
    "use_liger_kernel": True,
    "optim": "galore_adamw_layerwise",
    "lr_scheduler_type": "reduce_lr_on_plateau",
    "debug": "underflow_overflow",
    "enable_jit_checkpoint": True,
}


@pytest.mark.parametrize("name", UNSOUND)
def test_arguments_are_refused_by_name(name):
    args = tiny.arguments()
    setattr(args, name, UNSOUND[name])  # some need hardware or packages to be set the usual way
    with pytest.raises(ConfigurationError, match=f"^{name} must not be used"):
        tiny.trainer(args=args)


@pytest.mark.parametrize(
    "name", ["fp16", "deepspeed", "fsdp", "parallelism_config", "group_by_length"]
)
def test_arguments_of_other_machines_are_refused_by_name(name):
    args = tiny.arguments()
    setattr(args, name, True)
    with pytest.raises(ConfigurationError, match=f"^{name} must not be used"):
        tiny.trainer(args=args)


def test_every_refusal_is_tried():
    others = {"fp16", "deepspeed", "fsdp", "parallelism_config", "group_by_length"}
    assert set(REFUSED) == set(UNSOUND) | others


def test_devices_in_one_process_and_checkpoints_on_a_hub_are_refused():
    args = tiny.arguments()
    args._n_gpu = 2
    with pytest.raises(ConfigurationError, match="torchrun"):
        tiny.trainer(args=args)
    args = tiny.arguments()
    args.push_to_hub, args.hub_strategy = True, "checkpoint"
    with pytest.raises(ConfigurationError, match="key of the noise"):
        tiny.trainer(args=args)


def test_private_rows_are_not_evaluated():
    rows = tiny.Sentences()
    for looked_at in (rows, {"own": rows}, Subset(rows, [1, 2])):
        with pytest.raises(UnsoundRelease, match="eval_dataset must not use private rows"):
            tiny.trainer(train_dataset=rows, eval_dataset=looked_at)
    trainer = tiny.trainer(train_dataset=rows)
    with pytest.raises(UnsoundRelease, match="evaluate"):
        trainer.evaluate(rows)
    with pytest.raises(UnsoundRelease, match="predict"):
        trainer.predict(Subset(rows, range(3)))
    apart = Subset(rows, range(40)), Subset(rows, range(40, 60))
    tiny.trainer(train_dataset=apart[0], eval_dataset=apart[1])


def test_rows_of_a_table_that_are_private_are_not_evaluated():
    table = datasets.Dataset.from_list([dict(tiny.Sentences()[i]) for i in range(tiny.ROWS)])
    parts = table.train_test_split(0.2, seed=0)
    tiny.trainer(train_dataset=parts["train"], eval_dataset=parts["test"])
    with pytest.raises(UnsoundRelease):
        tiny.trainer(train_dataset=parts["train"], eval_dataset=table)
    with pytest.raises(UnsoundRelease):
        tiny.trainer(train_dataset=parts["train"], eval_dataset=parts["train"].select([3, 1]))


class Stream(IterableDataset):
    def __iter__(self):
        return iter(())


def test_streams_loaders_and_searches_are_refused():
    with pytest.raises(ConfigurationError, match="map-style"):
        tiny.trainer(train_dataset=Stream())
    trainer = tiny.trainer()
    with pytest.raises(ProtocolError, match="sampler"):
        trainer.get_train_dataloader()
    with pytest.raises(ProtocolError, match=r"winsor\.tune"):
        trainer.hyperparameter_search()
    with pytest.raises(ProtocolError, match="must come first"):
        trainer.spent()


def test_losses_of_the_batch_are_refused():
    class Other(PrivateTrainer):
        def compute_loss(self, *args, **named):
            return super().compute_loss(*args, **named)

    with pytest.raises(ConfigurationError, match="compute_loss must not be overridden"):
        tiny.trainer(kind=Other)
    mean = tiny.trainer(compute_loss_func=lambda out, labels, num_items_in_batch: out.logits.mean())
    with pytest.raises(LossError):
        mean.train()


def test_losses_that_mix_rows_are_refused():
    def mixing(out, labels, num_items_in_batch):
        each = out.logits.mean((1, 2))
        return each / each.detach().abs().mean()

    with pytest.raises(UnsupportedModel, match="rows must not mix"):
        tiny.trainer(compute_loss_func=mixing).train()


def test_losses_of_ones_own():
    def rows(out, labels, num_items_in_batch):
        return out.logits[:, 0].square().mean(1)  # a mean over the padding would mix rows

    class Own(PrivateTrainer):
        def row_losses(self, model, inputs):
            return rows(model(**{**inputs, "labels": None}), None, None)

    one = tiny.trainer(compute_loss_func=rows, privacy=tiny.privacy(seed=0))
    other = tiny.trainer(kind=Own, privacy=tiny.privacy(seed=0))
    for trainer in (one, other):
        trainer.train()
    assert all(
        torch.equal(a, b)
        for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True)
    )


def test_what_the_trainer_says_is_not_said_twice():
    with pytest.raises(ConfigurationError, match="Give it to the trainer"):
        Privacy(rule=Flat(1.0), delta=1e-5, epsilon=1.0, num_workers=2)
    with pytest.raises(UnknownArgument, match="rule"):
        Privacy(rule=Flat(1.0), delta=1e-5, epsilon=1.0, max_grad_norm=1.0)
    with pytest.raises(ConfigurationError, match="epsilon"):
        Privacy(rule=Flat(1.0), delta=1e-5)
    with pytest.raises(ConfigurationError, match="privacy must be"):
        tiny.trainer(privacy={"epsilon": 1.0})
    with pytest.raises(ConfigurationError, match="max_steps"):
        units = [i // 2 for i in range(tiny.ROWS)]
        tiny.trainer(args=tiny.arguments(max_steps=-1), privacy=tiny.privacy(unit=units)).train()
