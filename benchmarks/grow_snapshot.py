"""Writes CUDA memory snapshots of any size, laid out as torch's pickles are, without ever holding one.

A training job's steps: weights and optimizer state that stay, activations that are allocated forwards and freed
backwards, with call stacks of some thirty frames that the memo shares, as torch's own dumps share them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_LAYERS: Final = 48
_ACTIVATIONS: Final = 10  # of a layer
_FIRST_ADDRESS: Final = 0x7F10_0000_0000
_FIRST_TIME_US: Final = 1_760_000_000_000_000
_MIB: Final = 1 << 20
_WORDS: Final = (
    "action", "addr", "size", "stream", "time_us", "frames", "name", "filename", "line", "alloc", "free_requested",
    "free_completed", "pool_id",
)  # fmt: skip


class _Memo:
    """What has been put into the memo, by the number under which it is fetched."""

    def __init__(self) -> None:
        self.numbers: dict[object, int] = {}
        self.size = 0

    def put(self, key: object) -> bytes:
        self.numbers[key] = self.size
        self.size += 1
        return b"\x94"

    def get(self, key: object) -> bytes:
        number = self.numbers[key]
        return b"h" + bytes([number]) if number < 256 else b"j" + struct.pack("<I", number)


def write_snapshot(path: Path, least_bytes: int, *, shared_frames: bool = True) -> int:
    """Writes a snapshot of at least ``least_bytes``; returns how many events it holds.

    Without ``shared_frames`` each event repeats its frames, as converters do that go through JSON.
    """
    memo = _Memo()
    events = 0
    with path.open("wb", buffering=1 << 20) as file:
        file.write(b"\x80\x04}" + memo.put("top") + b"(")
        file.write(_text(memo, "segments") + _segments(memo))
        file.write(_text(memo, "device_traces") + b"]" + memo.put("traces") + b"(]" + memo.put("device"))
        for key in _WORDS:
            file.write(_text(memo, key) + b"0")
        stacks = [_stack(memo, layer, backward) for backward in (False, True) for layer in range(_LAYERS)]
        file.write(b"".join(frames for _, frames in stacks))
        template = list(_step(memo, [call for call, _ in stacks] if shared_frames else None))
        time_us = _FIRST_TIME_US
        while file.tell() < least_bytes:
            parts = [b"("]
            for before, after in template:
                time_us += 7
                parts += (before, struct.pack("<q", time_us), after)
                memo.size += 3
            file.write(b"".join(parts) + b"e")
            events += len(template)
        file.write(b"e" + _text(memo, "external_annotations") + b"]" + b"u.")
    return events


def _text(memo: _Memo, text: str) -> bytes:
    raw = text.encode()
    return b"\x8c" + bytes([len(raw)]) + raw + memo.put(text)


def _segments(memo: _Memo) -> bytes:
    """Segments as torch lists them, of the oldest protocol that is read: each value is written where it stands."""
    blocks = [
        {"address": _FIRST_ADDRESS + (1 << 40) + 2 * _MIB * at, "size": 2 * _MIB, "requested_size": 2 * _MIB,
         "state": "active_allocated", "frames": []}
        for at in range(_LAYERS * 4)
    ]  # fmt: skip
    total = 2 * _MIB * len(blocks)
    segment = {"device": 0, "address": blocks[0]["address"], "total_size": total, "allocated_size": total,
               "active_size": total, "requested_size": total, "stream": 0, "segment_type": "large",
               "segment_pool_id": (0, 0), "is_expandable": False, "frames": [], "blocks": blocks}  # fmt: skip
    return _value(memo, [segment])


def _value(memo: _Memo, value: object) -> bytes:
    """What builds a plain value."""
    if isinstance(value, dict):
        items = b"".join(_value(memo, key) + _value(memo, held) for key, held in value.items())
        return b"}(" + items + b"u"
    if isinstance(value, list | tuple):
        items = b"(" + b"".join(_value(memo, held) for held in value)
        return b"]" + items + b"e" if isinstance(value, list) else items + b"t"
    if isinstance(value, str):
        return memo.get(value) if value in memo.numbers else _text(memo, value)
    if isinstance(value, bool):
        return b"\x88" if value else b"\x89"
    assert isinstance(value, int)  # noqa: S101 - nothing else is written above
    return b"\x8a\x08" + struct.pack("<q", value)


def _stack(memo: _Memo, layer: int, backward: bool) -> tuple[bytes, bytes]:
    """What fetches the frames of a call in one layer, and what puts those that are new into the memo first."""
    files = [
        ("_call_impl", "/usr/lib/python3/site-packages/torch/nn/modules/module.py", 1784 + at % 3) for at in range(18)
    ]
    files += [(f"forward_{at}", f"/home/user/model/layers_{at % 5}.py", 10 + 40 * layer + at) for at in range(10)]
    files += [
        ("backward" if backward else "train_step", "/home/user/train.py", 88 + backward),
        ("<module>", "/home/user/train.py", 140),
    ]
    made = bytearray()
    calls = bytearray()
    for frame in files:
        if frame not in memo.numbers:
            for text in frame[:2]:
                if text not in memo.numbers:
                    made += _text(memo, text) + b"0"
            made += b"}" + memo.put(frame) + b"(" + _frame(memo, frame) + b"u0"
        calls += memo.get(frame)
    return bytes(calls), bytes(made)


def _frame(memo: _Memo, frame: tuple[str, str, int]) -> bytes:
    name, file, line = frame
    return (memo.get("name") + memo.get(name) + memo.get("filename") + memo.get(file) + memo.get("line")
            + b"M" + struct.pack("<H", line))  # fmt: skip


def _step(memo: _Memo, calls: list[bytes] | None) -> Iterator[tuple[bytes, bytes]]:
    """The events of one step, each as what comes before its time and what comes after.

    The backward pass runs on a thread of autograd's own, on which there are no Python frames.
    """
    for layer in range(_LAYERS):
        for at in range(_ACTIVATIONS):
            yield _event(memo, "alloc", layer * _ACTIVATIONS + at, None if calls is None else calls[layer])
    for layer in reversed(range(_LAYERS)):
        yield _event(memo, "alloc", _LAYERS * _ACTIVATIONS + layer, b"")
        for at in reversed(range(_ACTIVATIONS)):
            yield from _freed(memo, layer * _ACTIVATIONS + at, b"")
    for layer in range(_LAYERS):
        yield from _freed(memo, _LAYERS * _ACTIVATIONS + layer, None if calls is None else calls[_LAYERS + layer])


def _freed(memo: _Memo, slot: int, calls: bytes | None) -> Iterator[tuple[bytes, bytes]]:
    for action in ("free_requested", "free_completed"):
        yield _event(memo, action, slot, calls)


def _event(memo: _Memo, action: str, slot: int, calls: bytes | None) -> tuple[bytes, bytes]:
    address = _FIRST_ADDRESS + slot * 32 * _MIB
    size = (1 + slot % _ACTIVATIONS * 3) * _MIB - slot
    before = b"}\x94(" + b"".join((
        memo.get("action"), memo.get(action), memo.get("addr"), b"\x8a\x06" + address.to_bytes(6, "little"),
        memo.get("size"), b"J" + struct.pack("<i", size), memo.get("stream"), b"K\0",
        memo.get("pool_id"), b"K\0K\0\x86\x94", memo.get("time_us"), b"\x8a\x08",
    ))  # fmt: skip
    frames = calls if calls is not None else _repeated(memo, slot)
    return before, memo.get("frames") + b"]\x94" + (b"(" + frames + b"e" if frames else b"") + b"u"


def _repeated(memo: _Memo, slot: int) -> bytes:
    frames = [frame for frame in memo.numbers if isinstance(frame, tuple)]
    chosen = [frames[(slot + at) % len(frames)] for at in range(30)]
    return b"".join(b"}(" + _frame(memo, frame) + b"u" for frame in chosen)
