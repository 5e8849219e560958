"""Where the stepping thread was found while a window was recorded, and when: lines for operators without stacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from whystall.run_folder.observations import MOST_WINDOW_PLACES, WindowPlace

Place = tuple[str, str, int, str, str]
"""Part of the step, file, line, function, and the innermost function of all."""
EVERY_S: Final = 0.005
"""A window is short: it is looked at as often as costs a hundredth of a core."""
_MOST_LOOKS: Final = 1_000


class WindowLooks:
    """Samples by place. A full buffer drops every second one, and from then on keeps half of the new ones."""

    def __init__(self, shown: Callable[[str], str], text_of: Callable[[str, int], str]) -> None:
        self._shown, self._text_of = shown, text_of
        self._looks: list[tuple[int, Place]] = []
        self._stride = self._passed_over = 0

    def add(self, at_unix_ns: int, place: Place) -> None:
        """Notes a look."""
        self._passed_over += 1
        if self._passed_over <= self._stride:
            return
        self._passed_over = 0
        self._looks.append((at_unix_ns, place))
        if len(self._looks) >= _MOST_LOOKS:
            self._looks = self._looks[::2]
            self._stride = 2 * self._stride + 1

    def told(self) -> list[WindowPlace]:
        """The most frequent places with the times of their looks; their lines are read from their files only now."""
        times: dict[Place, list[int]] = {}
        for at, place in list(self._looks):
            times.setdefault(place, []).append(at)
        chosen = sorted(times, key=lambda place: -len(times[place]))[:MOST_WINDOW_PLACES]
        return [
            WindowPlace(
                file=self._shown(file),
                line=line,
                function=function,
                text=self._text_of(file, line),
                leaf=leaf,
                at_unix_ns=times[part, file, line, function, leaf],
            )
            for part, file, line, function, leaf in chosen
        ]
