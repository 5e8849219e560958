"""Copies of tensors that were repeated (a dimension of stride 0) for a product that could read them once."""

from __future__ import annotations

from math import prod
from typing import Final

from whystall.analysis.dataflow.graph import Dataflow
from whystall.cost.spec import TensorSpec
from whystall.diagnosis.rewrites.price import Price
from whystall.diagnosis.rewrites.products import product_of
from whystall.diagnosis.rewrites.rewrite import Match, Rewrite

_COPIES: Final = frozenset({"aten::clone", "aten::contiguous"})

_REPEAT: Final = "aten::repeat_interleave"
_ATTENTION: Final = frozenset(
    f"aten::_scaled_dot_product_{name}_attention{device}"
    for name, device in (("flash", "_for_cpu"), ("flash", ""), ("efficient", ""), ("cudnn", ""))
)
# A batch, heads, query heads of each, places, and values of each place.
_BATCHED: Final = 4
_HEADS, _GROUP, _PLACES = 1, 2, 3


def repeated(spec: TensorSpec) -> int:
    """How often a tensor shows each of its elements."""
    return spec.numel // max(spec.stored, 1) if spec.strides is not None else 1


def _times(graph: Dataflow, node: int) -> int:
    """How often a copy repeats its input; 0 where it does not."""
    given = graph.call(node).given
    times = repeated(given[0]) if given and graph.call(node).name in _COPIES else 0
    return times if times > 1 else 0


def _broadcast(graph: Dataflow, node: int, price: Price) -> Match | None:
    """Matrices that a product of four dimensions and more copies for each of a batch, each for few rows."""
    times = _times(graph, node)
    uses = graph.uses(graph.made(node)[0]) if times else []
    product = product_of(graph, uses[0]) if len(uses) == 1 else None
    source = graph.call(node).given[0]
    matrix = source.shape
    if product is None or len(matrix) < _BATCHED or min(matrix[-2:]) < 2 or 0 in (source.strides or ())[-2:]:
        return None
    if _repeats_heads(graph.call(node).name, source):
        return None
    copied = graph.origin(product.left) == graph.origin(graph.made(node)[0])
    rows, columns = (product.columns, product.rows) if copied else (product.rows, product.columns)
    matrices = prod(matrix[:-2]) // times
    left = price.product(matrices, rows * times, product.shared, columns) / price.product(*product.sizes)
    return Match({node: 0.0, product.node: min(left, 1.0)}, (times, matrices, rows))


def _grouped(graph: Dataflow, node: int, price: Price) -> Match | None:
    """Keys or values of few heads that are copied for each query head, for attention of few new places."""
    del price  # without the copy its source is read, and nothing written
    call, made = graph.call(node), graph.made(node)[:1]
    uses = graph.uses(made[0]) if made else []
    if len(uses) != 1:
        return None
    source = call.given[0]
    copied = graph.spec(made[0]).numel
    stored = source.stored if source.strides is not None else source.numel
    times = copied // max(stored, 1)
    heads = source.shape[_HEADS] if len(source.shape) > _PLACES else 1
    product, shape = product_of(graph, uses[0]), graph.spec(graph.given(uses[0])[0]).shape
    if product is not None:
        queries = product.columns if graph.origin(product.left) == graph.origin(made[0]) else product.rows
    elif graph.call(uses[0]).name in _ATTENTION:
        queries = shape[-2]
    else:
        return None
    places = source.shape[-2]
    if times < 2 or not _repeats_heads(call.name, source) or queries * times > places:
        return None
    return Match({node: 1 / (1 + times)}, (heads, times, places), backward=False)


def _repeats_heads(name: str, source: TensorSpec) -> bool:
    """Whether heads are repeated: behind the batch and the existing heads."""
    if name == _REPEAT:
        return len(source.shape) == _BATCHED
    strides = source.strides or ()
    return len(strides) > _BATCHED and [place for place, step in enumerate(strides) if not step] == [_GROUP]


BROADCAST: Final = Rewrite(
    anchors=_COPIES,
    match=_broadcast,
    remedy="broadcast",
    labels=("copies of each matrix", "matrices", "rows that each copy is multiplied by"),
    what="in products with matrices that are copied for each of a batch, with their backward pass",
    method="replay: one product for all rows",
    detail="{1:,} matrices are copied {0:,} times each for a product",
)
GROUPED: Final = Rewrite(
    anchors=_COPIES | {_REPEAT},
    match=_grouped,
    remedy="grouped",
    labels=("heads that have keys and values", "query heads of each", "places"),
    what="copying keys and values",
    method="replay: without the copies",
    detail="keys and values of {0:,} heads are copied {1:,} times each for few new tokens",
    smaller=False,
)
