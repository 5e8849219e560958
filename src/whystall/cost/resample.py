"""Interpolation and sampling at a grid: each result is a weighted sum of neighbours, two operations each.

Nearest neighbours are copies; their backward pass, and that of padding and maximum pooling, adds each gradient once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, prod

from whystall.cost.result import Work
from whystall.cost.spec import Argument, TensorSpec

Sizes = Sequence[int]

NEIGHBOURS = {"linear1d": 2, "bilinear2d": 4, "trilinear3d": 8, "bicubic2d": 16}
"""The elements that one result of an interpolation is made of."""

REACH = {"bilinear2d": 2, "bicubic2d": 4, "lanczos2d": 6}
"""Input elements per dimension of an antialiased interpolation; a shrinking one takes more, by its factor."""

BILINEAR, NEAREST, BICUBIC = range(3)


_Operations = Callable[[Sizes, Sizes], int]
"""How many operations lead from an image of some sizes to one of others."""


def _resampling(operations: _Operations) -> Callable[..., Work]:
    def formula(
        data: TensorSpec,
        size: Sizes | None,
        *rest: Argument,
        outputs: Sequence[TensorSpec] | None = None,
        **_: Argument,
    ) -> Work:
        out = _result(data, size, rest, outputs)
        return Work(0, operations(data.shape, out.shape), "reduction", (out,))

    return formula


def _resampling_backward(operations: _Operations) -> Callable[..., Work]:
    def formula(gradient: TensorSpec, _size: Argument, data_size: Sizes, *_: Argument, **__: Argument) -> Work:
        out = TensorSpec(tuple(data_size), gradient.dtype)
        return Work(0, operations(out.shape, gradient.shape), "reduction", (out,))

    return formula


def _weighted(neighbours: int) -> _Operations:
    """An interpolation: each result is a weighted sum of its neighbours."""
    return lambda _data, out: 2 * neighbours * prod(out)


def _antialiased(reach: int) -> _Operations:
    return lambda data, out: _two_passes(data, out, reach)


def _result(
    data: TensorSpec, size: Sizes | None, rest: Sequence[Argument], outputs: Sequence[TensorSpec] | None
) -> TensorSpec:
    """The result of an interpolation: as returned, else by its ``size``, else by the factors that end its arguments."""
    if outputs:
        return outputs[0]
    if size is None:
        factors = next((one for one in reversed(rest) if isinstance(one, (list, tuple))), None)
        if factors is None:  # an older recording without values
            raise ValueError("neither a size nor factors are known")
        size = [int(length * factor) for length, factor in zip(data.shape[2:], factors, strict=True)]
    return TensorSpec((*data.shape[:2], *size), data.dtype)


def nearest(
    data: TensorSpec, size: Sizes | None, *rest: Argument, outputs: Sequence[TensorSpec] | None = None, **_: Argument
) -> Work:
    """``upsample_nearest*``: copies."""
    return Work(0, 0, "memory", (_result(data, size, rest, outputs),))


def nearest_backward(gradient: TensorSpec, _size: Argument, data_size: Sizes, *_: Argument, **__: Argument) -> Work:
    """``upsample_nearest*_backward``: one addition for each gradient."""
    return Work(0, gradient.numel, "reduction", (TensorSpec(tuple(data_size), gradient.dtype),))


def _two_passes(data: Sizes, out: Sizes, reach: int) -> int:
    """Operations of an antialiased interpolation of images, along their width first.

    >>> _two_passes((1, 1, 8, 8), (1, 1, 4, 4), 2)  # 8 x 4 results of 4 elements each, then 4 x 4 of 4
    384
    """
    height, width = data[-2:]
    new_height, new_width = out[-2:]
    across = height * new_width * _taps(width, new_width, reach)
    down = new_height * new_width * _taps(height, new_height, reach)
    return 2 * prod(data[:-2]) * (across + down)


def _taps(size: int, new_size: int, reach: int) -> int:
    return max(reach, ceil(reach * size / max(new_size, 1)))


def _grid_neighbours(mode: Argument, dimensions: int) -> int:
    a_side = {BILINEAR: 2, NEAREST: 0, BICUBIC: 4}[int(mode)]  # type: ignore[arg-type]
    return int(a_side**dimensions)


def grid_sample(data: TensorSpec, grid: TensorSpec, mode: Argument = BILINEAR, *_: Argument, **__: Argument) -> Work:
    """``grid_sampler_2d``, ``grid_sampler_3d``: the grid has one point for each result."""
    out = TensorSpec((*data.shape[:2], *grid.shape[1:-1]), data.dtype)
    return Work(0, 2 * _grid_neighbours(mode, grid.shape[-1]) * out.numel, "reduction", (out,))


def grid_sample_backward(
    gradient: TensorSpec,
    data: TensorSpec,
    grid: TensorSpec,
    mode: Argument = BILINEAR,
    _padding: Argument = 0,
    _align: Argument = False,
    output_mask: Sequence[bool] = (True, True),
    *_: Argument,
) -> Work:
    """``grid_sampler_*_backward``: as the forward pass for the input, and once more for each coordinate of the grid."""
    wants_data, wants_grid = output_mask
    dimensions = grid.shape[-1]
    one = 2 * _grid_neighbours(mode, dimensions) * gradient.numel
    scattered = gradient.numel if mode == NEAREST else one
    outputs = [spec for spec, wanted in ((data, wants_data), (grid, wants_grid)) if wanted]
    return Work(0, scattered * bool(wants_data) + dimensions * one * bool(wants_grid), "reduction", tuple(outputs))


def cudnn_grid_sample_backward(data: TensorSpec, grid: TensorSpec, gradient: TensorSpec, *_: Argument) -> Work:
    """``cudnn_grid_sampler_backward``: bilinear, the gradient last."""
    return grid_sample_backward(gradient, data, grid)


def scatter_backward(gradient: TensorSpec, data: TensorSpec, *_: Argument, **__: Argument) -> Work:
    """The backward pass of padding and of maximum pooling: one addition for each gradient."""
    return Work(0, gradient.numel, "reduction", (data,))


FORMULAS = {
    **{f"aten::upsample_{form}": _resampling(_weighted(count)) for form, count in NEIGHBOURS.items()},
    **{f"aten::upsample_{form}_backward": _resampling_backward(_weighted(count)) for form, count in NEIGHBOURS.items()},
    **{f"aten::_upsample_{form}_aa": _resampling(_antialiased(reach)) for form, reach in REACH.items()},
    **{
        f"aten::_upsample_{form}_aa_backward": _resampling_backward(_antialiased(reach))
        for form, reach in REACH.items()
    },
    **{
        f"aten::{form}{rank}d{end}": formula
        for form in ("upsample_nearest", "_upsample_nearest_exact")
        for rank in (1, 2, 3)
        for end, formula in (("", nearest), ("_backward", nearest_backward))
    },
    **dict.fromkeys(("aten::grid_sampler_2d", "aten::grid_sampler_3d", "aten::cudnn_grid_sampler"), grid_sample),
    **dict.fromkeys(("aten::grid_sampler_2d_backward", "aten::grid_sampler_3d_backward"), grid_sample_backward),
    "aten::cudnn_grid_sampler_backward": cudnn_grid_sample_backward,
    **{
        f"aten::{form}_pad{rank}d_backward": scatter_backward
        for form in ("reflection", "replication")
        for rank in (1, 2, 3)
    },
    **{
        f"aten::{form}{rank}d{end}": scatter_backward
        for form, end in (
            ("max_pool", "_with_indices_backward"),
            ("adaptive_max_pool", "_backward"),
            ("fractional_max_pool", "_backward"),
        )
        for rank in (2, 3)
    },
}
