"""Where torch tells of steps, input, forward and backward: its own hooks, and calls that leave no frame.

No function of the user is wrapped in Python, no module of the user is changed but for two hooks on the
outermost one, and no synchronisation with the device is ever made.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from whystall._native import TimedCall

if TYPE_CHECKING:
    import torch


class Listener(Protocol):
    """What a session wants to hear of."""

    def optimizer_begins(self) -> None: ...
    def optimizer_ends(self, optimizer: object) -> None: ...
    def scaler_begins(self) -> None: ...
    def scaler_ends(self) -> None: ...
    def input_begins(self) -> None: ...
    def input_ends(self) -> None: ...
    def save_begins(self) -> None: ...
    def save_ends(self) -> None: ...
    def loader_begins(self) -> None: ...
    def loader_ends(self) -> None: ...
    def forward_begins(self) -> None: ...
    def forward_ends(self) -> None: ...
    def backward_begins(self) -> None: ...
    def backward_ends(self) -> None: ...
    def user_profiler_begins(self) -> None: ...


class TorchHooks:
    """Installs and removes everything; each part is guarded by the session."""

    def __init__(self, torch: Any, listener: Listener) -> None:
        self._torch = torch
        self._listener = listener
        self._undo: list[Callable[[], object]] = []
        self._watched: object | None = None
        self._unwatch: list[Callable[[], object]] = []

    def install(self) -> None:
        """Hooks into optimizers, data loaders, gradient scalers, saving, and the user's own profiler."""
        torch, listener = self._torch, self._listener
        from torch.optim import optimizer  # noqa: PLC0415 - the user has imported torch

        handles = [
            optimizer.register_optimizer_step_pre_hook(lambda *_: listener.optimizer_begins()),
            optimizer.register_optimizer_step_post_hook(lambda own, *_: listener.optimizer_ends(own)),
        ]
        self._undo += [handle.remove for handle in handles]
        from torch.utils.data import dataloader  # noqa: PLC0415

        self._time(dataloader._BaseDataLoaderIter, "__next__", listener.input_begins, listener.input_ends)  # noqa: SLF001
        # An epoch's first batch waits for workers that start.
        self._time(dataloader.DataLoader, "__iter__", listener.loader_begins, listener.loader_ends)
        self._time(torch.amp.GradScaler, "step", listener.scaler_begins, listener.scaler_ends)
        self._time(torch, "save", listener.save_begins, listener.save_ends)
        # Every backward pass goes through it, whoever asked for it (before torch 2.2 through no function but the public one).
        entry = "_engine_run_backward" if hasattr(torch.autograd, "_engine_run_backward") else "backward"
        self._time(torch.autograd, entry, listener.backward_begins, listener.backward_ends)
        self._time(torch.autograd.profiler.profile, "_prepare_trace", listener.user_profiler_begins, _nothing)

    def remove(self) -> None:
        """Takes every hook out again."""
        while self._undo:
            with contextlib.suppress(Exception):
                self._undo.pop()()

    def _time(self, owner: Any, name: str, before: Callable[[], object], after: Callable[[], object]) -> None:
        original = owner.__dict__.get(name)
        if original is None:
            return
        setattr(owner, name, TimedCall(original, before, after))
        self._undo.append(lambda: setattr(owner, name, original))

    def watch_outermost_module(self, optimizer: object) -> None:
        """Times the forward pass of the outermost module that holds the optimizer's parameters.

        An optimizer may have parameters of its own (DeepSpeed's partitions, copies in fp32): then of the largest module there is.
        """
        if self._watched is None:
            module = outermost_module(self._torch, _parameters(optimizer))
            self.watch(module if module is not None else outermost_module(self._torch, None))

    def watch_any_module(self) -> None:
        """The same when there is no optimizer (inference): the module that holds the most parameters."""
        if self._watched is None:
            self.watch(outermost_module(self._torch, None))

    def watch(self, module: Any) -> None:
        """Times the forward pass of ``module``."""
        # a hook on a module compiled in place would be compiled into it, which would change the user's graph
        if module is None or getattr(module, "_compiled_call_impl", None) is not None:
            return
        self._watched = module
        handles = [
            module.register_forward_pre_hook(lambda *_: self._listener.forward_begins()),
            module.register_forward_hook(lambda *_: self._listener.forward_ends()),
        ]
        self._unwatch = [handle.remove for handle in handles]
        self._undo += self._unwatch

    def unwatch(self) -> None:
        """Times no module any more."""
        for remove in self._unwatch:
            remove()


def _nothing() -> None:
    pass


def _parameters(optimizer: object) -> set[int]:
    groups = getattr(optimizer, "param_groups", [])
    return {id(parameter) for group in groups for parameter in group.get("params", [])}


def outermost_module(torch: Any, parameters: set[int] | None) -> torch.nn.Module | None:
    """The live module that is nobody's child and holds the most of ``parameters`` (``None``: of any)."""
    # by type: isinstance asks the object, and some (torch's deprecated names) answer with a warning
    modules = [thing for thing in gc.get_objects() if issubclass(type(thing), torch.nn.Module)]
    children = {id(child) for module in modules for child in module._modules.values()}  # noqa: SLF001
    best, most = None, 0
    for module in modules:
        if id(module) in children:
            continue
        held = sum(1 for parameter in module.parameters() if parameters is None or id(parameter) in parameters)
        if held > most:
            best, most = module, held
    return best
