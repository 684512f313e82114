"""Checkpoints of several ranks: exact on as many ranks, never silent on another number."""

from pathlib import Path

import pytest
import rank_jobs as jobs
import rank_resumes as resumes
import torch

import winsor
from winsor.core.contract import LedgerError
from winsor.core.ledger.ledger import Ledger


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    at = tmp_path_factory.mktemp("ranks")
    resumes.prepare_one_process(at)
    return at


@pytest.fixture(scope="module")
def ranks(folder):
    found = jobs.on_ranks(2, resumes.resumes, str(folder))
    assert not any(isinstance(one, str) for one in found), found
    return found


def same(first, second):
    assert first["entries"] == second["entries"]
    assert first["runs"] == second["runs"]
    assert torch.equal(first["random"], second["random"])
    for name, weight in first["weights"].items():
        assert torch.equal(weight, second["weights"][name]), name


@pytest.mark.parametrize("case", ["plain", "hidden", "fsdp", "shards"])
def test_every_rank_goes_on_exactly(ranks, case):
    for rank in ranks:
        assert rank[case]["at"] == 4
        assert rank[case]["whole"]["entries"] == resumes.STEPS
        same(rank[case]["whole"], rank[case]["resumed"])
    first, second = (rank[case]["whole"]["random"] for rank in ranks)
    assert not torch.equal(first, second)  # each rank has its own dropout, and kept it


def test_a_folder_of_shards_is_that_of_its_last_checkpoint(ranks, folder):
    inside = sorted(path.name for path in (folder / "shards.pt").iterdir())
    assert [name.split("-")[:2] for name in inside] == [["shards", "4"], ["winsor.pt"]]
    assert resumes.mode_of(folder / "shards.pt" / "winsor.pt") == 0o600
    files = {path.name for path in (folder / "shards.pt" / inside[0]).iterdir()}
    assert files == {".metadata", "__0_0.distcp", "__1_0.distcp"}  # each rank wrote its part
    state = torch.load(folder / "shards.pt" / "winsor.pt", weights_only=True)
    assert all(weight.is_meta for weight in state["model"].values())
    assert state["optimizer"]["state"][0]["exp_avg"].is_meta


def test_shards_that_are_not_those_of_the_checkpoint_are_refused(ranks, folder):
    for rank in ranks:
        for kind in ("code", "damaged", "gone"):
            assert rank["refused shards"][kind].startswith("LedgerError"), rank["refused shards"]
        assert "ConfigurationError: shards=True needs a model" in rank["refused shards"]["plain"]
    assert not (folder / "code was run").exists()


def test_one_process_goes_on_from_shards(ranks, folder):
    """With new randomness: the run of two ranks has gone on after its checkpoint."""
    given = resumes.arguments(folder, "shards", 0)
    private = winsor.resume(folder / "shards.pt", **given, repeat=False)
    in_one_file = torch.load(folder / "fsdp.pt", weights_only=True)  # of the same run
    assert private.steps_done == 4
    for name, weight in private.model.state_dict().items():
        assert torch.equal(weight, in_one_file["model"][name]), name
    for place, kept in in_one_file["optimizer"]["state"].items():
        here = private._update.optimizer.state_dict()["state"][place]
        assert all(torch.equal(here[name], value) for name, value in kept.items())
    resumes.go_on(private)
    assert len(private.ledger) == resumes.STEPS + (resumes.STEPS - 4)
    private.detach()


def test_rank_0_alone_keeps_files(ranks, folder):
    names = {path.name for path in folder.iterdir()}
    assert {"plain.pt", "plain.ledger", "hidden.pt", "hidden.ledger", "hidden.key"} <= names
    assert [name for name in names if name.endswith(".key")] == ["hidden.key"]
    assert resumes.mode_of(folder / "plain.pt") == 0o600


def test_new_randomness_is_shared_and_paid_for(ranks, folder):
    first, second = (rank["fresh"] for rank in ranks)
    assert first["runs"] == second["runs"]
    assert first["entries"] == resumes.STEPS + (resumes.STEPS - 4)
    assert len(first["runs"]) == 2
    assert Ledger.read(folder / "plain.ledger").runs == first["runs"]
    for name, weight in first["weights"].items():
        assert torch.equal(weight, second["weights"][name])


@pytest.mark.parametrize("case", ["uneven", "uneven shards"])
def test_ranks_without_rows_take_part_in_checkpoints(ranks, case):
    first, second = (rank[case] for rank in ranks)
    assert first["seen"] > second["seen"]  # rank 1 had no rows in some steps
    for rank in (first, second):
        assert rank["at"] == rank["stopped"] == first["stopped"]
        same(rank["whole"], rank["resumed"])


def test_a_checkpoint_between_fragments_is_refused(ranks):
    for rank in ranks:
        assert rank["inside"].startswith("ProtocolError: several ranks must save after a whole")


def test_another_number_of_ranks(ranks, folder):
    for rank in ranks:
        assert rank["from one"]["ended"]["entries"] == resumes.STEPS
        assert "LedgerError: a checkpoint of 1 ranks continues on 2" in rank["from one"]["refused"]
        assert "2 steps after the checkpoint" in rank["from one"]["refused"]
        assert "no ledger on disk to ask" in rank["from one"]["unknown"]
    given = resumes.arguments(folder, "plain", 0)
    with pytest.raises(LedgerError, match="checkpoint of 2 ranks continues on 1.*repeat=False"):
        winsor.resume(folder / "plain.pt", **given)
    before = Ledger.read(folder / "plain.ledger")
    private = winsor.resume(
        folder / "plain.pt", **resumes.arguments(folder, "plain", 0), repeat=False
    )
    resumes.go_on(private)
    assert len(private.ledger) == len(before) + resumes.STEPS - 4
    private.detach()


def test_a_sharded_run_goes_on_in_one_process(ranks, folder):
    private = winsor.resume(
        folder / "fsdp.pt", **resumes.arguments(folder, "fsdp", 0), repeat=False
    )
    assert private.steps_done == 4
    resumes.go_on(private)
    private.detach()


def test_a_missing_checkpoint_is_refused(tmp_path: Path):
    with pytest.raises(LedgerError, match="must be a checkpoint of private.save"):
        winsor.resume(tmp_path / "none.pt", **resumes.arguments(tmp_path, "none", 0))
