"""The settings of one run of ``tune`` for the model: memory format, precision of the forward pass, torch.compile.

The model is the holder of an optimizer's parameters, and exists when that is made. None of the user's objects is
replaced: weights get another memory format, autocast is on between the optimizer's steps but for backward passes, and
calls of the model go to a compiled one.
"""

from __future__ import annotations

import functools
import re
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from whystall.capture.known_modules import Known, outermost_module
from whystall.capture.losses import wrap_backward
from whystall.capture.moments import followed_by

MODEL_SETTINGS: Final = ("memory_format", "precision", "compile")
_NOT_APPLIED: Final = {
    "memory_format": "no model with convolutions of pictures was there when an optimizer was made",
    "precision": "no model was there when an optimizer was made",
    "compile": "torch.compile compiled nothing of the model: it is not called itself",
}
# Names of x86's and ARM's features in Linux.
_BF16_OF_PROCESSORS: Final = re.compile(r"\b(avx512_bf16|amx_bf16|bf16)\b")


class TunedModel:
    """The settings of a trial for the model. A setting that could not be applied is reported, and never raised."""

    def __init__(self, torch: Any, settings: Mapping[str, int | str | bool]) -> None:
        self._torch = torch
        self._wanted = {name: str(settings[name]) for name in MODEL_SETTINGS if name in settings}
        self._known = Known()
        self._models: weakref.WeakSet[Any] = weakref.WeakSet()
        self._autocast = _Autocast(torch)
        self._refused: dict[str, str] = {}
        self._applied: set[str] = set()
        self.models: list[dict[str, Any]] = []
        """The models found: class, parameters, dtype, device, convolutions and their memory format."""
        self.uses_autocast = False
        """Whether the user's code uses autocast itself."""

    def install(self) -> None:
        """Hears of modules that are made; called before the user's code goes on."""
        torch = self._torch
        _tell_of(torch.nn.Module, "__init__", self._made, followed_by(torch))
        _tell_of(torch.amp.autocast_mode.autocast, "__init__", self._asked_for_autocast, followed_by(torch))
        if "precision" in self._wanted:
            self._autocast.install()

    def _made(self, module: object) -> None:
        self._known.add(module)

    def _asked_for_autocast(self, _context: object) -> None:
        self.uses_autocast = True

    def optimizer_made(self, optimizer: Any) -> dict[str, Any] | None:
        """Changes the model of a new optimizer; returns its description if the model is new."""
        parameters = {id(each) for group in optimizer.param_groups for each in group["params"]}
        model = outermost_module(self._known.living(), parameters)
        if model is None or model in self._models:
            return None
        self._models.add(model)
        found = self._describe(model)
        self.models.append(found)
        for name, change in (("memory_format", self._lay_out), ("compile", self._compile), ("precision", self._cast)):
            if name in self._wanted:
                try:
                    change(model, self._wanted[name])
                except Exception as error:  # noqa: BLE001 - of torch, on a model of the user's: the trial is refused
                    self._refused[name] = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:160]}"
        return found

    def refused(self) -> dict[str, str]:
        """Settings that could not be applied, with the reason."""
        if "compile" in self._wanted and _frames_compiled():
            self._applied.add("compile")
        missing = {name: _NOT_APPLIED[name] for name in self._wanted if name not in self._applied}
        return missing | self._refused

    def computes_bf16(self) -> bool:
        """Whether the model's device has instructions for products in bfloat16."""
        if any(model["device"] == "cuda" for model in self.models):
            return bool(self._torch.cuda.get_device_capability()[0] >= 8)
        try:
            return _BF16_OF_PROCESSORS.search(Path("/proc/cpuinfo").read_text("ascii", "replace")) is not None
        except OSError:
            return False

    def _describe(self, model: Any) -> dict[str, Any]:
        weights = list(model.parameters())
        convolutions = self._convolutions(model)
        dtypes = Counter(str(each.dtype).removeprefix("torch.") for each in weights)
        return {
            "class": type(model).__name__,
            "parameters": sum(each.numel() for each in weights),
            "bytes": sum(each.numel() * each.element_size() for each in weights if each.requires_grad),
            "dtype": dtypes.most_common(1)[0][0],
            "device": weights[0].device.type,
            "convolutions": len(convolutions),
            "channels_last": all(self._lies_so(one.weight) for one in convolutions),
        }

    def _convolutions(self, model: Any) -> list[Any]:
        """Convolutions whose weights' layout changes in channels_last: 2D ones with kernels above 1 x 1."""
        kind = self._torch.nn.modules.conv._ConvNd  # noqa: SLF001 - what all kinds have in common
        found = (each for each in model.modules() if isinstance(each, kind))
        return [one for one in found if one.weight.dim() == 4 and one.weight[0, 0].numel() > 1]

    def _lies_so(self, weight: Any) -> bool:
        return bool(weight.is_contiguous(memory_format=self._torch.channels_last))

    def _lay_out(self, model: Any, _value: str) -> None:
        convolutions = self._convolutions(model)
        with self._torch.no_grad():
            for one in convolutions:  # a convolution with such weights makes such outputs, for the next one
                one.weight.data = one.weight.data.contiguous(memory_format=self._torch.channels_last)
        if convolutions:
            self._applied.add("memory_format")

    def _compile(self, model: Any, mode: str) -> None:
        """Has calls of the model go to a compiled one.

        By a function that is not torch's own: `Module.compile` compiles nothing of a `Sequential` (torch 2.13), whose
        calls all lie in files that the compiler passes over.
        """
        if model._compiled_call_impl is not None:  # noqa: SLF001 - where torch keeps it
            raise RuntimeError("the model is compiled already")

        def call(*given: Any, **named: Any) -> Any:
            return model._call_impl(*given, **named)  # noqa: SLF001

        model._compiled_call_impl = self._torch.compile(call, mode=mode)  # noqa: SLF001

    def _cast(self, model: Any, _value: str) -> None:
        self._autocast.begin(model)
        self._applied.add("precision")


