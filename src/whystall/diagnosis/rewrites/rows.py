"""Layers on repeated rows, or on rows that are averaged afterwards, where fewer rows would do.

A linear layer maps equal rows to equal results, so that picking or repeating rows, or upsampling a picture, may as well
come after it; the mean of its results is its result for the mean. Its result for concatenated rows is the sum of the
results of its weight's columns for each part.
"""

from __future__ import annotations

from math import prod
from typing import Final

from whystall.analysis.dataflow.graph import Dataflow
from whystall.cost.spec import TensorSpec
from whystall.diagnosis.rewrites.price import Price
from whystall.diagnosis.rewrites.products import Product, product_of
from whystall.diagnosis.rewrites.rewrite import Match, Rewrite

_LAYERS: Final = frozenset({"aten::mm", "aten::addmm"})
_PICKS: Final = frozenset({"aten::index", "aten::index_select"})
_REPEATS: Final = _PICKS | {"aten::repeat", "aten::repeat_interleave"}
_JOINS: Final = frozenset({"aten::cat", "aten::concat"})
_UPSAMPLES: Final = frozenset({"aten::upsample_bilinear2d", "aten::upsample_nearest2d", "aten::upsample_bicubic2d"})
_CONVOLUTIONS: Final = frozenset({"aten::convolution", "aten::conv2d"})
_MEAN: Final = "aten::mean"
_LOOKS_UP: Final = "aten::embedding"
_ADDS_UP: Final = frozenset({"aten::mean", "aten::sum"})
_WEIGHS: Final = frozenset({"aten::mul", "aten::mul_"})
_BAGS: Final = 3
# Position of the flag for a sparse gradient of a lookup.
_SPARSE: Final = 4
_WHAT: Final = "in a layer on more rows than there are different ones, with its backward pass"
_METHOD: Final = "replay: its rows before they are repeated, or after they are averaged"
_LABELS: Final = ("rows that it works on", "that would do")


def _layer(graph: Dataflow, node: int) -> Product | None:
    """A product of rows with one matrix for all of them."""
    return product_of(graph, node) if node >= 0 and graph.call(node).name in _LAYERS else None


def _fewer(layer: Product, few: int, price: Price) -> float:
    """The remaining share of a layer with ``few`` rows."""
    return price.product(1, few, layer.shared, layer.columns) / price.product(*layer.sizes)


def _rows(spec: TensorSpec) -> int:
    return prod(spec.shape[:-1])


def _picked(graph: Dataflow, node: int, price: Price) -> Match | None:
    """A layer on rows that are picked by their numbers."""
    layer = _layer(graph, node)
    if layer is None:
        return None
    rows = graph.origin(layer.left)
    maker = int(graph.made_by[rows])
    if maker < 0 or graph.call(maker).name not in _PICKS or not graph.read_alone_by(rows, node):
        return None
    source = graph.call(maker).given[0]
    if len(source.shape) < 2 or source.shape[-1] != layer.shared:
        return None
    return Match({node: _fewer(layer, _rows(source), price)}, (layer.rows, _rows(source)))


def _side_by_side(graph: Dataflow, node: int, price: Price) -> Match | None:
    """A layer on concatenated rows, some of which occur several times."""
    layer = _layer(graph, node)
    join = graph.maker(layer.left) if layer is not None else -1
    if layer is None or join < 0 or graph.call(join).name not in _JOINS:
        return None
    parts = graph.given(join)
    wide = sum(graph.spec(part).shape[-1] for part in parts)
    if len(parts) < 2 or wide != layer.shared or any(_rows(graph.spec(part)) != layer.rows for part in parts):
        return None
    if not graph.read_alone_by(graph.made(join)[0], node):
        return None
    sources = [_before_it_was_repeated(graph, part) for part in parts]
    few = [rows for rows in map(_rows, sources) if rows < layer.rows]
    if not few:
        return None
    left = sum(price.product(1, _rows(one), one.shape[-1], layer.columns) for one in sources)
    # The results of the layer's parts are added, instead of the rows being concatenated.
    added = price.ns("aten::add", *(TensorSpec((layer.rows, layer.columns)),) * len(parts))
    joined = added / price.of(graph.call(join).cost)
    return Match({node: left / price.product(*layer.sizes), join: min(joined, 1.0)}, (layer.rows, max(few)))


def _before_it_was_repeated(graph: Dataflow, value: int) -> TensorSpec:
    """The tensor whose rows a value holds several times; its own where it repeats none."""
    own = graph.spec(value)
    origin = graph.spec(graph.origin(value))
    maker = graph.maker(value)
    if maker >= 0 and graph.call(maker).name in _REPEATS:
        origin = graph.call(maker).given[0]
    repeated = len(origin.shape) > 1 and origin.shape[-1] == own.shape[-1] and origin.numel < own.numel
    return origin if repeated else own


