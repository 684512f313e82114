"""Two ranks release what one process releases, once, and into one ledger."""

import numpy as np
import pytest
import rank_jobs as jobs
import torch
from torch import nn

from winsor.core.contract import UnsupportedModel
from winsor.core.ledger.ledger import Ledger
from winsor.training.ranks.sharded import inside

SETTINGS = [
    {"kind": "mlp", "rule": "flat", "steps": 40},
    {"kind": "mlp", "rule": "quantile", "wrapper": "ddp"},
    {"kind": "cnn", "rule": "per layer", "wrapper": "ddp"},
    {"kind": "transformer", "rule": "flat", "steps": 12},
    {"kind": "mlp", "rule": "averaged"},
    {"kind": "mlp", "rule": "monitored", "batch_size": 3},
    {"kind": "mlp", "rule": "rank", "wrapper": "ddp"},
    {"kind": "mlp", "rule": "dc", "max_physical_batch_size": 3},
    {"kind": "mlp", "rule": "flat", "mechanism": "modelmix"},
    {"kind": "mlp", "rule": "flat", "mechanism": "banded"},
    {"kind": "mlp", "rule": "flat", "batch_size": 1},
    {"kind": "mlp", "rule": "quantile", "batch_size": 1, "max_physical_batch_size": 1},
    {"kind": "mlp", "rule": "flat", "sampling": "allocation"},
    {"kind": "mlp", "rule": "flat", "wrapper": "fsdp", "optimizer": "adam", "batch_size": 2},
    {"kind": "cnn", "rule": "quantile", "wrapper": "fsdp"},
    {"kind": "gpt", "rule": "flat", "wrapper": "fsdp", "steps": 12},
    {"kind": "cnn", "rule": "quantile", "sliced": True},
    {"kind": "mlp", "rule": "flat", "mechanism": "banded", "sliced": True, "wrapper": "fsdp"},
    {"kind": "transformer", "rule": "per layer", "wrapper": "fsdp", "steps": 12},
    {"kind": "mlp", "rule": "averaged", "wrapper": "fsdp", "iterate": "averaged"},
    {"kind": "mlp", "rule": "flat", "unit": np.arange(jobs.N) // 2, "batch_size": 8},
]


IN_PARTS = [
    place
    for place, setting in enumerate(SETTINGS)
    if setting.get("wrapper") == "fsdp"
    and setting["rule"] in ("flat", "quantile")
    and "mechanism" not in setting
]
"""Whose clipped sums are sharded, too: nothing that happens to them needs them whole."""


@pytest.fixture(scope="module")
def two_ranks():
    found = jobs.on_ranks(2, jobs.many, SETTINGS)
    assert not any(isinstance(one, str) for one in found), found
    return found


@pytest.mark.parametrize("case", range(len(SETTINGS)), ids=lambda i: str(SETTINGS[i])[1:60])
def test_two_ranks_equal_one(two_ranks, case):
    alone = jobs.trained(0, **SETTINGS[case] | {"wrapper": "none"})
    first, second = (rank[case] for rank in two_ranks)
    for together in (first, second):
        assert together["spent"] == alone["spent"]
        assert together["bits"] == alone["bits"]
        assert together["in_parts"] == (case in IN_PARTS)
        assert together["history"] == alone["history"]
        assert torch.allclose(together["noise"], alone["noise"], rtol=1e-5, atol=1e-5)
        for name, weight in alone["weights"].items():
            error = (together["weights"][name] - weight).abs().max() / weight.abs().max()
            assert error < 1e-5, name
    for name in first["weights"]:  # bit by bit: both applied the same release
        assert torch.equal(first["weights"][name], second["weights"][name])


def test_ranks_that_differ_are_refused_and_told_in_what():
    kinds = {"rule": "configuration", "noise": "configuration", "data": "dataset",
             "weights": "weights at the start", "optimizer": "settings of the optimiser",
             "unit": "units", "seed": "seed", "secret": "seed", "version": "version of winsor",
             "length": "configuration"}  # fmt: skip
    for rank in jobs.on_ranks(2, jobs.refused, list(kinds)):
        for said, word in zip(rank, kinds.values(), strict=True):
            assert said.startswith("ProtocolError"), said
            assert f"same {word}" in said


def test_models_that_are_split_otherwise_are_refused():
    words = {
        "tensor_parallel": "must come from torch.distributed.fsdp.fully_shard over all ranks",
        "low_precision": "Use torch.autocast",
        "hybrid": "must come from torch.distributed.fsdp.fully_shard over all ranks",
        "mixing": "must have them whole",
    }
    for rank in jobs.on_ranks(2, jobs.refused_models):
        for kind, word in words.items():
            assert rank[kind].startswith("UnsupportedModel"), rank[kind]
            assert word in rank[kind]


def test_one_ledger_and_nothing_released_before_it_is_written(tmp_path):
    path = tmp_path / "run.ledger"
    first, second = jobs.on_ranks(2, jobs.with_ledger, str(path))
    assert (first["entries"], second["entries"], first["told"]) == (12, 12, "")
    assert [p.name for p in tmp_path.iterdir() if p.suffix == ".ledger"] == ["run.ledger"]

    path = tmp_path / "dying.ledger"
    first, second = jobs.on_ranks(2, jobs.with_ledger, str(path), 5)
    assert second == "gone"
    assert "ProtocolError" in first["told"]
    assert "broken connection" in first["told"]
    assert first["released"] <= first["entries"] <= 6


def test_one_word_tells_ranks_that_differ_and_ledgers_that_cannot_be_written(tmp_path):
    path = tmp_path / "run.ledger"
    first, second = jobs.on_ranks(2, jobs.one_word_before_noise, str(path))
    for rank in (first, second):
        assert rank["collectives"] == 1
        assert rank["differ"].startswith("ProtocolError: every rank must release the same sum")
    assert first["cannot write"] == "OSError: no space left"
    assert second["cannot write"].startswith("LedgerError: rank 0 must keep the ledger")
    assert len(Ledger.read(path)) == first["entries"] == 2  # what was not released is paid for
    assert second["entries"] == 1


def test_replay_across_ranks_finds_noise_that_is_not_added_once():
    mutants = ["none", "scaled by 1/world", "on every rank"]
    for rank in jobs.on_ranks(2, jobs.replayed, [*mutants, "honest"], 3):
        assert rank == {**dict.fromkeys(mutants, 3), "honest": 0}


def test_threads_over_devices_are_refused():
    with pytest.raises(UnsupportedModel, match="one process per device"):
        inside(nn.DataParallel(nn.Linear(2, 2)))
