"""The losses of a watched job, step by step: the roots of its backward passes, which are scalars in most jobs.

Nothing is read from the device before the end: only a copy of one number a step is kept.
"""

from __future__ import annotations

import functools
import math
import os
import threading
from collections.abc import Callable
from typing import Any, Final

from whystall.capture.moments import followed_by

MOST_STEPS: Final = 1_000
NOT_FINITE: Final = "not finite"


def wrap_backward(torch: Any, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Puts something around every backward pass (before torch 2.2: around the public function)."""
    name = "_engine_run_backward" if hasattr(torch.autograd, "_engine_run_backward") else "backward"
    setattr(torch.autograd, name, wrap(getattr(torch.autograd, name)))


class LossesSeen:
    """The starting values of each step's backward passes, added up; a step without a scalar loss has none."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._pid, self._thread = os.getpid(), threading.get_ident()
        self._of_step: list[Any] = []
        self._steps: list[Any] = []

    def install(self) -> None:
        """Hears of backward passes from now on."""
        is_compiling = followed_by(self._torch)

        def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            def backward(roots: Any, *given: Any, **named: Any) -> Any:
                if not is_compiling():
                    self._look(roots)
                return original(roots, *given, **named)

            return backward

        wrap_backward(self._torch, wrap)

    def _look(self, roots: Any) -> None:
        if threading.get_ident() != self._thread or os.getpid() != self._pid or len(self._steps) >= MOST_STEPS:
            return
        for root in roots if isinstance(roots, (tuple, list)) else (roots,):
            if isinstance(root, self._torch.Tensor) and root.numel() == 1 and root.is_floating_point():
                self._of_step.append(root.detach().reshape(()).float().clone())

    def step_ended(self) -> None:
        """Later losses belong to the next step."""
        if len(self._steps) < MOST_STEPS:
            self._steps.append(sum(self._of_step) if self._of_step else None)
        self._of_step = []

    def told(self) -> list[float | str | None]:
        """The losses by step; ``None`` for a step without any."""
        found = [None if one is None else float(one) for one in self._steps]
        return [one if one is None or math.isfinite(one) else NOT_FINITE for one in found]
