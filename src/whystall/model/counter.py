"""Counting while code runs: a dispatch mode for the operators, hooks for the modules, nothing patched."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import ModuleType, TracebackType
from typing import Any, Self

import torch
from torch import nn
from torch.optim import optimizer as optimizer_hooks
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from whystall.model import hooks, native, specs
from whystall.model.attribution import NO_TASK, ThreadState
from whystall.model.entries import Entry, KnownOperator, described
from whystall.model.frames import Tree
from whystall.model.lanes import Lane
from whystall.model.native import background
from whystall.model.plans import Action
from whystall.model.results import ModelProfile
from whystall.model.tally import Tally


class FlopCounter:
    """Counts what runs inside its ``with`` block: FLOPs, operations and bytes, by module and phase.

    ``model`` gives the modules their paths; without it, each outermost module is a root of its own. Only the thread
    that enters the block is counted, and the backward passes that it starts. ``profile`` may be read inside the block
    and after it; a counter can be entered again and goes on counting.

    >>> import torch
    >>> with FlopCounter() as counter:
    ...     _ = torch.nn.Linear(64, 32)(torch.zeros(8, 64))
    >>> counter.profile.forward.model_flops
    32768
    """

    def __init__(self, model: nn.Module | None = None) -> None:
        self._model = model
        self._local = threading.local()
        self._lock = threading.RLock()
        self._hooks: list[Any] = []
        self._mode = _Mode(self)
        self._states: list[ThreadState] = []
        self._native: ModuleType | None = None
        self._watching = self._threads = 0  # how often; in how many threads
        self._entered = threading.local()
        self.reset()

    def reset(self) -> None:
        """Forgets the counts."""
        for state in self._states:
            if state.lane is not None:
                state.lane.rest()
        self._tree = Tree(self._model)
        self._states = []
        self._main: ThreadState | None = None
        self._mode.forget()
        self._failures: dict[str, tuple[int, str]] = {}
        self._local = threading.local()

    def __enter__(self) -> Self:
        self.watch()
        try:
            self.start()
        except BaseException:
            self.unwatch()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.unwatch()
        self.stop()

    def watch(self) -> None:
        """Observes modules and optimizers from now on; repeated calls nest, and each needs its own ``unwatch``."""
        with self._lock:
            self._watching += 1
            if self._watching > 1:
                return
            self._hooks = [
                *hooks.watch(self._model, self.before_forward, self.after_forward),
                optimizer_hooks.register_optimizer_step_pre_hook(self._before_step),
                optimizer_hooks.register_optimizer_step_post_hook(self._after_step),
            ]

    def unwatch(self) -> None:
        """Hears no more."""
        with self._lock:
            self._watching -= 1
            while self._hooks and not self._watching:
                self._hooks.pop().remove()

    def start(self) -> None:
        """Counts this thread's operators once from now on; repeated calls nest, and each needs its own ``stop``."""
        depth = getattr(self._entered, "depth", 0)
        if not depth:
            self._begin()
            state = self._state()
            if state.lane is not None:
                state.lane.enter_thread()
            try:
                self._mode.__enter__()
            except BaseException:
                self._end()
                raise
        self._entered.depth = depth + 1

    def stop(self) -> None:
        """Counts no more."""
        self._entered.depth -= 1
        if not self._entered.depth:
            self._mode.__exit__(None, None, None)
            self._end()
            state = self._state()
            state.stack.clear()
            state.frame = self._tree.root
            state.switch("forward")

    def _begin(self) -> None:
        """Counts natively from now on where possible, if the native part was built."""
        with self._lock:
            self._threads += 1
            if self._threads > 1:
                return
            self._native = native.load()
            if self._native is None:
                background.begin()
            states = list(self._states)
        self._main = self._state()
        if self._native is not None:
            self._native.stand_in()
            for state in (*states, self._main):
                if state.lane is not None:
                    state.lane.wake()

    def _end(self) -> None:
        with self._lock:
            self._threads -= 1
            if self._threads:
                return
            states = list(self._states)
        if self._native is not None:
            self._native.stand_aside()
            for state in states:
                if state.lane is not None:
                    state.lane.rest()

    @property
    def profile(self) -> ModelProfile:
        """The counts until now."""
        with self._lock:
            states = list(self._states)
            lanes = [state.lane.tables() for state in states if state.lane is not None]
            failures = dict(self._failures)
        return Tally(self._tree, [*(state.tables for state in states), *lanes], failures).profile()

    @property
    def failure(self) -> str | None:
        """The first failure of ours; the affected calls are listed as uncovered."""
        return next((f"{name}: {reason}" for name, (_, reason) in self._failures.items()), None)

    # --- hooks: they do nothing in threads that are not counted, nor while torch.compile looks ------------------------

    def before_forward(self, module: nn.Module, _inputs: Any) -> None:
        """A module's forward begins (for who watches by hooks of their own)."""
        if not torch.compiler.is_compiling():
            state = self._known_state()
            if state is not None:
                state.enter(module)

    def after_forward(self, module: nn.Module, _inputs: Any, _outputs: Any) -> None:
        """A module's forward ended."""
        if not torch.compiler.is_compiling():
            state = self._known_state()
            if state is not None:
                state.leave(module)

    def _before_step(self, _optimizer: Any, _args: Any, _kwargs: Any) -> None:
        state = self._known_state()
        if state is not None:
            state.switch("optimizer")

    def _after_step(self, _optimizer: Any, _args: Any, _kwargs: Any) -> None:
        state = self._known_state()
        if state is not None:
            state.switch("forward")

    def _known_state(self) -> ThreadState | None:
        if getattr(self._entered, "depth", 0):
            return self._state()
        if torch._C._current_graph_task_id() != NO_TASK and self._is_counted_here():  # noqa: SLF001 - as in attribution
            return self._state()  # autograd's own thread
        return None

    def _is_counted_here(self) -> bool:
        return any(mode is self._mode for mode in _get_current_dispatch_mode_stack())

    def _state(self) -> ThreadState:
        state: ThreadState | None = getattr(self._local, "state", None)
        if state is None:
            state = self._local.state = ThreadState(self._tree, self._main)
            if self._native is not None:
                state.lane = Lane(self._native, self._mode, state.tables, state.current, self._failed)
                state.lane.set_place(state.place.number, False)
                state.lane.enter_thread()
                if self._threads:
                    state.lane.wake()
            with self._lock:
                self._states.append(state)
        return state

    def _count(self, entry: Entry) -> None:
        """Counts a call that ran just now in this thread."""
        try:
            state: ThreadState = self._local.state
        except AttributeError:
            state = self._state()
        state.current(entry)[entry] += 1
        if state.lane is not None:
            if entry.repeats:
                state.lane.made_known(entry)
            else:
                state.lane.made_nothing()

    def _lane(self) -> Lane | None:
        """This thread's lane; every call that reaches Python reports its kind to it at its end."""
        state: ThreadState | None = getattr(self._local, "state", None)
        return None if state is None else state.lane

    def _failed(self, name: str, error: Exception) -> None:
        """Remembers a failure of ours; the user's job continues."""
        with self._lock:
            calls, reason = self._failures.get(name, (0, f"{type(error).__name__}: {error}"))
            self._failures[name] = (calls + 1, reason)


