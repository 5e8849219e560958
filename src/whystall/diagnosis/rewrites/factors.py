"""Matrices that are inverted where a solution of few equations would do."""

from __future__ import annotations

from typing import Final

from whystall.analysis.dataflow.graph import Dataflow
from whystall.cost.spec import TensorSpec
from whystall.diagnosis.rewrites.price import Price
from whystall.diagnosis.rewrites.products import product_of
from whystall.diagnosis.rewrites.rewrite import Match, Rewrite

_INVERSES: Final = frozenset({"aten::linalg_inv_ex", "aten::inverse", "aten::linalg_inv"})
# They factor the same matrix once more: a factor has its determinant on the diagonal.
_DETERMINANTS: Final = frozenset({"aten::_linalg_slogdet", "aten::_linalg_det", "aten::logdet"})
_VECTOR_PRODUCTS: Final = frozenset({"aten::mv", "aten::addmv"})


def _inverse(graph: Dataflow, node: int, price: Price) -> Match | None:
    """An inverse that is multiplied by few columns, and by nothing else."""
    made = graph.made(node)[:1]
    uses = graph.uses(made[0]) if made else []
    columns = [_columns(graph, use, made[0]) for use in uses]
    if not columns or 0 in columns:
        return None
    matrix = graph.call(node).given[0]
    right = TensorSpec((*matrix.shape[:-1], max(columns)), matrix.dtype)
    after = price.ns("aten::_linalg_solve_ex", matrix, right)
    before = price.ns("aten::linalg_inv_ex", matrix)
    again = [other for other in graph.uses(graph.given(node)[0]) if graph.call(other).name in _DETERMINANTS]
    left = {node: after / before, **dict.fromkeys(again, after / before)}
    return Match(left, (matrix.shape[-1], max(columns)))


def _columns(graph: Dataflow, node: int, inverse: int) -> int:
    """The columns (or rows) that a node multiplies an inverse by; 0 where it does something else with it."""
    if graph.call(node).name in _VECTOR_PRODUCTS:
        return 1
    product = product_of(graph, node)
    if product is None or graph.origin(product.left) == graph.origin(product.right):
        return 0
    return product.columns if graph.origin(product.left) == graph.origin(inverse) else product.rows


INVERSE: Final = Rewrite(
    anchors=_INVERSES,
    match=_inverse,
    remedy="solved",
    labels=("rows of a matrix that is inverted", "columns, at most, that its inverse is multiplied by"),
    what="inverting, and what belongs to it",
    method="replay: one factor of the matrix, and the solution of these columns",
    detail="a matrix of {0:,} rows is inverted for {1:,} columns",
    smaller=False,
)
