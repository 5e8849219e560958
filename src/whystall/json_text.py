"""JSON that others wrote: it is parsed, or refused with one exception."""

from __future__ import annotations

from typing import Any, TypeVar, overload

import msgspec

__all__ = ["NotJsonError", "parse_json"]

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
