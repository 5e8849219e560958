"""Products of matrices in a costlier order or of a larger side than another one that gives the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Final

from whystall.analysis.dataflow.graph import Dataflow
from whystall.cost import kind_of
from whystall.diagnosis.rewrites.price import Price
from whystall.diagnosis.rewrites.rewrite import Match, Rewrite

PRODUCTS: Final = frozenset({"aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm", "aten::_sparse_mm"})
_WITH_ADDED: Final = frozenset({"aten::addmm", "aten::baddbmm"})
_SCALES: Final = frozenset({"aten::mul", "aten::mul_", "aten::div", "aten::div_"})
# A cheaper order leaves half at most: products are less well computed where they are smaller.
_MOST_LEFT: Final = 0.5


@dataclass(frozen=True, slots=True)
class Product:
    """A product of two values: ``batch`` matrices of ``rows`` x ``shared`` by ``shared`` x ``columns``."""

    node: int
    left: int
    right: int
    batch: int
    rows: int
    shared: int
    columns: int

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Arguments for `Price.product`."""
        return self.batch, self.rows, self.shared, self.columns


def product_of(graph: Dataflow, node: int) -> Product | None:
    """The product that a node computes; ``None`` where it is none, or its sizes do not fit."""
    if node < 0 or graph.call(node).name not in PRODUCTS:
        return None
    first = int(graph.call(node).name in _WITH_ADDED)
    operands = graph.given(node)[first : first + 2]
    if len(operands) != 2:
        return None
    left, right = (graph.spec(one).shape for one in operands)
    if not 2 <= len(left) == len(right) or left[-1] != right[-2] or left[:-2] != right[:-2] or 0 in (*left, *right):
        return None
    return Product(node, operands[0], operands[1], prod(left[:-2]), left[-2], left[-1], right[-1])


def scaled_by_numbers(graph: Dataflow, value: int) -> tuple[int, list[int]]:
    """The node that made a value before it was multiplied by numbers, with the nodes that did so."""
    scales: list[int] = []
    while (node := graph.maker(value)) >= 0 and graph.call(node).name in _SCALES:
        given = [one for one in graph.given(node) if graph.spec(one).numel > 1]
        if len(given) != 1:
            break
        scales.append(node)
        value = given[0]
    return node, scales


@dataclass(frozen=True, slots=True)
class _Chain:
    """A product of three matrices by way of the large one ``one`` makes and ``other`` alone reads.

    ``kept`` is the third matrix's free side; ``inner`` and ``outer`` the free sides of the one between.
    """

    one: Product
    other: Product
    scales: list[int]
    outer: int
    inner: int
    kept: int

    def left(self, price: Price) -> dict[int, float]:
        """Share that each product keeps in the other order: ``shared`` x ``inner`` x ``kept``, ``outer`` rows of it."""
        batch, shared = self.one.batch, self.one.shared
        first, last = (
            price.product(batch, shared, self.inner, self.kept),
            price.product(batch, self.outer, shared, self.kept),
        )
        return {
            self.one.node: last / price.product(*self.one.sizes),
            self.other.node: first / price.product(*self.other.sizes),
        }

    def saves(self) -> bool:
        """Whether the other order takes half of the multiplications, or less."""
        less = self.one.shared * self.kept * (self.inner + self.outer)
        return less <= _MOST_LEFT * (prod(self.one.sizes[1:]) + prod(self.other.sizes[1:]))


def _chains(graph: Dataflow, node: int) -> Iterator[_Chain]:
    """The chains that end in a product, with no other reader in between, and a cheaper order."""
    other = product_of(graph, node)
    if other is None:
        return
    for value, sides, kept in (
        (other.left, (other.rows, other.shared), other.columns),
        (other.right, (other.columns, other.shared), other.rows),
    ):
        maker, scales = scaled_by_numbers(graph, value)
        one = product_of(graph, maker)
        if one is None or graph.backward[maker] != graph.backward[node]:
            continue
        if one.batch != other.batch or sorted(sides) != sorted((one.rows, one.columns)):
            continue
        found = _Chain(one, other, scales, *sides, kept)
        between = [graph.made(maker)[0], *(graph.made(scale)[0] for scale in scales)]
        own = frozenset({node, *scales})
        alone = all(own.issuperset(graph.uses(made)) for made in between)
        if found.saves() and alone and not graph.may_be_changed(between[0], node, own):
            yield found


