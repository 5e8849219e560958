"""Fourier transforms, by the usual convention of 5 N log2 N operations for a complex transform of N points.

They are elementwise work, not model FLOPs: no matrix is multiplied (M. Frigo, S. Johnson: benchFFT, "mflops"). A
transform over several dimensions goes through memory once for each (cuFFT, rocFFT and pocketfft make a pass of each).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log2, prod

from whystall.cost.result import Work
from whystall.cost.spec import Argument, TensorSpec


def _work(data: TensorSpec, points: TensorSpec, dims: Sequence[int], out: TensorSpec, factor: float) -> Work:
    length = prod(points.shape[dim] for dim in dims)
    operations = round(factor * points.numel * log2(length)) if length else 0
    passes = max(len(dims), 1)
    between = max(data.nbytes, out.nbytes) * (passes - 1)
    return Work(0, operations, "fourier", (out,), read=data.nbytes + between, written=out.nbytes + between)


def c2c(data: TensorSpec, dims: Sequence[int], *_: Argument) -> Work:
    """``_fft_c2c``: complex to complex."""
    return _work(data, data, dims, data, 5)


def r2c(data: TensorSpec, dims: Sequence[int], _norm: int, onesided: bool = True, *_: Argument) -> Work:
    """``_fft_r2c``: real to complex, half the work."""
    shape = list(data.shape)
    if onesided:
        shape[dims[-1]] = shape[dims[-1]] // 2 + 1
    return _work(data, data, dims, TensorSpec(tuple(shape), _complex(data.dtype)), 2.5)


def c2r(data: TensorSpec, dims: Sequence[int], _norm: int, last: int, *_: Argument) -> Work:
    """``_fft_c2r``: complex to real, half the work of the full length."""
    shape = list(data.shape)
    shape[dims[-1]] = last
    out = TensorSpec(tuple(shape), {"complex64": "float32", "complex128": "float64"}.get(data.dtype, "float16"))
    return _work(data, out, dims, out, 2.5)


def _complex(dtype: str) -> str:
    return {"float32": "complex64", "float64": "complex128"}.get(dtype, "complex32")


FORMULAS = {"aten::_fft_c2c": c2c, "aten::_fft_r2c": r2c, "aten::_fft_c2r": c2r}
