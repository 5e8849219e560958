"""Matrix products: 2 m n k FLOPs each, in every form that PyTorch gives them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from whystall.cost.result import Work
from whystall.cost.spec import Argument, TensorSpec, broadcast


def product(left: TensorSpec, right: TensorSpec, *, bias: TensorSpec | None = None, dtype: str | None = None) -> Work:
    """The work of ``left @ right`` with broadcast batch dimensions, and of adding ``bias``.

    >>> product(TensorSpec((8, 16)), TensorSpec((3, 16, 4))).flops
    3072
    """
    rows = left.shape[-2:-1]
    columns = right.shape[-1:] if len(right.shape) > 1 else ()
    batch = broadcast(left.shape[:-2], right.shape[:-2])
    out = TensorSpec((*batch, *rows, *columns), dtype or left.dtype)
    return Work(2 * out.numel * left.shape[-1], 0 if bias is None else out.numel, "matrix", (out,))


def mm(left: TensorSpec, right: TensorSpec, *_: Argument) -> Work:
    """``mm``, ``bmm``, ``mv``, ``dot``, ``matmul``, ``_int_mm``."""
    return product(left, right)


def int_mm(left: TensorSpec, right: TensorSpec, *_: Argument) -> Work:
    """``_int_mm``: 8-bit operands, 32-bit result."""
    return product(left, right, dtype="int32")


def addmm(
    added: TensorSpec, left: TensorSpec, right: TensorSpec, *_: Argument, beta: Argument = 1, alpha: Argument = 1
) -> Work:
    """``addmm``, ``baddbmm``, ``addmv``, ``_addmm_activation``: a product plus a tensor."""
    del beta, alpha
    return product(left, right, bias=added)


def addbmm(
    added: TensorSpec, left: TensorSpec, right: TensorSpec, *_: Argument, beta: Argument = 1, alpha: Argument = 1
) -> Work:
    """``addbmm``: the batch is summed into one matrix."""
    del beta, alpha
    work = product(left, right)
    out = TensorSpec((left.shape[-2], right.shape[-1]), added.dtype)
    return work._replace(elementwise=out.numel, outputs=(out,))


def addr(added: TensorSpec, left: TensorSpec, right: TensorSpec, *_: Argument, **__: Argument) -> Work:
    """``addr``: an outer product is one multiplication per element, no accumulation."""
    out = TensorSpec((left.numel, right.numel), added.dtype)
    return Work(0, 2 * out.numel, "elementwise", (out,))


def linear(data: TensorSpec, weight: TensorSpec, bias: TensorSpec | None = None, *_: Argument) -> Work:
    """``linear`` where it is not taken apart: ``data @ weight.T + bias``."""
    out = TensorSpec((*data.shape[:-1], *weight.shape[:-1]), data.dtype)
    return Work(2 * out.numel * data.shape[-1], 0 if bias is None else out.numel, "matrix", (out,))


def linear_backward(data: TensorSpec, gradient: TensorSpec, weight: TensorSpec, output_mask: Sequence[bool]) -> Work:
    """``linear_backward``: one product for each of the two requested gradients."""
    one = 2 * gradient.numel * data.shape[-1]
    wants_data, wants_weight, wants_bias = output_mask
    outputs = [spec for spec, wanted in ((data, wants_data), (weight, wants_weight)) if wanted]
    return Work(
        one * (bool(wants_data) + bool(wants_weight)),
        gradient.numel if wants_bias else 0,
        "matrix",
        tuple(outputs),
        weight_flops=one if wants_weight else 0,
    )


def grouped_mm(left: TensorSpec, right: TensorSpec, *_: Argument, **__: Argument) -> Work:
    """``_grouped_mm``: each row meets one expert's matrix, so the groups share the 2 m n k of one product.

    Two flat operands are cut along the inner dimension (a weight gradient): one product per group over its share.

    >>> grouped_mm(TensorSpec((32, 64), "bfloat16"), TensorSpec((4, 64, 128), "bfloat16")).flops
    524288
    """
    if len(left.shape) == len(right.shape) == 2:
        groups = _group_count(_)
        out = TensorSpec((groups, left.shape[0], right.shape[1]), left.dtype)
        return Work(2 * left.shape[0] * left.shape[1] * right.shape[1], 0, "matrix", (out,))
    if len(left.shape) == 3 and len(right.shape) == 2:  # the columns are cut into groups
        out = TensorSpec((left.shape[1], right.shape[1]), left.dtype)
        return Work(2 * out.numel * left.shape[2], 0, "matrix", (out,))
    if len(left.shape) == 3:
        return product(left, right)
    out = TensorSpec((left.shape[0], right.shape[-1]), left.dtype)
    return Work(2 * out.numel * left.shape[1], 0, "matrix", (out,))


def _group_count(rest: tuple[Argument, ...]) -> int:
    offsets = next((one for one in rest if isinstance(one, TensorSpec) and one.dtype == "int32"), None)
    return offsets.numel if offsets is not None else 1


def scaled_mm(left: TensorSpec, right: TensorSpec, *_: Argument, out_dtype: Argument = None, **__: Argument) -> Work:
    """``_scaled_mm``: 8- or 4-bit operands, whose packed pairs count as two elements each."""
    pairs = 2 if left.dtype.endswith("_x2") else 1
    work = product(left, right, dtype=out_dtype if isinstance(out_dtype, str) else "bfloat16")
    return work._replace(flops=work.flops * pairs)


def scaled_grouped_mm(left: TensorSpec, right: TensorSpec, *_: Argument, **__: Argument) -> Work:
    """``_scaled_grouped_mm``: as ``_grouped_mm``; packed pairs count as two elements each."""
    work = grouped_mm(left, right)
    return work._replace(flops=work.flops * (2 if left.dtype.endswith("_x2") else 1))


def weight_int4(data: TensorSpec, weight: TensorSpec, *_: Argument, outputs: tuple[TensorSpec, ...] = ()) -> Work:
    """``_weight_int4pack_mm``.

    The packed layouts hold two weights a byte, so the inner dimension comes from ``data``.
    """
    if outputs:
        columns = outputs[0].shape[-1]
    elif (
        len(weight.shape) == 4
    ):  # [n / 8, k / (inner * 16), 32, inner / 2] int32, as _convert_weight_to_int4pack makes it
        columns = weight.shape[0] * 8
    else:
        columns = weight.shape[0]
    out = TensorSpec((*data.shape[:-1], columns), data.dtype)
    return Work(2 * out.numel * data.shape[-1], 0, "matrix", (out,))


def weight_int8(data: TensorSpec, weight: TensorSpec, *_: Argument) -> Work:
    """``_weight_int8pack_mm``: weights are [n, k]; each result is scaled once."""
    work = linear(data, weight)
    return work._replace(elementwise=prod(data.shape[:-1]) * weight.shape[0])


def packed_linear(data: TensorSpec, *_: Argument, outputs: tuple[TensorSpec, ...]) -> Work:
    """A product with weights in an opaque object: its columns are those of the result."""
    return Work(2 * outputs[0].numel * data.shape[-1], 0, "matrix", outputs)


def trilinear(
    first: TensorSpec,
    second: TensorSpec,
    third: TensorSpec,
    expand1: Argument,
    expand2: Argument,
    expand3: Argument,
    sum_dimensions: Argument,
    *_: Argument,
) -> Work:
    """``_trilinear`` (``nn.Bilinear``), by convention as two contractions, the last summed dimension first."""
    shapes = [_expanded(spec, dims) for spec, dims in ((first, expand1), (second, expand2), (third, expand3))]
    terms = broadcast(*shapes)
    summed = sorted(int(one) for one in sum_dimensions)  # type: ignore[union-attr, arg-type]
    out = TensorSpec(tuple(size for place, size in enumerate(terms) if place not in summed), first.dtype)
    flops, left = 0, prod(terms)
    for dimension in reversed(summed):
        flops += 2 * left
        left //= max(terms[dimension], 1)
    return Work(flops, 0, "matrix", (out,))


def _expanded(spec: TensorSpec, dimensions: Argument) -> tuple[int, ...]:
    shape = list(spec.shape)
    for dimension in sorted(int(one) for one in dimensions):  # type: ignore[union-attr, arg-type]
        shape.insert(dimension, 1)
    return tuple(shape)


def cdist(left: TensorSpec, right: TensorSpec, *_: Argument) -> Work:
    """``_cdist_forward``: subtract, raise and add for each coordinate of each pair."""
    batch = broadcast(left.shape[:-2], right.shape[:-2])
    out = TensorSpec((*batch, left.shape[-2], right.shape[-2]), left.dtype)
    return Work(0, 3 * out.numel * left.shape[-1], "elementwise", (out,))


def cdist_backward(gradient: TensorSpec, left: TensorSpec, _right: TensorSpec, *_: Argument) -> Work:
    """``_cdist_backward``: subtract, raise, scale and add for each coordinate of each pair."""
    return Work(0, 4 * gradient.numel * left.shape[-1], "elementwise", (left,))


def factorisation(numerator: int, denominator: int = 1) -> Callable[..., Work]:
    """The formula of a dense n by n factorisation that costs ``numerator / denominator`` times n cubed."""

    def formula(matrix: TensorSpec, *_: Argument, **__: Argument) -> Work:
        long, short = max(matrix.shape[-2:]), min(matrix.shape[-2:])
        return Work(prod(matrix.shape[:-2]) * numerator * long * short * short // denominator, 0, "matrix", (matrix,))

    return formula


def solve(matrix: TensorSpec, right: TensorSpec, *_: Argument, **__: Argument) -> Work:
    """A dense solve: the LU factorisation (2/3 n cubed) and two triangular solves (2 n squared a column)."""
    n, batch = matrix.shape[-1], prod(matrix.shape[:-2])
    columns = right.numel // max(batch * n, 1)
    return Work(batch * (2 * n**3 // 3 + 2 * n * n * columns), 0, "matrix", (right,))


def triangular_solve(matrix: TensorSpec, right: TensorSpec, *_: Argument, **__: Argument) -> Work:
    """A triangular solve: n squared a column."""
    return Work(right.numel * matrix.shape[-1], 0, "matrix", (right,))


def triangular_solve_first(right: TensorSpec, matrix: TensorSpec, *_: Argument, **__: Argument) -> Work:
    """``triangular_solve``: the right side comes first; the matrix is copied."""
    return triangular_solve(matrix, right)._replace(outputs=(right, matrix))


def factored_solve(factors: TensorSpec, _pivots: TensorSpec, right: TensorSpec, *_: Argument, **__: Argument) -> Work:
    """``linalg_lu_solve``, ``linalg_ldl_solve``: two triangular solves."""
    return Work(2 * right.numel * factors.shape[-1], 0, "matrix", (right,))


def cholesky_solve(right: TensorSpec, factor: TensorSpec, *_: Argument, **__: Argument) -> Work:
    """``cholesky_solve``: two triangular solves, the right side first."""
    return factored_solve(factor, factor, right)


def least_squares(matrix: TensorSpec, right: TensorSpec, *_: Argument, **__: Argument) -> Work:
    """``linalg_lstsq``.

    A QR factorisation (2 m n squared), and its factor applied to the right side (4 m n a column).
    """
    work = factorisation(2)(matrix)
    columns = right.shape[-1] if len(right.shape) == len(matrix.shape) else 1
    return work._replace(flops=work.flops + 4 * matrix.numel * columns, outputs=None)


def apply_reflections(
    reflections: TensorSpec, scales: TensorSpec, data: TensorSpec, left: Argument = True, *_: Argument, **__: Argument
) -> Work:
    """``ormqr``: k reflections of vectors of length n, each from its own place on: 4 n k - 2 k squared a vector."""
    del reflections
    count, length = scales.shape[-1], data.shape[-2 if left else -1]
    vectors = data.numel // max(length, 1)
    return Work(vectors * (4 * length * count - 2 * count * count), 0, "matrix", (data,))


def pseudo_inverse(matrix: TensorSpec, *rest: Argument, hermitian: Argument = False, **_: Argument) -> Work:
    """``linalg_pinv``.

    An SVD (6 m n squared), or of a Hermitian matrix its eigenvectors (9 n cubed), and one product.
    """
    work = factorisation(11 if hermitian or True in rest else 8)(matrix)
    out = TensorSpec((*matrix.shape[:-2], matrix.shape[-1], matrix.shape[-2]), matrix.dtype)
    return work._replace(outputs=(out,))


FORMULAS = {
    **dict.fromkeys(("aten::mm", "aten::bmm", "aten::mv", "aten::dot", "aten::vdot"), mm),
    "aten::_int_mm": int_mm,
    **dict.fromkeys(("aten::addmm", "aten::baddbmm", "aten::addmv", "aten::_addmm_activation"), addmm),
    "aten::addbmm": addbmm,
    "aten::addr": addr,
    **dict.fromkeys(("aten::mkldnn_linear", "mkldnn::_linear_pointwise", "aten::_nnpack_linear"), linear),
    "aten::linear_backward": linear_backward,
    "aten::_grouped_mm": grouped_mm,
    **dict.fromkeys(("aten::_scaled_mm", "aten::_scaled_mm_v2"), scaled_mm),
    **dict.fromkeys(("aten::_scaled_grouped_mm", "aten::_scaled_grouped_mm_v2"), scaled_grouped_mm),
    **dict.fromkeys(
        (
            "aten::_weight_int4pack_mm",
            "aten::_weight_int4pack_mm_for_cpu",
            "aten::_weight_int4pack_mm_with_scales_and_zeros",
            "aten::_dyn_quant_matmul_4bit",
        ),
        weight_int4,
    ),
    "aten::_weight_int8pack_mm": weight_int8,
    **dict.fromkeys(
        (
            "quantized::linear",
            "quantized::linear_dynamic",
            "quantized::linear_dynamic_fp16",
            "quantized::linear_relu",
            "quantized::linear_relu_dynamic",
        ),
        packed_linear,
    ),
    "aten::_trilinear": trilinear,
    "aten::_cdist_forward": cdist,
    "aten::_cdist_backward": cdist_backward,
    **dict.fromkeys(("aten::linalg_cholesky_ex", "aten::cholesky", "aten::linalg_ldl_factor_ex"), factorisation(1, 3)),
    "aten::cholesky_inverse": factorisation(2, 3),
    "aten::linalg_lu_factor_ex": factorisation(2, 3),
    "aten::linalg_lu": factorisation(2, 3),
    "aten::linalg_inv_ex": factorisation(2),
    **dict.fromkeys(("aten::linalg_qr", "aten::geqrf", "aten::linalg_householder_product"), factorisation(2)),
    "aten::_linalg_svd": factorisation(6),
    "aten::_linalg_eigh": factorisation(9),
    "aten::linalg_eig": factorisation(25),
    "aten::_linalg_eigvals": factorisation(10),
    "aten::linalg_pinv": pseudo_inverse,
    "aten::_linalg_det": factorisation(2, 3),
    "aten::_linalg_slogdet": factorisation(2, 3),
    "aten::_linalg_solve_ex": solve,
    "aten::linalg_solve_triangular": triangular_solve,
    "aten::triangular_solve": triangular_solve_first,
    **dict.fromkeys(("aten::linalg_lu_solve", "aten::linalg_ldl_solve"), factored_solve),
    "aten::cholesky_solve": cholesky_solve,
    "aten::linalg_lstsq": least_squares,
    "aten::ormqr": apply_reflections,
}
