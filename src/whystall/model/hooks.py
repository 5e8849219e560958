"""Callbacks for the begin and end of a module's forward, even a failing one, through PyTorch's hooks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as module_hooks

from whystall.model.frames import is_compiled

Before = Callable[[nn.Module, Any], None]
After = Callable[[nn.Module, Any, Any], None]


def watch(model: nn.Module | None, before: Before, after: After) -> list[Any]:
    """The handles of hooks on the modules of ``model``, or on every module of the process where it is ``None``."""
    if model is None:
        return [
            module_hooks.register_module_forward_pre_hook(before),
            module_hooks.register_module_forward_hook(after, always_call=True),
        ]
    handles = []
    for module in _outside_compiled(model, set()):
        handles.append(module.register_forward_pre_hook(before))
        handles.append(module.register_forward_hook(after, always_call=True))
    return handles


def _outside_compiled(module: nn.Module, seen: set[int]) -> Iterator[nn.Module]:
    """The modules that Python itself calls.

    Hooks inside a compiled or scripted module would not run, or recompile it.
    """
    if id(module) in seen or isinstance(module, torch.jit.ScriptModule):
        return
    seen.add(id(module))
    yield module
    if not is_compiled(module):
        for child in module.children():
            yield from _outside_compiled(child, seen)
