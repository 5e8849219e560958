"""The JSON of a result: its fields below the name of their form."""

from __future__ import annotations

import msgspec

__all__ = ["as_json"]


def as_json(found: object, schema: str) -> str:
    """The result, a dataclass, as JSON with its ``schema`` in front."""
    body = {"schema": schema} | msgspec.to_builtins(found)
    return msgspec.json.format(msgspec.json.encode(body), indent=1).decode()
