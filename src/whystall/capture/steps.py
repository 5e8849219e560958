"""Decides which of torch's events end a step: from the events alone, without torch and without a clock.

A step is one iteration of the loop. It ends at the first of these that the job has:

- an optimizer's step (even when a gradient scaler skips it); with several that step in turn, the rarest one's; where
  optimizers step within a backward pass, that pass
- without an optimizer, for a job that updates its parameters by itself, the end of the backward pass
- without either, the end of the outermost module's forward pass; where one request takes several passes, the first pass
  of the next request
- the batch of a data loader

The program's own calls of ``step()`` come first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

from whystall.capture.rhythm import MOST_STEPS_ALONE, Optimizers, Requests, Shapes

# Without an optimizer's step after this many batches, those are the steps.
BATCHES_BEFORE_STEPS: Final = 64
# Without an optimizer backward passes are the steps after this many; if one may have been made before we listened, this
# many micro-batches may belong to a step of it.
BACKWARDS_BEFORE_STEPS: Final = 8
BACKWARDS_IF_UNSURE: Final = 64
# After this many forward passes without one the job has trained, and serves now.
FORWARDS_WITHOUT_BACKWARD: Final = 64

Source = Literal["calls of step()", "optimizer", "backward passes", "forward passes", "batches"]


class StepFinder:
    """Hears of every call and answers whether a step ends with it."""

    def __init__(self) -> None:
        self.source: Source | None = None
        """The events that end the steps, once known."""
        self.anchor: int | None = None
        """The optimizer that ends the steps, known by its identity."""
        self.several_optimizers: Callable[[], bool] = bool
        """Whether more than one optimizer has been made, so that the first to step need not be the one that counts."""
        self.any_optimizer: Callable[[], bool] = bool
        """Whether one has been made, which is to be waited for."""
        self.optimizers_unsure = False
        """Whether there may be one that was made before."""
        self.is_alive: Callable[[int], bool] = bool
        """Whether an optimizer with this identity is alive; false for unknown ones."""
        self._optimizers = Optimizers()
        self._followed = False
        self._requests = Requests()
        self._trains = False
        self._passed_over = 0
        self._forwards = self._batches = self._backwards = self._since_backward = 0
        self._optimizer_steps_in_scaler = 0
        self._stepped_in_backward = False

    @property
    def lacks_forward_passes(self) -> bool:
        """Whether forward passes would be steps, or better steps than the current ones, and none was seen."""
        return self.source in (None, "backward passes", "batches") and self._forwards == 0

    @property
    def rhythm(self) -> str | None:
        """Which of the forward passes end steps, where they do."""
        return self._requests.mode if self.source == "forward passes" else None

    def program_steps(self) -> bool:
        """Records the program's own end of a step; returns whether it is the first, at which the steps begin."""
        first = self.source != "calls of step()"
        self.source = "calls of step()"
        return first

    def optimizer_steps(self, optimizer: int) -> bool:
        """An optimizer, known by its identity, has stepped."""
        self._optimizer_steps_in_scaler += 1
        if self.source == "calls of step()":
            return False
        self._trains = True
        if self.anchor is not None and optimizer != self.anchor:
            self._give_up()
        if self.anchor is None:
            self.anchor = self._optimizers.choose(optimizer, several=self.several_optimizers())
            if self.anchor is not None:
                self.source = "optimizer"
                self._followed = self.is_alive(self.anchor)
        elif optimizer == self.anchor:
            self._passed_over = 0
        return optimizer == self.anchor

    def optimizer_steps_in_backward(self) -> None:
        """An optimizer has stepped in the midst of a backward pass."""
        self._stepped_in_backward = True

    def _give_up(self) -> None:
        """Lets an optimizer go that is gone, or that steps no more while others do: their steps are steps, too.

        A fold of a cross-validation has an optimizer of its own, and so has each client of federated training.
        """
        self._passed_over += 1
        gone = self._followed and not self.is_alive(self.anchor or 0)
        if gone or self._passed_over > 2 * MOST_STEPS_ALONE:
            self.anchor, self._optimizers, self._passed_over = None, Optimizers(), 0

    def scaler_begins(self) -> None:
        """A gradient scaler begins a step."""
        self._optimizer_steps_in_scaler = 0

    def scaler_skips(self) -> bool:
        """The scaler is done: one that found infinities did not step, but the iteration is over all the same."""
        return self.anchor is not None and self._optimizer_steps_in_scaler == 0

    @property
    def asks_for_shapes(self) -> bool:
        """Whether the inputs of the outermost module may show where a request begins."""
        without = self.source in (None, "batches", "forward passes") and not self._trains
        return without and self._requests.mode != "each"

    def forward_begins(self, shapes: Shapes) -> bool:
        """The outermost module is called with tensors of such shapes; whether a request begins, and a step ends."""
        if not self.asks_for_shapes:
            return False
        begins = self._requests.begins(shapes)
        if self._requests.mode is not None:
            self.source = "forward passes"
        return begins

    def forward_passes(self) -> bool:
        """The outermost module's forward pass has ended; whether a step ends with it, too."""
        self._forwards += 1
        self._since_backward += 1
        if self.source == "backward passes" and self._since_backward > FORWARDS_WITHOUT_BACKWARD:
            self.source, self._backwards = None, 0
        return self.source == "forward passes" and self._requests.mode == "each"

    def backward_passes(self) -> bool:
        """An outermost backward pass has ended; whether it ends a step (for lack of an optimizer).

        If optimizers step only within backward passes, it ends their step.
        """
        self._since_backward = 0
        stepped, self._stepped_in_backward = self._stepped_in_backward, False
        if stepped and self.anchor is None and not self._optimizers.any_heard and self.source != "calls of step()":
            self._trains, self.source = True, "optimizer"
            return True
        if self._trains or self.source == "calls of step()":
            return False
        self._backwards = 0 if self.any_optimizer() else self._backwards + 1
        if self._backwards >= (BACKWARDS_IF_UNSURE if self.optimizers_unsure else BACKWARDS_BEFORE_STEPS):
            self.source = "backward passes"
        return self.source == "backward passes"

    def batch_comes(self) -> bool:
        """A data loader has handed out a batch."""
        self._batches += 1
        self._requests.batch_comes()
        if self.source is None and self._batches > BATCHES_BEFORE_STEPS:
            self.source = "batches"
        return self.source == "batches"
