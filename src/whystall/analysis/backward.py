"""Forward or backward: the operators of the backward pass, and the forward operator of each."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from whystall._native import nearest_marked
from whystall.analysis.operators import OperatorTree
from whystall.trace.link import rows_of
from whystall.trace.model import Trace
from whystall.vocabulary.autograd import ENGINE


def forward_operator_of(trace: Trace, tree: OperatorTree) -> NDArray[np.int32]:
    """Per operator the forward operator whose backward it is part of, else -1."""
    forward = rows_of(trace.operators["forward"])
    return _inherited(tree, forward >= 0, forward)


def is_backward(tree: OperatorTree, forward_of: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Which operators run in the backward pass: inside the autograd engine or linked to a forward."""
    engine = np.array([name.startswith(ENGINE) for name in tree.names], np.bool_)
    if not len(engine):
        return np.zeros(0, np.bool_)
    inside = engine[tree.name_of]
    return (forward_of >= 0) | (_inherited(tree, inside, np.arange(len(inside), dtype=np.int32)) >= 0)


def _inherited(tree: OperatorTree, marked: NDArray[np.bool_], values: NDArray[np.int32]) -> NDArray[np.int32]:
    """``values`` of each operator or of its nearest ancestor that is marked, else -1."""
    if not len(tree.order):
        return np.zeros(0, np.int32)
    above = nearest_marked(tree.order, tree.parent, marked.astype(np.uint8))
    source = np.where(marked, np.arange(len(marked), dtype=np.int32), above)
    return np.where(source >= 0, values[np.maximum(source, 0)], -1).astype(np.int32)
