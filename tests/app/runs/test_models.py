"""Every built-in model fits its data, and the small GPT treats each row on its own."""

from __future__ import annotations

import sys
import types

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from winsor.app.runs.config import DataSettings
from winsor.app.runs.data import Data
from winsor.app.runs.models import BUILT_IN, build_model, check_model
from winsor.app.runs.reading import Part
from winsor.core.contract import ConfigurationError
from winsor.models.gpt import SmallGPT


def data(shape, outputs=3) -> Data:
    return Data(TensorDataset(torch.zeros(4, *shape)), None, tuple(shape), outputs, "")


CASES = {
    "linear": ((2, 3), {}),
    "mlp": ((6,), {"hidden": [5, 4]}),
    "two_layer_cnn": ((1, 28, 28), {"groups": 0}),
    "resnet9": ((3, 16, 16), {"width": 8}),
    "resnet20": ((3, 16, 16), {"width": 8}),
}


def test_there_is_a_case_for_every_model():
    assert set(CASES) | {"gpt"} == set(BUILT_IN)


@pytest.mark.parametrize("name", CASES)
def test_built_in_models(name):
    shape, options = CASES[name]
    model = build_model(Part(name, options), data(shape), seed=0)
    assert model(torch.zeros(2, *shape)).shape == (2, 3)
    same, other = (build_model(Part(name, options), data(shape), seed) for seed in (0, 1))
    first = [next(m.parameters()) for m in (model, same, other)]
    assert torch.equal(first[0], first[1]) and not torch.equal(first[0], first[2])


def test_a_linear_model_may_start_at_zero():
    model = build_model(Part("linear", {"zeros": True}), data((2, 3)), seed=0)
    assert not any(bool(p.any()) for p in model.parameters())


def test_gpt_sees_only_its_own_row_and_only_the_past():
    torch.manual_seed(0)
    model = SmallGPT(11, 6, layers=2, heads=2, width=8)
    tokens = torch.randint(11, (3, 6))
    changed = tokens.clone()
    changed[1, 4] = (changed[1, 4] + 1) % 11
    one, two = model(tokens), model(changed)
    assert one.shape == (3, 6, 11)
    assert torch.equal(one[[0, 2]], two[[0, 2]])
    torch.testing.assert_close(one[1, :4], two[1, :4])
    assert not torch.allclose(one[1, 4:], two[1, 4:])
    with pytest.raises(ConfigurationError, match="multiple of heads"):
        SmallGPT(11, 6, heads=3, width=8)


def test_models_do_not_fit_any_data():
    with pytest.raises(ConfigurationError, match=r"data.shape must be \[channels, 28, 28\]"):
        build_model(Part("two_layer_cnn"), data((28, 28)), 0)
    with pytest.raises(ConfigurationError, match="for a ResNet"):
        build_model(Part("resnet20"), data((64,)), 0)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (Part("lenear"), "model.name must be one of linear"),
        (Part("mlp", {"hiden": [3]}), "model.hiden is not a setting. Did you mean 'hidden'"),
        (Part("mlp", {"hidden": 3}), "model.hidden must be a list of a whole number"),
        (Part("no.such:model"), "model.name must be something that can be imported"),
        (Part("gpt"), "gpt goes with data.task language"),
    ],
)
def test_mistakes_show_before_the_data_are_read(part, message):
    with pytest.raises(ConfigurationError, match=message):
        check_model(part, DataSettings(source="digits"))


@pytest.fixture
def theirs(monkeypatch):
    module = types.ModuleType("their_models")
    module.Sized = lambda shape, outputs, width=2: nn.Linear(shape[0] * width // width, outputs)
    module.empty = nn.Flatten
    module.frozen = lambda: nn.Linear(2, 2).requires_grad_(False)
    module.instance = nn.Linear(2, 2)
    module.text = lambda: "model"
    monkeypatch.setitem(sys.modules, "their_models", module)


def test_models_by_import_path(theirs):
    model = build_model(Part("their_models:Sized", {"width": 4}), data((5,)), 0)
    assert (model.in_features, model.out_features) == (5, 3)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("empty", "at least one trainable parameter"),
        ("frozen", "at least one trainable parameter"),
        ("instance", "class or function that makes a model"),
        ("text", "must make a torch.nn.Module. Got str"),
    ],
)
def test_import_paths_that_make_no_model(theirs, name, message):
    with pytest.raises(ConfigurationError, match=message):
        build_model(Part(f"their_models:{name}"), data((2,)), 0)
