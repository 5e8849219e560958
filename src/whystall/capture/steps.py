"""Which of the calls that torch tells of end a step: decided from the calls alone, without torch and without a clock.

A step ends where the first optimizer's step ends (also when a gradient scaler skips it); on a job without an optimizer
where the outermost module's forward pass ends; failing that where a data loader hands out a batch. What the program
says itself goes first.
"""

from __future__ import annotations

from typing import Final, Literal

# Without an optimizer's step after so many forward passes or batches, those are the steps.
FORWARDS_BEFORE_STEPS: Final = 8
BATCHES_BEFORE_STEPS: Final = 64

Source = Literal["calls of step()", "optimizer", "forward passes", "batches"]


class StepFinder:
    """Hears of every call and answers whether a step ends with it."""

    def __init__(self) -> None:
        self.source: Source | None = None
        """What ends the steps, once that is known."""
        self.anchor: int | None = None
        """The optimizer that ends the steps, known by its identity."""
        self._forwards = self._batches = 0
        self._optimizer_steps_in_scaler = 0

    @property
    def lacks_forward_passes(self) -> bool:
        """Whether forward passes would be better steps than what there is, and none has been heard of."""
        return self.source in (None, "batches") and self._forwards == 0

    def program_steps(self) -> bool:
        """The program says that a step has ended; whether it says so for the first time, and the steps begin here."""
        first = self.source != "calls of step()"
        self.source = "calls of step()"
        return first

    def optimizer_steps(self, optimizer: int) -> bool:
        """An optimizer, known by its identity, has stepped."""
        self._optimizer_steps_in_scaler += 1
        if self.source == "calls of step()":
            return False
        if self.anchor is None:
            self.anchor = optimizer
            self.source = "optimizer"
        return optimizer == self.anchor

    def scaler_begins(self) -> None:
        """A gradient scaler is asked for a step."""
        self._optimizer_steps_in_scaler = 0

    def scaler_skips(self) -> bool:
        """The scaler is done: one that found infinities did not step, but the iteration is over all the same."""
        return self.anchor is not None and self._optimizer_steps_in_scaler == 0

    def forward_passes(self) -> bool:
        """The outermost module's forward pass has ended."""
        self._forwards += 1
        if self.source in (None, "batches") and self._forwards > FORWARDS_BEFORE_STEPS:
            self.source = "forward passes"
        return self.source == "forward passes"

    def batch_comes(self) -> bool:
        """A data loader has handed out a batch."""
        self._batches += 1
        if self.source is None and self._batches > BATCHES_BEFORE_STEPS:
            self.source = "batches"
        return self.source == "batches"
