"""The ``whystall`` command: one file per verb, which parses arguments, calls the public API and prints."""

from __future__ import annotations

from whystall.cli._main import main

__all__ = ["main"]
