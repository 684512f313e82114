"""The released iterate: last, averaged or random; and projection onto a ball."""

from __future__ import annotations

import io
import math
from collections import Counter

import pytest
import torch
from torch import nn

from winsor.core.contract import ConfigurationError, ProtocolError
from winsor.training.iterates import KINDS, Ball, Iterates, first_counted, iterate_weights


def tree(value):
    return {"w": torch.full((2, 2), float(value)), "b": torch.tensor([-float(value)])}


def after_steps(iterates, last, start=0):
    for step in range(start, last + 1):
        iterates.update(step, tree(step))
    return iterates


def test_last_is_what_the_model_is_now():
    model = nn.Linear(2, 1)
    iterates = Iterates()
    iterates.update(0, dict(model.named_parameters()))
    with torch.no_grad():
        model.weight.fill_(7.0)
    iterates.update(1, dict(model.named_parameters()))
    result = iterates.result()
    assert result["weight"].eq(7.0).all()
    assert not result["weight"].requires_grad
    with torch.no_grad():
        model.weight.fill_(8.0)
    assert result["weight"].eq(7.0).all()


def test_the_average_is_the_mean():
    assert after_steps(Iterates("averaged"), 10).result()["w"].eq(5.0).all()
    assert after_steps(Iterates("averaged"), 10).result()["b"].eq(-5.0).all()
    assert after_steps(Iterates("averaged", first=8), 10).result()["w"].eq(9.0).all()
    assert after_steps(Iterates("averaged"), 3, start=1).result()["w"].eq(2.0).all()


def test_the_average_of_many_steps_does_not_drift():
    iterates = Iterates("averaged")
    for step in range(5000):
        iterates.update(step, {"w": torch.tensor([1.0 + 1e-3 * (-1) ** step])})
    assert abs(float(iterates.result()["w"]) - 1) < 2e-7


def test_a_random_iterate_is_uniform():
    draws = Counter(
        int(after_steps(Iterates("random", seed=seed), 4).result()["w"][0, 0])
        for seed in range(2000)
    )
    assert set(draws) == {0, 1, 2, 3, 4}
    deviation = math.sqrt(2000 * 0.2 * 0.8)
    assert all(abs(count - 400) < 4.5 * deviation for count in draws.values())


def test_a_random_iterate_is_one_that_occurred_and_keeps_its_value():
    iterates, live = Iterates("random", seed=1), {"w": torch.zeros(2)}
    seen = set()
    for step in range(30):
        live["w"].fill_(float(step))
        iterates.update(step, live)
        seen.add(float(iterates.result()["w"][0]))
    assert seen <= set(map(float, range(30)))
    assert len(seen) > 1


# ------------------------------------------------------------------- the weights of the theorems

WEIGHTS = {  # of w_-1, w_0, ..., w_4, by hand from the papers' lines
    "last": (0, 0, 0, 0, 0, 1),
    "averaged": (0, 1 / 5, 1 / 5, 1 / 5, 1 / 5, 1 / 5),
    "random": (0, 1 / 5, 1 / 5, 1 / 5, 1 / 5, 1 / 5),  # paper 3: i uniform on {0, ..., T}
    "averaged_before_last": (0, 1 / 4, 1 / 4, 1 / 4, 1 / 4, 0),  # paper 4: k = 0, ..., N - 1
    "random_before_last": (0, 1 / 4, 1 / 4, 1 / 4, 1 / 4, 0),  # paper 5, (13): k = 0, ..., T - 1
    "averaged_after_start": (0, 0, 1 / 4, 1 / 4, 1 / 4, 1 / 4),  # paper 2, (6): t = 1, ..., T
    "averaged_midpoints": (1 / 8, 1 / 4, 1 / 4, 1 / 4, 1 / 8, 0),  # paper 5, Theorem 3.1
    "tail": (0, 0, 0, 1 / 3, 1 / 3, 1 / 3),
    "ema": (  # shares 9/11, 9/12, 9/13, 9/14 of what is left, from the last one backwards
        0,
        5 / 14 * 4 / 13 * 3 / 12 * 2 / 11,
        5 / 14 * 4 / 13 * 3 / 12 * 9 / 11,
        5 / 14 * 4 / 13 * 9 / 12,
        5 / 14 * 9 / 13,
        9 / 14,
    ),
}


def test_the_weights_are_those_of_the_theorems():
    assert set(WEIGHTS) == set(KINDS)
    for kind, weights in WEIGHTS.items():
        found = iterate_weights(kind, 4)
        assert list(found) == [-1, 0, 1, 2, 3, 4]
        assert list(found.values()) == pytest.approx(weights)


def test_theorem_3_1_of_paper_5_by_its_own_sum():
    w = {k: float(10**k) for k in range(-1, 6)}
    steps = 5
    printed = sum(w[k - 1] + w[k - 2] for k in range(1, steps + 1)) / (2 * steps)
    weights = iterate_weights("averaged_midpoints", steps)
    assert sum(weights[k] * w[k] for k in w) == pytest.approx(printed)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.startswith("averaged")])
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_averages_have_these_weights(kind, steps):
    generator = torch.Generator().manual_seed(4)
    w = {k: torch.randn(3, generator=generator) for k in range(-1, steps + 1)}
    iterates = Iterates(kind, before={"w": w[-1]})
    for k in range(steps + 1):
        iterates.update(k, {"w": w[k]})
    wanted = sum(weight * w[k].double() for k, weight in iterate_weights(kind, steps).items())
    torch.testing.assert_close(iterates.result()["w"].double(), wanted, rtol=0, atol=1e-6)


