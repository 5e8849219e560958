"""Whatever a snapshot says, in bytes or in values, there is a text that adds up, or a sentence that refuses it."""

from __future__ import annotations

import gzip
import pickle
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from tests.fuzz.seeds import CASES, seeds
from tests.memory.program import MIB, forward, training
from tests.native.test_snapshot import mutated

from whystall.errors import InputError
from whystall.memory.allocator_settings import AllocatorSettings
from whystall.memory.explain import explain
from whystall.memory.read import read_snapshot
from whystall.memory.results import MemoryReport
from whystall.report.document import as_text
from whystall.report.memory_text import memory_document

ODD: tuple[Any, ...] = (
    None, True, -1, 0, 1, 511, 1 << 31, 1 << 44, 1 << 62, (1 << 63) - 1, 1 << 63, -(1 << 63), 1 << 200, 0.5,
    float("nan"), float("inf"), -1e300, "", "alloc", "\ud800", "\x1b[2J", [], {}, (), [[]],
    {"action": "oom"}, "x" * 70_000,
)  # fmt: skip


def originals() -> list[dict[str, Any]]:
    tight = training(4, settings=AllocatorSettings(expandable_segments=True, device_bytes=100 * MIB), leak=MIB)
    tight.out_of_memory(MIB, 5, forward(3))
    return [training(6, leak=512).snapshot(lost=9), tight.snapshot(), {"segments": training(2).segments()}]


def disturbed(value: Any, random: Random, share: float) -> Any:
    """The value with some of its parts replaced, dropped or repeated."""
    if random.random() < share:
        return random.choice(ODD)
    if isinstance(value, dict):
        return {
            key if random.random() > share else random.choice(("addr", "blocks", 7, None)): disturbed(
                held, random, share
            )
            for key, held in value.items()
            if random.random() > share
        }
    if isinstance(value, list):
        out = [disturbed(held, random, share) for held in value if random.random() > share]
        return out * random.choice((1, 1, 1, 2)) if random.random() < share else out
    return value


def by_bytes(random: Random, values: list[dict[str, Any]]) -> bytes:
    data = mutated(pickle.dumps(random.choice(values), random.choice((2, 4))), random)
    return gzip.compress(data, 1)[: random.choice((None, -20))] if random.random() < 0.2 else data


def by_values(random: Random, values: list[dict[str, Any]]) -> bytes:
    return pickle.dumps(disturbed(random.choice(values), random, random.choice((0.001, 0.01, 0.1))))


def check(report: MemoryReport) -> None:
    for device in report.devices:
        peak = device.peak
        assert sum(one.bytes for one in peak.held) == peak.allocated_bytes
        assert sum(one.bytes for one in peak.holders) <= peak.allocated_bytes
        assert min((one.bytes for one in peak.holders), default=0) >= 0
        if device.at_end is not None:
            end = device.at_end
            parts = (end.allocated_bytes, end.awaiting_bytes, end.fragmented_bytes, end.cached_bytes)
            assert sum(parts) == end.reserved_bytes
            assert min(*parts, end.rounding_bytes) >= 0
        assert len(device.curve) <= 400
    msgspec.json.encode(msgspec.to_builtins(report))
    text = as_text(memory_document([report], 100), 100)
    assert all(character.isprintable() or character == "\n" for character in text)


@pytest.mark.parametrize("made", [by_bytes, by_values])
def test_any_snapshot_is_told_or_refused(tmp_path: Path, made: Callable[[Random, list[dict[str, Any]]], bytes]) -> None:
    values, path, told = originals(), tmp_path / "case.pickle", 0
    refused: list[str] = []
    for seed in seeds(CASES):
        path.write_bytes(made(Random(seed), values))  # noqa: S311 - reproducible on purpose
        try:
            report = explain(read_snapshot(path))
        except InputError as error:
            refused.append(str(error))
            continue
        told += 1
        try:
            check(report)
        except Exception as error:
            raise AssertionError(f"case {seed}") from error
    assert told > CASES // 10
    assert not [sentence for sentence in refused if "\n" in sentence]
