"""Elementwise operators: how many operations each spends on one element of its result.

One for each addition, multiplication, division, power, root, exponential or other elementary function; comparisons,
masks, copies and casts are none. Composite activations are the sum of their parts: silu is a sigmoid and a product.
"""

from __future__ import annotations

from collections.abc import Callable

from whystall.cost.result import Work
from whystall.cost.spec import Argument, TensorSpec, broadcast, tensors

OPS_PER_ELEMENT = {
    0: (
        "eq ne lt le gt ge logical_not logical_and logical_or logical_xor bitwise_not bitwise_and bitwise_or "
        "bitwise_xor "
        "bitwise_left_shift bitwise_right_shift __and__ __or__ __xor__ __lshift__ __rshift__ isnan isinf isfinite "
        "isposinf "
        "isneginf sign sgn signbit where masked_fill clamp clamp_min clamp_max maximum minimum fmax fmin nan_to_num "
        "heaviside bernoulli copysign isin nextafter frexp"
    ),
    1: (
        "add sub rsub mul div true_divide floor_divide neg negative abs pow square sqrt rsqrt reciprocal exp exp2 "
        "expm1 log log2 log10 log1p sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh sigmoid "
        "erf erfc erfinv "
        "ceil floor round trunc frac fmod remainder relu relu6 leaky_relu prelu _prelu_kernel hardtanh threshold "
        "ldexp lgamma digamma polygamma special_i0 i0 conj_physical real imag angle hypot xlogy logaddexp "
        "threshold_backward leaky_relu_backward hardtanh_backward hardshrink hardshrink_backward softshrink "
        "softshrink_backward rrelu_with_noise_backward _conj_physical deg2rad rad2deg igamma igammac mvlgamma "
        "special_airy_ai special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1 special_entr "
        "special_erfcx "
        "special_i0e special_i1 special_i1e special_log_ndtr special_modified_bessel_i0 special_modified_bessel_i1 "
        "special_modified_bessel_k0 special_modified_bessel_k1 special_ndtri special_scaled_modified_bessel_k0 "
        "special_scaled_modified_bessel_k1 special_spherical_bessel_j0 special_xlog1py special_zeta _amp_update_scale "
        "special_chebyshev_polynomial_t special_chebyshev_polynomial_u special_chebyshev_polynomial_v "
        "special_chebyshev_polynomial_w special_hermite_polynomial_h special_hermite_polynomial_he "
        "special_laguerre_polynomial_l special_legendre_polynomial_p special_shifted_chebyshev_polynomial_t "
        "special_shifted_chebyshev_polynomial_u special_shifted_chebyshev_polynomial_v "
        "special_shifted_chebyshev_polynomial_w"
    ),
    2: (
        "silu elu glu log_sigmoid log_sigmoid_forward softsign dropout native_dropout native_dropout_backward celu "
        "sigmoid_backward rrelu_with_noise sinc logaddexp2 logit _prelu_kernel_backward hardswish_backward "
        "hardsigmoid_backward log_sigmoid_backward _fused_dropout _masked_scale"
    ),
    3: (
        "addcmul addcdiv lerp mish softplus hardsigmoid selu tanh_backward elu_backward glu_backward "
        "softplus_backward mse_loss_backward smooth_l1_loss_backward huber_loss_backward logit_backward renorm"
    ),
    4: "hardswish polar",
    5: "gelu silu_backward",
    8: "mish_backward soft_margin_loss_backward",
    9: "gelu_backward",
}

TABLE = {name: ops for ops, names in OPS_PER_ELEMENT.items() for name in names.split()}
GELU_TANH = 9  # cube (2), scale, add, scale, tanh, add, two products


def pointwise(name: str, arguments: tuple[Argument, ...], approximate: Argument = None) -> Work:
    """The work of the elementwise operator ``name``, overloads, in-place and foreach forms alike."""
    each = GELU_TANH if name.startswith("gelu") and approximate == "tanh" else TABLE[name]
    if arguments and isinstance(arguments[0], (list, tuple)):  # foreach: lists side by side
        numel = sum(spec.numel for spec in tensors(arguments[0]))
        return Work(0, each * numel, "elementwise", tuple(tensors(arguments[0])))
    specs = tensors(arguments)
    shape = broadcast(*(spec.shape for spec in specs))
    out = TensorSpec(shape, _result_dtype(specs))
    if name == "glu":
        out = TensorSpec((out.numel // 2,), out.dtype)
    counts = out.is_floating or out.dtype == "unknown"  # sums of positions and masks are no floating-point work
    return Work(0, each * out.numel if counts else 0, "elementwise", (out,))


def _result_dtype(specs: list[TensorSpec]) -> str:
    """The widest floating dtype of ``specs`` with dimensions; promotion's corner cases change bytes, not operations."""
    shaped = [spec for spec in specs if spec.shape] or specs
    floating = [spec for spec in shaped if spec.is_floating] or shaped
    return max(floating, key=lambda spec: spec.item_bits).dtype if floating else "float32"


def _each(ops: int) -> Callable[..., Work]:
    """The formula of an operator that spends ``ops`` on each element of its first tensor."""

    def formula(data: TensorSpec, *_: Argument, **__: Argument) -> Work:
        return Work(0, ops * data.numel, "elementwise", (data,))

    return formula


FORMULAS = dict.fromkeys(
    (
        "aten::fake_quantize_per_tensor_affine_cachemask",
        "aten::fake_quantize_per_channel_affine_cachemask",
        "aten::_fake_quantize_per_tensor_affine_cachemask_tensor_qparams",
    ),
    _each(5),  # scale, round, shift there and back, scale
)
