"""JSON that others wrote: it is parsed, or refused with one exception."""

from __future__ import annotations

import json
from typing import Any, TypeVar, overload

import msgspec

__all__ = ["NotJsonError", "first_json", "parse_json"]

T = TypeVar("T")


class NotJsonError(ValueError):
    """The text is not JSON, not UTF-8, nested too deeply, or not of the wanted type."""


@overload
def parse_json(text: bytes | bytearray | str) -> Any: ...


@overload
def parse_json(text: bytes | bytearray | str, type: type[T]) -> T: ...


def parse_json(text: bytes | bytearray | str, type: type[Any] = Any) -> Any:  # noqa: A002
    """The value of a JSON text, as ``type`` where one is wanted. Raises `NotJsonError`."""
    try:
        return msgspec.json.decode(text, type=type)  # noqa: TID251 - here is the guard
    except RecursionError:
        raise NotJsonError("it is nested too deeply") from None
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise NotJsonError(str(error)) from None


def first_json(text: str, at: int) -> tuple[Any, int]:
    """The JSON value that begins at a place of a text, and where it ends. Raises `NotJsonError`.

    >>> first_json('[1, 2], "rest"', 0)
    ([1, 2], 6)
    """
    try:
        return json.JSONDecoder().raw_decode(text, at)
    except RecursionError:
        raise NotJsonError("it is nested too deeply") from None
    except ValueError as error:
        raise NotJsonError(str(error)) from None
