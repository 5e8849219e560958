"""A few batches in turn, over and over: a measurement of a model, and no repeated work."""

from __future__ import annotations

from typing import Final

from whystall.capture.sums import Sum

_LATER: Final = 2
"""Steps: an input that the step before had as well is constant, and no round."""


class Rounds:
    """Receives the inputs of calls, in their order. ``going`` means that they repeat in turn.

    As long as all outermost calls repeat in the order of the first time, there is no evidence that a job which learns
    nothing ever meets other data; from the first new one on, or the first out of turn, repetitions occur by themselves.
    """

    def __init__(self) -> None:
        self._begun = self._broken = False
        self._heard: dict[Sum, tuple[int, int]] = {}
        self._place = 0
        self._place_before: int | None = None

    @property
    def going(self) -> bool:
        """Whether data come in turn."""
        return self._begun and not self._broken

    def in_turn(self, given: Sum, step: int, *, outermost: bool) -> bool:
        """Whether a call repeats its input of some steps ago, in turn."""
        place, last = self._heard.get(given, (None, step))
        later = place is not None and step - last >= _LATER
        if outermost:
            self._broken |= self._begun and (place is None or self._place_before not in {None, place - 1})
            self._begun |= later
            self._place_before = place
        self._heard[given] = self._place, step
        self._place += outermost
        return later and not self._broken

    def close(self) -> None:
        """Stops; the results so far stay."""
        self._heard.clear()