class _Autocast:
    """Autocast to bfloat16 for forward passes and losses, on the thread that made the optimizer."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._model: Callable[[], Any] = lambda: None
        self._thread: int | None = None
        self._open: Any = None

    def install(self) -> None:
        """Closes it where a backward pass or a step of the optimizer begins, and reopens it after that.

        Left open across a step of the optimizer it would go on with copies of old weights.
        """
        from torch.optim import optimizer  # noqa: PLC0415 - the user has imported torch

        optimizer.register_optimizer_step_pre_hook(lambda *_: self._leave())
        optimizer.register_optimizer_step_post_hook(lambda *_: self._enter())

        def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            def backward(*given: Any, **named: Any) -> Any:
                self._leave()
                try:
                    return original(*given, **named)
                finally:
                    self._enter()

            return backward

        wrap_backward(self._torch, wrap)

    def begin(self, model: Any) -> None:
        """Opens it for the first time."""
        self._leave()
        self._model, self._thread = weakref.ref(model), threading.get_ident()
        self._enter()

    def _enter(self) -> None:
        model = self._model()
        if model is None or self._open is not None or threading.get_ident() != self._thread:
            return
        device = next(model.parameters()).device.type
        self._open = self._torch.autocast(device, dtype=self._torch.bfloat16)
        self._open.__enter__()

    def _leave(self) -> None:
        if self._open is not None and threading.get_ident() == self._thread:
            self._open.__exit__(None, None, None)
            self._open = None


def _tell_of(kind: Any, name: str, tell: Callable[[object], None], is_compiling: Callable[[], bool]) -> None:
    """Hears of every call of a method of a class's objects, once it is done."""
    original = kind.__dict__[name]

    @functools.wraps(original)
    def method(self: object, *given: Any, **named: Any) -> None:
        original(self, *given, **named)
        if not is_compiling():
            tell(self)

    setattr(kind, name, method)


def _frames_compiled() -> int:
    """How many functions torch's compiler has compiled in this process."""
    counters: Any = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
    return int(counters.get("frames", {}).get("ok", 0))


def has_compiled() -> bool:
    """Whether torch's compiler has compiled anything."""
    return _frames_compiled() > 0
