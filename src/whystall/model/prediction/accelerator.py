"""An accelerator that is not there: a device without data whose operators are those that a GPU would run.

Tensors live on PyTorch's own placeholder for out-of-tree devices, as fake ones. Its generic path would take attention
and RMS normalisation apart; the routes below choose the fused kernels that CUDA chooses, which save less for the
backward pass.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils import backend_registration

from whystall.errors import UsageError
from whystall.model.prediction import autocast
from whystall.model.prediction.request import Attention

NAME: Final = "fakegpu"
GRANULE_BYTES: Final = 512  # what CUDA's caching allocator rounds sizes to (c10/cuda/CUDACachingAllocator.cpp)
_HALVES = (torch.bfloat16, torch.float16)
_WITH_FLASH: Final = (8, 0)
_WIDEST_FLASH_HEAD: Final = 256  # sdp_utils.cpp
_WIDEST_CUDNN_HEAD: Final = 128  # sdp_utils.cpp; newer cuDNN takes wider ones on some devices


_FROM_PYTHON = (torch.tensor, torch.as_tensor)  # these fill a tensor before a mode can hear of it


class _Module(backend_registration._DummyBackendModule):  # noqa: SLF001 - what PyTorch's own set-up registers
    """The device module that PyTorch requires; there is nothing to wait for and nothing to choose."""

    class Stream:
        """A stream in which nothing runs."""

        def __init__(self, *_: Any, **__: Any) -> None: ...
        def wait_stream(self, *_: Any) -> None: ...
        def wait_event(self, *_: Any) -> None: ...
        def record_event(self, event: Any = None) -> Any:
            return event or _Module.Event()

        def synchronize(self) -> None: ...
        def __enter__(self) -> _Module.Stream:
            return self

        def __exit__(self, *_: object) -> None: ...

    class Event:
        """An event that has happened."""

        def __init__(self, *_: Any, **__: Any) -> None: ...
        def record(self, *_: Any) -> None: ...
        def wait(self, *_: Any) -> None: ...
        def synchronize(self) -> None: ...
        def query(self) -> bool:
            return True

    def current_stream(self, *_: Any) -> Any:
        return _Module.Stream()

    def stream(self, stream: Any) -> Any:
        return stream

    def set_device(self, *_: Any) -> None: ...
    def synchronize(self, *_: Any) -> None: ...
    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]


_kept: list[Any] = []  # rules hold as long as the library that registered them lives


def set_up() -> None:
    """Registers the device, once in a process; it cannot be taken back."""
    backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=_Module())  # noqa: SLF001 - the only way
    _kept.extend(autocast.set_up(NAME))


def _without_lists(index: Any) -> Any:
    """An index whose lists of numbers are tensors: torch would make those of a device that it does not know."""
    if isinstance(index, tuple):
        return tuple(_without_lists(one) for one in index)
    return torch.tensor(index, device="cpu") if isinstance(index, list) and index else index


class Routes(TorchFunctionMode):
    """Calls CUDA's kernels for functions whose kernel depends on the device.

    ``capability`` is CUDA's: below 8.0 there is no flash attention. ``attention`` is the kernel that the program
    selects (``torch.nn.attention.sdpa_kernel``). Raises ``UsageError`` where that kernel does not take a call.
    """

    def __init__(self, capability: tuple[int, int] = (8, 0), attention: Attention = "default") -> None:
        super().__init__()
        self._capability = capability
        self._wanted = attention

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        del types
        if func is functional.scaled_dot_product_attention:
            return self._attention(func, *args, **(kwargs or {}))
        if func is functional.multi_head_attention_forward:
            return self._many_heads(func, *args, **(kwargs or {}))
        if func in (Tensor.__getitem__, Tensor.__setitem__):
            args = (args[0], _without_lists(args[1]), *args[2:])
        if func is functional.rms_norm:
            return _rms_norm(*args, **(kwargs or {}))
        if func in _FROM_PYTHON and kwargs and kwargs.get("device") is not None:
            return func(*args, **{**kwargs, "device": "cpu"}).to(kwargs["device"])
        return func(*args, **(kwargs or {}))

    def _many_heads(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        """Wraps `torch.nn.MultiheadAttention`: no mode intercepts the attention in it."""
        original = functional.scaled_dot_product_attention
        functional.scaled_dot_product_attention = functools.partial(self._attention, original)
        try:
            return func(*args, **kwargs)
        finally:
            functional.scaled_dot_product_attention = original

    def _attention(
        self,
        func: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        if torch.is_autocast_enabled(NAME):
            lower = torch.get_autocast_dtype(NAME)
            query, key, value = (one.to(lower) for one in (query, key, value))
        aten = torch.ops.aten
        chosen = self._kernel(query, value, masked=attn_mask is not None, grouped=enable_gqa)
        if chosen == "flash":
            return aten._scaled_dot_product_flash_attention(  # noqa: SLF001 - the kernel's name
                query, key, value, dropout_p, is_causal, scale=scale
            )[0]
        if chosen in ("cudnn", "efficient"):
            bias = None if attn_mask is None else _bias(attn_mask, query, key)
            wanted = any(one.requires_grad for one in (query, key, value)) and torch.is_grad_enabled()
            kernel = getattr(aten, f"_scaled_dot_product_{chosen}_attention")
            return kernel(query, key, value, bias, wanted, dropout_p, is_causal, scale=scale)[0]
        return func(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)

    def _kernel(self, query: Tensor, value: Tensor, *, masked: bool, grouped: bool) -> str:
        """The kernel of one call: the one that is wanted, or the first that takes it (sdp_utils.cpp)."""
        wide = query.shape[-1]
        fits = query.dim() == 4 and wide == value.shape[-1]
        halves = fits and query.dtype in _HALVES and wide % 8 == 0 and self._capability >= _WITH_FLASH
        taken = {
            "flash": halves and wide <= _WIDEST_FLASH_HEAD and not masked,
            "cudnn": halves and wide <= _WIDEST_CUDNN_HEAD,
            "efficient": fits and not grouped,
            "math": True,
        }
        if self._wanted != "default":
            if not taken[self._wanted]:
                raise UsageError(
                    f"{self._wanted} attention does not take what the model gives it ({query.dtype}, heads of {wide}"
                    f"{', a mask' if masked else ''}): torch would refuse it, too; leave --attention out"
                )
            return self._wanted
        # Where torch prefers cuDNN's (capability 9.0 and 10.0), it keeps the same tensors as flash attention.
        return next(name for name in ("flash", "efficient", "math") if taken[name])


def _bias(mask: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """The bias of the scores: a mask of truth values becomes one of numbers, expanded and not copied."""
    if mask.dtype is torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill(mask.logical_not(), float("-inf"))
    return mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])


class _FusedRmsNorm(torch.autograd.Function):
    """The memory of ``_fused_rms_norm``: its input and one number a row are kept (derivatives.yaml)."""

    @staticmethod
    def forward(ctx: Any, given: Tensor, weight: Tensor | None, rows: int) -> Tensor:
        rstd = torch.empty(rows, dtype=torch.float32, device=given.device)
        ctx.save_for_backward(given, weight, rstd)
        return torch.empty_like(given)

    @staticmethod
    def backward(ctx: Any, _gradient: Tensor) -> tuple[Tensor, Tensor | None, None]:
        given, weight, _ = ctx.saved_tensors
        return torch.empty_like(given), None if weight is None else torch.empty_like(weight), None


def _rms_norm(
    given: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    del eps
    within = 1
    for size in normalized_shape:
        within *= size
    out: Tensor = _FusedRmsNorm.apply(given, weight, given.numel() // max(within, 1))
    return out
