"""Turns the events of torch's hooks into stopwatches and ends of steps; no callback of torch's ever raises."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Final, Protocol, cast

from whystall.capture.faults import Faults
from whystall.capture.moments import in_backward
from whystall.capture.padding import LOADER
from whystall.capture.rhythm import Shapes
from whystall.capture.sampling import PartTimes
from whystall.capture.steps import StepFinder
from whystall.capture.sums import rows_of, unseen
from whystall.capture.torch_hooks import Listener
from whystall.run_folder.samples import SKIPPED

# Signals that are lost, and reported as lost, when a method fails.
_PARTS: Final = {
    "optimizer_begins": "optimizer times",
    "optimizer_ends": "steps",
    "scaler_begins": "scaler",
    "scaler_ends": "scaler",
    "input_begins": "input times",
    "input_ends": "input times",
    "loader_begins": "input times",
    "loader_ends": "input times",
    "forward_begins": "forward times",
    "forward_ends": "forward times",
    "backward_begins": "backward times",
    "backward_ends": "backward times",
    "save_begins": "save times",
    "save_ends": "save times",
    "user_profiler_begins": "the job's own profiler",
    "tracing_begins": "repeated work",
}
_NOTHING: Final[Mapping[str, object]] = {}
_MOST_NUMBERS: Final = 1 << 16
"""Most elements to read from a batch for its samples: a fraction of a millisecond, for some hundred calls."""


class Stepper(Protocol):
    """Reactions to events."""

    def on_stepping_thread(self) -> bool:
        """Whether the calling thread is the one that steps, or may become it."""

    def step_ended(self, flags: int = 0, *, in_call: bool = False) -> None:
        """A step has ended; ``in_call`` where the call of the model that begins the next one has begun."""

    def optimizer_found(self, optimizer: object) -> None:
        """The optimizer that ends the steps has stepped for the first time."""

    def loader_found(self, loader: object) -> None:
        """An iterator of a data loader is requested."""

    def given(self, batch: object, source: str) -> None:
        """A data loader hands out a batch, or the outermost module is called with one."""

    def make_room(self) -> None:
        """The job starts a profiler of its own."""

    def before_backward(self) -> None:
        """A backward pass is about to begin."""

    def look_no_more(self) -> None:
        """The job traces a program, or observes operators itself: no look at operators or modules may interfere."""


class Heard:
    """Receives all events of torch."""

    def __init__(self, stepper: Stepper, finder: StepFinder, parts: PartTimes, torch: Any) -> None:
        self._stepper = stepper
        self._torch = torch
        self._finder = finder
        self._parts = parts
        self.optimizer_begins = parts.optimizer.begin
        self.scaler_begins = finder.scaler_begins
        self.save_begins, self.save_ends = self._if_stepping(parts.save.begin), self._if_stepping(parts.save.end)
        self.input_begins = self._if_stepping(parts.input.begin)
        self.loader_ends = self._if_stepping(parts.input.end)
        self._found = False
        self.backward_begins = self._if_stepping(self._backward_begins)
        self.user_profiler_begins = stepper.make_room
        self.tracing_begins = stepper.look_no_more

    def _if_stepping(self, then: Callable[[], None]) -> Callable[[], None]:
        on_stepping_thread = self._stepper.on_stepping_thread

        def heard() -> None:
            if on_stepping_thread():
                then()

        return heard

    def optimizer_ends(self, optimizer: object) -> None:
        """Ends a step if the optimizer is the one that ends iterations.

        One that steps in a hook of a backward pass (each parameter its own, as soon as its gradient is there) ends none
        before that pass has ended, which other threads may carry out.
        """
        self._parts.optimizer.end()
        within = in_backward(self._torch)
        if within:
            self._finder.optimizer_steps_in_backward()
        elif not self._finder.optimizer_steps(id(optimizer)):
            return
        if not self._found:
            self._found = True
            self._stepper.optimizer_found(optimizer)
        if not within:
            self._stepper.step_ended()

    def scaler_ends(self) -> None:
        """Ends a step that the scaler skipped."""
        if self._finder.scaler_skips():
            self._stepper.step_ended(flags=SKIPPED)

    def loader_begins(self, loader: object) -> None:
        """An epoch's first batch waits for workers that start."""
        self._stepper.loader_found(loader)
        self.input_begins()

    def input_ends(self, batch: object) -> None:
        """Ends a step where there is nothing better."""
        if self._stepper.on_stepping_thread():
            self._parts.input.end()
            self._stepper.given(batch, LOADER)
            if self._finder.batch_comes():
                self._stepper.step_ended()

    def _backward_begins(self) -> None:
        self._stepper.before_backward()
        self._parts.backward_begins()

    def backward_ends(self) -> None:
        """Ends a step where there is no optimizer."""
        if self._stepper.on_stepping_thread():
            self._parts.backward.end()
            if not self._parts.backward.depth and self._finder.backward_passes():
                self._stepper.step_ended()

    def forward_begins(
        self,
        given: Sequence[object] = (),
        named: Mapping[str, object] = _NOTHING,
        *,
        learns: bool = True,
        trains: bool = True,
    ) -> None:
        """Ends a step where there is no optimizer and this pass begins a request of several.

        ``given`` and ``named`` are the module's arguments; it ``learns`` where gradients are recorded, and ``trains``
        in training mode.
        """
        if self._stepper.on_stepping_thread():
            self._parts.model_is_called(
                lambda: _rows_of((given, named)),
                learns=learns,
                trains=trains,
            )
            if self._finder.asks_for_shapes and self._finder.forward_begins(shapes_of((*given, *named.values()))):
                self._stepper.step_ended(in_call=True)
            self._stepper.given((given, named), "forward")
            self._parts.forward.begin()

    def forward_ends(self) -> None:
        """Ends a step where there is no optimizer and each pass is one."""
        if self._stepper.on_stepping_thread():
            self._parts.forward.end()
            if self._finder.forward_passes():
                self._stepper.step_ended()


def _as_it_is(call: Any) -> Any:
    return call


def shapes_of(values: Iterable[Any]) -> Shapes:
    """The shapes of those values that are tensors of plain sizes.

    Tensors that stand for others (fake, traced, nested) are skipped: reading a symbolic size would fix it.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return ()
    plain = (torch.Tensor, torch.nn.Parameter)
    with unseen(torch):
        shapes = [tuple(value.shape) for value in values if type(value) in plain and not value.is_nested]
    return tuple(shape for shape in shapes if all(type(size) is int for size in shape))


def _rows_of(values: object) -> list[int]:
    torch = sys.modules["torch"]
    with unseen(torch):
        return rows_of(torch, values, most=_MOST_NUMBERS, begins=True)


def guarded(heard: Heard, faults: Faults, timed: Callable[[Any], Any] = _as_it_is) -> Listener:
    """The same, every method guarded under the name of the signal that its failure loses, and its calls ``timed``."""
    methods: dict[str, Any] = {name: timed(faults.guard(part, getattr(heard, name))) for name, part in _PARTS.items()}
    return cast("Listener", SimpleNamespace(**methods))
