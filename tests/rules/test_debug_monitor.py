"""The debug monitor sees everything, changes nothing, and says that it is not private."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import winsor
from winsor.core.contract import PrivacyLeakWarning
from winsor.rules import Averaged, Flat, Quantile, Value
from winsor.rules.debug_monitor import DebugMonitor


def watched(rule) -> DebugMonitor:
    with pytest.warns(PrivacyLeakWarning, match="NOT PRIVATE"):
        return DebugMonitor(rule)


def run(rule, steps=5, **changes):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(120, 5, generator=generator) * torch.linspace(0.1, 5, 120)[:, None]
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2))
    private = winsor.make_private(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
        dataset=TensorDataset(x, (x[:, 0] > 0).long()),
        rule=rule,
        noise_multiplier=1.0,
        delta=1e-3,
        batch_size=30,
        steps=steps,
        seed=0,
        **changes,
    )
    for batch in private.batches():
        private.step(F.cross_entropy(model(batch[0]), batch[1], reduction="none"))
    return private


def weights(private) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in private.model.parameters()])


@pytest.mark.parametrize(
    "rule",
    [Flat(0.5), Quantile(0.5), Averaged(0.5), Value(0.5), Value(0.5, form="value")],
    ids=repr,
)
def test_it_changes_no_random_draw_and_no_event(rule):
    plain = run(rule)
    rng = torch.get_rng_state()
    debug = run(watched(rule))
    assert torch.equal(weights(plain), weights(debug))
    assert torch.equal(rng, torch.get_rng_state())
    assert plain.spent() == winsor.Guarantee(
        **{**debug.spent().__dict__, "conditions": plain.spent().conditions}
    )
    assert plain.rule_state.keys() == debug.rule_state.keys()


def test_records_are_exact_and_join_fragments():
    rule = watched(Flat(0.5))
    private = run(rule, steps=1, max_physical_batch_size=7)
    (record,) = rule.records
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2))
    data, rows = private._feed.dataset, private.sampler.indices(private._feed.key, 0)
    grads = []
    for i in rows:
        x, y = data[int(i)]
        model.zero_grad()
        F.cross_entropy(model(x[None]), y[None]).backward()
        grads.append(torch.cat([p.grad.reshape(-1) for p in model.parameters()]).numpy())
    grads = np.stack(grads).astype(np.float64)
    norms = np.linalg.norm(grads, axis=1)
    clip = np.minimum(1, 0.5 / norms)
    total = np.linalg.norm((clip[:, None] * grads).sum(0))
    assert record.rows == len(rows) > 7
    assert record.quantiles[0.5] == pytest.approx(np.median(norms), rel=1e-4)
    assert record.largest == pytest.approx(norms.max(), rel=1e-4)
    assert record.clip_fraction == pytest.approx(np.mean(norms > 0.5))
    assert record.clipping_bias == pytest.approx(np.mean((1 - clip) * norms), rel=1e-3)
    assert record.effective_batch == pytest.approx(clip.sum() ** 2 / (clip**2).sum(), rel=1e-4)
    noise = 0.5 * np.sqrt(grads.shape[1])
    assert record.noise_to_signal == pytest.approx(noise / total, rel=1e-3)
    assert sum(record.layer_shares.values()) == pytest.approx(1.0)


def test_every_output_is_marked():
    rule = watched(Flat(0.5))
    private = run(rule, steps=2)
    for record in rule.records:
        assert str(record).startswith("NOT PRIVATE | ")
        assert repr(record).startswith("NOT PRIVATE | ")
        assert record.private is False
        assert json.loads(json.dumps(record.to_json()))["NOT PRIVATE"] is True
    assert "NOT PRIVATE" in repr(rule)
    assert "NOT PRIVATE" in private.spent().conditions[0]


def test_an_adaptive_threshold_is_followed():
    rule = watched(Quantile(50.0))
    run(rule, steps=40)
    last = rule.records[-1]
    assert last.largest < 50.0  # nothing would be clipped where the threshold started
    assert last.clip_fraction > 0


def test_attributes_are_those_of_the_rule():
    rule = watched(Quantile(0.7))
    assert rule.max_grad_norm == 0.7
    with pytest.raises(AttributeError):
        rule._nothing  # noqa: B018


def test_value_clipping_is_watched_by_its_own_bounds():
    """There are no norms: the certified bounds are recorded, which lie above them."""
    exact, bounds = watched(Flat(0.5)), watched(Value(0.5, form="value"))
    run(exact, steps=1)
    run(bounds, steps=1)
    assert bounds.records[0].rows == exact.records[0].rows
    assert bounds.records[0].quantiles[0.5] > exact.records[0].quantiles[0.5]
    assert bounds.records[0].clip_fraction >= exact.records[0].clip_fraction > 0
