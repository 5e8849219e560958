"""AdamW as PyTorch runs it: one fused kernel per chunk, a handful of foreach calls, or a loop over the parameters."""

from __future__ import annotations

from benchmarks.accuracy.simulator import kernels
from benchmarks.accuracy.simulator.machine import BYTES_PER_ELEMENT, Gpu
from benchmarks.accuracy.simulator.operators import Operator, Tensor, leaf

_FOREACH = (
    ("_foreach_add_", "UnaryOpFunctor", 2),
    ("_foreach_mul_", "BinaryOpScalarFunctor", 2),
    ("_foreach_lerp_", "TernaryOpScalarFunctor", 3),
    ("_foreach_mul_", "BinaryOpScalarFunctor", 2),
    ("_foreach_addcmul_", "PointwiseOpScalarFunctor", 3),
    ("_foreach_sqrt", "UnaryOpFunctor", 2),
    ("_foreach_div_", "BinaryOpScalarListFunctor", 2),
    ("_foreach_add_", "BinaryOpScalarFunctor", 2),
    ("_foreach_addcdiv_", "PointwiseOpScalarListFunctor", 4),
)
_SINGLE = (
    ("mul_", "MulFunctor", 2),
    ("lerp_", "lerp_scalar_kernel", 3),
    ("mul_", "MulFunctor", 2),
    ("addcmul_", "addcmul_cuda_kernel", 4),
    ("sqrt", "sqrt_kernel_cuda", 2),
    ("div_", "DivFunctor", 2),
    ("add_", "CUDAFunctorOnSelf_add", 2),
    ("addcdiv_", "addcdiv_cuda_kernel", 4),
)


def optimizer_operators(gpu: Gpu, kind: str, shapes: list[tuple[int, ...]], dtype: str) -> tuple[Operator, ...]:
    """The operators of one optimizer step; ``kind`` is ``fused``, ``foreach``, ``loop`` or ``none``."""
    elements = sum(Tensor(shape).elements for shape in shapes)
    size = BYTES_PER_ELEMENT[dtype]
    if kind == "none":
        return ()
    if kind == "fused":
        chunk = -(-len(shapes) // 30)
        # Reads parameter, gradient and both moments; writes all but the gradient.
        kernel = kernels.multi_tensor(
            gpu,
            f"FusedAdamMathFunctor<{kernels.CPP_TYPE[dtype]}, 4, (ADAM_MODE)1, false>",
            7 * elements * size // chunk,
            lists=4,
        )
        return (Operator("aten::_fused_adamw_", (None,) * 6, (kernel,) * chunk, 18_000, 3_000),)
    if kind == "foreach":
        return tuple(
            Operator(
                f"aten::{name}",
                (None, None),
                (
                    kernels.multi_tensor(
                        gpu,
                        f"{functor}<{kernels.CPP_TYPE[dtype]}>",
                        tensors * elements * size,
                        lists=tensors - 1 or 1,
                    ),
                ),
                14_000,
                3_000,
            )
            for name, functor, tensors in _FOREACH
        )
    return tuple(
        leaf(
            f"aten::{name}",
            (Tensor(shape, dtype),) * (tensors - 1),
            kernels.elementwise(gpu, functor, Tensor(shape).elements, dtype, tensors=tensors),
        )
        for shape in shapes
        for name, functor, tensors in _SINGLE
    )
