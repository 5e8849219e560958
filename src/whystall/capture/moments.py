"""Moments in the midst of something, at which no step is taken to have ended and no profiler begins or ends."""

from __future__ import annotations

import sys
from types import FrameType, ModuleType
from typing import Any, Final

_IMPORT_SYSTEM: Final = "<frozen importlib"
_TORCH: Final = "torch."


def captures_graph(torch: Any) -> bool:
    """Whether the calling thread records a CUDA graph: what it calls is not run now, and waiting would break it.

    CUDA forbids then to ask for an event or to synchronise, also what a profiler does when it begins or ends; a job
    that is disturbed so loses its graph and fails. Reasoned from CUDA's documentation of stream capture.
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


def imports() -> bool:
    """Whether the calling thread is in an import, or a module of torch's is being imported by anybody.

    What is imported then, by a profiler that begins, may meet a module that is half there: its import fails, and after
    it the job's own.
    """
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - the documented way to the calling frame
    while frame is not None:
        if frame.f_code.co_filename.startswith(_IMPORT_SYSTEM):
            return True
        frame = frame.f_back
    return any(_is_half_there(module) for name, module in list(sys.modules.items()) if f"{name}.".startswith(_TORCH))


def _is_half_there(module: object) -> bool:
    """Whether the import of a module is under way; modules that make their attributes when asked are not asked."""
    spec = vars(module).get("__spec__") if isinstance(module, ModuleType) else None
    return bool(getattr(spec, "_initializing", False))
