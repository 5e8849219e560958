"""Forward operators that run again in the backward pass, and those that no backward pass uses."""

from __future__ import annotations

import re
from typing import Final

import numpy as np
import polars as pl

from whystall._native import nearest_marked
from whystall.diagnosis.rank_case import RankCase
from whystall.replay.graph import Mask
from whystall.trace.columns import matching

_CHECKPOINT: Final = "CheckpointFunctionBackward"
# Operators that derivatives consist of.
_OF_DERIVATIVES: Final = re.compile(
    r"^aten::(_to_copy|_unsafe_view|add_?|as_strided|bmm|clone|conj|contiguous|copy_|detach|div|empty|expand(_as)?|fill_"
    r"|full|matmul|mm|mul_?|narrow|neg|new_empty|new_zeros|(ones|zeros)_like|permute|pow|reciprocal|reshape|rsub|select"
    r"|slice|sqrt|squeeze|sub|sum(_to_size)?|t|to|transpose|unsqueeze|view|where|zeros)$"
)
# Minimum share of the pass's products without a backward operator that the differentiated pass repeats.
_REPEATED: Final = 0.9
_PRODUCTS: Final = frozenset({"aten::mm", "aten::addmm", "aten::bmm", "aten::convolution"})


def repeated_operators(rank: RankCase) -> tuple[Mask, Mask]:
    """Operators of a forward pass that run again during the backward pass, and those no backward operator refers to.

    Autograd numbers operators that it will differentiate; a backward operator carries the number of its forward. An
    operator without a backward one counts if the differentiated pass does the same: a frozen model's pass is needed.
    """
    table = rank.trace.operators
    nothing = np.zeros(len(table), np.bool_)
    if table.is_empty() or "sequence" not in table.columns:
        return nothing, nothing
    sequence, backward = table["sequence"].fill_null(-1).to_numpy(), rank.backward
    if not rank.trains:
        return nothing, nothing
    used = np.unique(sequence[backward & (sequence >= 0)])
    forward = (sequence >= 0) & ~backward
    engine = matching(table["name"], lambda name: name.startswith("autograd::engine"))
    tree = rank.workings.tree
    in_backward = backward | engine
    inside = in_backward | tree.below(in_backward)
    # The number of a call is that of the first node made in it, which may be a view for a look at it.
    used_own = forward & np.isin(sequence, used)
    unused_own = forward & ~used_own & ~tree.around(used_own)
    again_own = forward & inside & ~in_backward
    again_own &= _computed_again(rank, again_own, outside=~inside, nodes=backward)
    again = again_own | tree.below(again_own)
    unused = (unused_own | tree.below(unused_own)) & ~inside
    return again, unused if _repeats_products(table, unused, forward & ~unused & ~inside) else nothing


def times_again(rank: RankCase) -> float:
    """How often the backward pass computes an operator of the forward pass again: the median over kinds of operators.

    Operators that derivatives consist of are left out, and those that run in one of the passes alone.
    """
    table, tree = rank.trace.operators, rank.workings.tree
    engine = matching(table["name"], lambda name: name.startswith("autograd::engine"))
    nodes = rank.backward | engine
    inside = tree.below(nodes) & ~nodes
    forward = matching(table["name"], lambda name: name.startswith("aten::") and not _OF_DERIVATIVES.match(name))
    counts = (
        table.select(pl.col("name").cast(pl.String), inside=pl.Series(inside), chosen=pl.Series(forward & ~nodes))
        .filter("chosen")
        .group_by("name")
        .agg(again=pl.col("inside").sum(), first=(~pl.col("inside")).sum())
        .filter((pl.col("again") > 0) & (pl.col("first") > 0))
    )
    return float(np.median((counts["again"] / counts["first"]).to_numpy())) if len(counts) else 0.0


def _computed_again(rank: RankCase, numbered: Mask, *, outside: Mask, nodes: Mask) -> Mask:
    """Which numbered operators within backward nodes are a forward pass's, and no derivatives of a higher order.

    A gradient of a gradient (create_graph: penalties, differential equations) makes autograd number the work of a
    backward node, too. A forward pass is recognised by operators that also occur outside, of which no derivative
    consists (a sum's derivative turns it around). Without any of these, all operators count as its own.
    """
    table, tree = rank.trace.operators, rank.workings.tree
    names = table["name"].cast(str)
    known = set(names.filter(pl.Series(outside)).unique().to_list())
    distinct = numbered & ~matching(table["name"], lambda name: bool(_OF_DERIVATIVES.match(name)))
    called = matching(table["name"], known.__contains__)
    if not any(not _OF_DERIVATIVES.match(one) for one in known):
        return numbered
    tells = distinct & called
    node_of = nearest_marked(tree.order, tree.parent, nodes.astype(np.uint8))
    again = np.zeros(len(table) + 1, np.bool_)  # the last stands for no node
    again[node_of[tells]] = True
    again[node_of[distinct & ~called]] = False
    again[:-1] |= matching(table["name"], lambda name: name == _CHECKPOINT)
    return again[node_of]


def _repeats_products(table: pl.DataFrame, rows: Mask, others: Mask) -> bool:
    """Whether these operators multiply matrices, and nearly all of their products are among the others' too."""
    products = matching(table["name"], _PRODUCTS.__contains__)
    by = [name for name in ("name", "input_dims") if name in table.columns]
    own = table.filter(pl.Series(products & rows)).group_by(by).len("own")
    other = table.filter(pl.Series(products & others)).group_by(by).len("other")
    if own.is_empty():
        return False
    both = own.join(other, on=by, how="left", nulls_equal=True)
    repeated = float(np.minimum(both["own"].to_numpy(), both["other"].fill_null(0).to_numpy()).sum())
    return repeated >= _REPEATED * float(both["own"].sum())
