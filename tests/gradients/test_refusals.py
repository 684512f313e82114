"""What no engine can serve soundly is refused with a typed error, never silently dropped."""

from __future__ import annotations

import math
from typing import Any

import engine_zoo as zoo
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from winsor.core.contract import ConfigurationError, LossError, ProtocolError, UnsupportedModel
from winsor.gradients import (
    Need,
    make_engine,
    refuse_unsupported,
    replace_batchnorm,
    trainable_parameters,
)

FAST = ("func", "ghost")


def test_batch_norm_in_training_mode_names_the_module_and_the_remedy() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4))
    with pytest.raises(UnsupportedModel, match=r"1 \(BatchNorm2d\).*replace_batchnorm"):
        refuse_unsupported(model)
    refuse_unsupported(model.eval())
    refuse_unsupported(replace_batchnorm(model.train()))


def test_running_statistics_of_instance_norm_are_refused() -> None:
    with pytest.raises(UnsupportedModel, match="track_running_stats=False"):
        refuse_unsupported(nn.InstanceNorm1d(3, track_running_stats=True))
    refuse_unsupported(nn.InstanceNorm1d(3))


def test_lazy_parameters_are_refused() -> None:
    with pytest.raises(UnsupportedModel, match="initialised"):
        refuse_unsupported(nn.Sequential(nn.LazyLinear(3)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.complex64])
def test_parameters_too_coarse_for_norms_are_refused(dtype: torch.dtype) -> None:
    model = nn.Linear(2, 2, dtype=dtype)
    with pytest.raises(UnsupportedModel, match=r"weight must be float32.*autocast"):
        refuse_unsupported(model)
    with pytest.raises(UnsupportedModel, match=r"weight must be float32"):
        make_engine(model, trainable_parameters(model))
    refuse_unsupported(model.requires_grad_(False))


def test_mixed_numbers_are_refused() -> None:
    with pytest.raises(UnsupportedModel, match="one dtype and one device"):
        refuse_unsupported(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double()))


def test_compiled_models_are_refused() -> None:
    class OptimizedModule(nn.Module):
        """What torch.compile returns, as far as it shows: the model sits in `_orig_mod`."""

        def __init__(self) -> None:
            super().__init__()
            self._orig_mod = nn.Linear(2, 2)

    with pytest.raises(UnsupportedModel, match="original model"):
        refuse_unsupported(OptimizedModule())


@pytest.mark.parametrize("options", [{"max_norm": 1.0}, {"scale_grad_by_freq": True}])
def test_embeddings_that_leak_or_mix_are_refused(options: dict[str, object]) -> None:
    model = nn.Embedding(5, 3, **options)
    with pytest.raises(UnsupportedModel, match="max_norm or scale_grad_by_freq"):
        make_engine(model, trainable_parameters(model), "ghost")


class Borrowing(nn.Module):
    """Uses the weight of a child without calling the child."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.other = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.first(x), self.other.weight)


@pytest.mark.parametrize("engine", FAST)
def test_a_weight_used_outside_its_module_is_refused(engine: str) -> None:
    model = Borrowing()
    with pytest.raises(UnsupportedModel, match=r"other\.weight"):
        zoo.make_view(model, torch.randn(4, 3), engine)
    assert all(p.grad is None for p in model.parameters())  # nothing private is left behind


@pytest.mark.parametrize("engine", FAST)
def test_a_weight_used_outside_its_module_is_refused_on_later_steps_too(engine: str) -> None:
    class Sometimes(Borrowing):
        borrow = False

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) if self.borrow else self.other(self.first(x))

    model = Sometimes()
    runner = make_engine(model, trainable_parameters(model), engine)
    runner.attach()
    runner.recording(True)
    runner.view(zoo.square_loss(model(torch.randn(4, 3))))
    model.borrow = True
    with pytest.raises(UnsupportedModel, match=r"other\.weight"):
        runner.view(zoo.square_loss(model(torch.randn(4, 3))))


@pytest.mark.parametrize("engine", FAST)
def test_a_penalty_on_the_weights_is_refused(engine: str) -> None:
    model = nn.Linear(3, 2)
    with pytest.raises(UnsupportedModel, match="weight"):
        zoo.make_view(
            model, torch.randn(4, 3), engine, lambda out: out.sum(1) + model.weight.square().sum()
        )


class MixesRows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        return self.second(h - h.mean(0))


class TimeFirst(nn.Module):
    """As many places as rows: the shapes alone do not show that the batch is not first."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.transpose(0, 1)).transpose(0, 1)


