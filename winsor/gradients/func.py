"""Per-sample gradients of any module by torch.func, from one forward and one backward pass.

Each module that owns parameters is recorded by the recorder: inputs x_i and output-gradients e_i of
every row i. Its per-sample gradient is the pull-back of e_i through the module alone,

    g_i = vjp_{theta -> module_theta(x_i)} (e_i),       all rows at once by vmap,

so the cost is that of the modules once more, linear in the batch, and the rest of the model is
never differentiated again. Calls of one module, and modules that share a parameter, add up.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from winsor.core.contract import Tree, UnsupportedModel
from winsor.gradients.layers.attention import attention_forward
from winsor.gradients.layers.layer import Part, Projection, RecordedLinear
from winsor.gradients.layers.recurrent import recurrent_forward
from winsor.gradients.parameters import Site, find_sites
from winsor.gradients.recorder import (
    Call,
    Forward,
    Recorder,
    refuse_changed_inputs,
    refuse_other_batch,
    refuse_without_graph,
)
from winsor.gradients.rows import RowsView
from winsor.gradients.view import Engine, View

Parameters = Mapping[str, nn.Parameter]


class Pure:
    """A module or an operation as a pure function of its trainable parameters and tensor inputs."""

    def __init__(self, site: Site, names: Mapping[str, str], run: Callable[..., Any]) -> None:
        self.site = site
        self.names = names  # key in the function's parameter dict -> parameter name
        self.run = run  # (parameters, inputs) -> list of float outputs
        self.batched: tuple[bool, ...] | None = None
        self.vmappable = True

    def __str__(self) -> str:
        return str(self.site)


class FuncEngine(Engine):
    """Any module through torch.func. Slower than `ghost`, more general."""

    name = "func"

    def __init__(self, model: nn.Module, parameters: Parameters) -> None:
        self._parameters = dict(parameters)
        self._recorder = Recorder(model, find_sites(model, parameters))
        self._pure: dict[Any, Pure] = {}

    def attach(self) -> None:
        """Install recorded forwards in all modules with parameters."""
        self._recorder.attach(self._recorded)

    def detach(self) -> None:
        """Remove every trace from the model."""
        self._recorder.detach()

    def recording(self, on: bool) -> None:
        """Record the next forward passes, or stop doing so."""
        self._recorder.on = on

    def view(self, losses: Tensor) -> View:
        """Compute all rows by torch.func and return them as a view."""
        if losses.grad_fn is None:
            refuse_without_graph()
        n = len(losses)
        fired: dict[int, Call] = {}

        def receive(call: Call, j: int, g: Tensor) -> None:
            refuse_other_batch(call, g, n)
            call.grads[j] = g
            fired[id(call)] = call

        verify = not self._recorder.verified
        if n > 0:
            self._recorder.backward(losses, receive)
        rows = {name: p.new_zeros((n, *p.shape)) for name, p in self._parameters.items()}
        with self._recorder.paused():
            for call in fired.values():
                for name, value in call_rows(call, self._parameters, n, verify).items():
                    rows[name] += value
        return RowsView(rows, losses)

    def explain(self) -> str:
        """Say how each module is served."""
        lines = ["engine func: one backward pass, then torch.func per module"]
        for pure in self._pure.values():
            lines.append(f"  {pure}: {'vmap' if pure.vmappable else 'row by row'}")
        return "\n".join(lines)

    # ------------------------------------------------------------------------------- forward

    def _recorded(self, site: Site, plain: Forward) -> Forward:
        module = site.module
        if isinstance(module, nn.MultiheadAttention):
            linear = self._linear(site)
            return lambda *args, **kwargs: attention_forward(module, linear, *args, **kwargs)
        if isinstance(module, nn.RNNBase):
            linear = self._linear(site)
            return lambda *args, **kwargs: recurrent_forward(module, linear, *args, **kwargs)
        return recorded_module(self._recorder, site, plain, self._pure)

    def _linear(self, site: Site) -> RecordedLinear:
        def linear(x: Tensor, weight: str, bias: str | None, part: Part | None = None) -> Tensor:
            projection = Projection(site, weight, bias, part)
            pure = self._pure.setdefault(projection, pure_projection(projection))
            current = dict(site.module.named_parameters(remove_duplicate=False))
            w, b = current[weight].detach(), current[bias].detach() if bias else None
            return self._recorder.record(pure, projection(w, b, x), x)

        return linear


def pure_projection(projection: Projection) -> Pure:
    """Express one projection of a fused module as a function of its parameters and inputs."""
    site = projection.site
    keys = [key for key in (projection.weight, projection.bias) if key]
    fixed = dict(site.module.named_parameters(remove_duplicate=False))

    def run(parameters: Mapping[str, Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
        w, b = (
            parameters.get(key, fixed[key].detach()) if key else None
            for key in (projection.weight, projection.bias)
        )
        assert w is not None
        return [projection(w, b, inputs[0])]

    names = {key: name for key in keys if (name := site.name_of(key)) is not None}
    return Pure(site, names, run)


def recorded_module(
    recorder: Recorder, site: Site, plain: Forward, known: dict[Any, Pure]
) -> Forward:
    """Return a forward for any module: its own parameters detached, its outputs tracked."""

    def forward(*args: Any, **kwargs: Any) -> Any:
        args = _lifted(recorder, site, args)
        leaves, spec = tree_flatten((args, kwargs))
        inputs = [x for x in leaves if isinstance(x, Tensor)]
        constants = tuple(None if isinstance(x, Tensor) else x for x in leaves)
        swapped = [(s.owner._parameters, s.local, s.owner._parameters[s.local]) for s in site.slots]
        try:
            for holder, local, parameter in swapped:
                assert parameter is not None
                holder[local] = parameter.detach()  # type: ignore[assignment]
            result = plain(*args, **kwargs)
        finally:
            for holder, local, parameter in swapped:
                holder[local] = parameter
        outputs, out_spec = tree_flatten(result)
        chosen = [i for i, out in enumerate(outputs) if _differentiable(out)]
        pure = _pure_module(known, site, constants, spec)
        call = Call(pure, [x.detach() for x in inputs], len(chosen))
        if not recorder.verified:
            call.outputs = [outputs[i].detach().clone() for i in chosen]
        for i, out in zip(chosen, recorder.track(call, [outputs[i] for i in chosen]), strict=True):
            outputs[i] = out
        return tree_unflatten(outputs, out_spec)

    return forward


def _lifted(recorder: Recorder, site: Site, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Copy positions that all rows share for each row, so that each has its own gradient."""
    if not (isinstance(site.module, nn.Embedding) and args and isinstance(args[0], Tensor)):
        return args
    return (recorder.lift(site, args[0]), *args[1:])


