"""Trees cross between ranks in few messages, whatever memory they lie in."""

import pytest
import torch

from winsor.core.buffers import FlatTree
from winsor.gradients.buffers import Layout
from winsor.training.ranks import ranks
from winsor.training.ranks.ranks import Sent

SHAPES = {"wide": (600, 500), "bias": (500,), "turned": (200, 300), "norm": (3,), "none": (0,)}


def tree_of(**shapes):
    chance = torch.Generator().manual_seed(0)
    found = {name: torch.randn(shape, generator=chance) for name, shape in shapes.items()}
    if "turned" in found:
        found["turned"] = found["turned"].t()
    return found


def doubled(tree):
    """As if another rank had the same: what comes out, and what was sent."""
    one = Sent(tree)
    for buffer in one.buffers:
        buffer *= 2
    return one.received(), [len(buffer.reshape(-1)) for buffer in one.buffers]


def test_small_leaves_share_a_message_and_large_ones_are_not_copied(monkeypatch):
    monkeypatch.setattr(ranks, "IN_ONE_PIECE", 0)
    tree = tree_of(**SHAPES)
    expected = {name: 2 * leaf for name, leaf in tree.items()}
    found, sizes = doubled(tree)
    assert sizes == [300_000, 60_000, 503]
    assert list(found) == list(SHAPES)
    assert all(torch.equal(found[name], expected[name]) for name in SHAPES)
    assert found["wide"].data_ptr() == tree["wide"].data_ptr()


@pytest.mark.parametrize(("most", "messages"), [(1 << 23, 1), (0, 3)])
def test_messages_do_not_depend_on_the_memory_of_a_tree(monkeypatch, most, messages):
    monkeypatch.setattr(ranks, "IN_ONE_PIECE", most)
    apart = tree_of(**SHAPES)
    flat = Layout(apart).joined(list(apart.values()))
    assert isinstance(flat, FlatTree)
    (one, sizes), (other, other_sizes) = doubled(apart), doubled(flat)
    assert sizes == other_sizes
    assert len(sizes) == messages
    assert type(one) is type(other)
    assert all(torch.equal(one[name], other[name]) for name in SHAPES)


def test_a_tree_in_one_piece_is_sent_where_it_lies():
    tree = tree_of(**SHAPES)
    flat = Layout(tree).joined(list(tree.values()))
    assert Sent(flat).buffers[0] is flat.flat
    assert Sent(flat).received() is flat


def test_leaves_of_several_types_are_sent_one_by_one():
    tree = tree_of(**SHAPES) | {"double": torch.ones(4, dtype=torch.float64)}
    found, sizes = doubled(tree)
    assert len(sizes) == len(tree)
    assert found["double"].dtype == torch.float64 and bool((found["double"] == 2).all())
