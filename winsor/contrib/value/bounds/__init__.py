"""Which operations have a proven bound, by the name autograd records.

Each file of kinds exports ``KINDS``. What is not listed here is refused.
"""

from __future__ import annotations

from winsor.contrib.value.bounds import convolution, layers, stateless
from winsor.contrib.value.bounds.kind import Kind, RowBlocks, refuse
from winsor.gradients.graph import Step

_FILES = (convolution, layers, stateless)
KINDS: dict[str, Kind] = {op: kind for file in _FILES for kind in file.KINDS for op in kind.ops}


def kind_of(step: Step, rows: RowBlocks) -> Kind:
    """Return the kind of a recorded operation, after its checks; refuse one without a proof."""
    kind = KINDS.get(step.op)
    if kind is None:
        refuse(step, "has no proof here")
    if step.weights and not kind.weights.issuperset(step.weights):
        refuse(step, "uses a parameter in a way without a proof here")
    if kind.data is not None and not kind.data.issuperset(step.inputs):
        refuse(step, "takes activations where a proof expects weights")
    kind.check(step, rows)
    return kind
