"""A few batches that are given in turn, over and over: what measures a model, and no work that is done twice."""

from __future__ import annotations

from typing import Final

from whystall.capture.sums import Sum

_LATER: Final = 2
"""Steps: what the step before was given as well is the same each time, and no round."""


class Rounds:
    """Hears what calls are given, in their order. ``going`` says that they are given what they were given in turn.

    As long as all outermost calls come again in the order of the first time, nothing says that a job which learns
    nothing ever meets other data; from the first new one on, or the first out of turn, what comes again does so by
    itself.
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
        """Whether a call is given what it was given some steps ago, as all are in their turn."""
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
        """Hears nothing more; what was heard is known."""
        self._heard.clear()
