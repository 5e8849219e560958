"""How requests and outcomes cross between two processes."""

from __future__ import annotations

from typing import BinaryIO

import msgspec

from whystall.model.prediction.outcome import Simulated

_LENGTH_BYTES = 4


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a request, or why there is none."""

    outcome: Simulated | None = None
    error: str | None = None
    exit_code: int = 0
    trace: str = ""


def write_frame(stream: BinaryIO, body: bytes) -> None:
    """Writes one frame and sends it off."""
    stream.write(len(body).to_bytes(_LENGTH_BYTES, "big") + body)
    stream.flush()


def read_frame(stream: BinaryIO) -> bytes | None:
    """The next frame; ``None`` where the other side has ended."""
    head = stream.read(_LENGTH_BYTES)
    if len(head) < _LENGTH_BYTES:
        return None
    length = int.from_bytes(head, "big")
    body = stream.read(length)
    return body if len(body) == length else None
