"""`PrivateTrainer` trains as make_private does, and shows nothing that was not released."""

import json
import math
import stat

import pytest
import tiny_transformers as tiny
import torch
from transformers import EarlyStoppingCallback, Trainer, TrainerCallback

from winsor.core.contract import BudgetExceeded, LedgerError, ProtocolError, UnsoundRelease
from winsor.integrations import row_losses
from winsor.integrations.transformers import PRIVATE_STATE
from winsor.rules.flat import Flat
from winsor.training.make_private import make_private


def weights(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


def test_it_is_the_loop_of_make_private():
    trainer = tiny.trainer(privacy=tiny.privacy(seed=5), args=tiny.arguments(optim="sgd"))
    trainer.train()
    model = tiny.gpt()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    private = make_private(
        model=model, optimizer=optimizer, dataset=tiny.Sentences(), collate_fn=tiny.padded,
        batch_size=12, max_physical_batch_size=4, steps=4, seed=5, delta=1e-3, noise_multiplier=1.0,
        rule=Flat(1.0),
        scheduler=torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 4),
    )  # fmt: skip
    for batch in private.batches():
        private.step(row_losses.row_losses(model, batch))
    assert same(weights(trainer.model), weights(model))
    assert trainer.spent().epsilon == private.spent().epsilon
    assert trainer.private.sampler.rate == pytest.approx(12 / tiny.ROWS)


def test_epsilon_is_met_and_epochs_are_counted():
    args = tiny.arguments(max_steps=-1, num_train_epochs=2, logging_strategy="epoch")
    trainer = tiny.trainer(args=args, privacy=tiny.privacy(noise_multiplier=None, epsilon=4.0))
    found = trainer.train()
    assert found.global_step == 10 == trainer.spent().steps  # 60 rows, 12 a step, twice
    assert 3.5 < trainer.spent().epsilon <= 4.0
    assert [line["epoch"] for line in trainer.state.log_history if "learning_rate" in line] == [
        1,
        2,
    ]


def test_only_released_values_are_logged(tmp_path):
    trainer = tiny.trainer(
        args=tiny.arguments(str(tmp_path), save_strategy="steps", save_steps=2, logging_steps=1)
    )
    found = trainer.train()
    assert math.isnan(found.training_loss)
    for line in [*trainer.state.log_history, found.metrics]:
        assert not {"loss", "train_loss", "grad_norm", "total_flos"} & set(line)
    epsilons = [line["epsilon"] for line in trainer.state.log_history if "learning_rate" in line]
    assert epsilons == sorted(epsilons) and epsilons[-1] == trainer.spent().epsilon
    state = json.loads((tmp_path / "checkpoint-4" / "trainer_state.json").read_text())
    assert state["total_flos"] == 0 and state["num_input_tokens_seen"] == 0


class Killed(Exception):
    pass


class KillAt(TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **_):
        if state.global_step == self.step:
            raise Killed


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_resume_from_checkpoint_continues_bit_by_bit(tmp_path, kind):
    def build(name, **named):
        args = tiny.arguments(
            str(tmp_path / name),
            save_strategy="steps",
            save_steps=2,
            max_steps=6,
            save_total_limit=2,
        )
        where = {"ledger": tmp_path / f"{name}.ledger"} if kind == "disk" else {}
        return tiny.trainer(
            tiny.gpt(dropout=0.1), args, privacy=tiny.privacy(seed=3, **where), **named
        )

    whole = build("whole")
    whole.train()
    killed = build("killed", callbacks=[KillAt(5)])
    with pytest.raises(Killed):
        killed.train()
    killed.private.detach()
    resumed = build("killed")
    found = resumed.train(resume_from_checkpoint=True)
    assert found.global_step == 6 == resumed.spent().steps
    assert same(weights(whole.model), weights(resumed.model))
    assert resumed.spent().epsilon == whole.spent().epsilon
    file = tmp_path / "killed" / "checkpoint-6" / PRIVATE_STATE
    assert stat.S_IMODE(file.stat().st_mode) == 0o600  # it holds the key


def test_a_checkpoint_of_other_settings_or_without_its_account_is_refused(tmp_path):
    saving = {"save_strategy": "steps", "save_steps": 2}
    tiny.trainer(args=tiny.arguments(str(tmp_path), **saving)).train()
    other = tiny.trainer(args=tiny.arguments(str(tmp_path), learning_rate=0.5, **saving))
    with pytest.raises(LedgerError, match="same configuration"):
        other.train(resume_from_checkpoint=True)
    (tmp_path / "checkpoint-4" / PRIVATE_STATE).unlink()
    again = tiny.trainer(args=tiny.arguments(str(tmp_path), **saving))
    with pytest.raises(LedgerError, match="account of the run"):
        again.train(resume_from_checkpoint=True)


