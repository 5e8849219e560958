"""The parts of a step that a watched job is timed by, and those that stack samples recognise by running code."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

TIMED: Final = ("input", "forward", "backward", "optimizer", "save", "gc")
"""Timed by the clock in every step, in the order in which they are written."""

OTHER: Final = "other"
"""The rest of a step."""

BUSY: Final = ("input", "forward", "backward", "optimizer", OTHER)
"""Those in which a thread is found at lines of its own: saving and collecting have causes of their own."""

WORDS: Final = MappingProxyType(
    {
        "input": "waiting for input data",
        "forward": "the forward pass",
        "backward": "the backward pass",
        "optimizer": "the optimizer",
        "save": "saving checkpoints",
        "gc": "Python's garbage collection",
        OTHER: "none of the marked parts",
    }
)
"""Each part in a sentence."""
