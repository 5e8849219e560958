"""Damaged traces by number: the same seed always makes the same bytes."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

from whystall.testing import trace

REAL = (
    "alexnet-cuda-sync-a100.json.gz",
    "bert-small-h100.json.gz",
    "event-sync-multi-stream-a100.json.gz",
    "gloo-cpu-only-rank34.json.gz",
    "sglang-decode-mi300x.json.gz",
    "toy-train-mi250.json.gz",
)
_NUMBER = re.compile(rb"(?<=[:\[,] )-?\d[\d.]*|(?<=[:\[,])-?\d[\d.]*")
_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*"')
_KEY = re.compile(rb'"([A-Za-z][^"\\]{0,40})"(?=\s*:)')
_ODD_NUMBERS = (
    "0", "-0", "-1", "1", "7", "127", "128", "255", "32768", "2147483647", "2147483648", "4294967296", "-2147483649",
    "9007199254740993", "9200000000000000", "9223372036854775807", "9223372036854775808", "-9223372036854775808",
    "18446744073709551616", "1e400", "-1e400", "1e-400", "1.5", "0.0005", "1712195495519689.047", "1700000000000000000",
    "9223372036854775.807", "1e15", "1.7e18", "NaN", "Infinity", "-inf", "007", "1" * 400, "0." + "3" * 400,
)  # fmt: skip
_ODD_VALUES = (
    *_ODD_NUMBERS, "null", "true", "[]", "{}", '""', '"x"', '"7"', '"-1"', '"0x10"', '"1e9"', '"stream 7"',
    '"\\ud800"', '"\\u0000"', '"\\"', '"\xff"', "[[[[]]]]", '{"ph":"X"}', '["a", 1, null]', "N/A", "'", '"Float"',
    '"<script>alert(1)</script>"', '"ProfilerStep#1"', '"Optimizer.step#A.step"', '"nn.Module: A_0"',
    '"enumerate(DataLoader)#x.__next__"', '"autograd::engine::evaluate_function: X"', '"cudaDeviceSynchronize"',
    '"[memory]"', '"ncclDevKernel_AllReduce"', '"kernel"', '"cpu_op"', '"X"', '"M"', '"thread_name"',
)  # fmt: skip

Mutation = Callable[[bytes, Random, Sequence[bytes]], bytes]


def built() -> list[bytes]:
    """Small traces with everything that analyses look at."""
    training = trace(
        deviceProperties=[{"id": 0, "name": "Device", "totalGlobalMem": 1 << 30}, {"id": 1, "name": ""}],
        distributedInfo={
            "rank": 1,
            "world_size": 2,
            "backend": "nccl",
            "pg_config": [{"pg_name": "0", "ranks": [0, 1]}],
        },
        with_stack=1,
    )
    reduced: dict[str, Any] = {
        "Collective name": "allreduce", "In msg nelems": 10, "dtype": "Float", "Group size": 2,
    }  # fmt: skip
    for step in range(5):
        forward: dict[str, Any] = {"Sequence number": step, "Input Dims": [[1]]}
        backward: dict[str, Any] = {"Sequence number": step, "Fwd thread id": 1}
        at = step * 1_000_000
        (
            training.step(step, at=at, lasts=900_000)
            .annotation("enumerate(DataLoader)#Loader.__next__", at=at, lasts=100_000)
            .python("nn.Module: Net_0", at=at + 100_000, lasts=300_000)
            .python("nn.Module: Linear_0", at=at + 110_000, lasts=200_000)
            .operator("aten::linear", at=at + 120_000, lasts=100_000, **forward)
            .launch("gemm", at=at + 130_000, runs_at=at + 140_000, lasts=50_000)
            .operator(
                "autograd::engine::evaluate_function: AddmmBackward0",
                at=at + 420_000,
                lasts=100_000,
                thread=200,
                **backward,
            )
            .launch("gemm_bwd", at=at + 430_000, runs_at=at + 440_000, lasts=60_000, thread=200)
            .launch(
                "ncclDevKernel_AllReduce_Sum_f32",
                at=at + 470_000,
                runs_at=at + 480_000,
                lasts=90_000,
                stream=20,
                **reduced,
            )
            .launch("adam", at=at + 700_000, runs_at=at + 710_000, lasts=10_000, device=1)
            .annotation("Optimizer.step#Adam.step", at=at + 690_000, lasts=50_000)
            .runtime("cudaDeviceSynchronize", at=at + 760_000, lasts=100_000)
            .memory(at=at + 50_000, size=512, allocated=1024 * step, reserved=1 << 20)
            .counter("SM Active (%)", 12.5 * step, at=at)
            .counter("Power (W)", 300 + step, at=at, device=1)
        )
    training.event("ac2g", "ac2g", at=130_000, lasts=0).event(
        "cuda_sync", "Context Sync", at=760_000, lasts=1, stream=7
    )
    host = trace(baseTimeNanoseconds=1_600_000_000_000_000_000)
    for step in range(4):
        at = step * 10_000
        host.step(step, at=at, lasts=9_000).operator("aten::mm", at=at + 100, lasts=5_000).python(
            "train.py(1): main", at=at, lasts=9_500
        ).operator("gloo:all_reduce", at=at + 6_000, lasts=2_000, thread=300)
    return [training.json().encode(), host.json().encode(), b'{"traceEvents": []}', b"[]"]


def bases(folder: Path | None) -> list[bytes]:
    """What is damaged: built traces and, where they are, recorded ones."""
    recorded = [folder / name for name in REAL] if folder is not None else []
    return [*built(), *(gzip.decompress(path.read_bytes()) for path in recorded if path.exists())]


def damaged(seed: int, originals: Sequence[bytes]) -> bytes:
    """The contents of a file."""
    random = Random(seed)  # noqa: S311 - reproducible on purpose
    data = random.choice(originals)
    for _ in range(random.choice((1, 1, 2, 3, 6))):
        data = random.choice(_MUTATIONS)(data, random, originals)
    if random.random() < 0.15:
        data = _damaged_gzip(data, random)
    return data


def _span(data: bytes, random: Random, longest: int = 2000) -> tuple[int, int]:
    begin = random.randrange(len(data) + 1)
    return begin, min(len(data), begin + random.randrange(1, longest))


def _flip_bytes(data: bytes, random: Random, originals: Sequence[bytes]) -> bytes:
    out = bytearray(data or b"{")
    for _ in range(random.choice((1, 3, 30))):
        out[random.randrange(len(out))] = random.choice((random.randrange(256), *b'"\\{}[],: 0'))
    return bytes(out)


def _truncate(data: bytes, random: Random, originals: Sequence[bytes]) -> bytes:
    return data[: random.randrange(len(data) + 1)]


def _behead(data: bytes, random: Random, originals: Sequence[bytes]) -> bytes:
    return data[random.randrange(len(data) + 1) :] if random.random() < 0.3 else b"\xef\xbb\xbf" + data


def _delete(data: bytes, random: Random, originals: Sequence[bytes]) -> bytes:
    begin, end = _span(data, random)
    return data[:begin] + data[end:]


def _duplicate(data: bytes, random: Random, originals: Sequence[bytes]) -> bytes:
    begin, end = _span(data, random)
    return data[:end] + data[begin:end] * random.choice((1, 1, 5, 50)) + data[end:]


def _transplant(data: bytes, random: Random, originals: Sequence[bytes]) -> bytes:
    other = random.choice(originals)
    begin, end = _span(other, random, 20_000)
    at = random.randrange(len(data) + 1)
    return data[:at] + other[begin:end] + data[at:]


def _replaced(data: bytes, random: Random, pattern: re.Pattern[bytes], values: Sequence[str], most: int) -> bytes:
    found = list(pattern.finditer(data))
    chosen = sorted(random.sample(found, min(len(found), random.randrange(1, most))), key=lambda match: match.start())
    parts, at = [], 0
    for match in chosen:
        parts += [data[at : match.start()], random.choice(values).encode("latin-1")]
        at = match.end()
    return b"".join([*parts, data[at:]])


def _odd_numbers(data: bytes, random: Random, originals: Sequence[bytes]) -> bytes:
    return _replaced(data, random, _NUMBER, _ODD_NUMBERS, random.choice((2, 10, 300)))


def _same_number(data: bytes, random: Random, originals: Sequence[bytes]) -> bytes:
    return _replaced(data, random, _NUMBER, (random.choice(_ODD_NUMBERS),), random.choice((50, 2000)))


def _other_types(data: bytes, random: Random, originals: Sequence[bytes]) -> bytes:
    return _replaced(data, random, random.choice((_NUMBER, _TEXT)), _ODD_VALUES, random.choice((2, 10, 300)))


def _other_keys(data: bytes, random: Random, originals: Sequence[bytes]) -> bytes:
    keys = [f'"{match[1].decode("latin-1")}"' for match in _KEY.finditer(random.choice(originals))] or ['"ph"']
    return _replaced(data, random, _KEY, keys, random.choice((2, 10, 300)))


def _one_key(data: bytes, random: Random, originals: Sequence[bytes]) -> bytes:
    """All values of one key become odd: a whole column of them."""
    keys = sorted({match[1] for match in _KEY.finditer(data)})
    if not keys:
        return data
    pattern = re.compile(rb'"' + re.escape(random.choice(keys)) + rb'"\s*:\s*("[^"]*"|[^,\]}\s]+)')
    values = random.sample(_ODD_VALUES, random.choice((1, 2, 5)))
    return pattern.sub(
        lambda match: match[0][: match.start(1) - match.start(0)] + random.choice(values).encode("latin-1"), data
    )


def _nest(data: bytes, random: Random, originals: Sequence[bytes]) -> bytes:
    at = random.randrange(len(data) + 1)
    opening = random.choice((b"[", b"{", b'{"a":', b'[{"a":[', b'{"ph":"X","args":{"a":'))
    depth = random.choice((10, 1000, 100_000))
    closing = random.choice((b"", b"]", b"}"))
    return data[:at] + opening * depth + closing * depth + data[at:]


def _long_text(data: bytes, random: Random, originals: Sequence[bytes]) -> bytes:
    unit = random.choice((b"x", b"\\u00e9", b"\\", b"\xff", b"ab/cd::", b"(", b"<", b"9"))
    return _replaced(data, random, _TEXT, ('"' + (unit * random.choice((1000, 300_000))).decode("latin-1") + '"',), 3)


def _many_events(data: bytes, random: Random, originals: Sequence[bytes]) -> bytes:
    """One event again and again, with its numbers counting up."""
    template = random.choice(
        (
            '{"ph":"X","cat":"cpu_op","name":"op","pid":1,"tid":1,"ts":%d,"dur":5000,"args":{"External id":%d}}',
            '{"ph":"X","cat":"kernel","name":"k%d","pid":0,"tid":7,"ts":%d,"dur":1,"args":{"correlation":5}}',
            '{"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":1,"tid":%d,"ts":%d,"dur":9,"args":{"correlation":5}}',
            '{"ph":"X","cat":"user_annotation","name":"ProfilerStep#%d","pid":1,"tid":1,"ts":%d,"dur":2}',
            '{"ph":"X","cat":"python_function","name":"nn.Module: A_%d","pid":1,"tid":1,"ts":%d,"dur":99999}',
            '{"ph":"f","cat":"ac2g","id":%d,"pid":0,"tid":7,"ts":%d}',
            '{"ph":"X","cat":"cat%d","name":"n","pid":1,"tid":1,"ts":%d,"dur":1,"args":{"key":1}}',
        )
    )
    inserted = ",".join(template % (i, i) for i in range(random.choice((10, 3000)))).encode()
    at = data.find(b"[") + 1
    return data[:at] + inserted + b"," + data[at:]


def _shuffle_events(data: bytes, random: Random, originals: Sequence[bytes]) -> bytes:
    parts = re.split(rb'(?<=\}),(?=\s*\{"ph")', data)
    random.shuffle(parts)
    return b",".join(parts)


def _other_encoding(data: bytes, random: Random, originals: Sequence[bytes]) -> bytes:
    if random.random() < 0.5:
        return data.decode("latin-1").encode(random.choice(("utf-16", "utf-16-be", "utf-32")))
    return data.replace(b"\n", random.choice((b"\r\n", b"", b"\x00", b" " * 100)))


def _damaged_gzip(data: bytes, random: Random) -> bytes:
    half = random.randrange(len(data) + 1)
    packed = gzip.compress(data[:half], 1, mtime=0) + (
        gzip.compress(data[half:], 1, mtime=0) if random.random() < 0.5 else b""
    )
    how = random.choice((_flip_bytes, _truncate, _delete, _duplicate, None, None))
    packed = how(packed, random, ()) if how is not None else packed
    return packed + random.choice((b"", b"", b"\x00" * 512, b"garbage", b"\x1f", b"\x1f\x8b"))


_MUTATIONS: tuple[Mutation, ...] = (
    _flip_bytes,
    _truncate,
    _behead,
    _delete,
    _duplicate,
    _transplant,
    _odd_numbers,
    _odd_numbers,
    _same_number,
    _other_types,
    _other_types,
    _other_keys,
    _one_key,
    _one_key,
    _one_key,
    _nest,
    _long_text,
    _many_events,
    _shuffle_events,
    _other_encoding,
)