def test_training_twice_is_refused_unless_it_resumes(tmp_path):
    args = tiny.arguments(str(tmp_path), save_strategy="steps", save_steps=2)
    trainer = tiny.trainer(args=args)
    trainer.train()
    with pytest.raises(ProtocolError, match="second call"):
        trainer.train()
    before = weights(trainer.model)
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert trainer.spent().steps == 4  # repeated, not paid twice
    assert same(before, weights(trainer.model))


def test_the_budget_is_a_wall():
    trainer = tiny.trainer(
        args=tiny.arguments(max_steps=50), privacy=tiny.privacy(epsilon=3.0, noise_multiplier=1.0)
    )
    with pytest.raises(BudgetExceeded):
        trainer.train()
    assert trainer.spent().epsilon <= 3.0


class Heard(TrainerCallback):
    def __init__(self):
        self.words = []

    def __getattribute__(self, name):
        if name.startswith("on_"):
            object.__getattribute__(self, "words").append(name[3:])
        return object.__getattribute__(self, name)


def test_callbacks_hear_every_step():
    heard = Heard()
    tiny.trainer(callbacks=[heard]).train()
    for word in ("step_begin", "step_end", "pre_optimizer_step", "optimizer_step"):
        assert heard.words.count(word) == 4, word
    for word in ("train_begin", "train_end", "epoch_begin", "epoch_end"):
        assert heard.words.count(word) == 1, word
    assert heard.words.count("substep_end") >= 1  # logical batches of 12 in fragments of 4


def test_evaluation_on_public_rows_early_stopping_and_the_best_model(tmp_path):
    args = tiny.arguments(
        str(tmp_path), eval_strategy="steps", eval_steps=1, save_strategy="steps", save_steps=1,
        load_best_model_at_end=True, metric_for_best_model="seen", greater_is_better=False,
        max_steps=6,
    )  # fmt: skip
    calls = []

    def metrics(found):
        calls.append(found.predictions.shape)
        return {"seen": float(len(calls))}  # worse every time

    trainer = tiny.trainer(
        tiny.bert(), args, train_dataset=tiny.Sentences(labels=3),
        eval_dataset=tiny.Sentences(12, first=1000, labels=3), compute_metrics=metrics,
        callbacks=[EarlyStoppingCallback(2)],
    )  # fmt: skip
    found = trainer.train()
    assert found.global_step == 3 == trainer.spent().steps
    assert calls[0] == (12, 3)
    assert any("eval_loss" in line for line in trainer.state.log_history)
    conditions = " ".join(trainer.spent().conditions)
    assert "evaluation are public" in conditions and "edited by hand" in conditions
    assert trainer.evaluate()["eval_seen"] == 4.0


def test_a_plain_trainer_on_a_private_model_is_found_out():
    private_one = tiny.trainer(args=tiny.arguments(max_steps=2))
    private_one.train()
    plain = tiny.trainer(private_one.model, kind=Trainer, args=tiny.arguments(max_steps=2))
    plain.train()
    with pytest.raises(UnsoundRelease, match="a trainer"):
        private_one.spent()


def test_make_private_notices_a_plain_trainer_before_and_between_steps():
    model = tiny.gpt()
    private = make_private(
        model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), steps=5,
        dataset=tiny.Sentences(), collate_fn=tiny.padded, batch_size=6, delta=1e-3,
        noise_multiplier=1.0, rule=Flat(1.0),
    )  # fmt: skip
    tiny.trainer(model, kind=Trainer, args=tiny.arguments(max_steps=1)).train()
    with pytest.raises(UnsoundRelease, match="a trainer"):
        private.spent()
    with pytest.raises(UnsoundRelease, match="a trainer"):
        next(private.batches())


def test_rows_of_workers_and_empty_batches():
    args = tiny.arguments(
        max_steps=12, per_device_train_batch_size=1, gradient_accumulation_steps=1,
        dataloader_num_workers=1, logging_steps=1,
    )  # fmt: skip
    one = tiny.trainer(args=args, privacy=tiny.privacy(seed=1))
    one.train()
    alone = tiny.arguments(
        max_steps=12, per_device_train_batch_size=1, gradient_accumulation_steps=1, logging_steps=1
    )
    other = tiny.trainer(args=alone, privacy=tiny.privacy(seed=1))
    other.train()
    sampler, key = one.private.sampler, one.private._feed.key
    assert min(len(sampler.indices(key, step)) for step in range(12)) == 0
    assert same(weights(one.model), weights(other.model))
    steps = [line["step"] for line in one.state.log_history if "learning_rate" in line]
    assert steps == list(range(1, 13))
