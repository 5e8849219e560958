"""Scopes that a profiler left open: no other profiler may begin before they close.

torch's profiler gives each scope (``record_function``, an operator) that begins under it a place in its own memory, in
which the scope's end is written. A profiler that ends meanwhile frees it; a scope that then ends under another profiler
writes into what is no longer its own, and the process crashes later, somewhere else (seen with torch 2.13).
"""

from __future__ import annotations

import gc
import os
import weakref
from types import FrameType
from typing import Any, Final

# Packages of torch whose frames run within an operator or within code that torch compiled.
_WITHIN: Final = tuple(f"torch{os.sep}{package}{os.sep}" for package in ("_library", "_functorch", "_inductor"))

_left_open: Final[list[weakref.ref[Any]]] = []


def note_open_scopes(torch: Any) -> None:
    """Called as a profiler ends: keeps in mind the scopes that are open now."""
    known = {id(scope) for scope in _still_open()}
    _left_open.extend(weakref.ref(scope) for scope in _open_scopes(torch) if id(scope) not in known)


def scopes_are_left_open() -> bool:
    """Whether a scope that was open as a profiler ended still is; one that its owner keeps counts as open."""
    return bool(_still_open())


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


def _still_open() -> list[Any]:
    alive = [(reference, scope) for reference in _left_open if (scope := reference()) is not None]
    _left_open[:] = [reference for reference, _ in alive]
    return [scope for _, scope in alive]


def _open_scopes(torch: Any) -> list[Any]:
    """The scopes of Python that were entered; a scope is freed as its block ends."""
    kind = torch.autograd.profiler.record_function
    return [
        one
        for one in gc.get_objects()
        if issubclass(type(one), kind) and object.__getattribute__(one, "__dict__").get("record") is not None
    ]
