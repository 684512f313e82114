"""Record what passes each module that owns parameters: its input and its output-gradient.

While recording, a module's forward runs on *detached* parameters. So the one backward pass

* skips the weight gradients that plain training would compute (the engine computes them its way);
* delivers the output-gradient of every call to the engine, in reverse order of the forward;
* reaches a parameter itself only when the model used it outside its module's forward. That is
  seen on every step, by a hook that costs nothing otherwise, and refused.

Rows must not mix: before the first real backward pass, another one with half of the rows switched
off must leave those rows' output-gradients exactly zero at every recorded module.

How many rows are drawn is private. Whether rows share an input (positions) is therefore told by two
calls of the model, on 2 and on 3 rows of zeros, before the first recorded one: shapes are public.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from operator import and_
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map

from winsor.core.contract import LossError, ProtocolError, UnsupportedModel
from winsor.gradients.parameters import Site
from winsor.gradients.row_memory import RowMemory

_unsafe_view = torch.ops.aten._unsafe_view.default
saved_tensor_hooks = torch._C._autograd._top_saved_tensors_default_hooks
_engine = torch.autograd.Variable._execution_engine
Forward = Callable[..., Any]
SMALL_OUTPUT = 1 << 13


class Call:
    """One call of a module (or of one operation inside it) during a recorded forward pass."""

    __slots__ = ("grads", "inputs", "note", "operation", "versions")

    def __init__(
        self, operation: Any, inputs: Sequence[Tensor], count: int = 1, note: Any = None
    ) -> None:
        self.operation = operation
        self.note = note
        self.inputs = inputs
        self.versions = [x._version for x in inputs]
        self.grads: list[Tensor | None] = [None] * count


class PatchedForward:
    """Stands in for ``module.forward``. Copies and pickles of the model get the plain forward."""

    def __init__(self, module: nn.Module, recorder: Recorder, recorded: Forward) -> None:
        self._module = module
        self._recorder = recorder
        self._plain: Forward = module.forward
        self._recorded = recorded

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._recorder.on and torch.is_grad_enabled():
            return self._recorded(*args, **kwargs)
        return self._plain(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return getattr(memo[id(self._module)], "forward")  # noqa: B009 - the class's own, bound

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self._module, "forward")


class Recorder:
    """Patches the forwards of ``sites``, and runs the backward passes that feed an engine."""

    def __init__(self, model: Any, sites: Sequence[Site]) -> None:
        self._model = model
        self._sites = sites
        self._handles: list[Any] = []
        self._patched: list[tuple[nn.Module, Forward | None]] = []
        self._stray: list[str] = []
        self._running = False
        self.on = False
        self.attached = False
        self.verified = False
        self.rows: int | None = None
        self.row_memory = RowMemory()
        self.asks_for_rows = any(isinstance(site.module, nn.Embedding) for site in sites)
        self._followed: dict[Any, list[bool]] | None = None
        self._lifted: dict[str, bool] = {}
        self._receive: Callable[[Call, int, Tensor], None] = _ignore

    # ----------------------------------------------------------------------- attach and detach

    def attach(self, recorded: Callable[[Site, Forward], Forward]) -> None:
        """Install ``recorded(site, plain forward)`` as each site's forward. Idempotent."""
        if self.attached:
            return
        names = {}
        for site in self._sites:
            module = site.module
            if isinstance(module.__dict__.get("forward"), PatchedForward):
                raise ProtocolError(
                    f"{site} is already attached to an engine. Detach the other run first: two "
                    "engines on one model would record each other."
                )
            self._patched.append((module, module.__dict__.get("forward")))
            patch = PatchedForward(module, self, recorded(site, module.forward))
            module.__dict__["forward"] = patch
            names.update({slot.name: slot.owner._parameters[slot.local] for slot in site.slots})
        for name, parameter in names.items():
            assert parameter is not None
            hook = parameter.register_post_accumulate_grad_hook(self._stray_hook(name))
            self._handles.append(hook)
        if self.asks_for_rows:
            learn = self._model.register_forward_pre_hook(self._learn_rows, with_kwargs=True)
            self._handles.append(learn)
        self.attached = True

    def detach(self) -> None:
        """Remove every trace from the model."""
        for module, own in self._patched:
            del module.__dict__["forward"]
            if own is not None:
                module.__dict__["forward"] = own
        for handle in self._handles:
            handle.remove()
        self._patched, self._handles = [], []
        self.attached = self.on = False

    def _stray_hook(self, name: str) -> Callable[[Tensor], None]:
        # Weak: autograd holds this hook where the garbage collector cannot see it, and a model
        # that holds its recorder through its own parameter would never be freed.
        alive = weakref.ref(self)

        def note(parameter: Tensor) -> None:
            recorder = alive()
            if recorder is not None and recorder._running:
                recorder._stray.append(name)
                parameter.grad = None  # it holds private gradients: leave nothing behind

        return note

    def __reduce__(self) -> tuple[Any, ...]:
        return Recorder, (None, ())  # what the hook of a copied or pickled model has: nothing

    def _learn_rows(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if not self.on:
            return
        leaves = args if args and isinstance(args[0], Tensor) else tree_flatten((args, kwargs))[0]
        sizes = (x.shape[0] for x in leaves if isinstance(x, Tensor) and x.dim() > 0)
        self.rows = next(sizes, None)
        if self._followed is None and self.rows is not None:
            self._followed = {}
            with suppress(Exception):  # a model that takes no zeros: the first batch decides
                two, three = (self._first_dimensions(args, kwargs, count) for count in (2, 3))
                self._followed = {at: [*map(and_, two[at], three[at])] for at in two}

    def _first_dimensions(self, args: Any, kwargs: Any, count: int) -> dict[Any, list[bool]]:
        """Call the model on ``count`` rows of zeros, and tell whether the tensors that reach a site
        first have that many."""
        found: dict[Any, list[bool]] = {}

        def zeros(x: Any) -> Any:
            is_rows = isinstance(x, Tensor) and x.dim() > 0 and x.shape[0] == self.rows
            return x.new_zeros(count, *x.shape[1:]) if is_rows else x

        def note(site: Site, _: nn.Module, args: tuple[Any, ...], kwargs: Any) -> Any:
            inputs = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, Tensor)]
            has = [x.dim() > 0 and x.shape[0] == count for x in inputs]
            found.setdefault((site.path, len(inputs)), has)
            if isinstance(site.module, nn.Embedding) and args and _is_shared(args[0], count):
                args = _for_each(args[0], count), *args[1:]
            return args, kwargs

        hooks = [
            s.module.register_forward_pre_hook(partial(note, s), with_kwargs=True)
            for s in self._sites
        ]
        devices = {p.device for p in self._model.parameters() if p.is_cuda}
        try:
            with (
                self.paused(),
                torch.no_grad(),
                torch.random.fork_rng(devices=devices),
                warnings.catch_warnings(action="ignore"),
            ):
                self._model(*tree_map(zeros, args), **tree_map(zeros, kwargs))
        finally:
            for hook in hooks:
                hook.remove()
        return found

    def shared(self, site: Site, inputs: Sequence[Tensor]) -> list[bool]:
        """Tell which ``inputs`` of a site have as many entries as there are rows by chance only."""
        follows = (self._followed or {}).get((site.path, len(inputs)), [True] * len(inputs))
        pairs = zip(follows, inputs, strict=True)
        return [not each and x.dim() > 0 and x.shape[0] == self.rows for each, x in pairs]

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Run modules without recording, for instance to recompute one of them."""
        on, self.on = self.on, False
        try:
            yield
        finally:
            self.on = on

    # ------------------------------------------------------------------------------- forward

    def note_input(self, x: Tensor) -> None:
        """Note what plain training holds for this call: rows may take a part of it in addition."""
        if x.dim() and x.shape[0]:
            self.row_memory.note_input(x.numel() / x.shape[0])

    def lift(self, site: Site, index: Tensor) -> Tensor:
        """Give each row its own copy of an embedding's input that all rows share (positions).

        Whether a site's input is shared is decided once, and not by a count of rows: a batch with
        as many rows as there are positions must not be read as one position per row.
        """
        if self.rows is None or index.dim() == 0:
            return index
        known = _is_shared(index, self.rows) or self.shared(site, [index])[0]
        return _for_each(index, self.rows) if self._lifted.setdefault(site.path, known) else index

    def track(self, call: Call, outputs: list[Tensor]) -> list[Tensor]:
        """Have the output-gradients of ``outputs`` delivered to ``call`` in the backward pass.

        An output may also feed another output (the cell state of an LSTM) or be an input that is
        handed through; an alias has the gradient from outside the module only.
        """
        outputs = [
            _unsafe_view(out, out.shape) if out.requires_grad else out.detach() for out in outputs
        ]
        if len(outputs) > 1 and saved_tensor_hooks(True) is not None:
            inputs, call.inputs, call.versions = call.inputs, (), []
            return [self._track_saved(call, j, out, inputs) for j, out in enumerate(outputs)]
        return [self.track_one(call, out, j) for j, out in enumerate(outputs)]

    @staticmethod
    def detached(module: nn.Module) -> tuple[Tensor | None, Tensor | None]:
        """Return weight and bias as the recorded forward uses them."""
        weight, bias = module._parameters.get("weight"), module._parameters.get("bias")
        return (
            None if weight is None else weight.detach(),
            None if bias is None else bias.detach(),
        )

    def record(self, operation: Any, out: Tensor, *inputs: Tensor, note: Any = None) -> Tensor:
        """Note a call of ``operation`` and pass its output on, to be met again in the backward."""
        return self.track_one(Call(operation, inputs, note=note), out)

    def track_one(self, call: Call, out: Tensor, j: int = 0) -> Tensor:
        """Do as `track` for one fresh output: on the path of every step, so kept short."""
        if not self.verified and call.inputs:
            self.note_input(call.inputs[0])
        if saved_tensor_hooks(True) is not None:
            inputs, call.inputs, call.versions = call.inputs, (), []
            return self._track_saved(call, j, out, inputs)
        if out.requires_grad:
            out.register_hook(lambda g: self._receive(call, j, g))
            return out

        def deliver(leaf: Tensor) -> None:
            g, leaf.grad = leaf.grad, None
            assert g is not None
            self._receive(call, j, g)

        leaf = out.requires_grad_()
        leaf.register_post_accumulate_grad_hook(deliver)
        # A leaf cannot be changed in place (ReLU(inplace=True)); an unsafe view of it can, and
        # here it is safe: nobody else reads the leaf. A small copy is quicker than the dispatch.
        return leaf.clone() if leaf.numel() < SMALL_OUTPUT else _unsafe_view(leaf, leaf.shape)

    def hook(self, call: Call, node: Any) -> None:
        """Do as `track_one` for an output that is in the graph already, as what ``node`` made."""
        node.register_prehook(lambda gradients: self._receive(call, 0, gradients[0]))

    def _track_saved(self, call: Call, j: int, out: Tensor, inputs: Sequence[Tensor]) -> Tensor:
        """Let autograd save, drop and recompute the inputs, under gradient checkpointing."""

        def deliver(g: Tensor, saved: Sequence[Tensor]) -> None:
            call.inputs, call.versions = saved, [x._version for x in saved]
            self._receive(call, j, g)

        anchor = torch.empty(0, requires_grad=True)
        return _Tap.apply(out, anchor, deliver, *inputs)

    # ------------------------------------------------------------------------------ backward

    def deliver(self, call: Call, j: int, g: Tensor) -> None:
        """Hand over an output-gradient, for autograd functions that bring their own backward."""
        self._receive(call, j, g)

    def backward(
        self,
        losses: Tensor,
        receive: Callable[[Call, int, Tensor], None],
        seed: Tensor | None = None,
    ) -> None:
        """Run the backward pass of ``(seed * losses).sum()``; ``receive`` gets every
        output-gradient."""
        if not self.verified and len(losses) > 1:
            self._verify(losses)
            self.verified = True
        self._run(losses, torch.ones_like(losses) if seed is None else seed, receive)
        if self._stray:
            self.refuse_stray()

    def _run(
        self,
        losses: Tensor,
        seed: Tensor,
        receive: Callable[[Call, int, Tensor], None],
        retain: bool = False,
    ) -> None:
        self._receive, self._running = receive, True
        try:
            # What torch.autograd.backward does after checks that take as long as the backward
            # pass of a small model: (roots, seeds, keep graph, create graph, leaves, ...).
            _engine.run_backward(
                (losses,), (seed,), retain, False, (), allow_unreachable=True, accumulate_grad=True
            )
        finally:
            self._receive, self._running = _ignore, False

    def _verify(self, losses: Tensor) -> None:
        n = len(losses)
        generator = torch.Generator().manual_seed(0)  # leave the user's random stream alone
        off = torch.rand(n, generator=generator) < 0.5
        off[:2] = torch.tensor([True, False])
        met: list[Call] = []

        def check(call: Call, j: int, g: Tensor) -> None:
            met.append(call)
            refuse_other_batch(call, g, n)
            if g[off.to(g.device)].nan_to_num(0.0, 0.0, 0.0).count_nonzero():
                raise UnsupportedModel(
                    f"rows must not mix: at {call.operation}, the loss of one row depends on "
                    "another row, or the first dimension of the output is not the batch. Got a "
                    f"gradient of shape {tuple(g.shape)} for {n} rows. Normalise within a row "
                    "(GroupNorm, LayerNorm), keep the batch first (batch_first=True), and give "
                    "each row its own positions: positions.expand(n, -1)."
                )

        seed = torch.where(off.to(losses.device), 0.0, 1.0).to(losses.dtype)
        self._run(losses, seed, check, retain=True)
        if self._stray:
            self.refuse_stray()
        if not met:
            raise LossError(
                "losses must come from the model that was made private. Got losses on which none "
                "of its layers has a part: another model was called, or this one outside "
                "`for batch in private.batches()`. Call private.model on the batch."
            )

    def refuse_stray(self, found: Sequence[str] = ()) -> None:
        """Refuse losses that reach parameters (``found``, and what hooks noted) past their
        modules."""
        names, self._stray = sorted({*self._stray, *found}), []
        raise UnsupportedModel(
            f"parameters must be used by the forward of the module that owns them. Got "
            f"{', '.join(names[:5])} used elsewhere (or in a forward pass that was not recorded): "
            "their per-sample gradient would be lost. Call the module instead of reading its "
            'weight, or use engine="loop".'
        )


def _is_shared(index: Tensor, rows: int) -> bool:
    return index.dim() > 0 and index.shape[0] != rows and (index.dim() == 1 or len(index) == 1)


def _for_each(index: Tensor, rows: int) -> Tensor:
    return index.expand(rows, *index.shape[1 if index.dim() > 1 else 0 :])


class _Tap(torch.autograd.Function):
    """Identity on ``out`` that saves ``tensors`` the way autograd does."""

    @staticmethod
    def forward(ctx: Any, out: Tensor, anchor: Tensor, deliver: Any, *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*tensors)
        ctx.deliver = deliver
        return _unsafe_view(out, out.shape)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # under checkpointing this recomputes, and may be read once
        ctx.deliver(g, saved)
        return (g, None, None, *[None] * len(saved))


def refuse_other_batch(call: Call, g: Tensor, n: int) -> None:
    """Refuse an output whose first dimension is not the batch."""
    if g.dim() == 0 or g.shape[0] != n:
        raise UnsupportedModel(
            f"the output of {call.operation} must have the {n} rows of the batch as its first "
            f"dimension. Got shape {tuple(g.shape)} instead. Keep the batch first "
            "(batch_first=True, no flattening of rows into it), and expand what is shared between "
            "rows before it enters the module: positions.expand(n, -1)."
        )


def refuse_changed_inputs(call: Call) -> None:
    """Refuse a call whose inputs were changed in place since."""
    if call.versions != [x._version for x in call.inputs]:
        raise UnsupportedModel(
            f"the input of {call.operation} must not be changed in place after the call. Got a "
            "modified tensor: use an out-of-place operation there."
        )


def refuse_without_graph() -> NoReturn:
    """Refuse losses that were detached from the parameters."""
    raise LossError(
        "losses must carry their graph to the parameters. Got a tensor without grad_fn. Do "
        "not call .detach(), and compute the losses outside torch.no_grad()."
    )


def _ignore(call: Call, j: int, g: Tensor) -> None:
    """Ignore backward passes that are not ours."""
