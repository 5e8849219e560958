"""Moments in the midst of something, at which no step is taken to have ended and no profiler begins or ends."""

from __future__ import annotations

from typing import Any


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
