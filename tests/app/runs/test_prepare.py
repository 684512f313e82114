"""Releases before the first step: paid once, counted everywhere, the same after a resumption."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
import torch
from tiny_runs import table
from torch.utils.data import TensorDataset

import winsor
from winsor.app.report.collect import read_run
from winsor.app.runs.config import from_table
from winsor.app.runs.data import Data
from winsor.app.runs.execute import execute
from winsor.app.runs.folder import RunError
from winsor.app.runs.prepare import prepared
from winsor.app.runs.progress import Quiet
from winsor.app.runs.verifying import disagreements
from winsor.app.tuning.configured import ConfiguredTuning
from winsor.audit import replay
from winsor.core.contract import ConfigurationError, Neighbouring
from winsor.core.ledger.guarantee import spent_by
from winsor.core.ledger.ledger import Ledger

ROOT = Path(__file__).parents[3]
NORM = {"name": "norm", "noise_multiplier": 5.0, "mean_bound": 3.0, "square_bound": 9.0}
WHITE = {"name": "whitening", "noise_multiplier": 6.0, "rounds": 2}
BUDGET = {"epsilon": 4.0, "noise_multiplier": None}


def config(*prepare, **changes):
    return from_table(table(**{"budget": BUDGET, "prepare": list(prepare), **changes}))


class StopAt(Quiet):
    def __init__(self, step):
        super().__init__()
        self.step = step

    def stepped(self, run):
        if run.private.steps_done == self.step:
            raise MemoryError("killed")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "run"
    return path, execute(config(NORM, WHITE), path, Quiet())


@pytest.fixture
def run(finished, tmp_path):
    """A copy that may be tampered with."""
    copy = tmp_path / "run"
    copy.mkdir()
    for file in finished[0].iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    return copy


def test_epsilon_is_of_all_releases_together(finished):
    path, result = finished
    assert 3.9 < result["epsilon"] <= 4.0 and result["steps"] == 12
    before = [Ledger.read(path / f"prepared-{k}.jsonl") for k in (0, 1)]
    assert [len(ledger) for ledger in before] == [1, 2]
    own = Ledger.read(path / "ledger.jsonl")
    history = [pair for ledger in before for pair in ledger.history()]
    alone = [pair for pair in own.history() if pair not in own.before]
    relation = Neighbouring.ADD_OR_REMOVE_ONE
    everything = spent_by([*history, *alone], 1e-3, relation).epsilon
    assert result["epsilon"] == pytest.approx(everything, rel=1e-6)
    assert spent_by(alone, 1e-3, relation).epsilon < result["epsilon"] - 0.05
    assert "12 steps" in result["guarantee"]


def test_without_them_less_noise_is_needed(finished, tmp_path):
    plain = execute(config(), tmp_path / "plain", Quiet())
    assert plain["noise_multiplier"] < finished[1]["noise_multiplier"]
    assert not list((tmp_path / "plain").glob("prepared*"))


def test_the_files_agree_and_the_report_counts_them(finished):
    path, result = finished
    assert disagreements(path) == []
    curve = read_run(path).curve
    assert curve[0][1] > 0.1 and curve[-1][1] == pytest.approx(result["epsilon"], rel=1e-6)


def test_an_interrupted_run_pays_once_and_ends_alike(finished, tmp_path):
    path = tmp_path / "run"
    for step in (1, 7):
        with pytest.raises(MemoryError):
            execute(config(NORM, WHITE), path, StopAt(step))
    kept = (path / "prepared-1.jsonl").read_bytes()
    result = execute(config(NORM, WHITE), path, Quiet())
    assert (path / "prepared-1.jsonl").read_bytes() == kept
    assert result["epsilon"] == finished[1]["epsilon"]
    one, two = (torch.load(p / "model.pt", weights_only=True) for p in (path, finished[0]))
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_killed_between_paying_and_keeping(tmp_path, monkeypatch):
    def killed(*_):
        raise MemoryError("killed")

    with monkeypatch.context() as patch:
        patch.setattr("winsor.app.runs.prepare.replace_file", killed)
        with pytest.raises(MemoryError):
            execute(config(NORM), tmp_path / "run", Quiet())
    with pytest.raises(RunError, match="what was spent stays spent"):
        execute(config(NORM), tmp_path / "run", Quiet())


def test_a_mistake_after_the_release_leaves_its_ledger(tmp_path):
    wrong = config({"name": "axes", "noise_multiplier": 5.0})  # rows without places
    with pytest.raises(ConfigurationError, match="places"):
        execute(wrong, tmp_path / "none", Quiet())
    assert not (tmp_path / "none").exists()
    both = config(NORM, {"name": "axes", "noise_multiplier": 5.0})
    with pytest.raises(ConfigurationError, match="places"):
        execute(both, tmp_path / "one", Quiet())
    assert len(Ledger.read(tmp_path / "one" / "prepared-0.jsonl")) == 1


@pytest.mark.parametrize("name", ["prepared-0.jsonl", "prepared-1.pt"])
def test_files_that_are_gone_or_changed_are_found(run, name):
    content = (run / name).read_bytes()
    (run / name).write_bytes(content + b"\n")
    assert any(name in line for line in disagreements(run))
    (run / name).unlink()
    assert any(name in line for line in disagreements(run))


def test_a_header_that_forgets_what_was_spent_is_found(run):
    """All lines written anew, so that the chain holds: the prepared ledgers still disagree."""
    old = Ledger.read(run / "ledger.jsonl")
    less = {**old.config, "before": old.config["before"][:1]}
    (run / "ledger.jsonl").unlink()
    new = Ledger(less, run / "ledger.jsonl")
    own = [pair for pair in old.history() if pair not in old.before]
    for event, count in own:
        new.record_many(next(iter(old.runs)), event, count)
    for name, (digest, _) in old.notes.items():
        new.note(name, digest)
    new.close()
    result = run / "result.json"
    result.write_text(result.read_text().replace(old.head, new.head))
    assert any("have not spent" in line for line in disagreements(run))


def test_a_header_with_a_negative_count_is_no_ledger(run):
    old = Ledger.read(run / "ledger.jsonl")
    event, _ = old.config["before"][0]
    with pytest.raises(ValueError, match="count -3"):
        Ledger({"before": [[event, -3]]})


def test_configurations_that_are_refused():
    cases = [
        ({"prepare": [{"name": "bleach"}]}, "prepare\\[0\\].name"),
        ({"prepare": [{"name": "norm"}]}, "prepare\\[0\\]: give either"),
        ({"prepare": [{**WHITE, "angle": 3}]}, "prepare\\[0\\].angle"),
        ({"prepare": [WHITE], "budget": {"noise_multiplier": 1.0}}, "budget.epsilon alone"),
        ({"prepare": [WHITE], "data": {"unit": "who"}}, "single rows"),
        ({"prepare": [WHITE], "rule": {"name": "embedding", "c_embedded": 1.0, "c_residual": 1.0,
          "basis": {"name": "RandomBasis", "k": 2}}}, "rule.basis"),
    ]  # fmt: skip
    for changes, words in cases:
        with pytest.raises(ConfigurationError, match=words):
            execute(from_table(table(**{"budget": BUDGET, **changes})), "/nowhere", Quiet())


def test_a_tuning_refuses_them():
    space = {"optimizer": {"lr": {"log_uniform": [0.1, 1.0]}}}
    given = {**table(budget=BUDGET, prepare=[WHITE]), "tune": {"space": space, "trials": 3}}
    with pytest.raises(ConfigurationError, match="left out of a tuning"):
        ConfiguredTuning.from_table(given)


def test_the_table_comes_back(tmp_path):
    one = config(NORM, WHITE)
    assert from_table(one.to_table()) == one
    assert from_table(json.loads(json.dumps(one.to_table()))).digest() == one.digest()
    assert from_table(tomllib.loads(one.to_toml())) == one


def test_replay_of_the_whole_run_finds_nothing(tmp_path):
    """Norm and whitening and every step: no row moves a release further than was paid for."""
    runs = iter(range(10_000))
    settings = config(
        NORM, WHITE, reproducible_noise=False, training={"steps": 3, "batch_size": 10},
        data={"options": {"rows": 30, "features": 4}}, budget={**BUDGET, "allow_large_delta": True},
    )  # fmt: skip

    def train(rows):
        data = Data(rows, None, (4,), 3, "rows")
        path = tmp_path / str(next(runs))
        execute(settings, path, Quiet(), load=lambda _: data)
        return torch.load(path / "model.pt", weights_only=True)

    generator = torch.Generator().manual_seed(0)
    rows = TensorDataset(
        torch.randn(30, 4, generator=generator), torch.randint(3, (30,), generator=generator)
    )
    report = replay(train, rows, rows=[3])
    report.assert_passed()
    assert report.releases == 6


def test_in_python_the_ledger_counts_what_was_before_if_asked():
    rows = torch.randn(300, 4, generator=torch.Generator().manual_seed(0))
    white = winsor.features.PrivateWhitening(noise_multiplier=5.0, delta=1e-4).fit(rows)

    def training(**options):
        model = torch.nn.Linear(4, 2)
        return winsor.make_private(
            model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            dataset=TensorDataset(white(rows), torch.zeros(300, dtype=torch.long)),
            rule=winsor.rules.Flat(1.0), batch_size=30, steps=5, epsilon=2.0, delta=1e-4,
            after=[white], **options,
        )  # fmt: skip

    alone, counted = training(), training(after_in_ledger=True)
    assert alone.noise_multiplier == counted.noise_multiplier
    assert counted.spent().epsilon == pytest.approx(white.guarantee_.epsilon, rel=1e-3)
    assert alone.spent().epsilon == 0.0
    assert any("counted" in words for words in counted.spent().conditions)


def test_prepared_needs_rows_in_memory(tmp_path):
    words = config(NORM)
    data = Data(TensorDataset(torch.ones(5, 3, dtype=torch.long)), None, (3,), 3, "")
    with pytest.raises(ConfigurationError, match="rows of numbers"):
        prepared(words, data, type("Somewhere", (), {"path": tmp_path})())


def test_the_image_example_on_digits(tmp_path):
    """The tables of examples/fashion_mnist.toml, all but the rows and the length of the run."""
    given = tomllib.loads((ROOT / "examples" / "fashion_mnist.toml").read_text())
    given["data"] = {"source": "digits", "shape": [1, 8, 8]}
    given["budget"] = {"epsilon": 6.0, "delta": 1e-4}
    given["training"] = {"sampling": "full", "steps": 20}
    given["record"] = {"evaluations": 1}
    given["reproducible_noise"] = True  # of twenty secret keys, one came close to the bound
    result = execute(from_table(given), tmp_path / "run", Quiet())
    assert result["held_out"]["accuracy"] > 0.8
    assert 5.9 < result["epsilon"] <= 6.0
    assert disagreements(tmp_path / "run") == []