def _upsampled(graph: Dataflow, node: int, price: Price) -> Match | None:
    """A 1 x 1 convolution that narrows a picture after it was upsampled."""
    given = graph.given(node)
    if len(given) < 2 or graph.call(node).name not in _CONVOLUTIONS:
        return None
    picture, weight = (graph.spec(one).shape for one in given[:2])
    maker = graph.maker(given[0])
    if maker < 0 or graph.call(maker).name not in _UPSAMPLES or not graph.read_alone_by(graph.made(maker)[0], node):
        return None
    small = graph.call(maker).given[0].shape
    if len(weight) != 4 or weight[2:] != (1, 1) or weight[1] != picture[1] or weight[0] > weight[1]:
        return None
    few, many = small[0] * prod(small[2:]), picture[0] * prod(picture[2:])
    left = price.product(1, few, weight[1], weight[0]) / price.product(1, many, weight[1], weight[0])
    return Match({node: left, maker: weight[0] / weight[1]}, (many, few))


def _averaged(graph: Dataflow, node: int, price: Price) -> Match | None:
    """A layer whose output is only averaged over rows."""
    call = graph.call(node)
    layer = _layer(graph, graph.maker(graph.given(node)[0])) if graph.given(node) else None
    if layer is None or call.returned is None or len(call.arguments) < 2 or len(call.given[0].shape) < 3:
        return None
    dims = call.arguments[1]
    over = {int(one) % len(call.given[0].shape) for one in dims} if isinstance(dims, list) else set()
    few = layer.rows // max(prod(call.given[0].shape[one] for one in over), 1)
    last = len(call.given[0].shape) - 1
    if not over or last in over or not graph.read_alone_by(graph.made(layer.node)[0], node):
        return None
    return Match({layer.node: _fewer(layer, few, price)}, (layer.rows, few))


def _bagged(graph: Dataflow, node: int, price: Price) -> Match | None:
    """Rows of a table that are looked up only to be added up: a bag reads each once and writes their sum."""
    call = graph.call(node)
    if call.returned is None or len(call.returned[0].shape) != _BAGS:
        return None
    rows = graph.made(node)[0]
    sums = {one: _sum_of(graph, one, rows) for one in graph.uses(rows)}
    ends = [end for end in sums.values() if end is not None]
    if not sums or len(ends) < len(sums) or call.returned[0].nbytes < price.cache_bytes:
        return None
    out = call.returned[0]
    nodes = {node, *sums, *ends}
    before = sum(price.of(graph.call(one).cost) for one in nodes)
    bags = TensorSpec((out.shape[0],), "int64")
    after = price.ns("aten::_embedding_bag", call.given[0], TensorSpec((prod(out.shape[:2]),), "int64"), bags)
    left = min(after / before, 1.0)
    # A sparse gradient has the rows one by one, regardless of the sum.
    sparse = len(call.arguments) > _SPARSE and call.arguments[_SPARSE] is True
    return Match(dict.fromkeys(nodes, left), (out.shape[1], prod(out.shape[:2])), backward=not sparse)


def _sum_of(graph: Dataflow, node: int, rows: int) -> int | None:
    """The node that adds rows up along their second dimension: itself, or the one behind a weight for each row."""
    shape = graph.spec(rows).shape
    call = graph.call(node)
    if call.name in _WEIGHS:
        weights = [one.shape for one in call.given[1:]]
        behind = graph.uses(graph.made(node)[0])
        plain = weights == [(*shape[:2], 1)] and len(behind) == 1 and call.given[0].shape == shape
        return _sum_of(graph, behind[0], rows) if plain else None
    over = call.arguments[1] if call.name in _ADDS_UP and len(call.arguments) > 1 else None
    return node if over in ([1], [-2]) and call.given[0].shape == shape else None


PICKED: Final = Rewrite(
    _LAYERS, _picked, "commuted", _LABELS, _WHAT, _METHOD, "a layer works on {0:,} rows that are picked from {1:,}"
)
SIDE_BY_SIDE: Final = Rewrite(
    *(_LAYERS, _side_by_side, "side_by_side", _LABELS, _WHAT, _METHOD),
    detail="a layer works on {0:,} rows that are put side by side of {1:,}",
)
UPSAMPLED: Final = Rewrite(
    *(_CONVOLUTIONS, _upsampled, "commuted", _LABELS, _WHAT, _METHOD),
    detail="a layer works on {0:,} rows that are upsampled from {1:,}",
)
AVERAGED: Final = Rewrite(
    *(frozenset({_MEAN}), _averaged, "commuted", _LABELS, _WHAT, _METHOD),
    detail="a layer works on {0:,} rows of which the mean is taken, of {1:,}",
)
BAGGED: Final = Rewrite(
    anchors=frozenset({_LOOKS_UP}),
    match=_bagged,
    remedy="bagged",
    labels=("rows that are looked up for each sum",),
    what="in looking rows up and adding them up",
    method="replay: the bytes that a bag reads and writes",
    detail="{1:,} rows are looked up only to be added up",
    smaller=False,
)
