"""Runs in lockstep are the library's own: the same seed, the same weights."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from evaluated_weights import kept_weights
from torch import nn
from winsor_papers.reproductions.cells import read_journal
from winsor_papers.reproductions.dc_dpsgd import lockstep
from winsor_papers.reproductions.dc_dpsgd.descent import Descent, DescentTask, cross_entropy
from winsor_papers.reproductions.dc_dpsgd.lockstep import Member, Stack, run_together
from winsor_papers.reproductions.dc_dpsgd.methods import DcSetting
from winsor_papers.reproductions.dc_dpsgd.runs import noise_for, private_run, private_runs, tuned
from winsor_papers.reproductions.queue import cells_folder, run_table
from winsor_papers.reproductions.reproduction import Line, Reproduced, Request
from winsor_papers.reproductions.training_runs import TrainingRecipe, gaussian_classes, train

from winsor.contrib.modelmix.mechanism import ModelMix
from winsor.rules.automatic import PSAC, Automatic
from winsor.rules.averaged import Averaged
from winsor.rules.coordinates import LInf
from winsor.rules.discriminative import Discriminative, Subspace
from winsor.rules.flat import Flat
from winsor.rules.rule import Rule
from winsor.training.iterates import Ball
from winsor.training.losses import LdamDrw

SETTING = DcSetting(k=20)
RULES: tuple[Rule, ...] = (
    Flat(0.5),
    Automatic(0.5),
    PSAC(0.5),
    SETTING.rule(),
    replace(SETTING, theta=0.5, k=33).rule(),
    Discriminative(1.0, 0.1, selection="trace", subspace=Subspace(k=20, refresh=3)),
    SETTING.by_coin(),
    SETTING.by_norm(),
    SETTING.by_loss(),
    Discriminative(1.0, 0.1, selection="loss", threshold=1.0),
)


@pytest.fixture(scope="module")
def task() -> DescentTask:
    train, test = gaussian_classes(n=300, dimension=30, classes=4, seed=0)
    train[0][:5] *= 1e4  # rows that everything would follow if they were not clipped
    return DescentTask(
        "toy", train, test, lambda: nn.Linear(30, 4), batch_size=20, steps=12, delta=1e-4,
        descent=Descent(2.0), loss=LdamDrw((100, 50, 20, 10)),
    )  # fmt: skip


def test_every_run_is_the_one_that_make_private_makes(
    task: DescentTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    descents = (Descent(2.0), Descent(0.5, momentum=0.9), Descent(1.0, cosine=True))
    members = [
        Member(replace(task, descent=descents[place % 3]), rule, 0.7 + 0.1 * place, True)
        for place, rule in enumerate(RULES)
    ]
    seen = kept_weights(monkeypatch)
    together = run_together(members, seed=3)
    alone = [private_run(m.task, m.rule, m.noise_multiplier, 3, True) for m in members]
    ours, theirs = seen[: len(members)], seen[len(members) :]
    for member, own, other in zip(members, ours, theirs, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-5, msg=repr(member.rule))
    assert [epsilon for _, epsilon in together] == [epsilon for _, epsilon in alone]


@pytest.mark.usefixtures("smooth_mixing")
@pytest.mark.parametrize(
    ("rule", "mix", "radius"),
    [
        (Averaged(0.05), None, None),
        (Averaged(3.0), None, 0.7),
        (LInf(0.5, 40), ModelMix(0.15), None),
        (LInf(20.0, 4), ModelMix(((0, 0.1), (5, 0.02))), None),
        (LInf(0.5, 9), None, 0.7),
    ],
)
def test_papers_4_and_5_are_the_library_s_too(
    task: DescentTask,
    monkeypatch: pytest.MonkeyPatch,
    rule: Rule,
    mix: ModelMix | None,
    radius: float | None,
) -> None:
    """Means are clipped, coordinates cut, iterates mixed and projected as in a run of its own."""
    seen = kept_weights(monkeypatch)
    plain = replace(task, loss=cross_entropy)
    torch.manual_seed(4)
    ball = None if radius is None else Ball(radius, dict(task.model().named_parameters()))
    looks: list[int] = []
    member = Member(plain, rule, 0.6, True, mix, radius)
    (found,) = run_together([member], 4, lambda _, step, __: looks.append(step), every=5)
    recipe = TrainingRecipe(rule, 2.0, noise_multiplier=0.6, mechanism=mix, ball=ball)
    alone = train(plain, recipe, 4)
    torch.testing.assert_close(seen[0], seen[1], rtol=1e-4, atol=1e-5)
    assert found[1] == alone.epsilon
    assert looks == [5, 10]


def test_only_tall_coordinates_are_cut(task: DescentTask) -> None:
    """The bound binds: without the cut the sum would be another one."""
    stack = Stack(task, 1, seed=0)
    x, y = (part[:8] for part in task.train)
    rule = LInf(0.5, 40)
    sums = []
    for cut in (True, False):
        seen = stack.forward(x, y, 0.0)
        view = lockstep.HeadView(seen, 0)
        tree = (
            view.cut(rule)["grad"] if cut else view.weighted_sum(rule.weight_of_norm(view.norms()))
        )
        seen.add_up()
        sums.append(tree)
    assert not torch.allclose(sums[0]["weight"], sums[1]["weight"], atol=1e-3)
    assert float(sums[0]["bias"].abs().max()) <= 8 * rule.coordinate_bound


def test_a_batch_without_rows_is_a_step_of_noise(
    task: DescentTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    sparse = replace(task, batch_size=1, steps=8)  # a third of such batches are empty
    seen = kept_weights(monkeypatch)
    run_together([Member(sparse, rule, 1.0, False) for rule in RULES], seed=1)
    for rule in RULES:
        private_run(sparse, rule, 1.0, 1, False)
    torch.testing.assert_close(seen[: len(RULES)], seen[len(RULES) :], rtol=1e-4, atol=1e-5)


def test_runs_do_not_see_each_other(task: DescentTask, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = kept_weights(monkeypatch)
    one, other = Member(task, RULES[3], 1.0, False), Member(task, RULES[0], 5.0, False)
    run_together([one], seed=2)
    run_together([other, one, other], seed=2)
    torch.testing.assert_close(seen[0], seen[2], rtol=1e-5, atol=1e-6)
    assert not torch.allclose(seen[0], seen[1])
    assert torch.equal(seen[1], seen[3])


def test_sums_are_there_only_after_they_were_added_up(task: DescentTask) -> None:
    stack = Stack(task, 2, seed=0)
    x, y = (part[:6] for part in task.train)
    seen = stack.forward(x, y, 0.0)
    view = lockstep.HeadView(seen, 1)
    tree = view.weighted_sum(torch.ones(6))
    seen.add_up()
    model = stack.model(1)
    task.loss(model(x), y, 0.0).sum().backward()
    assert model.weight.grad is not None and model.bias.grad is not None
    torch.testing.assert_close(tree["weight"].float(), model.weight.grad)
    torch.testing.assert_close(tree["bias"].float(), model.bias.grad)


def test_a_table_works_for_its_cells_in_teams(task: DescentTask, tmp_path: Path) -> None:
    """First the rates, all at once; then the seeds at the best of them, and nothing else."""
    trying = replace(task, tried=(0.5, 2.0))
    rules = {"flat": Flat(0.5), "rank": SETTING.rule()}

    def table(request: Request) -> Reproduced:
        lines = []
        for name, rule in rules.items():
            noise = noise_for(task, rule, 8.0)

            def run(at: DescentTask, seeds: object, rule: Rule = rule, noise: float = noise):  # type: ignore[no-untyped-def]
                return private_runs(at, rule, noise, seeds)  # type: ignore[arg-type]

            at, _ = tuned(trying, name, run)
            found = run(at, (1, 2))
            lines.append(Line({"rule": name}, certified=found.measured))
        return Reproduced("toy", "accuracy", tuple(lines), "", {})

    found = run_table(tmp_path, ("dc-dpsgd", "toy"), table, Request(), math.inf)
    assert found is not None
    records = read_journal(cells_folder(tmp_path) / "dc-dpsgd-toy.jsonl")
    assert len(records) == 8  # two rules, two rates with one seed, then one rate with two
    assert [record["together"] for record in records] == [2] * 4 + [1] * 4
    again = run_table(tmp_path, ("dc-dpsgd", "toy"), table, Request(), math.inf)
    assert again == found
    alone = table(Request())
    for ours, theirs in zip(found.lines, alone.lines, strict=True):
        assert ours.certified is not None and theirs.certified is not None
        assert ours.certified.mean == pytest.approx(theirs.certified.mean, abs=0.5)
