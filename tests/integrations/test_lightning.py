"""`PrivateModule` trains as make_private does, inside Lightning's loop."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback, Trainer
from torch.nn import functional as F
from torch.utils.data import DataLoader, Subset, TensorDataset

from winsor.core.contract import (
    ConfigurationError,
    LedgerError,
    ProtocolError,
    UnsoundRelease,
    UnsupportedModel,
)
from winsor.integrations.lightning import KEPT_AS, PrivateModule
from winsor.integrations.privacy import Privacy
from winsor.rules.flat import Flat
from winsor.training.make_private import make_private

pytestmark = [
    pytest.mark.filterwarnings(  # advice, such as to use more workers
        "ignore::lightning.fabric.utilities.warnings.PossibleUserWarning"
    ),
    pytest.mark.filterwarnings(  # Lightning's own use of torch
        "ignore:.*isinstance.treespec, LeafSpec.*:FutureWarning"
    ),
]
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def rows(n=60, seed=0):
    coins = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 4, generator=coins)
    return TensorDataset(x, (x[:, 0] > 0).long())


class Classifier(PrivateModule):
    def __init__(self, seen=None, lr=0.1, **named):
        given = {"dataset": rows(), "batch_size": 12, "privacy": privacy()}
        super().__init__(**given | named)
        torch.manual_seed(0)
        self.network = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)
        )
        self.seen, self.lr = [] if seen is None else seen, lr

    def row_losses(self, batch):
        self.seen.append(len(batch[0]))
        return F.cross_entropy(self.network(batch[0]).float(), batch[1], reduction="none")

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", F.cross_entropy(self.network(batch[0]), batch[1]))

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]


def privacy(**named):
    return Privacy(**{"noise_multiplier": 1.0, "delta": 1e-3, "rule": Flat(1.0)} | named)


def lightning(folder, **named):
    quiet = {
        "accelerator": "cpu", "devices": 1, "logger": False, "enable_progress_bar": False,
        "enable_model_summary": False, "enable_checkpointing": False, "max_epochs": 2,
        "default_root_dir": str(folder), "num_sanity_val_steps": 0,
    }  # fmt: skip
    return Trainer(**quiet | named)


def same(one, other):
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("interval", ["epoch", "step"])
def test_it_is_the_loop_of_make_private(tmp_path, interval):
    module = Classifier(
        privacy=privacy(seed=1), max_physical_batch_size=5, scheduler_interval=interval
    )
    trainer = lightning(tmp_path)
    trainer.fit(module)
    model = Classifier()
    (optimizer,), (schedule,) = model.configure_optimizers()
    private = make_private(
        model=model, optimizer=optimizer, dataset=rows(), batch_size=12, steps=10, seed=1,
        max_physical_batch_size=5, delta=1e-3, noise_multiplier=1.0, rule=Flat(1.0),
        scheduler=schedule if interval == "step" else None,
    )  # fmt: skip
    for epoch in range(2):
        for batch in private.batches(5):
            private.step(model.row_losses(batch))
        if interval == "epoch" and epoch == 0:
            schedule.step()
    assert same(module, model)
    assert module.spent().epsilon == private.spent().epsilon
    assert trainer.global_step == 10 == module.spent().steps
    assert trainer.callback_metrics["epsilon"] == pytest.approx(module.spent().epsilon)


def test_epsilon_is_met_and_max_steps_count(tmp_path):
    module = Classifier(privacy=privacy(noise_multiplier=None, epsilon=2.0))
    lightning(tmp_path, max_epochs=-1, max_steps=7).fit(module)
    assert module.spent().steps == 7
    assert 1.8 < module.spent().epsilon <= 2.0


class Stop(Exception):
    pass


class StopAt(Callback):
    """Saves at one step, and stops at a later one."""

    def __init__(self, path, save, step):
        self.path, self.save, self.step = path, save, step

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        assert isinstance(batch, int)  # callbacks see no rows
        if trainer.global_step == self.save:
            trainer.save_checkpoint(self.path)
        if trainer.global_step == self.step:
            raise Stop


def test_a_checkpoint_is_continued_bit_by_bit(tmp_path):
    whole = Classifier(privacy=privacy(seed=2))
    lightning(tmp_path).fit(whole)
    path = tmp_path / "third.ckpt"
    with pytest.raises(Stop):
        lightning(tmp_path, callbacks=[StopAt(path, 3, 5)]).fit(Classifier(privacy=privacy(seed=2)))
    resumed = Classifier(privacy=privacy(seed=2))
    trainer = lightning(tmp_path)
    trainer.fit(resumed, ckpt_path=path, weights_only=True)
    assert trainer.global_step == 10 == resumed.spent().steps
    assert same(whole, resumed)
    with pytest.raises(ProtocolError, match="second call"):
        lightning(tmp_path).fit(resumed)
    lightning(tmp_path).fit(resumed, ckpt_path=path, weights_only=True)
    assert resumed.spent().steps == 10  # repeated, not paid twice
    with pytest.raises(LedgerError, match="same configuration"):
        lightning(tmp_path).fit(Classifier(lr=0.3), ckpt_path=path, weights_only=True)


def test_weights_alone_hold_no_key_and_are_not_resumed(tmp_path):
    module, trainer = Classifier(), lightning(tmp_path)
    trainer.fit(module)
    trainer.save_checkpoint(tmp_path / "weights.ckpt", weights_only=True)
    assert KEPT_AS not in torch.load(tmp_path / "weights.ckpt", weights_only=True)
    loaded = Classifier.load_from_checkpoint(tmp_path / "weights.ckpt")
    assert same(loaded, module)
    with pytest.raises(LedgerError, match="account of the run"):
        lightning(tmp_path).fit(
            Classifier(), ckpt_path=tmp_path / "weights.ckpt", weights_only=True
        )


def test_public_rows_are_evaluated_and_private_ones_are_not(tmp_path):
    module = Classifier()
    trainer = lightning(tmp_path)
    trainer.fit(module, val_dataloaders=DataLoader(rows(20, seed=9), 10))
    assert "val_loss" in trainer.callback_metrics
    assert any("evaluation are public" in each for each in module.spent().conditions)
    for looked_at in (module._rows, Subset(module._rows, [0, 1])):
        with pytest.raises(UnsoundRelease, match="validation must not use private rows"):
            trainer.validate(module, DataLoader(looked_at, 10))
        with pytest.raises(UnsoundRelease, match="validation"):
            lightning(tmp_path).fit(
                Classifier(dataset=module._rows), val_dataloaders=DataLoader(looked_at, 10)
            )


class Logging(Classifier):
    def row_losses(self, batch):
        found = super().row_losses(batch)
        self.log("train_loss", found.mean())
        return found


class Mixing(Classifier):
    def row_losses(self, batch):
        found = super().row_losses(batch)
        return found / found.detach().mean()


class Two(Classifier):
    def configure_optimizers(self):
        return [torch.optim.SGD(part.parameters(), lr=0.1) for part in self.network[::2]]


class Plateau(Classifier):
    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        return [optimizer], [torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)]


class Plain(Classifier):
    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx)


class AroundTheDoor(Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        with torch.no_grad():
            module.network[0].weight.add_(1.0)


def test_what_cannot_be_kept_sound_is_refused(tmp_path):
    refusals = [
        (Logging, UnsoundRelease, "must not log"),
        (Mixing, UnsupportedModel, "rows must not mix"),
        (Two, ConfigurationError, "one optimiser"),
        (Plateau, ConfigurationError, "one schedule"),
    ]
    for kind, error, word in refusals:
        with pytest.raises(error, match=word):
            lightning(tmp_path).fit(kind())
    with pytest.raises(ConfigurationError, match="training_step must not be overridden"):
        Plain()
    with pytest.raises(ConfigurationError, match=r"must have row_losses\(batch\)"):
        PrivateModule(dataset=rows(), batch_size=12, privacy=privacy()).row_losses(rows()[:2])
    with pytest.raises(ProtocolError, match=r"not to Trainer\.fit"):
        lightning(tmp_path).fit(Classifier(), DataLoader(rows(), 12, num_workers=0))
    with pytest.raises(UnsoundRelease, match="weights must change by"):
        lightning(tmp_path, callbacks=[AroundTheDoor()]).fit(Classifier())
    with pytest.raises(ConfigurationError, match="max_epochs or max_steps"):
        lightning(tmp_path, max_epochs=-1).fit(Classifier())
    with pytest.raises(ProtocolError, match="must come first"):
        Classifier().spent()


def test_bfloat16_is_for_losses_only(tmp_path):
    dtypes = []

    class Narrow(Classifier):
        def row_losses(self, batch):
            dtypes.append(self.network(batch[0]).dtype)
            return super().row_losses(batch)

    module = Narrow()
    lightning(tmp_path, precision="bf16-mixed").fit(module)
    assert dtypes[-1] == torch.bfloat16
    assert module.spent().steps == 10


TWO_RANKS = '''
import sys, torch
sys.path.insert(0, {folder!r})
from test_lightning import Classifier, lightning, privacy
if __name__ == "__main__":
    module = Classifier(privacy=privacy(seed=4), max_physical_batch_size=4)
    trainer = lightning({out!r}, devices=2, strategy="ddp", max_epochs=1)
    trainer.fit(module)
    torch.save({{"weights": module.state_dict(), "epsilon": module.spent().epsilon,
                "seen": sum(module.seen)}}, f"{out}/rank{{trainer.global_rank}}.pt")
'''  # fmt: skip


def test_two_ranks_release_what_one_does(tmp_path):
    script = tmp_path / "run.py"
    script.write_text(TWO_RANKS.format(folder=str(Path(__file__).parent), out=str(tmp_path)))
    ended = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-2000:]
    first, second = (torch.load(tmp_path / f"rank{rank}.pt") for rank in (0, 1))
    alone = Classifier(privacy=privacy(seed=4), max_physical_batch_size=4)
    lightning(tmp_path, max_epochs=1).fit(alone)
    for name, weight in alone.state_dict().items():
        assert torch.equal(first["weights"][name], second["weights"][name])
        assert torch.allclose(first["weights"][name], weight, rtol=1e-5, atol=1e-6)
    assert first["epsilon"] == second["epsilon"] == alone.spent().epsilon
    assert min(first["seen"], second["seen"]) > 0  # rows are shared, not repeated
