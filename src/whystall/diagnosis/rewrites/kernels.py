"""Kernels of depthwise convolutions that are a column times a row: two convolutions, by each of them, do the same."""

from __future__ import annotations

from math import prod
from typing import Final

from whystall.analysis.dataflow.graph import Dataflow
from whystall.diagnosis.detectors.plain_layouts import LARGE_SIDE
from whystall.diagnosis.rewrites.price import Price
from whystall.diagnosis.rewrites.products import scaled_by_numbers
from whystall.diagnosis.rewrites.rewrite import Match, Rewrite

_OUTER: Final = frozenset({"aten::outer", "aten::ger", "aten::mul", "aten::mm"})
_PLANE: Final = 2
# Position of the flag for a transposed convolution.
_TRANSPOSED: Final = 6


def _separable(graph: Dataflow, node: int, price: Price) -> Match | None:
    """A large separable kernel with channels first: small ones, and channels last, are just as fast whole."""
    del price  # oneDNN has no fast form of such kernels: only the products determine the gain
    call, given = graph.call(node), graph.given(node)
    if len(given) < _PLANE or len(call.given[1].shape) != 2 + _PLANE or call.arguments[_TRANSPOSED:][:1] != (False,):
        return None
    channels, of_group, *kernel = call.given[1].shape
    strides = call.given[0].strides
    if of_group != 1 or channels == 1 or min(kernel) < LARGE_SIDE or strides is None or strides[-1] != 1:
        return None
    maker, _ = scaled_by_numbers(graph, given[1])
    if maker < 0 or graph.call(maker).name not in _OUTER:
        return None
    sides = sorted(one.numel for one in graph.call(maker).given)
    if sides != sorted(kernel):
        return None
    return Match({node: sum(kernel) / prod(kernel)}, (prod(kernel), sum(kernel), *kernel), backward=False)


SEPARABLE: Final = Rewrite(
    anchors=frozenset({"aten::convolution"}),
    match=_separable,
    remedy="separated",
    labels=("numbers of the largest kernel", "numbers of the column and the row that it is made of"),
    what="in convolutions with such kernels",
    method="replay: the same by a column and a row, one after the other",
    detail="a kernel of {2} by {3} is a column times a row",
    smaller=False,
)
