"""Moments in the midst of something, at which no step is taken to have ended and no profiler begins or ends."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any, Final

_IMPORT_SYSTEM: Final = "<frozen importlib"
_TORCH: Final = "torch."


def captures_graph(torch: Any) -> bool:
    """Whether the calling thread records a CUDA graph: its calls are not run now, and waiting would break it.

    CUDA then forbids to query an event or to synchronise, also in a profiler's begin or end; a job that is disturbed
    like that loses its graph and fails. Reasoned from CUDA's documentation of stream capture.
    """
    cuda = torch.cuda
    return bool(cuda.is_initialized() and cuda.is_current_stream_capturing())


def in_backward(torch: Any) -> bool:
    """Whether the calling thread is in a backward pass (torch's compiler differentiates, too).

    Autograd calls its nodes with the thread's state of when the pass began and puts it back afterwards; a profiler is
    part of that state. One that begins here is lost with its node, its callbacks stay for ever, and ending it crashes
    (seen with torch 2.11 and 2.13).
    """
    return torch._C._current_graph_task_id() != -1  # type: ignore[no-any-return] # noqa: SLF001 - the engine's state has no public accessor


def is_unfit(torch: Any) -> bool:
    """Whether a profiler that began or ended now would do harm."""
    return captures_graph(torch) or in_backward(torch)


def imports(*, elsewhere: bool = True) -> bool:
    """Whether the calling thread is in an import, or any thread imports a module.

    Without ``elsewhere`` only torch's modules count. If a profiler starts meanwhile, its own imports may meet a module
    that is half there and fail, and the job's import fails with them; or they wait for the other thread's import.
    """
    return _is_in_import(sys._getframe(1)) or _any_is_half_there(elsewhere=elsewhere)  # noqa: SLF001 - the documented way to the calling frame


def imports_on_main_thread(*, elsewhere: bool = True) -> bool:
    """The same for the main thread, checked from another thread, so that the main thread need not run anything."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)  # noqa: SLF001 - the only way to see where another thread is
    return _is_in_import(frame) or _any_is_half_there(elsewhere=elsewhere)


def _is_in_import(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith(_IMPORT_SYSTEM):
            return True
        frame = frame.f_back
    return False


def _any_is_half_there(*, elsewhere: bool) -> bool:
    """Whether any thread is importing a module. Modules are looked up one by one, so that none is kept alive."""
    of = "" if elsewhere else _TORCH
    return any(is_half_there(name) for name in list(sys.modules) if f"{name}.".startswith(of))


def is_half_there(name: str) -> bool:
    """Whether a module is still being imported. A lazy module is not made to load."""
    module = sys.modules.get(name)
    if name in _never_whole or not issubclass(type(module), ModuleType):
        return False
    spec = ModuleType.__getattribute__(module, "__dict__").get("__spec__")
    return getattr(spec, "_initializing", False) is True


def _is_a_child() -> None:
    """After a fork: a module that another thread of the parent was importing stays incomplete, and is ignored."""
    _never_whole.update(name for name in list(sys.modules) if is_half_there(name))


_never_whole: Final[set[str]] = set()
os.register_at_fork(after_in_child=_is_a_child)


def followed_by(torch: Any) -> Callable[[], bool]:
    """A function that says whether torch's compiler or `torch.jit.trace` is active: its graph would hold our calls."""
    is_compiling: Callable[[], bool] = getattr(getattr(torch, "compiler", None), "is_compiling", bool)
    is_tracing: Callable[[], bool] = getattr(torch.jit, "is_tracing", bool)
    return lambda: is_compiling() or is_tracing()
