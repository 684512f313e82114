"""Runs of Table 1's network in lockstep are the library's own; its products are torch's."""

from __future__ import annotations

import pytest
import torch
from evaluated_weights import kept_weights
from torch import Tensor
from winsor_papers.reproductions.dc_dpsgd.descent import DescentTask, cross_entropy
from winsor_papers.reproductions.dc_dpsgd.lockstep import Member, has_stack, run_together
from winsor_papers.reproductions.dc_dpsgd.runs import private_run
from winsor_papers.reproductions.modelmix import scattering_stack
from winsor_papers.reproductions.modelmix.scattering_problem import scattering_cnn
from winsor_papers.reproductions.modelmix.scattering_stack import ScatteringStack
from winsor_papers.reproductions.modelmix.small_convolutions import ByTorch, library

from winsor.contrib.modelmix.mechanism import ModelMix
from winsor.gradients.loop import LoopEngine
from winsor.rules.flat import Flat


def _rows(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Some rows are as long as numbers may be, or empty."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 81, 7, 7, generator=generator)
    x[0], x[1] = 1e6 * x[0], 0.0
    return x, torch.randint(0, 10, (n,), generator=generator)


@pytest.fixture
def task() -> DescentTask:
    return DescentTask(
        "toy", _rows(60, 0), _rows(4, 1), scattering_cnn, batch_size=12, steps=4, delta=1e-4
    )


@pytest.mark.usefixtures("smooth_mixing")
def test_every_run_is_the_one_that_make_private_makes(
    task: DescentTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = kept_weights(monkeypatch)
    members = [
        Member(task.at_rate(4.0), Flat(0.1), 0.7, True),
        Member(task.at_rate(0.4), Flat(1.0), 0.9, True, ModelMix(((0, 0.05), (2, 0.025)))),
    ]
    assert has_stack(task)
    together = run_together(members, 3)
    alone = [private_run(m.task, m.rule, m.noise_multiplier, 3, m.ask, mix=m.mix) for m in members]
    for own, other in zip(seen[:2], seen[2:], strict=True):
        torch.testing.assert_close(own, other, rtol=1e-3, atol=2e-5)
    assert together == alone and all(epsilon > 0 for _, epsilon in together)


@pytest.mark.parametrize("compiled", [True, False])
def test_norms_and_sums_are_those_of_the_oracle(
    task: DescentTask, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled:
        monkeypatch.setattr(scattering_stack, "fastest", ByTorch)
    monkeypatch.setattr(scattering_stack, "CHUNK", 5)  # so that a batch has two parts
    stack = ScatteringStack(task, 2, seed=0)
    assert compiled != isinstance(stack.products, ByTorch)
    stack.flat[1] += 0.1 * torch.randn(
        stack.flat.shape[1], generator=torch.Generator().manual_seed(0)
    )
    x, y = (part[:8] for part in task.train)
    with torch.no_grad():
        view = stack.forward(x, y, *stack.alongside(x), 0.0).view(1)
        weights = torch.linspace(0, 1, 8)
        found = view.weighted_sum(weights)
    model = stack.model(1)
    losses = cross_entropy(model(x), y, 0.0)
    oracle = LoopEngine(model, dict(model.named_parameters())).view(losses)
    torch.testing.assert_close(view.norms(), oracle.norms(), rtol=1e-4, atol=1e-6)
    for name, expected in oracle.weighted_sum(weights).items():
        scale = float(expected.abs().max())
        torch.testing.assert_close(
            found[name], expected, rtol=1e-3, atol=1e-5 * scale + 1e-7, msg=name
        )


def test_a_row_that_is_not_finite_adds_nothing(task: DescentTask) -> None:
    stack = ScatteringStack(task, 1, seed=0)
    x, y = (part[:6].clone() for part in task.train)
    with torch.no_grad():
        x[3] = float("nan")
        view = stack.forward(x, y, *stack.alongside(x), 0.0).view(0)
        with_it = view.weighted_sum(torch.ones(6))
        assert view.neutralised == 1 and view.norms()[3] == 0
        others = [i for i in range(6) if i != 3]
        kept = (x[others], y[others], *stack.alongside(x[others]))
        without = stack.forward(*kept, 0.0).view(0).weighted_sum(torch.ones(5))
    torch.testing.assert_close(with_it.flat, without.flat, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [0, 1])
def test_short_vectors_give_what_long_ones_give(kind: int) -> None:
    found = library()
    assert found is not None
    generator = torch.Generator().manual_seed(kind)
    shape, outs = ((9, 81, 7, 7), 16) if kind == 0 else ((9, 16, 16), 32)
    x, e = (torch.randn(s, generator=generator) for s in (shape, (9, 16, outs)))
    weight = torch.randn(outs, shape[1] if kind == 0 else 16, 3, 3, generator=generator)
    seen = []
    for floats in (8, 16):
        found.use(floats)  # 16 where the processor has them
        seen.append([found.forward(kind, x, weight, torch.ones(outs))])
        seen[-1] += found.summed(kind, x, e, torch.full((9,), 0.5))
        if kind == 1:
            seen[-1] += [found.back(e, weight), found.squares(x, e)]
    for one, other in zip(*seen, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-4)
