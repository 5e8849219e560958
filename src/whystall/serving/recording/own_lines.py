"""Recognizes the lines of a server's output that recording causes: they go to the copy, and not to the user.

A line for each engine step, where we added the flag, and the access line of each of our own requests, by its port.
"""

from __future__ import annotations

import re
from typing import Final

from whystall.serving.readers.vllm_log import is_step_line

__all__ = ["OwnLines"]

_ANNOUNCED: Final = re.compile(rb"Starting vLLM (?:API )?server(?: \d{1,4})? on (https?)://[^\s/]{0,260}:(\d{1,5})\b")
"""The line of `entrypoints/launchers/entry.py` (0.32), and of servers before it."""
_MOST_PORTS: Final = 64  # connections; an access line follows its request at once


class OwnLines:
    """Knows the lines; ``steps`` says whether those of engine steps are among them.

    ``seen_steps`` says whether any step came, ``announced_port`` where the server said that it listens.
    """

    def __init__(self, *, steps: bool) -> None:
        self._steps = steps
        self._ports: tuple[bytes, ...] = ()  # replaced as a whole: other threads look at it
        self.seen_steps = False
        self.announced_port: int | None = None

    def scrape_from(self, port: int) -> None:
        """Takes the local port of a connection on which ``/metrics`` will be read."""
        self._ports = (*self._ports[-_MOST_PORTS:], b":%d - " % port)

    def may_be_in(self, data: bytes) -> bool:
        """Whether a piece of output can hold such lines: cheap, for all output."""
        return b"Iteration(" in data or b"GET /metrics " in data or b"Starting vLLM " in data

    def __contains__(self, line: bytes) -> bool:
        if b"Iteration(" in line and is_step_line(line):
            self.seen_steps = True
            return self._steps
        if (announced := _ANNOUNCED.search(line)) is not None:
            self.announced_port = int(announced[2])
            return False
        return b"GET /metrics " in line and any(port in line for port in self._ports)
