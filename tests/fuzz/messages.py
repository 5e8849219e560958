"""Damaged protocol buffers by number: bytes of the file, or fields of the messages in it."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Final

from tests.fuzz import mutations
from tests.trace.readers import pftrace_builder as pftrace
from tests.trace.readers import xspace_builder as xspace
from tests.trace.readers.wire import field, parsed, varint

_SAMPLE: Final = "xplane/jax-conv-mi300x.xplane.pb"
_ODD_NUMBERS: Final = (
    0, 1, 7, 127, 128, 255, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 53, (1 << 62) - 1, 1 << 62, (1 << 63) - 1, 1 << 63,
    (1 << 64) - 1, 1_771_595_639_214_724_894,
)  # fmt: skip
_ODD_TEXTS: Final = (
    b"", b"x", b"\xff\xfe", b"/device:GPU:0", b"/device:TPU:0", b"/host:CPU", b"Steps", b"XLA Ops", b"XLA Modules",
    b"Stream #17(Kernel)", b"Stream #4294967296", b"MemcpyH2D", b"MemcpyD2", b"Memset", b"correlation_id", b"step_num",
    b"kernel_details", b"grid:0,0,0 block:-1,1,1 regs:99999999999 occ_pct:1e9", b"grid:1,1 block: size:" + b"9" * 400,
    b"grid:999999999,999999999,999999999 block:999999999,999999999,999999999", b"profile_start_time", b"ncclAllReduce",
    b"Kernel", b"Memcpy", b"Annotation", b"Overhead", b"cpu_op", b"cuda_runtime", b"python_function", b"correlation",
    b"Input Dims", b"device id", b"stream id", b"cuda_sync_kind", b"Sequence number", b"-7", b"1e400",
    b"ProfilerStep#1", b"Optimizer.step#A.step", b"nn.Module: A_0", b"<script>alert(1)</script>", b"x" * 100_000,
)  # fmt: skip
_DEEPEST: Final = 6
_LARGEST: Final = 1 << 22

Mutation = Callable[[bytes, Random], bytes]


def built() -> list[bytes]:
    """Small profiles with everything that is read of them."""
    several = xspace.space(xspace.gpu(0), xspace.gpu(1), xspace.host(), xspace.environment())
    return [xspace.job(), several, xspace.tpu(), xspace.job(steps=False)]


def perfetto() -> list[bytes]:
    """Small Perfetto traces of PyTorch, of the jobs whose JSON is damaged elsewhere."""
    jobs = [content.decode() for content in mutations.built()]
    return [pftrace.encoded(text) for text in jobs if '"ph": "X"' in text]


def bases(folder: Path | None) -> list[bytes]:
    """What is damaged: built profiles and, where it is, the recorded one."""
    sample = None if folder is None else folder / _SAMPLE
    return [*built(), *([sample.read_bytes()] if sample is not None and sample.exists() else [])]


def damaged(seed: int, originals: Sequence[bytes]) -> bytes:
    """The contents of a file."""
    random = Random(seed)  # noqa: S311 - reproducible on purpose
    content = random.choice(originals)
    if random.random() < 0.7:
        for _ in range(random.choice((1, 2, 5, 20))):
            other = rewritten(content, random, 0)
            content = other if len(other) < _LARGEST else content
    if random.random() < 0.5:
        for _ in range(random.choice((1, 1, 2, 5))):
            content = random.choice(_BYTES)(content, random)
    if random.random() < 0.1:
        content = random.choice(_BYTES)(gzip.compress(content, 1, mtime=0), random)
    return content


def rewritten(content: bytes, random: Random, depth: int) -> bytes:
    """A sound message that says what is not so: one field of it, or of a message in it, is another."""
    try:
        parts = list(parsed(content))
    except (IndexError, MemoryError):
        return content
    if not parts or any(not number for number, _ in parts):
        return content
    place = random.randrange(len(parts))
    number, value = parts[place]
    if isinstance(value, bytes) and depth < _DEEPEST and random.random() < 0.85:
        parts[place] = (number, rewritten(value, random, depth + 1))
    else:
        parts[place : place + 1] = random.choice(_FIELDS)(number, value, random)
    return b"".join(field(number, value) for number, value in parts)


Fields = list[tuple[int, int | bytes]]


def _odd_value(number: int, value: int | bytes, random: Random) -> Fields:
    odd: int | bytes = random.choice(_ODD_NUMBERS) if isinstance(value, int) else random.choice(_ODD_TEXTS)
    return [(number, odd)]


def _other_kind(number: int, value: int | bytes, random: Random) -> Fields:
    return [(number, random.choice(_ODD_TEXTS) if isinstance(value, int) else random.choice(_ODD_NUMBERS))]


def _other_number(number: int, value: int | bytes, random: Random) -> Fields:
    return [(random.choice((1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 20, 21, 53, 58, 60, 500)), value)]


def _lost(number: int, value: int | bytes, random: Random) -> Fields:
    return []


def _many(number: int, value: int | bytes, random: Random) -> Fields:
    return [(number, value)] * random.choice((2, 2, 10, 1000))


_FIELDS: Final = (_odd_value, _odd_value, _odd_value, _other_kind, _other_number, _lost, _many)


def _flip_bytes(content: bytes, random: Random) -> bytes:
    out = bytearray(content or b"\n")
    for _ in range(random.choice((1, 3, 30, 300))):
        out[random.randrange(len(out))] = random.randrange(256)
    return bytes(out)


def _truncate(content: bytes, random: Random) -> bytes:
    return content[: random.randrange(len(content) + 1)]


def _span(content: bytes, random: Random) -> tuple[int, int]:
    begin = random.randrange(len(content) + 1)
    return begin, min(len(content), begin + random.randrange(1, 2000))


def _delete(content: bytes, random: Random) -> bytes:
    begin, end = _span(content, random)
    return content[:begin] + content[end:]


def _duplicate(content: bytes, random: Random) -> bytes:
    begin, end = _span(content, random)
    return content[:end] + content[begin:end] * random.choice((1, 1, 5, 50)) + content[end:]


def _absurd_length(content: bytes, random: Random) -> bytes:
    at = random.randrange(len(content) + 1)
    return content[:at] + b"\n" + varint(random.choice((1 << 20, 1 << 31, (1 << 63) - 1, (1 << 64) - 1))) + content[at:]


def _endless_numbers(content: bytes, random: Random) -> bytes:
    at = random.randrange(len(content) + 1)
    return content[:at] + b"\xff" * random.choice((5, 50, 100_000)) + content[at:]


def _nest(content: bytes, random: Random) -> bytes:
    """Messages in messages, far deeper than any is."""
    inner = b""
    for _ in range(random.choice((10, 1000))):
        inner = field(random.choice((1, 3, 4)), inner)
    at = random.randrange(len(content) + 1)
    return random.choice((content + inner, content[:at] + inner + content[at:]))


_BYTES: Final[tuple[Mutation, ...]] = (
    _flip_bytes, _flip_bytes, _truncate, _delete, _duplicate, _absurd_length, _endless_numbers, _nest,
)  # fmt: skip
