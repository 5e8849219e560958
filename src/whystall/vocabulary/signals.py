"""Signals of a recording: an absent one limits the conclusions, and is named wherever it does."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import Final, Literal

import msgspec

Signal = Literal[
    "trace",
    "device_events",
    "launch_calls",
    "operators",
    "steps",
    "shapes",
    "python_stacks",
    "modules",
    "memory",
    "sync_events",
    "communication_records",
    "forward_backward_links",
    "several_ranks",
    "samples",
    "job",
    "no_device",
    "peak",
]


class SignalEntry(msgspec.Struct, frozen=True):
    """A signal's name, its source, and how to switch it on."""

    name: str
    source: str
    how: str | None = None
    device: bool = False
    """Only a job with an accelerator can have it."""

    @property
    def wanted(self) -> str:
        """The text with which a report requests it.

        >>> SIGNALS["shapes"].wanted
        'operator shapes (record_shapes=True)'
        """
        return f"{self.name} ({self.how})" if self.how else self.name


def _table() -> dict[Signal, SignalEntry]:
    text = (files("whystall.vocabulary") / "signals.toml").read_text("utf-8")
    return msgspec.convert(tomllib.loads(text), dict[Signal, SignalEntry])


SIGNALS: Final = _table()
"""All signals, in the order of a report's requests."""