def test_without_an_earlier_iterate_the_start_counts_for_it():
    iterates = after_steps(Iterates("averaged_midpoints"), 2)
    assert iterates.result()["w"].eq((0 + 0 + 0 + 1) / 4).all()


def test_a_random_iterate_before_the_last():
    seeds = range(1500)
    draws = Counter(
        int(after_steps(Iterates("random_before_last", seed=seed), 3).result()["w"][0, 0])
        for seed in seeds
    )
    assert set(draws) == {0, 1, 2}
    deviation = math.sqrt(1500 * 2 / 9)
    assert all(abs(count - 500) < 4.5 * deviation for count in draws.values())


def test_kinds_without_the_last_iterate_need_a_step():
    for kind in ("averaged_before_last", "random_before_last", "averaged_midpoints"):
        iterates = after_steps(Iterates(kind), 0)
        with pytest.raises(ProtocolError, match="step >= 1"):
            iterates.result()


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_releases_the_same_model(kind):
    whole = after_steps(Iterates(kind, seed=3), 20).result()
    first = after_steps(Iterates(kind, seed=3), 11)
    buffer = io.BytesIO()
    torch.save(first.state_dict(), buffer)
    buffer.seek(0)
    resumed = Iterates(kind)
    resumed.load_state_dict(torch.load(buffer, weights_only=True))
    result = after_steps(resumed, 20, start=12).result()
    for name, value in whole.items():
        assert torch.equal(result[name], value)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "last"])
def test_a_checkpoint_is_enough_to_release_the_model(kind):
    first = after_steps(Iterates(kind, seed=3), 11)
    loaded = Iterates(kind)
    loaded.load_state_dict(first.state_dict())
    for name, value in first.result().items():
        assert loaded.result()[name].dtype == torch.float32
        assert torch.equal(loaded.result()[name], value)


def test_the_state_is_a_copy():
    iterates = after_steps(Iterates("averaged"), 2)
    state = iterates.state_dict()
    after_steps(iterates, 9, start=3)
    assert state["kept"]["w"].eq(1.0).all()


def test_steps_must_follow_each_other():
    iterates = after_steps(Iterates("averaged"), 3)
    for step in (3, 5):
        with pytest.raises(ProtocolError, match="expected step 4"):
            iterates.update(step, tree(0))
    with pytest.raises(ProtocolError, match="no iterate yet"):
        Iterates("averaged").result()
    with pytest.raises(ProtocolError, match="step >= 5"):
        after_steps(Iterates("random", first=5), 4).result()


def test_options_are_checked():
    with pytest.raises(ConfigurationError, match="iterate must be one of"):
        Iterates("best")
    with pytest.raises(ConfigurationError, match="first must be"):
        Iterates("last", first=-1)
    with pytest.raises(ConfigurationError, match="checkpoint must be of kind 'last'"):
        Iterates("last").load_state_dict(Iterates("random").state_dict())
    for radius in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ConfigurationError, match="radius must be"):
            Ball(radius)


def test_projection_is_the_nearest_point():
    inside = {"w": torch.tensor([0.3]), "b": torch.tensor([0.4])}
    Ball(1.0).project_(inside)
    assert float(inside["w"]) == pytest.approx(0.3)
    outside = {"w": torch.tensor([30.0]), "b": torch.tensor([40.0])}
    Ball(1.0).project_(outside)
    assert float(outside["w"]) == pytest.approx(0.6)
    assert float(outside["b"]) == pytest.approx(0.8)


def test_projection_around_a_centre_works_on_parameters_in_place():
    model = nn.Linear(3, 2)
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    ball = Ball(0.5, centre=dict(model.named_parameters()))
    with torch.no_grad():
        model.weight += 10.0
    ball.project_(dict(model.named_parameters()))
    moved = torch.cat([(p.detach() - start[n]).flatten() for n, p in model.named_parameters()])
    assert float(moved.norm()) == pytest.approx(0.5, rel=1e-5)
    assert model.weight.requires_grad
    torch.testing.assert_close(moved[:6], torch.full((6,), 0.5 / math.sqrt(6)))


def test_the_moving_average_and_the_tail_weigh_as_they_say():
    values = [3.0, -1.0, 4.0, 1.0, -5.0, 9.0, 2.0]
    steps = len(values) - 1
    for kind in ("ema", "tail"):
        iterates = Iterates(kind, first=first_counted(kind, steps))
        for step, value in enumerate(values):
            iterates.update(step, {"w": torch.tensor([value], dtype=torch.float64)})
        weights = iterate_weights(kind, steps)
        assert sum(weights.values()) == pytest.approx(1)
        expected = sum(weights[step] * value for step, value in enumerate(values))
        assert float(iterates.result()["w"]) == pytest.approx(expected)
    assert [k for k, w in iterate_weights("tail", 6).items() if w] == [3, 4, 5, 6]
    assert iterate_weights("ema", 3)[3] == pytest.approx(9 / 13)


def test_a_run_releases_its_tail():
    import winsor

    model = nn.Linear(3, 2)
    x = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
    private = winsor.make_private(
        model=model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
        dataset=torch.utils.data.TensorDataset(x, (x[:, 0] > 0).long()),
        rule=winsor.rules.Flat(1.0), batch_size=50, steps=4, noise_multiplier=1.0, delta=1e-3,
        iterate="tail", seed=0,
    )  # fmt: skip
    seen = []
    for rows, labels in private.batches():
        private.step(nn.functional.cross_entropy(model(rows), labels, reduction="none"))
        seen.append(model.weight.detach().clone())
    torch.testing.assert_close(model.weight.detach(), torch.stack(seen[1:]).mean(0))
