"""Which rules may be given a part of a sum: those that never look at it."""

import pytest
import torch

from winsor.core.buffers import PartTree
from winsor.rules import all_examples
from winsor.rules.averaged import Averaged
from winsor.rules.flat import Flat
from winsor.rules.per_layer import PerLayer
from winsor.rules.quantile import Quantile
from winsor.tails import PrivateMonitor
from winsor.training.ranks.shard_sums import Part, ShardingRanks

BLIND = [rule for rule in all_examples() if not rule.bound_reads_sum]
PARAMETERS = {"a": torch.zeros(3, 2), "b": torch.zeros(3)}


class Unseen(PartTree):
    """A sum that nobody may look at."""

    def _refuse(self, *_):
        raise AssertionError("the rule looks at the sum")

    __getitem__ = __iter__ = __len__ = values = items = keys = get = _refuse


@pytest.mark.parametrize("rule", BLIND, ids=repr)
def test_a_rule_that_gets_parts_never_looks_at_them(rule):
    state = rule.init(PARAMETERS, 10.0)
    unseen = Unseen()
    parts = rule.bounded({"grad": unseen, "count": torch.tensor(1.0)}, state)
    assert parts["grad"].value is unseen
    assert set(parts) <= {"grad", "count"}


class Halved(Flat):
    def bounded(self, sums, state):
        return super().bounded({"grad": {n: leaf / 2 for n, leaf in sums["grad"].items()}}, state)


def test_rules_that_look_at_the_sum_get_it_whole():
    assert {type(rule) for rule in BLIND} >= {Flat, Quantile}
    rules = [Averaged(1.0), PerLayer(1.0, joint=True), PrivateMonitor(Flat(1.0)), Halved(1.0)]
    for rule in rules:
        assert rule.bound_reads_sum, rule


class Alone(ShardingRanks):
    """The first of two ranks, whose other has nothing to add."""

    def __init__(self, parts):
        self.rank, self.world, self.device, self.parts = 0, 2, torch.device("cpu"), parts

    def scatter_sum(self, own, whole):
        own.copy_(whole[: len(own)])

    def _add_up_buffers(self, buffers):
        self.sent = [buffer.clone() for buffer in buffers]


def test_the_whole_sum_is_given_up_and_counts_stay():
    parts = {"a": Part((3, 2), 0, 2, False), "b": Part((3,), 0, 2, False)}
    sums = {"grad": {"a": torch.arange(6.0).view(3, 2), "b": torch.ones(3)}, "count": 4.0}
    alone = Alone(parts)
    found = alone.add_up(sums)
    assert found is sums
    assert alone.sent == [torch.tensor(4.0)]  # the gradient is scattered, not added up whole
    tree = found["grad"]
    assert isinstance(tree, PartTree)
    assert (tree.whole_size, tree.places, found["count"]) == (9, [0, 6], 4.0)
    assert torch.equal(tree["a"], torch.arange(4.0).view(2, 2))
    assert tree["b"].shape == (2,)
