"""Torch's events of steps, input, forward and backward: its own hooks, and functions that report their calls.

No function is replaced, no object of the user's is changed, and no synchronisation with the device is ever made.
Copied, pickled, scripted, exported or compiled objects hold nothing of ours. Modules are known as they receive
parameters and parts, on the threads that make them and by weak references: to get them from the garbage collector would
break objects under construction elsewhere.
"""

from __future__ import annotations

import functools
import inspect
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import CodeType
from typing import Any, Final, Protocol

from whystall._native import HeardCalls
from whystall.capture.evaluation import keeps_statistics
from whystall.capture.faults import suppress
from whystall.capture.global_hooks import put, set_aside
from whystall.capture.heard_functions import hear
from whystall.capture.known_modules import Known, outermost_module
from whystall.capture.moments import followed_by
from whystall.capture.tables_made import TablesMade
from whystall.capture.the_jobs import parameters_of, parts_of

# A model whose parts are called one by one has at most this many.
_MOST_PARTS = 16
# Limit of calls to examine in a job in which no model is called.
_MOST_ASKED = 2_000
_TRACERS: Final = (
    ("torch", "compile"),
    ("torch._ops", "HigherOrderOperator.__call__"),
    ("torch._subclasses.fake_tensor", "FakeTensorMode.__init__"),
    ("torch.fx._symbolic_trace", "Tracer.trace"),
    ("torch.jit._trace", "_trace_impl"),
    ("torch.jit._script", "_script_impl"),
    ("torch.profiler.profiler", "ExecutionTraceObserver.start"),
)


_EXPORTS: Final = (("torch.export", "export"),)


class Listener(Protocol):
    """The events for a session."""

    def optimizer_begins(self) -> None: ...
    def optimizer_ends(self, optimizer: object) -> None: ...
    def scaler_begins(self) -> None: ...
    def scaler_ends(self) -> None: ...
    def input_begins(self) -> None: ...
    def input_ends(self, batch: object) -> None: ...
    def save_begins(self) -> None: ...
    def save_ends(self) -> None: ...
    def loader_begins(self, loader: object) -> None: ...
    def loader_ends(self) -> None: ...
    def forward_begins(
        self, given: Sequence[object], named: Mapping[str, object], *, learns: bool, trains: bool
    ) -> None: ...
    def forward_ends(self) -> None: ...
    def backward_begins(self) -> None: ...
    def backward_ends(self) -> None: ...
    def user_profiler_begins(self) -> None: ...
    def tracing_begins(self) -> None: ...