class _Inside(threading.local):
    """How deep a thread is in calls on wrappers, and whether it is about to enter one."""

    depth = 0
    entering = False


class _Mode(TorchDispatchMode):
    """Hands every operator to the counter. ``torch.compile``'s code is counted as it runs, not as it is built."""

    supports_higher_order_operators = True

    def __init__(self, counter: FlopCounter) -> None:
        super().__init__()
        self._counter = counter
        self._inside = _Inside()
        self._known: dict[int, KnownOperator] = {}  # by identity: hashing an operator runs Python code

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # spares each call the wrapper that disables the compiler; the class is never compiled

    def forget(self) -> None:
        """Drops the calls that were met."""
        self._known.clear()

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if types and (self._inside.depth or any(hasattr(one, "__tensor_flatten__") for one in types)):
            return self._run_wrapped(func, types, args, kwargs or {})
        known = self._known.get(id(func))
        if known is None:
            known = self._known[id(func)] = KnownOperator(func)
        if known.action is Action.PASS:
            result = known.call(*args, **kwargs) if kwargs else known.call(*args)
            lane = self._counter._lane()  # noqa: SLF001 - the two are one
            if lane is not None:
                lane.made_passing()
            return result
        if known.action is not Action.COUNT:
            return self._run_uncommon(known, args, kwargs or {})
        result = known.call(*args, **kwargs) if kwargs else known.call(*args)
        try:
            try:
                entry = known.entries.get(specs.signature(args, kwargs))
            except (TypeError, RuntimeError):  # without a hash (a symbolic size, a dictionary), or without strides
                entry = None
            if entry is None:
                entry = self._new_entry(known, args, kwargs or {}, result)
            self._counter._count(entry)  # noqa: SLF001 - likewise
        except Exception as error:  # noqa: BLE001 - a failure of ours must not reach the user's job
            self._counter._failed(known.plan.name, error)  # noqa: SLF001 - likewise
        return result

    def _run_wrapped(self, func: Any, types: Sequence[type], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """A call on wrappers (DTensor, nested tensors).

        The wrapper splits it, and its parts are counted on their own.
        """
        inside = self._inside
        if not any(hasattr(one, "__tensor_flatten__") for one in types):
            return func(*args, **kwargs)  # DTensor plans with fake tensors before it computes with real ones
        if inside.entering:
            inside.entering = False
            return NotImplemented
        planned = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is None  # noqa: SLF001 - as fake tensors do
        inside.entering = True
        inside.depth += planned
        try:
            with self:
                return func(*args, **kwargs)
        finally:
            inside.entering = False
            inside.depth -= planned

    @staticmethod
    def _new_entry(known: KnownOperator, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Entry:
        entry = described(known.plan, args, kwargs, result)
        if not known.plan.offsets:  # whose cost depends on more than shapes
            with suppress(TypeError, RuntimeError):  # as above
                known.entries[specs.signature(args, kwargs)] = entry
                entry.repeats = True
        return entry

    def _run_whole(self, known: KnownOperator, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Counts a call on nested tensors as a whole: its decomposition is for plain ones."""
        result = known.operator(*args, **kwargs)
        try:
            self._counter._count(described(known.plan, args, kwargs, result))  # noqa: SLF001 - the two are one
        except Exception as error:  # noqa: BLE001 - a failure of ours must not reach the user's job
            self._counter._failed(known.plan.name, error)  # noqa: SLF001 - likewise
        return result

    def _run_uncommon(self, known: KnownOperator, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if known.action is Action.REFUSE:
            return NotImplemented
        if any(isinstance(one, torch.Tensor) and one.is_nested for one in args):
            return self._run_whole(known, args, kwargs)
        with self:
            result = known.call(*args, **kwargs)
        if result is not NotImplemented:
            lane = self._counter._lane()  # noqa: SLF001 - the two are one
            if lane is not None:
                lane.made_nothing()
            return result
        known.action, known.call = Action.COUNT, known.operator
        return self.__torch_dispatch__(known.operator, (), args, kwargs)
