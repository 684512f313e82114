"""Class counts that a configuration releases for its loss: paid once, counted, used, kept."""

from __future__ import annotations

import pytest
import torch
from tiny_runs import table
from torch.utils.data import TensorDataset

from winsor.app.runs.assemble import assemble
from winsor.app.runs.config import from_table
from winsor.app.runs.data import Data
from winsor.app.runs.directory import RunDirectory
from winsor.app.runs.execute import execute
from winsor.app.runs.progress import Quiet
from winsor.app.runs.verifying import disagreements
from winsor.audit import replay
from winsor.core.contract import ConfigurationError
from winsor.core.ledger.ledger import Ledger
from winsor.training.losses import LogitAdjusted

COUNTS = {"name": "class_counts", "noise_multiplier": 4.0}
LOSS = {"name": "logit_adjusted", "profile": "released", "tau": 0.7}
BUDGET = {"epsilon": 4.0, "noise_multiplier": None}


def config(*prepare, loss=LOSS, **changes):
    training = {"loss": loss} | changes.pop("training", {})
    given = {"budget": BUDGET, "prepare": list(prepare), "training": training, **changes}
    return from_table(table(**given))


def rows(n=300):
    generator = torch.Generator().manual_seed(0)
    y = (torch.rand(n, generator=generator) > 0.8).long()  # the third class is empty
    return TensorDataset(torch.randn(n, 4, generator=generator), y)


def data(train):
    return Data(train, None, (4,), 3, "rows")


@pytest.mark.parametrize("name", ["logit_adjusted", "ldam_drw"])
def test_epsilon_is_of_the_counts_too(tmp_path, name):
    settings = config(COUNTS, loss={"name": name, "profile": "released"})
    result = execute(settings, tmp_path / "run", Quiet())
    assert 3.9 < result["epsilon"] <= 4.0
    assert len(Ledger.read(tmp_path / "run" / "prepared-0.jsonl")) == 1
    assert disagreements(tmp_path / "run") == []
    plain = execute(config(loss={"name": "auto"}), tmp_path / "plain", Quiet())
    assert plain["noise_multiplier"] < result["noise_multiplier"]


def test_the_loss_is_that_of_the_released_counts(tmp_path):
    settings, train = config(COUNTS), rows()
    directory = RunDirectory(tmp_path / "run")
    directory.create(settings, None)
    run = assemble(settings, directory, data(train))
    kept = torch.load(tmp_path / "run" / "prepared-0.pt", weights_only=True)["counts"]
    true = torch.bincount(train.tensors[1], minlength=3)
    assert kept != [float(count) for count in true]  # noise
    assert torch.allclose(torch.tensor(kept), true.clamp(min=1).float(), atol=25)
    expected = LogitAdjusted(tuple(kept), 0.7)(run.model(train.tensors[0]), train.tensors[1])
    assert torch.equal(run.task.losses(run.model, train.tensors), expected)
    run.private.detach()
    directory.close()


def test_a_run_that_goes_on_uses_the_same_counts(tmp_path):
    class Killed(Quiet):
        def stepped(self, run):
            if run.private.steps_done == 5:
                raise MemoryError("killed")

    settings, path = config(COUNTS), tmp_path / "run"
    with pytest.raises(MemoryError):
        execute(settings, path, Killed())
    kept = [(path / f"prepared-0.{kind}").read_bytes() for kind in ("jsonl", "pt")]
    result = execute(settings, path, Quiet())
    assert [(path / f"prepared-0.{kind}").read_bytes() for kind in ("jsonl", "pt")] == kept
    whole = execute(settings, tmp_path / "whole", Quiet())
    assert whole["epsilon"] == result["epsilon"]
    one, two = (torch.load(p / "model.pt", weights_only=True) for p in (path, tmp_path / "whole"))
    assert all(torch.equal(one[key], two[key]) for key in one)


def test_beside_a_release_about_features(tmp_path):
    norm = {"name": "norm", "noise_multiplier": 5.0, "mean_bound": 3.0, "square_bound": 9.0}
    result = execute(config(norm, COUNTS), tmp_path / "run", Quiet())
    assert 3.9 < result["epsilon"] <= 4.0
    assert disagreements(tmp_path / "run") == []


def test_configurations_that_are_refused():
    cases = [
        (config(), "one \\[\\[prepare\\]\\]"),
        (config(COUNTS, COUNTS), "Got 2"),
        (config(COUNTS, loss={"name": "cross_entropy"}), "paid for nothing"),
        (config(COUNTS, loss={**LOSS, "profile": [5, 5, 5]}), "paid for nothing"),
        (config({"name": "class_counts"}), "prepare\\[0\\]: give either"),
        (config(COUNTS, loss={**LOSS, "tau": -1.0}), "training.loss: tau"),
    ]
    for wrong, words in cases:
        with pytest.raises(ConfigurationError, match=words):
            execute(wrong, "/nowhere", Quiet())


def test_replay_of_the_whole_run_finds_nothing(tmp_path):
    """Counts and steps: no row moves a release further than was paid for."""
    runs = iter(range(10_000))
    settings = config(
        COUNTS, reproducible_noise=False, training={"steps": 3, "batch_size": 10},
        budget={**BUDGET, "allow_large_delta": True},
    )  # fmt: skip

    def train(some):
        path = tmp_path / str(next(runs))
        execute(settings, path, Quiet(), load=lambda _: data(some))
        return torch.load(path / "model.pt", weights_only=True)

    report = replay(train, rows(30), rows=[3])
    report.assert_passed()
    assert report.releases == 4