class TorchHooks:
    """Installs and removes everything; each part is guarded by the session."""

    def __init__(self, torch: Any, listener: Listener) -> None:
        self._torch = torch
        self._listener = listener
        self._undo: list[Callable[[], object]] = []
        self._modules = Known()
        self.tables = TablesMade(torch)
        self._made_before = False
        self._guessed = False
        self.optimizers_made = 0
        """How many optimizers have been made since the hooks are in."""
        self.optimizers_alive: weakref.WeakSet[Any] = weakref.WeakSet()
        self._let_go: list[Callable[[], object]] = []
        self._set_aside: list[Callable[[], None]] = []
        self._watched: Callable[[], object | None] = _nothing
        self._keeps_statistics: Callable[[], bool] = bool
        self._kind: type | None = None
        self._newest: Callable[[], object | None] = _nothing
        self._heard: HeardCalls | None = None
        self._failed: Exception | None = None
        self._is_compiling = followed_by(torch)

    def install(self, *, modules_made_before: bool = False) -> None:
        """Hooks into modules, optimizers, data loaders, gradient scalers, saving, and the user's own profiler.

        ``modules_made_before``: there may be modules already, which are known only once they are called.
        """
        torch, listener = self._torch, self._listener
        self._made_before = modules_made_before
        self._know_modules()
        from torch.optim import optimizer  # noqa: PLC0415 - the user has imported torch

        self._undo += [
            put(optimizer._global_optimizer_pre_hooks, lambda *_: listener.optimizer_begins()),  # noqa: SLF001 - as its register function does
            put(optimizer._global_optimizer_post_hooks, lambda own, *_: listener.optimizer_ends(own)),  # noqa: SLF001
        ]
        from torch.utils.data import dataloader  # noqa: PLC0415

        batches = dataloader._BaseDataLoaderIter  # noqa: SLF001 - what all kinds of loaders have in common
        # Every backward pass goes through it, from any caller (before torch 2.2 there is only the public function).
        entry = getattr(torch.autograd, "_engine_run_backward", torch.autograd.backward)
        self._hear_all(
            (optimizer.Optimizer.__init__, self._optimizer_begins, _nothing),
            (batches.__next__, lambda _: listener.input_begins(), listener.input_ends),
            # An epoch's first batch waits for workers that start.
            (dataloader.DataLoader.__iter__, listener.loader_begins, lambda _: listener.loader_ends()),
            (torch.amp.GradScaler.step, lambda _: listener.scaler_begins(), lambda _: listener.scaler_ends()),
            (torch.save, lambda _: listener.save_begins(), lambda _: listener.save_ends()),
            (entry, lambda _: listener.backward_begins(), lambda _: listener.backward_ends()),
            (torch.autograd.profiler.profile._prepare_trace, lambda _: listener.user_profiler_begins(), _nothing),  # noqa: SLF001
            *((function, lambda *_: listener.tracing_begins(), _nothing) for function in _tracers()),
            *((function, self._export_begins, self._export_ends) for function in _functions(_EXPORTS)),
        )
        if self._failed is not None:
            raise self._failed

    def remove(self) -> None:
        """Takes every hook out again."""
        self.unwatch()
        for undo in (*reversed(self._undo), *self._let_go):
            with suppress(Exception):
                undo()
        self._undo, self._let_go = [], []
        self._kind = None

    def _export_begins(self, *_: object) -> None:
        """Strict torch.export cannot trace global module hooks: ours are out until it ends."""
        self._listener.tracing_begins()
        module = self._torch.nn.modules.module
        self._set_aside.append(set_aside(module._global_forward_pre_hooks, module._global_forward_hooks))  # noqa: SLF001

    def _export_ends(self, *_: object) -> None:
        if self._set_aside:
            self._set_aside.pop()()

    def _know_modules(self) -> None:
        """Observes every module that is made, copied, unpickled or loaded from now on.

        A new module is seen as soon as it receives a parameter, a buffer or a part: torch's compiler follows the
        constructors of modules, and can follow these hooks.
        """
        from torch.nn.modules import module  # noqa: PLC0415 - the user has imported torch

        is_compiling, known = self._is_compiling, self._known

        def given(owner: object, *_: object) -> None:
            if not is_compiling():
                known(owner)

        self._let_go += [
            put(module._global_parameter_registration_hooks, given),  # noqa: SLF001
            put(module._global_buffer_registration_hooks, given),  # noqa: SLF001
            put(module._global_module_registration_hooks, given),  # noqa: SLF001
        ]
        self._hear_all((module.Module.__setstate__, known, _nothing), until=self._let_go)
        wrap = getattr(getattr(self._torch.jit, "_recursive", None), "wrap_cpp_module", None)
        if wrap is not None:  # made by `torch.jit.load`
            self._hear_all((wrap, _nothing, known), until=self._let_go)

    def _known(self, module: object) -> None:
        """A module is made; this is called in the user's constructors."""
        with suppress(Exception):
            self._modules.add(module)
            self.tables.add(module)
            if type(module) is self._kind:
                self._another(module)

    def _hear_all(
        self,
        *calls: tuple[Callable[..., Any], Callable[..., object], Callable[..., object]],
        until: list[Callable[[], object]] | None = None,
    ) -> None:
        """Hears of calls of torch's functions; one that cannot be heard is named once all others are."""
        for function, before, after in calls:
            try:
                (self._undo if until is None else until).append(hear(function, before, after))
            except (OSError, TypeError) as error:
                self._failed = error

    def watch_outermost_module(self, optimizer: object) -> None:
        """Times the forward pass of the outermost module that holds the optimizer's parameters.

        An optimizer may have parameters of its own (DeepSpeed's partitions, copies in fp32): then of the largest module
        there is.
        """
        modules = self._modules.living()
        for undo in self._let_go:  # the optimizer's module is known: later modules do not matter
            undo()
        self._let_go = []
        if self._guessed and not has_compiled():  # before there was an optimizer: it may train another module
            self.unwatch()
            self._guessed = False
        if self._watched() is not None:
            return
        module = outermost_module(modules, _parameters(optimizer))
        if module is None and self._made_before:
            self._watch_next_call()
        else:
            self.watch(module if module is not None else outermost_module(modules, None))

    @property
    def modules_made(self) -> int:
        """How many modules have been made since the hooks are in."""
        return self._modules.ever

    @property
    def packages(self) -> set[str]:
        """The packages of the classes of all modules so far."""
        return self._modules.packages

    @property
    def alive(self) -> list[object]:
        """The modules and optimizers known that are alive."""
        return [*self._modules.living(), *self.optimizers_alive]

    @property
    def modules_living(self) -> int:
        """How many of them are alive."""
        return self._modules.count()

    def watch_any_module(self) -> None:
        """The same when there is no optimizer (inference): the module that holds the most parameters.

        May be called again: of a model that was half made the first time a part was found.
        """
        module = outermost_module(self._modules.living(), None)
        if module is None and self._made_before:
            self._watch_next_call()
        elif module is not None and module is not self._watched():
            self.unwatch()
            self.watch(module)
            self._guessed = True

    def watch_called_module(self, *, its_kind: bool = False) -> None:
        """The same by calls, where the guess is not called: a traced model is another module, so is a copy.

        ``its_kind``: and all later ones of its class, one after another (a model for each request).
        """
        self._guessed = True
        self._watch_next_call(its_kind=its_kind)

    def _another(self, module: object) -> None:
        """One more of the class that is watched: it follows the one before, at once or when that is gone."""
        self._newest = weakref.ref(module)
        if self._watched() is None:
            self._watch_newest()

    def _watch_newest(self) -> None:
        module = self._newest()
        if module is not None and self._kind is not None:
            self.unwatch()
            self.watch(module)

    def _optimizer_begins(self, optimizer: object) -> None:
        """An optimizer is made: it is counted before its constructor works, whose first call imports for seconds."""
        self.optimizers_made += 1
        with suppress(TypeError):  # one that nothing can refer to weakly is not followed
            self.optimizers_alive.add(optimizer)

    def _watch_next_call(self, *, its_kind: bool = False) -> None:
        """Watches the outermost module called next: that of a session that began after it was made.

        A program that calls the parts of a model one by one has several such: until one comes again the largest is
        taken. Not once torch's compiler has worked: a hook on all modules would make it compile again.
        """
        if has_compiled():
            return
        call = self._torch.nn.Module._call_impl.__code__  # noqa: SLF001 - what every call of a module goes through

        asked, most = 0, -1
        seen: set[int] = set()

        def called(module: Any, *_: object) -> None:
            nonlocal asked, most
            if self._is_compiling():
                return
            with suppress(Exception):  # and this in their calls
                asked += 1
                if asked > _MOST_ASKED:
                    take_out()
                # this may begin in the midst of a call
                elif _calls_of(call) <= 1 and self._has_weights(module):
                    if id(module) in seen or len(seen) >= _MOST_PARTS:
                        take_out()
                        return
                    seen.add(id(module))
                    held = _numbers_in(module)
                    watched = self._watched()
                    if held > most and (watched is None or (self._guessed and watched is not module)):
                        self.unwatch()
                        self._kind = type(module) if its_kind else None
                        self.watch(module)
                    most = max(most, held)

        take_out = put(self._torch.nn.modules.module._global_forward_pre_hooks, called)  # noqa: SLF001
        self._undo.append(take_out)

    def at_next_call(self, then: Callable[[], None]) -> None:
        """Makes the next thread that calls a module call ``then``; may be used on any thread.

        Not once torch's compiler has worked: a hook on all modules would make it compile again.
        """
        if has_compiled():
            return

        def called(*_: object) -> None:
            if not self._is_compiling():
                take_out()
                then()

        take_out = put(self._torch.nn.modules.module._global_forward_pre_hooks, called)  # noqa: SLF001
        self._undo.append(take_out)

    def _has_weights(self, module: Any) -> bool:
        """Whether it has weights: TorchScript graphs may hold them inside, quantized layers hold packed ones.

        Its ``state_dict()`` is not called: hooks of the user's may do anything in it.
        """
        if isinstance(module, self._torch.jit.ScriptModule) or any(True for _ in parameters_of(module)):
            return True
        return any("_packed_params" in part._modules or "_packed_params" in vars(part) for part in parts_of(module))  # noqa: SLF001

    def watch(self, module: Any) -> None:
        """Times the forward pass of ``module``."""
        if module is None:
            return
        self._watched = weakref.ref(module, self._gone)
        self._keeps_statistics = functools.cache(lambda: keeps_statistics(self._torch, self._watched()))
        self._heard = HeardCalls(module, self._forward_begins, self._forward_ends)

    def _forward_begins(self, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        if self._is_compiling():
            return
        trains, learns = getattr(self._watched(), "training", True), self._torch.is_grad_enabled()
        learns = learns or (trains and self._keeps_statistics())
        self._listener.forward_begins(given, named, learns=learns, trains=trains)

    def _forward_ends(self) -> None:
        if not self._is_compiling():
            self._listener.forward_ends()

    def _gone(self, _reference: object) -> None:
        """The module that is watched is let go: another may come to lie where it was."""
        with suppress(Exception):  # this is called where the user lets a module go
            self.unwatch()
            self._watch_newest()

    def unwatch(self) -> None:
        """Times no module any more."""
        heard, self._heard = self._heard, None
        if heard is not None:
            heard.remove()
        self._watched = _nothing


def _calls_of(code: CodeType) -> int:
    """How many calls of a function the calling thread is in."""
    frame, found = inspect.currentframe(), 0
    while frame is not None:
        found += frame.f_code is code
        frame = frame.f_back
    return found


def _nothing(*_: object) -> None:
    pass


def _tracers() -> list[Callable[..., Any]]:
    """The functions of this torch that begin to trace a program, or to observe all operators.

    torch.export and make_fx make fake tensors first. Some operators compile what they are given (torch.cond).
    """
    return _functions(_TRACERS)


def _functions(places: Sequence[tuple[str, str]]) -> list[Callable[..., Any]]:
    """The functions of these modules and paths that are there."""
    found = []
    for module, path in places:
        function: Any = sys.modules.get(module)
        for name in path.split("."):
            function = getattr(function, name, None)
        if function is not None:
            found.append(function)
    return found


def has_compiled() -> bool:
    """Whether torch's compiler has worked: a change of hooks would have it compile again."""
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
    return bool(counters.get("frames"))


def compiles_now() -> bool:
    """Whether torch's compiler is at work on this thread."""
    context = getattr(sys.modules.get("torch._guards"), "CompileContext", None)
    return context is not None and context.try_get() is not None


def _parameters(optimizer: object) -> set[int]:
    groups = getattr(optimizer, "param_groups", [])
    return {id(parameter) for group in groups for parameter in group.get("params", [])}


def _numbers_in(module: Any) -> int:
    """How many numbers its parameters hold, as far as they are made."""
    return sum(each.numel() for each in parameters_of(module) if not hasattr(each, "materialize"))
