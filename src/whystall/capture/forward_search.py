"""Has the module found whose forward passes are the steps, on a thread of the job's, where no optimizer steps."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from whystall._native import call_on_main_thread
from whystall.capture.main_thread import once, waits
from whystall.capture.module_search import ModuleSearch
from whystall.capture.moments import imports, imports_on_main_thread
from whystall.capture.steps import StepFinder
from whystall.capture.torch_hooks import TorchHooks, compiles_now


class ForwardSearch:
    """Looks now and then, beside the job, whether a module is to be watched; a thread of the job's looks at modules.

    Without an optimizer's step after ``within_s``, or once a model is complete, none is waited for. ``guard`` keeps
    failures from the job; nothing is done any more once it ``is_over``.
    """

    def __init__(
        self,
        hooks: TorchHooks,
        finder: StepFinder,
        guard: Callable[[Callable[[], None]], Callable[[], Any]],
        *,
        within_s: float,
        is_over: Callable[[], bool],
    ) -> None:
        self._hooks, self._finder, self._guard = hooks, finder, guard
        self._within_s = within_s
        self._is_over = is_over
        self._search = ModuleSearch()

    def look(self, now_ns: int, began_ns: int) -> None:
        """Asks for a module to be watched, where that is due."""
        self._search.heard(self._hooks.modules_made, self._hooks.modules_living, now_ns)
        if not self._needs_forward() or not self._is_without_optimizer(now_ns, began_ns) or imports_on_main_thread():
            return
        chosen = self._search.next(now_ns)
        if chosen is not None:
            by_call = functools.partial(self._watch_called, its_kind=chosen == "by kind")
            self._soon(once(self._guard(self._watch_any if chosen == "guess" else by_call)))

    def _soon(self, call: Callable[[], None]) -> None:
        """Has the main thread do something soon; or, where that waits, the next thread that calls a module."""
        if call_on_main_thread(call) and waits(threading.main_thread()):
            self._hooks.at_next_call(call)

    def _is_without_optimizer(self, now_ns: int, began_ns: int) -> bool:
        """Whether no optimizer is to be expected: none was made by when the model was complete, or none has stepped."""
        if now_ns - began_ns > self._within_s * 1e9:
            return True
        complete = self._search.is_complete(now_ns) or self._search.makes_them_anew(now_ns)
        return complete and self._hooks.optimizers_made == 0

    def _needs_forward(self) -> bool:
        return not self._is_over() and self._finder.lacks_forward_passes

    def _watch_any(self) -> None:
        if compiles_now() or imports():
            self._search.later()
        elif self._needs_forward():
            self._hooks.watch_any_module()

    def _watch_called(self, *, its_kind: bool = False) -> None:
        if imports():
            self._search.later()
        elif self._needs_forward():
            self._hooks.watch_called_module(its_kind=its_kind)
