"""Where torch tells of steps, input, forward and backward: its own hooks, and calls that leave no frame.

No function of the user is wrapped in Python, no module of the user is changed but for two hooks on the
outermost one, and no synchronisation with the device is ever made. Modules are known by their constructors, on the
threads that make them and by weak references: to ask the garbage collector for them would break what is under
construction elsewhere.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import CodeType
from typing import Any, Protocol

from whystall._native import TimedCall
from whystall.capture.evaluation import keeps_statistics
from whystall.capture.known_modules import Known, outermost_module
from whystall.capture.tables_made import TablesMade

# A model whose parts are called one by one has so many of them, at most.
_MOST_PARTS = 16
# Of a job in which no model is called nobody goes on asking.
_MOST_ASKED = 2_000


class Listener(Protocol):
    """What a session wants to hear of."""

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
        self._watched: Callable[[], object | None] = _nothing
        self._keeps_statistics: Callable[[], bool] = bool
        self._kind: type | None = None
        self._newest: Callable[[], object | None] = _nothing
        self._unwatch: list[Callable[[], object]] = []
        self._is_compiling = _followed_by(torch)

    def install(self, *, modules_made_before: bool = False) -> None:
        """Hooks into modules, optimizers, data loaders, gradient scalers, saving, and the user's own profiler.

        ``modules_made_before`` says that there may be modules already, which are known only once they are called.
        """
        torch, listener = self._torch, self._listener
        self._made_before = modules_made_before
        self._know_modules(torch.nn.Module)
        from torch.optim import optimizer  # noqa: PLC0415 - the user has imported torch

        handles = [
            optimizer.register_optimizer_step_pre_hook(lambda *_: listener.optimizer_begins()),
            optimizer.register_optimizer_step_post_hook(lambda own, *_: listener.optimizer_ends(own)),
        ]
        self._undo += [handle.remove for handle in handles]
        self._undo.append(_replace(optimizer.Optimizer, "__init__", self._counting(optimizer.Optimizer.__init__)))
        from torch.utils.data import dataloader  # noqa: PLC0415

        batches = dataloader._BaseDataLoaderIter  # noqa: SLF001 - what all kinds of loaders have in common
        self._time(batches, "__next__", listener.input_begins, listener.input_ends, tells_result=True)
        # An epoch's first batch waits for workers that start.
        loader = dataloader.DataLoader
        self._time(loader, "__iter__", listener.loader_begins, listener.loader_ends, tells_whose=True)
        self._time(torch.amp.GradScaler, "step", listener.scaler_begins, listener.scaler_ends)
        self._time(torch, "save", listener.save_begins, listener.save_ends)
        self._time(torch.jit, "script", self._unhook, self._hook)  # it would compile the hooks into the user's module
        # Every backward pass goes through it, whoever asked for it (before torch 2.2 through no function but the public
        # one).
        entry = "_engine_run_backward" if hasattr(torch.autograd, "_engine_run_backward") else "backward"
        self._time(torch.autograd, entry, listener.backward_begins, listener.backward_ends)
        self._time(torch.autograd.profiler.profile, "_prepare_trace", listener.user_profiler_begins, _nothing)

    def remove(self) -> None:
        """Takes every hook out again."""
        for undo in (*reversed(self._undo), *self._unwatch, *self._let_go):
            with contextlib.suppress(Exception):
                undo()
        self._undo, self._unwatch, self._let_go = [], [], []
        self._kind = None

    def _know_modules(self, kind: Any) -> None:
        """Hears of every module that is made, copied or unpickled from now on.

        In plain Python, unlike the rest: torch's compiler follows the constructors of modules, and can follow functions
        alone.
        """
        known = self._modules

        def tell(module: object) -> None:
            with contextlib.suppress(Exception):  # this is called in the user's constructors
                known.add(module)
                self.tables.add(module)
                if type(module) is self._kind:
                    self._another(module)

        for name in ("__init__", "__setstate__"):
            original = kind.__dict__[name]
            self._let_go.append(_replace(kind, name, _telling(original, tell, self._is_compiling)))

    def _time(
        self,
        owner: Any,
        name: str,
        before: Callable[..., object],
        after: Callable[..., object],
        **tells: bool,
    ) -> None:
        original = owner.__dict__.get(name)
        if original is not None:
            self._undo.append(_replace(owner, name, TimedCall(original, before, after, **tells)))

    def watch_outermost_module(self, optimizer: object) -> None:
        """Times the forward pass of the outermost module that holds the optimizer's parameters.

        An optimizer may have parameters of its own (DeepSpeed's partitions, copies in fp32): then of the largest module
        there is.
        """
        modules = self._modules.living()
        for undo in self._let_go:  # the optimizer's module is there: what is made from now on is no matter
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
        """The same by what is called, where what was guessed is not: a traced model is another module, so is a copy.

        ``its_kind``: and all that are made of its class from then on, one after another (a model for each request).
        """
        self._guessed = True
        self._watch_next_call(its_kind=its_kind)

    def _another(self, module: object) -> None:
        """One more of the class that is watched: it follows the one before, at once or when that is gone."""
        self._newest = weakref.ref(module)
        if self._watched() is None:
            self._watch_newest()

    def _watch_newest(self, _gone: object = None) -> None:
        with contextlib.suppress(Exception):  # this is called where the user lets a module go
            module = self._newest()
            if module is not None and self._kind is not None:
                self.unwatch()
                self.watch(module)

    def _counting(self, original: Callable[..., None]) -> Callable[..., None]:
        """The constructor of optimizers; it is counted before it works, since its first call imports for seconds."""

        @functools.wraps(original)
        def constructor(*args: Any, **kwargs: Any) -> None:
            self.optimizers_made += 1
            original(*args, **kwargs)
            with contextlib.suppress(Exception):  # one that nothing can refer to weakly is not followed
                self.optimizers_alive.add(args[0])

        return constructor

    def _watch_next_call(self, *, its_kind: bool = False) -> None:
        """Watches the module that is called next, and by no other: that of a session that began after it was made.

        Who calls the parts of a model one by one has several such: until one comes again the largest is taken. Not once
        torch's compiler has worked: a hook on all modules would have it compile again.
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
            with contextlib.suppress(Exception):  # and this in their calls
                asked += 1
                if asked > _MOST_ASKED:
                    handle.remove()
                # this may begin in the midst of a call
                elif _calls_of(call) <= 1 and self._has_weights(module):
                    if id(module) in seen or len(seen) >= _MOST_PARTS:
                        handle.remove()
                        return
                    seen.add(id(module))
                    held = _numbers_in(module)
                    watched = self._watched()
                    if held > most and (watched is None or (self._guessed and watched is not module)):
                        self.unwatch()
                        self._kind = type(module) if its_kind else None
                        self.watch(module)
                    most = max(most, held)

        from torch.nn.modules.module import register_module_forward_pre_hook  # noqa: PLC0415 - the user has imported torch

        handle = register_module_forward_pre_hook(called)
        self._undo.append(handle.remove)

    def _has_weights(self, module: Any) -> bool:
        """Whether it is a model: graphs of TorchScript may have theirs inside, quantized layers have packed ones.

        Its ``state_dict()`` is not asked for: hooks of the user's may do anything in it.
        """
        if isinstance(module, self._torch.jit.ScriptModule) or any(True for _ in module.parameters()):
            return True
        return any("_packed_params" in part._modules or "_packed_params" in vars(part) for part in module.modules())  # noqa: SLF001

    def watch(self, module: Any) -> None:
        """Times the forward pass of ``module``."""
        # a hook on a module compiled in place would be compiled into it, which would change the user's graph
        if module is None or getattr(module, "_compiled_call_impl", None) is not None:
            return
        self._watched = weakref.ref(module, self._watch_newest)
        self._keeps_statistics = functools.cache(lambda: keeps_statistics(self._torch, self._watched()))
        self._hook()

    def _hook(self) -> None:
        """Puts the hooks on the module that is watched, if any is."""
        module: Any = self._watched()
        if module is None or self._unwatch:
            return
        begins = ModuleHook(self._forward_begins, self._is_compiling)
        ends = ModuleHook(lambda *_: self._listener.forward_ends(), self._is_compiling)
        kind = self._torch.nn.Module  # a graph of TorchScript has calls of hooks, and refuses to register them itself
        handles = [
            kind.register_forward_pre_hook(module, begins, with_kwargs=True),
            kind.register_forward_hook(module, ends),
        ]
        self._unwatch = [handle.remove for handle in handles]

    def _forward_begins(self, given: Any, named: Any) -> None:
        trains, learns = getattr(self._watched(), "training", True), self._torch.is_grad_enabled()
        learns = learns or (trains and self._keeps_statistics())
        self._listener.forward_begins(given, named, learns=learns, trains=trains)

    def _unhook(self) -> None:
        for remove in self._unwatch:
            remove()
        self._unwatch = []

    def unwatch(self) -> None:
        """Times no module any more."""
        self._unhook()
        self._watched = _nothing


class ModuleHook:
    """A hook on a module of the user's, which goes no further than that module.

    Copies and files of it get a silent one.
    """

    def __init__(self, tell: Callable[[Any, Any], None], is_compiling: Callable[[], bool]) -> None:
        self._tell = tell
        self._is_compiling = is_compiling

    def __call__(self, _module: object, given: object, named_or_output: object) -> None:
        """Tells that the module is called, and with what.

        In a function that is compiled it is a part of the graph, which stays as it is.
        """
        if not self._is_compiling():
            self._tell(given, named_or_output)

    def __reduce__(self) -> tuple[Any, ...]:
        """What pickles and copies hold: a function of Python's own that takes anything and does nothing."""
        return functools.partial, (sys.audit, "silent")


def _followed_by(torch: Any) -> Callable[[], bool]:
    """What tells whether torch's compiler or `torch.jit.trace` follows what is called: a graph of it would hold us."""
    is_compiling: Callable[[], bool] = getattr(getattr(torch, "compiler", None), "is_compiling", bool)
    is_tracing: Callable[[], bool] = getattr(torch.jit, "is_tracing", bool)
    return lambda: is_compiling() or is_tracing()


def _calls_of(code: CodeType) -> int:
    """How many calls of a function the calling thread is in."""
    frame, found = inspect.currentframe(), 0
    while frame is not None:
        found += frame.f_code is code
        frame = frame.f_back
    return found


def _telling(
    original: Callable[..., None], tell: Callable[[object], None], is_compiling: Callable[[], bool]
) -> Callable[..., None]:
    """A method that also tells whose it is."""

    @functools.wraps(original)
    def method(self: object, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if not is_compiling():
            tell(self)

    return method


def _replace(owner: Any, name: str, new: object) -> Callable[[], None]:
    """Puts something in place of an attribute; what takes it back unless somebody else has replaced it again."""
    original = owner.__dict__[name]
    setattr(owner, name, new)

    def undo() -> None:
        if owner.__dict__.get(name) is new:
            setattr(owner, name, original)

    return undo


def _nothing() -> None:
    pass


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
    return sum(each.numel() for each in module.parameters() if not hasattr(each, "materialize"))
