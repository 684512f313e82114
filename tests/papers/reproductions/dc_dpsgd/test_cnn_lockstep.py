"""Runs of the CNN in lockstep are the library's own; its gradients are those of the oracle."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from evaluated_weights import kept_weights
from torch import Tensor
from winsor_papers.reproductions.dc_dpsgd import cnn_rows
from winsor_papers.reproductions.dc_dpsgd.cnn_lockstep import CnnBackward, CnnStack
from winsor_papers.reproductions.dc_dpsgd.cnn_rows import ByTorch, Margins, library
from winsor_papers.reproductions.dc_dpsgd.descent import Descent, DescentTask, cross_entropy
from winsor_papers.reproductions.dc_dpsgd.lockstep import Member, run_together
from winsor_papers.reproductions.dc_dpsgd.methods import DcSetting
from winsor_papers.reproductions.dc_dpsgd.runs import SeedOutcomes, private_run, tuned

from winsor.gradients.loop import LoopEngine
from winsor.models.networks import two_layer_cnn
from winsor.rules.automatic import PSAC, Automatic
from winsor.rules.flat import Flat
from winsor.rules.rule import Rule
from winsor.training.losses import LdamDrw

SETTING = DcSetting(k=200)
RULES: tuple[Rule, ...] = (
    Flat(0.1),
    Automatic(0.1),
    PSAC(0.1),
    SETTING.rule(),
    SETTING.by_coin(),
    SETTING.by_norm(),
    SETTING.by_loss(),
)


def _images(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Bright squares on black, as digits are; the first rows are as long as numbers may be."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.zeros(n, 1, 28, 28)
    x[:, :, 5:22, 6:20] = torch.rand(n, 1, 17, 14, generator=generator)
    x[0], x[1], x[2] = 1e6 * x[0], 0.0, 1.0
    return x, torch.randint(0, 10, (n,), generator=generator)


@pytest.fixture
def task() -> DescentTask:
    return DescentTask(
        "toy", _images(60, 0), _images(4, 1), two_layer_cnn, batch_size=12, steps=4, delta=1e-4,
        descent=Descent(1.0), loss=LdamDrw((100, 90, 80, 70, 60, 50, 40, 30, 20, 10)),
    )  # fmt: skip


def _same(
    members: list[Member], seed: int, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[float, float]]:
    seen = kept_weights(monkeypatch)
    together = run_together(members, seed)
    alone = [private_run(m.task, m.rule, m.noise_multiplier, seed, m.ask) for m in members]
    for member, own, other in zip(members, seen[: len(members)], seen[len(members) :], strict=True):
        torch.testing.assert_close(own, other, rtol=1e-3, atol=2e-5, msg=repr(member.rule))
    torch.testing.assert_close(together, alone, rtol=0, atol=0, equal_nan=True)
    return together


def test_every_run_is_the_one_that_make_private_makes(
    task: DescentTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    descents = (Descent(1.0), Descent(0.5, momentum=0.9), Descent(1.0, cosine=True))
    members = [
        Member(replace(task, descent=descents[place % 3]), rule, 0.7 + 0.1 * place, True)
        for place, rule in enumerate(RULES)
    ]
    found = _same(members, 3, monkeypatch)
    assert all(epsilon > 0 for _, epsilon in found)


def test_a_batch_without_rows_is_a_step_of_noise(
    task: DescentTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    sparse = replace(task, batch_size=1, loss=cross_entropy)  # a third of such batches are empty
    _same([Member(sparse, rule, 1.0, False) for rule in RULES], 1, monkeypatch)


def test_long_vectors_give_the_gradients_of_short_ones(task: DescentTask) -> None:
    found = library()
    assert found is not None
    (x, y), flat = _images(9, 2), CnnStack(task, 1, seed=0).flat[0]
    loss = Margins(2.0, torch.rand(10), torch.ones(10))
    v = torch.randn(256, 9)
    seen = []
    for floats in (8, 16):
        found.use(floats)  # 16 where the processor has them
        made = found.gradients(x, y, flat, loss)
        along = [found.along(made.rows, place, part) for place, part in ((0, v[:64]), (4, v))]
        kept = made.rows, made.squares, made.losses, *sum(made.linear, ())
        seen.append([*(part.clone() for part in kept), *along])
    assert all(torch.equal(*pair) for pair in zip(*seen, strict=True))


@pytest.mark.parametrize("compiled", [True, False])
def test_norms_sketches_and_sums_are_those_of_the_oracle(
    task: DescentTask, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled:
        monkeypatch.setattr(cnn_rows, "library", lambda: None)
    stack = CnnStack(task, 2, seed=0)
    stack.flat[1] += 0.1 * torch.randn(
        stack.flat.shape[1], generator=torch.Generator().manual_seed(0)
    )
    x, y = (part[:6] for part in task.train)
    with torch.no_grad():
        view = stack.forward(x, y, 0.9).view(1)
        weights, directions = torch.linspace(-1, 2, 6), SETTING.rule().subspace.directions(7)
        norms, sketch, total = view.norms(), view.sketch(directions), view.weighted_sum(weights)
    model = stack.model(1)
    oracle = LoopEngine(model, dict(model.named_parameters())).view(task.loss(model(x), y, 0.9))
    torch.testing.assert_close(norms, oracle.norms(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(sketch, oracle.sketch(directions), rtol=1e-3, atol=1e-4)
    for name, expected in oracle.weighted_sum(weights).items():
        torch.testing.assert_close(total[name], expected, rtol=1e-3, atol=1e-4, msg=name)


def test_rows_that_are_not_finite_count_for_nothing(task: DescentTask) -> None:
    x, y = (part[:8].clone() for part in task.train)
    x[3, 0, 9, 9], x[5] = float("nan"), float("inf")
    stack = CnnStack(task, 1, seed=0)
    good = [0, 1, 2, 4, 6, 7]
    with torch.no_grad():
        whole = stack.forward(x, y, 0.0).view(0)
        norms, total = whole.norms(), whole.weighted_sum(torch.ones(8))
        losses = whole.losses().clone()  # what follows overwrites it
        rest = stack.forward(x[good], y[good], 0.0).view(0)
    assert whole.neutralised == 2 and losses[[3, 5]].tolist() == [0.0, 0.0]
    assert norms[[3, 5]].tolist() == [0.0, 0.0]
    torch.testing.assert_close(norms[good], rest.norms())
    torch.testing.assert_close(total.flat, rest.weighted_sum(torch.ones(6)).flat)


def test_training_without_privacy_has_the_gradient_of_backward(task: DescentTask) -> None:
    model = two_layer_cnn()
    x, y = (part[:9] for part in task.train)
    task.loss(model(x), y, 0.9).mean().backward()
    expected = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    state = torch.get_rng_state()
    CnnBackward(task, model)(x, y, 0.9)
    assert torch.equal(state, torch.get_rng_state())
    found = [p.grad for p in model.parameters()]
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)


def test_a_trial_is_a_short_run_at_the_noise_of_a_long_one(task: DescentTask) -> None:
    trying = replace(task, tried=(0.5, 2.0, 8.0), tried_for=0.5, steps=3)
    taken: list[tuple[float, int, int]] = []

    def run(at: DescentTask, seeds: object) -> SeedOutcomes:
        taken.append((at.descent.lr, at.taken, at.steps))
        in_short, in_long = {0.5: 7, 2.0: 9, 8.0: 8}, {0.125: 8.5, 0.5: 9, 2.0: 8}
        return SeedOutcomes(((in_short if at.taken < 3 else in_long)[at.descent.lr],), 1.0, 1.0)

    best, curve = tuned(trying, "any", run)
    whole = [(0.5, 3, 3), (2.0, 3, 3), (0.125, 3, 3)]  # lower as long as that helps
    assert taken == [(0.5, 2, 3), (2.0, 2, 3), (8.0, 2, 3), *whole]
    assert (best.descent.lr, best.taken) == (0.5, 3)
    assert curve.endswith("; whole runs 0.125: 8.50, 0.5: 9.00, 2: 8.00")
    counted: list[int] = []
    run_together(
        [Member(trying.for_trial(), Flat(1.0), 1.0, False)],
        0,
        lambda _, step, __: counted.append(step),
    )
    assert counted == [1, 2]


def test_the_library_in_c_is_there_and_does_what_torch_does() -> None:
    found = library()
    assert found is not None  # CI has a compiler
    x, y = _images(5, 2)
    flat = torch.cat([p.detach().flatten() for p in two_layer_cnn().parameters()])
    loss = Margins.of(cross_entropy, 0.0)
    assert loss is not None
    ours, theirs = (maker.gradients(x, y, flat, loss) for maker in (found, ByTorch()))
    torch.testing.assert_close(ours.rows, theirs.rows, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(ours.losses, theirs.losses)


@pytest.mark.parametrize("progress", [0.0, 0.9])
def test_losses_are_those_of_the_task(task: DescentTask, progress: float) -> None:
    logits, labels = torch.randn(9, 10), torch.arange(9)
    for loss in (task.loss, cross_entropy, replace(task.loss, scale=3.0)):  # type: ignore[type-var]
        known = Margins.of(loss, progress)
        assert known is not None
        torch.testing.assert_close(known(logits, labels), loss(logits, labels, progress))
    assert Margins.of(lambda *_: logits, progress) is None