class SharedPositions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Embedding(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.positions(torch.arange(x.shape[1]))


class Table(nn.Module):
    """Own parameters, and an argument that all rows share."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor, places: Tensor) -> Tensor:
        return x * self.scale + places


class SharedTable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = Table()

    def forward(self, x: Tensor) -> Tensor:
        return self.table(x, torch.arange(12.0).view(4, 3).to(x))


@pytest.mark.parametrize("engine", FAST)
@pytest.mark.parametrize(("build", "shape"), [(MixesRows, (4, 3)), (TimeFirst, (4, 4, 3))])
def test_mixed_rows_are_refused(
    build: type[nn.Module], shape: tuple[int, ...], engine: str
) -> None:
    with pytest.raises(UnsupportedModel, match="rows"):
        zoo.make_view(build(), torch.randn(shape), engine)


@pytest.mark.parametrize("engine", FAST)
@pytest.mark.parametrize("build", [SharedPositions, SharedTable])
@pytest.mark.parametrize("counts", [(3, 4, 5), (4, 1, 5), (1, 4, 3), (2, 4), (0, 4)])
def test_what_rows_share_stays_shared_whatever_their_count(
    build: type[nn.Module], counts: tuple[int, ...], engine: str
) -> None:
    """A batch may have as many rows as there are positions, the first one too: how many rows are
    drawn is private."""
    model = build().double()
    runner = make_engine(model, trainable_parameters(model), engine)
    runner.attach()
    for n in counts:
        x = torch.randn(n, 4, 3).double()
        runner.recording(False)
        oracle = make_engine(model, trainable_parameters(model), "loop").view(
            zoo.square_loss(model(x))
        )
        runner.recording(True)
        view = runner.view(zoo.square_loss(model(x)))
        zoo.close(oracle.norms(), view.norms(), 1e-5)


@pytest.mark.parametrize("engine", FAST)
def test_a_batch_dimension_elsewhere_is_refused(engine: str) -> None:
    class Flattens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x.flatten(0, 1)).view(*x.shape[:2], 2)

    with pytest.raises(UnsupportedModel, match="first dimension"):
        zoo.make_view(Flattens(), torch.randn(4, 5, 3), engine)


@pytest.mark.parametrize("engine", FAST)
def test_random_numbers_beside_bare_parameters_are_refused(engine: str) -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            return F.dropout(x, 0.5) * self.scale

    with pytest.raises(UnsupportedModel, match="random numbers"):
        zoo.make_view(Noisy(), torch.randn(6, 3), engine)


@pytest.mark.parametrize("engine", FAST)
def test_an_input_changed_in_place_is_refused(engine: str) -> None:
    class InPlace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = x * 1
            out = self.linear(x)
            x += 1
            return out

    with pytest.raises(UnsupportedModel, match="in place"):
        zoo.make_view(InPlace(), torch.randn(6, 3), engine)


@pytest.mark.parametrize("engine", ("loop", *FAST))
def test_losses_without_a_graph_are_refused(engine: str) -> None:
    with pytest.raises(LossError, match="graph"):
        zoo.make_view(nn.Linear(3, 2), torch.randn(4, 3), engine, lambda out: out.sum(1).detach())


@pytest.mark.parametrize("engine", FAST)
def test_packed_sequences_are_refused(engine: str) -> None:
    class Packs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.GRU(3, 2, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([2, 1]), batch_first=True)
            return self.rnn(packed)[1].transpose(0, 1)

    with pytest.raises(UnsupportedModel, match="pad"):
        zoo.make_view(Packs(), torch.randn(2, 2, 3), engine)


def test_unknown_engines_are_refused() -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(ConfigurationError, match=r"engine must be one of.*Got 'fast'"):
        make_engine(model, trainable_parameters(model), "fast")


def test_two_engines_on_one_model_are_refused() -> None:
    model = nn.Linear(2, 2)
    one, other = (make_engine(model, trainable_parameters(model)) for _ in range(2))
    one.attach()
    with pytest.raises(ProtocolError, match="already attached"):
        other.attach()
    one.detach()
    other.attach()


def test_what_was_not_announced_is_refused() -> None:
    model = nn.Linear(2, 2)
    engine = make_engine(model, trainable_parameters(model), needs=Need.MEAN)
    engine.attach()
    engine.recording(True)
    view = engine.view(zoo.square_loss(model(torch.randn(3, 2))))
    assert view.total()["weight"].any()
    with pytest.raises(ProtocolError, match=r"view\.norms must be announced"):
        view.norms()


def test_replacing_batch_norm_keeps_parameters_and_flags() -> None:
    model = nn.Sequential(nn.Conv2d(1, 6, 3), nn.Sequential(nn.BatchNorm2d(6), nn.ReLU()))
    weight = model[1][0].weight
    weight.requires_grad_(False)
    replaced = replace_batchnorm(model)
    assert replaced is model
    assert isinstance(model[1][0], nn.GroupNorm)
    assert model[1][0].weight is weight
    assert model[1][0].num_groups == 3
    assert isinstance(replace_batchnorm(nn.BatchNorm1d(5, affine=False)), nn.GroupNorm)


def test_models_compiled_in_place_are_refused() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    model[0]._compiled_call_impl = model[0].forward  # what model.compile() leaves behind
    with pytest.raises(UnsupportedModel, match=r"before model\.compile\(\)"):
        refuse_unsupported(model)


class Bare(nn.Module):
    """Parameters of its own, and a way from what it normalises to its output."""

    def __init__(self, normalise: Any = lambda x: x) -> None:
        super().__init__()
        self.scale, self.normalise = nn.Parameter(torch.ones(3)), normalise

    def forward(self, x: Tensor) -> Tensor:
        return self.normalise(x) * self.scale


@pytest.mark.parametrize("engine", FAST)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 3e38, 1e-45])
@pytest.mark.parametrize("row", [0, 4])
def test_no_row_ends_a_run_on_the_way_to_torch_func(engine: str, value: float, row: int) -> None:
    """Whether a module is served is asked with made-up rows, not with private ones."""
    x = torch.randn(5, 3)
    x[row] = value
    model = nn.Sequential(Bare(), nn.Linear(3, 2))
    assert zoo.make_view(model, x, engine)[1].norms().isfinite().all()


@pytest.mark.parametrize("engine", FAST)
@pytest.mark.parametrize(
    "normalise",
    [
        lambda x: x - x.mean(0),
        lambda x: x + torch.rand_like(x),
        lambda x: x.flip(0),
        lambda x: x / x.detach().norm(),
    ],
)
@pytest.mark.parametrize("content", [1.0, 0.0, math.nan])
def test_a_module_that_mixes_rows_is_refused_whatever_the_rows_are(
    engine: str, normalise: Any, content: float
) -> None:
    x = torch.randn(5, 3) * content
    with pytest.raises(UnsupportedModel, match="alone"):
        zoo.make_view(nn.Sequential(Bare(normalise), nn.Linear(3, 2)), x, engine)
