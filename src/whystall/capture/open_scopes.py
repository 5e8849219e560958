"""Scopes that a profiler left open: no other profiler may begin before they close.

torch's profiler gives each scope (``record_function``, an operator) that begins under it a place in its own memory, in
which the scope's end is written. A profiler that ends meanwhile frees it; a scope that then ends under another profiler
writes into what is no longer its own, and the process crashes, there or later (seen with torch 2.13).

A trace marks the scopes that had not ended. Scopes of torch's own calls end before the step does, since the calls
return. A scope that each recorded step has ends within the next step. Nothing shows when any other scope ends, so no
window follows it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any, Final

from whystall.capture.plain_traces import counted, stretches

# Packages of torch whose frames run within an operator or within code that torch compiled.
_WITHIN: Final = tuple(f"torch{os.sep}{package}{os.sep}" for package in ("_library", "_functorch", "_inductor"))
# torch's own names of calls: loaders, optimizers, wrappers of models, its compiler's, operators.
_OF_CALLS: Final = re.compile(
    r"^(enumerate\(DataLoader\)|Optimizer\.|DistributedDataParallel\.|FSDP|ProfilerStep|Torch-Compiled|CompiledF|"
    r"## Call |autograd::|\w+::)"
)
_UNFINISHED: Final = re.compile(rb'"name": ?"((?:[^"\\]|\\.){1,512})"[^{}]{0,512}\{[^{}]{0,2048}"finished": ?false')
_FEWEST: Final = 3
"""A window holds at least this many scopes of one name, and one for each of its steps, where each step has one."""

_left_open: Final[set[str]] = set()


def keep_in_mind(names: Iterable[str]) -> None:
    """Receives the scopes that were open as a profiler ended."""
    _left_open.update(names)


def one_is_left_open() -> bool:
    """Whether a scope was open as a profiler ended: an arbitrary instant may still be within it."""
    return bool(_left_open)


def jobs_scope_is_left_open() -> bool:
    """Whether one of the job's own was; those of torch's calls end before a step does."""
    return not all(map(_OF_CALLS.match, _left_open))


def unfinished_in(plain: Path) -> set[str]:
    """The names of the scopes that a trace (Kineto's JSON) marks as not ended, without those that each step has."""
    found: set[bytes] = set()
    for text, _ in stretches(plain):
        if b'"finished"' in text:
            found.update(_UNFINISHED.findall(text))
    asked = [name for name in found if not _OF_CALLS.match(_text(name))]
    if asked:
        steps, *times = counted(plain, [b'"name": "ProfilerStep#', *(b'"name": "' + name + b'"' for name in asked)])
        found -= {name for name, count in zip(asked, times, strict=True) if count >= max(steps, _FEWEST)}
    return {_text(name) for name in found}


def _text(name: bytes) -> str:
    return name.decode("utf-8", "replace")


def unfinished_of(profiler: Any, stopped_ns: int) -> set[str]:
    """The same of a profiler whose trace is not written: all that lasted beyond the instant before it was stopped."""
    results = getattr(profiler.profiler, "kineto_results", None)
    events = results.events() if results is not None else []
    return {event.name() for event in events if event.start_ns() + event.duration_ns() >= stopped_ns}


def within_an_operator(torch: Any, frame: FrameType | None) -> bool:
    """Whether a frame, or one that led to it, runs within an operator: a function of autograd's, a custom operator."""
    context = torch.autograd.function.FunctionCtx
    while frame is not None:
        code = frame.f_code
        if any(package in code.co_filename for package in _WITHIN):
            return True
        first = code.co_varnames[0] if code.co_argcount else None
        if first == "ctx" and issubclass(type(frame.f_locals.get(first)), context):
            return True
        frame = frame.f_back
    return False
