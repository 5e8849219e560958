"""Failures of reading, re-exported so that callers need only this room."""

from whystall.errors import InputError

__all__ = ["InputError"]