def _product_order(graph: Dataflow, node: int, price: Price) -> Match | None:
    """Three matrices whose intermediate result is larger, on both sides, than the dimension the first two share."""
    for chain in _chains(graph, node):
        with_added = {graph.call(one.node).name for one in (chain.one, chain.other)} & _WITH_ADDED
        if chain.one.shared < min(chain.one.rows, chain.one.columns) and not with_added:
            # Scales, copies and views of the large one go with it.
            gone = dict.fromkeys(chain.scales, 0.0)
            return Match({**gone, **chain.left(price)}, (chain.one.rows, chain.one.columns, chain.one.shared))
    return None


PRODUCT_ORDER: Final = Rewrite(
    anchors=PRODUCTS,
    match=_product_order,
    remedy="reordered",
    labels=("its rows", "its columns", "what they share"),
    what="in products that make and read the large matrix between",
    method="replay: the arithmetic of the other order",
    detail="three matrices are multiplied by way of one of {0:,} by {1:,}",
)


def _mixed_first(graph: Dataflow, node: int, price: Price) -> Match | None:
    """A square matrix that mixes the rows of something computed, before a layer makes its columns few."""
    for chain in _chains(graph, node):
        computed = graph.maker(chain.one.right) >= 0
        if computed and not chain.scales and chain.one.rows == chain.one.shared == chain.outer:
            return Match(chain.left(price), (chain.one.rows, chain.one.columns, chain.kept))
    return None


MIXED_FIRST: Final = Rewrite(
    anchors=PRODUCTS,
    match=_mixed_first,
    remedy="projected_first",
    labels=("rows of the square matrix", "columns that it mixes", "columns that the next product makes of them"),
    what="in products with the square matrix",
    method="replay: the square matrix on what the next product makes",
    detail="{1:,} columns are mixed before a layer makes {2:,} of them",
)


def _gram(graph: Dataflow, node: int, price: Price) -> Match | None:
    """A polynomial of X X^T that is multiplied by X, where X is tall: X^T X has the smaller side."""
    last = product_of(graph, node)
    if last is None or last.rows != last.shared or last.rows <= last.columns:
        return None
    rows, columns, batch = last.rows, last.columns, last.batch
    turned = graph.origin(last.right)
    nodes, seen, todo = [node], set(), [last.left]
    found = False
    while todo:
        value = graph.origin(todo.pop())
        maker = int(graph.made_by[value])
        if value in seen or graph.spec(value).shape[-2:] != (rows, rows):
            continue
        seen.add(value)
        if graph.may_be_changed(value, node, frozenset(nodes)):
            return None
        one = product_of(graph, maker)
        if one is not None and one.shared == columns:
            if not graph.origin(one.left) == graph.origin(one.right) == turned:
                return None
            found = True
            nodes.append(maker)
        elif one is not None or (maker >= 0 and kind_of(graph.call(maker).name) == "elementwise"):
            nodes.append(maker)
            todo.extend(graph.given(maker))
        else:
            return None
    if not found:
        return None
    small = price.product(batch, columns, columns, columns) / price.product(batch, rows, rows, rows)
    thin = price.product(batch, columns, rows, columns) / price.product(batch, rows, columns, rows)
    end = price.product(batch, rows, columns, columns) / price.product(*last.sizes)
    elements = (columns / rows) ** 2
    left = {}
    for each in nodes:
        of = product_of(graph, each)
        left[each] = elements if of is None else end if each == node else thin if of.shared == columns else small
    return Match(left, (rows, columns), backward=False)


GRAMS: Final = Rewrite(
    anchors=PRODUCTS,
    match=_gram,
    remedy="turned",
    labels=("rows of the largest", "its columns"),
    what="in products of a matrix with itself, turned around",
    method="replay: the same products of the smaller side",
    detail="a matrix of {0:,} rows and {1:,} columns is iterated on by its rows",
)