def _pure_module(
    known: dict[Any, Pure], site: Site, constants: tuple[Any, ...], spec: TreeSpec
) -> Pure:
    key = (site.path, repr(constants), str(spec))
    if key in known:
        return known[key]

    def run(parameters: Mapping[str, Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
        found = iter(inputs)
        leaves = [next(found) if x is None else x for x in constants]
        args, kwargs = tree_unflatten(leaves, spec)
        result = torch.func.functional_call(site.module, dict(parameters), args, kwargs)
        return [out for out in tree_flatten(result)[0] if _differentiable(out)]

    pure = known[key] = Pure(site, {slot.relative: slot.name for slot in site.slots}, run)
    return pure


def _differentiable(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()


# -------------------------------------------------------------------------------- after backward


def call_rows(call: Call, parameters: Parameters, n: int, verify: bool = False) -> Tree:
    """Return {parameter name: (n, *shape)} of one recorded call. The recorder must be paused."""
    pure: Pure = call.operation
    refuse_changed_inputs(call)
    current = {key: parameters[name].detach() for key, name in pure.names.items()}
    dtype = next(iter(current.values())).dtype  # autocast may have recorded narrower numbers
    inputs = [x.to(dtype) if x.is_floating_point() else x for x in call.inputs]
    if pure.batched is None:
        pure.batched = tuple(x.dim() > 0 and x.shape[0] == n for x in inputs)
    if verify and call.outputs:
        _refuse_other_outputs(pure, current, inputs, call.outputs)
    grads = {j: g.to(dtype) for j, g in enumerate(call.grads) if g is not None}
    if pure.vmappable:
        try:
            return _named(pure, _by_vmap(pure, current, inputs, grads))
        except RuntimeError as error:
            if "random" in str(error):
                raise UnsupportedModel(
                    f"{pure} must not draw random numbers in its own forward (dropout beside bare "
                    "parameters): they cannot be drawn again. Move the parameters into a small "
                    'module of their own, or use engine="loop".'
                ) from error
            pure.vmappable = False  # an operation without a batching rule
    return _named(pure, _by_loop(pure, current, inputs, grads))


def _by_vmap(pure: Pure, current: Tree, inputs: list[Tensor], grads: dict[int, Tensor]) -> Tree:
    order = list(grads)
    assert pure.batched is not None

    def one_row(xs: Sequence[Tensor], es: Sequence[Tensor]) -> Tree:
        return _pull_back(pure, current, xs, dict(zip(order, es, strict=True)))

    in_dims = ([0 if b else None for b in pure.batched], [0] * len(order))
    with _quiet_vmap():
        return torch.func.vmap(one_row, in_dims=in_dims)(inputs, list(grads.values()))


@contextmanager
def _quiet_vmap() -> Iterator[None]:
    """Silence the warning of vmap about operations that it runs row by row: right, if slow."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop")
        yield


def _by_loop(pure: Pure, current: Tree, inputs: list[Tensor], grads: dict[int, Tensor]) -> Tree:
    assert pure.batched is not None
    rows = []
    for i in range(len(next(iter(grads.values())))):
        xs = [x[i] if b else x for x, b in zip(inputs, pure.batched, strict=True)]
        rows.append(_pull_back(pure, current, xs, {j: g[i] for j, g in grads.items()}))
    return {key: torch.stack([row[key] for row in rows]) for key in current}


def _pull_back(pure: Pure, current: Tree, xs: Sequence[Tensor], grads: dict[int, Tensor]) -> Tree:
    """Return the gradient of one row: the module sees a batch of one."""
    assert pure.batched is not None
    batch = [x.unsqueeze(0) if b else x for x, b in zip(xs, pure.batched, strict=True)]

    def outputs(parameters: Tree) -> list[Tensor]:
        found = pure.run(parameters, batch)
        return [found[j] for j in grads]

    pull: Callable[..., Any] = torch.func.vjp(outputs, current)[1]
    (gradient,) = pull([g.unsqueeze(0) for g in grads.values()])
    return dict(gradient)


def _named(pure: Pure, rows: Tree) -> Tree:
    named: Tree = {}
    for key, value in rows.items():
        name = pure.names[key]
        named[name] = named[name] + value if name in named else value
    return named


def _refuse_other_outputs(
    pure: Pure, current: Tree, inputs: list[Tensor], outputs: Sequence[Tensor]
) -> None:
    """Refuse a module that does not reproduce, row by row, what it returned inside the model."""
    assert pure.batched is not None
    n = len(outputs[0])
    for i in sorted({0, n - 1}):
        batch = [x[i : i + 1] if b else x for x, b in zip(inputs, pure.batched, strict=True)]
        with torch.no_grad():
            again = pure.run(current, batch)
        for new, old in zip(again, outputs, strict=True):
            tolerance = torch.finfo(old.dtype).eps ** 0.5
            scale = old[i : i + 1].abs().max().clamp_min(1e-6)
            if not scale.isfinite():  # a row that is not finite, or an empty slot, says nothing
                continue
            if not ((new - old[i : i + 1]).abs() <= tolerance * scale).all():
                raise UnsupportedModel(
                    f"{pure} must give each row the same output alone as in the batch. It does "
                    "not: it draws random numbers, mixes rows, or an argument without a batch "
                    f"dimension happens to have {n} entries. Move the parameters into a small "
                    'module of their own, or use engine="loop".'
                )
