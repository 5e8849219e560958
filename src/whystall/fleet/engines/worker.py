"""A worker process of the local engine: reads work on its standard input, writes results to its standard output.

It is started as a program of its own and not forked: threads and locks of the calling process are no part of it, and a
script that calls `whystall.analyze` is not run again by its workers.
"""

from __future__ import annotations

import os
import signal
import sys
from importlib import import_module
from typing import IO, Final

import msgspec

from whystall.fleet.engines.engine import Work

_LENGTH_BYTES: Final = 8


class Answer(msgspec.Struct, frozen=True):
    """A worker's answer. ``again`` asks to try the item where nothing else runs: memory ran out."""

    result: bytes | None = None
    failure: str | None = None
    again: bool = False


def write_frame(stream: IO[bytes], body: bytes) -> None:
    """Writes bytes with their length in front."""
    rest = memoryview(len(body).to_bytes(_LENGTH_BYTES, "little") + body)
    while rest:
        rest = rest[stream.write(rest) :]
    stream.flush()


def read_frame(stream: IO[bytes]) -> bytes | None:
    """The next bytes that were written whole; ``None`` where the other side is gone."""
    head = _exactly(stream, _LENGTH_BYTES)
    return None if head is None else _exactly(stream, int.from_bytes(head, "little"))


def _exactly(stream: IO[bytes], count: int) -> bytes | None:
    parts: list[bytes] = []
    while count > 0:
        part = stream.read(count)
        if not part:
            return None
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def answer_to(work: Work) -> Answer:
    """The function's result; a fault in it is a sentence and not the end of the worker."""
    module, _, name = work.function.partition(":")
    try:
        return Answer(result=getattr(import_module(module), name)(work.item))
    except MemoryError:
        return Answer(again=True)
    except Exception as error:  # noqa: BLE001 - one bad file must not take the others with it
        return Answer(failure=f"{type(error).__name__}: {error}")


def main() -> None:
    """Works until there is nothing more to read."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who started it ends it
    results = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # a library's output is no result
    while (frame := read_frame(sys.stdin.buffer)) is not None:
        answer = answer_to(msgspec.msgpack.decode(frame, type=Work))
        try:
            write_frame(results, msgspec.msgpack.encode(answer))
        except BrokenPipeError:
            return
