"""Draws of records: prefixes of each other, new at each step, secret unless seeded."""

from __future__ import annotations

import torch

from winsor.rules import draws


def test_draws_of_fewer_rows_are_a_prefix():
    state = draws.start(seed=1)
    long = draws.uniforms(state, 100)
    for n in (0, 1, 15, 16, 17, 99):
        assert torch.equal(draws.uniforms(state, n), long[:n])


def test_every_step_draws_anew_and_can_be_repeated():
    state = draws.start(seed=1)
    following = draws.advance(state)
    assert not torch.equal(draws.uniforms(state, 8), draws.uniforms(following, 8))
    assert torch.equal(draws.uniforms(draws.advance(state), 8), draws.uniforms(following, 8))
    assert state["step"] == 0


def test_without_a_seed_draws_are_secret():
    one, other = draws.start(None), draws.start(None)
    assert not torch.equal(draws.uniforms(one, 8), draws.uniforms(other, 8))
