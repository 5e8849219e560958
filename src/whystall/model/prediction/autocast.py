"""``torch.autocast`` on the accelerator that is not there: operators are cast as CUDA's are (autocast_mode.h)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import torch
from torch import Tensor

_KEY: Final = "AutocastPrivateUse1"

LOWER: Final = (
    *("linear", "matmul", "mm", "mv", "bmm", "addmm", "addmv", "addr", "addbmm", "baddbmm", "einsum", "prelu"),
    *("conv1d", "conv2d", "conv3d", "conv_tbc", "convolution", "_convolution"),
    *("conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "scaled_dot_product_attention"),
)
"""Run in the dtype of the context."""

WIDE: Final = (
    *("layer_norm", "native_layer_norm", "group_norm", "exp", "expm1", "log", "log10", "log1p", "log2", "pow", "rsqrt"),
    *("reciprocal", "softplus", "softmax", "log_softmax", "cumsum", "cumprod", "prod", "sum", "logsumexp", "norm"),
    *("nll_loss", "nll_loss_nd", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div", "cosine_similarity"),
    *("binary_cross_entropy_with_logits", "dist", "cdist", "linalg_vector_norm"),
)
"""Run in float32."""


def set_up(device: str) -> list[Any]:
    """Registers the rules for ``device``; they hold as long as the returned libraries live."""
    others = torch.library.Library("_", "IMPL")
    others.fallback(torch.library.fallthrough_kernel, _KEY)
    rules = torch.library.Library("aten", "IMPL")
    for overload in _overloads(LOWER):
        rules.impl(_name(overload), _cast(overload, lambda: torch.get_autocast_dtype(device)), _KEY, with_keyset=True)
    for overload in _overloads(WIDE):
        rules.impl(_name(overload), _cast(overload, lambda: torch.float32), _KEY, with_keyset=True)
    return [others, rules]


def _overloads(names: Iterable[str]) -> Iterable[Any]:
    for name in names:
        packet = getattr(torch.ops.aten, name)
        yield from (getattr(packet, one) for one in packet.overloads() if "out" not in one and "dimname" not in one)


def _name(overload: Any) -> str:
    schema = overload._schema  # noqa: SLF001 - the name that a registration is by has no public accessor
    return f"{schema.name}.{schema.overload_name}" if schema.overload_name else str(schema.name)


def _cast(overload: Any, dtype: Callable[[], torch.dtype]) -> Callable[..., Any]:
    without = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)  # noqa: SLF001 - as PyTorch's own rules

    def run(_: Any, *args: Any, **kwargs: Any) -> Any:
        wanted = dtype()

        def cast(value: Any) -> Any:
            if isinstance(value, (list, tuple)):
                return type(value)(cast(one) for one in value)
            fits = isinstance(value, Tensor) and value.is_floating_point() and value.dtype is not torch.float64
            return value.to(wanted) if fits else value

        with torch._C._ExcludeDispatchKeyGuard(without):  # noqa: SLF001 - likewise
            return overload(*(cast(one) for one in args), **{name: cast(one) for name, one in kwargs.items()})

    return run
