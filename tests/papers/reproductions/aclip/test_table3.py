"""Table 3 of paper 4 on images made up here."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from winsor_papers.reproductions.aclip.figure2 import figure_2_of
from winsor_papers.reproductions.aclip.resnet18 import resnet18
from winsor_papers.reproductions.aclip.table3 import (
    QUICK,
    Table3,
    Trained,
    ends,
    table_3,
    table_3_of,
    table_3_verdict,
)
from winsor_papers.reproductions.cifar import CifarSize, problem
from winsor_papers.reproductions.reproduction import Line, Measured, Request

from winsor.core.contract import ConfigurationError


def pictures(n, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(n, 3, 32, 32, generator=generator), torch.arange(n) % 10


def test_the_table_has_printed_published_certified_and_tuned_lines():
    setting = dataclasses.replace(QUICK, epsilons=(6.0,), rows=40, batch_size=10, epochs=0.5)
    found = table_3_of(setting, pictures(60, 1), pictures(20, 2), Request(seeds=2))
    keys = [(line.label["method"], line.label["constants"][:5]) for line in found.lines]
    assert keys == [("CC", "as pr"), ("UC", "as pr"), ("DP-SGD", "as pr"), ("UC", "tuned"),
                    ("DP-SGD", "tuned")]  # fmt: skip
    clipped, _, plain, *_ = found.lines
    assert clipped.printed == "73.26 ± 0.16"
    assert plain.published is None
    for line in found.lines:
        assert line.certified_epsilon <= 6.0
        assert line.certified.seeds == 2
    # the published noise is half of what the nominal epsilon needs
    assert clipped.published_certifies > 2 * 6.0
    assert "40 rows, 2 steps of 10" in found.notes[0]
    assert all("±" in line.extra["last epochs"] for line in found.lines)


def test_accuracies_are_those_of_the_last_five_epochs():
    curves = ((0.0, 10.0, 20.0, 30.0, 40.0, 50.0), (0.0, 20.0, 30.0, 40.0, 50.0, 60.0))
    assert ends(curves).mean == 35.0  # of 30 and 40: the first epochs do not count
    found = Trained(ends(curves), 1.0, 1.0, curves)
    assert found.deviation == "35 ± 16"  # ten values: 10 .. 50 and 20 .. 60
    assert found.by_epoch() == "0 15 25 35 45 55"
    assert Trained(Measured(1.0, 0.5, 3), 1.0, 1.0, ((5.0,),)).deviation == "one epoch"


def test_figure_2_has_a_curve_for_every_method_and_a_baseline():
    setting = dataclasses.replace(QUICK, epsilons=(6.0,), rows=40, batch_size=10, epochs=2)
    found = figure_2_of(setting, pictures(60, 1), pictures(20, 2), Request(seeds=1))
    assert [line.label["method"] for line in found.lines] == ["baseline", "CC", "UC", "DP-SGD"]
    baseline, averaged, *_, plain = found.lines
    assert baseline.certified is None and baseline.printed == "83.28 ± 0.02"
    assert len(baseline.extra["not private by epoch"].split()) == 2
    assert len(averaged.extra["published by epoch"].split()) == 2
    assert plain.published is None
    assert "at the printed constants" in found.verdict.lower()


def test_resnet_18_is_the_papers_but_for_its_normalisation():
    network = resnet18()
    assert sum(p.numel() for p in network.parameters()) == 11_173_962
    assert network(torch.rand(2, 3, 32, 32)).shape == (2, 10)
    assert Table3().model == "resnet18"
    whole = problem(CifarSize(None, 5, 2, "resnet18"), pictures(6, 1), pictures(4, 2))
    assert whole.train[0].shape == (6, 3, 32, 32)


def test_problems_come_in_two_sizes():
    small = problem(CifarSize(20, 5, 2, "cnn"), pictures(30, 1), pictures(10, 2))
    assert small.train[0].shape == (20, 3, 28, 28)
    assert small.steps == 8
    whole = problem(CifarSize(None, 5, 2, "resnet20"), pictures(30, 1), pictures(10, 2))
    assert whole.train[0].shape == (30, 3, 32, 32)
    assert whole.model()(whole.test[0]).shape == (10, 10)
    with pytest.raises(ConfigurationError, match="model must be one of cnn, resnet20"):
        CifarSize(None, 5, 2, "vgg")


def test_it_needs_a_folder(tmp_path):
    with pytest.raises(ConfigurationError, match="Give --data FOLDER"):
        table_3(Request(quick=True))
    with pytest.raises(ConfigurationError, match=r"folder must hold cifar10_20k_5k\.npz"):
        table_3(Request(quick=True, data=tmp_path))


def lines(averaged, claimed, sgd):
    label = {"nominal": "2", "constants": "as printed"}
    return [
        Line({**label, "method": "CC"}, certified=Measured(averaged, 0.5, 3),
             published=Measured(claimed, 0.5, 3), published_certifies=5.0, extra={"epoch": "2 s"}),
        Line({**label, "method": "DP-SGD"}, certified=Measured(sgd, 0.5, 3),
             extra={"epoch": "4 s"}),
    ]  # fmt: skip


def test_the_verdict_is_computed():
    assert "certified: Reproduced in 1" in table_3_verdict(lines(60.0, 62.0, 50.0))
    lost = table_3_verdict(lines(12.0, 55.0, 50.0))
    assert "certified: Not reproduced at our size in 1 of 1 epsilons (measured -38 points" in lost
    assert "as published: Reproduced in 1 of 1" in lost
    assert "take 0.50 of the time" in lost
    assert "2.5 times its epsilon" in lost
