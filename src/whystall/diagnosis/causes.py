"""The causes that whystall can name, with what to say of each; the data are in ``causes.toml``."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files

import msgspec


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a cause, whoever's run it is found in."""

    id: str
    title: str
    meaning: str
    measured: str
    remedy: str
    patch: str | None = None
    risk: str | None = None
    proof: str
    found: str
    """Where a rule finds it: in a trace, in samples, or both; empty where no rule looks for it yet."""


@cache
def causes() -> dict[str, Cause]:
    """All causes by id, in the order of their families."""
    data = tomllib.loads((files("whystall.diagnosis") / "causes.toml").read_text("utf-8"))
    return {key: msgspec.convert({"id": key, **entry}, Cause) for key, entry in data.items()}
