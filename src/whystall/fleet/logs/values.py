"""Text and numbers of logs, taken only where they are plausible: others are ``None``."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from whystall.errors import InputError
from whystall.trace.files import gunzipped, is_gzip, opened

__all__ = ["documents", "listed", "mapping", "number", "text_of", "whole"]

_LARGEST: Final = 1 << 30  # bytes: the inspector's logs of a process are half of that at most
_MOST: Final = 1e18


def text_of(path: Path) -> str:
    """The text of a log, unpacked where it is gzip, with marks for invalid UTF-8. Raises ``InputError``."""
    pieces: list[bytes] = []
    size = 0
    with opened(path) as (file, _):
        damage: list[str] = []
        for piece in gunzipped(file, damage) if is_gzip(file) else iter(lambda: file.read(1 << 20), b""):
            size += len(piece)
            if size > _LARGEST:
                raise InputError(f"{path.name} holds more than {_LARGEST >> 30} GiB of text, which no such log does")
            pieces.append(piece)
    return b"".join(pieces).decode("utf-8-sig", "replace")


def documents(text: str) -> Iterator[Any]:
    """The JSON values that follow each other in a text, up to the first damage."""
    decoder = json.JSONDecoder(parse_constant=lambda _: None)
    place = 0
    while (start := text.find("{", place)) >= 0:
        if text[place:start].strip(" \t\r\n,[]"):
            return
        try:
            value, place = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            return
        yield value


def mapping(value: object) -> dict[str, Any]:
    """The value if it is an object of JSON, else an empty one."""
    return value if isinstance(value, dict) else {}


def listed(value: object) -> list[Any]:
    """The value if it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def number(value: object) -> float | None:
    """A finite number that is not negative, also from text; ``None`` for anything else.

    >>> number("12.5"), number("nan"), number(-1), number(True)
    (12.5, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        found = float(value[:40] if isinstance(value, str) else value)
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) and 0 <= found <= _MOST else None


def whole(value: object, most: int = 1 << 50) -> int | None:
    """A whole number from 0 to ``most``, also from text; ``None`` for anything else."""
    found = number(value)
    return int(found) if found is not None and found == int(found) and found <= most else None
