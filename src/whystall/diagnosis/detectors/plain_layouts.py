"""Convolutions on a CPU that reorder their input, and their result back.

oneDNN computes in blocks of channels. Tensors with channels first are copied into such blocks in each call and back
afterwards (`ONEDNN_VERBOSE=1` shows it); with channels last it computes on them in place. If a convolution does much
work with each number the copies are cheap. A depthwise one does only kernel size times kernel size operations with it:
its copies take as long as its work, as do those of the pointwise convolutions between. Pointwise ones beside dense ones
alone gain nothing: a network of such bottlenecks took 1.00 and 1.05 times as long with its channels last. For depthwise
kernels of 14 by 14 and more it has no fast forward pass with the channels first: one of 13 by 13 takes a sixth to a
fiftieth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whystall.diagnosis.rank_case import RankCase
from whystall.json_text import parse_json
from whystall.trace.columns import judged, matching

Left = tuple[float, float, float]
"""The remaining share with channels last: at least, as expected, at most."""

# Lowest tenth, median and highest tenth of the sizes in `python benchmarks/bench_layouts.py` (two cores of an AMD EPYC
# with AVX-512). Dense convolutions keep 0.93: too little for a finding.
_DEPTHWISE: Final[Left] = (0.43, 0.65, 0.82)
_LARGE_DEPTHWISE: Final[Left] = (0.02, 0.05, 0.26)
_POINTWISE: Final[Left] = (0.56, 0.74, 0.90)
# Layers between them that process many channels at once where those are last.
_NORM: Final[Left] = (0.28, 0.36, 0.76)
_POOL: Final[Left] = (0.06, 0.10, 0.34)
_ALL: Final[Left] = (1.0, 1.0, 1.0)
_KINDS: Final = (_ALL, _DEPTHWISE, _POINTWISE, _NORM, _POOL, _LARGE_DEPTHWISE)
LARGE_SIDE: Final = 14
"""Numbers of a depthwise kernel's side from which oneDNN has no fast forward pass with the channels first."""
_FORWARD: Final = "aten::mkldnn_convolution"
# Where the input stands among the arguments; the weight of a convolution is the next one.
_CONVOLUTIONS: Final = {_FORWARD: 0, "aten::convolution_backward": 1}
_POOLS: Final = "aten::max_pool2d_with_indices"
_BETWEEN: Final = {"aten::native_batch_norm": _KINDS.index(_NORM), _POOLS: _KINDS.index(_POOL)}
_LEARNS_AT: Final = 5
_IMAGES: Final = 4
_FLOATS: Final = frozenset({"float", "c10::BFloat16", "c10::Half"})


@dataclass(frozen=True, slots=True)
class Plain:
    """The remaining share of each operator's time; ``depthwise`` and ``pointwise`` count the convolutions."""

    left: tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]
    depthwise: int
    pointwise: int


def plain_layouts(rank: RankCase) -> Plain | None:
    """Depthwise convolutions whose tensors have their channels first, with others; ``None`` without such."""
    table = rank.trace.operators
    rows = np.flatnonzero(matching(table["name"], lambda name: name in _CONVOLUTIONS or name in _BETWEEN))
    columns = ("name", "input_dims", "input_strides", "input_types", "concrete_inputs")
    of_onednn = matching(table["name"], lambda name: name == _FORWARD).any()
    if not len(rows) or not of_onednn or any(column not in table.columns for column in columns):
        return None
    kinds = np.array(judged(table.select(*columns)[rows], _kind), np.intp)
    depthwise = np.isin(kinds, (_KINDS.index(_DEPTHWISE), _KINDS.index(_LARGE_DEPTHWISE)))
    if not depthwise.any():
        return None
    of = np.zeros(len(table), np.intp)
    for kind in range(1, len(_KINDS)):
        marked = np.zeros(len(table), np.bool_)
        marked[rows[kinds == kind]] = True
        of[marked | rank.workings.tree.below(marked)] = kind
    shares = np.array(_KINDS)[of]
    return Plain(
        (shares[:, 0], shares[:, 1], shares[:, 2]),
        int(np.count_nonzero(depthwise)),
        int(np.count_nonzero(kinds == _KINDS.index(_POINTWISE))),
    )


def _kind(name: str, *recorded: str | None) -> int:
    """The index of a call in the list of kinds; the first one, without a gain, where it is none of them."""
    try:
        at = _CONVOLUTIONS.get(name, 0)
        sizes, strides, types, concrete = (parse_json(text or "[]")[at:] for text in recorded)
        given = sizes[0]
        if len(given) != _IMAGES or types[0] not in _FLOATS or not _has_channels_first(given, strides[0]):
            return 0
        if name in _BETWEEN:  # a normalisation that does not learn is as fast in either order
            return _BETWEEN[name] if name == _POOLS or concrete[_LEARNS_AT] == "True" else 0
        made, of_each, *kernel = sizes[1]
        if of_each == 1 < given[1]:
            large = name == _FORWARD and min(kernel) >= LARGE_SIDE
            return _KINDS.index(_LARGE_DEPTHWISE if large else _DEPTHWISE) if made % given[1] == 0 else 0
        return _KINDS.index(_POINTWISE) if kernel == [1, 1] and of_each == given[1] else 0
    except (ValueError, TypeError, IndexError):
        return 0


def _has_channels_first(sizes: list[int], strides: list[int]) -> bool:
    """Whether a batch of images is stored picture by picture, channel by channel, without gaps.

    For one channel, or one pixel, both orders are the same.
    """
    _, channels, height, width = sizes
    plain = strides[1:] == [height * width, width, 1]
    return plain and channels > 1 and height * width > 1
