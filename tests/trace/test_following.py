"""Samples are followed while they are written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from whystall.run_folder.samples import PROFILED, SCHEMA, STEP_COLUMNS
from whystall.trace.errors import InputError
from whystall.trace.following import BOUNDS_S, Followed

HEAD = json.dumps({"schema": SCHEMA, "rank": 2, "columns": STEP_COLUMNS}).encode() + b"\n"


def row(number: int, duration_us: int, *, forward_us: int = 0, input_us: int = 0, flags: int = 0) -> bytes:
    values = dict.fromkeys(STEP_COLUMNS, 0) | {"step": number, "duration_us": duration_us, "flags": flags}
    values |= {"forward_us": forward_us, "input_us": input_us}
    return json.dumps(list(values.values())).encode() + b"\n"


def test_what_is_added_is_read_and_lines_that_are_half_written_wait(tmp_path: Path) -> None:
    path = tmp_path / "rank2.samples.jsonl"
    path.write_bytes(HEAD + row(1, 40_000)[:10])
    followed = Followed(path)
    followed.look()
    assert (followed.rank, followed.steps) == (2, 0)
    with path.open("ab") as file:
        file.write(row(1, 40_000)[10:] + b"".join(row(number, 40_000, forward_us=10_000) for number in range(2, 30)))
    followed.look()
    followed.look()
    assert followed.steps == 29
    assert followed.latest(10.0, 20)["step"].tolist() == [40_000_000] * 24  # without the first five
    assert followed.first(0.0, 3)["forward"].tolist() == [10_000_000] * 3
    assert len(followed.first(0.4, 3)["step"]) == 10
    assert followed.total_s == pytest.approx(29 * 0.04)
    assert followed.buckets[BOUNDS_S.index(0.05)] == 29


def test_steps_under_the_profiler_and_nonsense_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "rank0.samples.jsonl"
    lines = [row(1, 10, flags=PROFILED), b'{"at_unix_ns": 1}\n', b"[1, 2]\n", b"\xff{\n", b"[" * 70_000 + b"\n"]
    path.write_bytes(HEAD + b"".join(lines) + row(2, -5) + row(3, 1 << 60) + row(4, 100_000_000))
    followed = Followed(path)
    followed.look()
    assert followed.steps == 2
    assert followed.buckets == [0] * len(BOUNDS_S) + [1]


@pytest.mark.parametrize("head", [b"{}\n", b"[1]\n", b'{"schema": "other", "columns": ["duration_us", "flags"]}\n'])
def test_what_holds_no_samples_is_refused(tmp_path: Path, head: bytes) -> None:
    path = tmp_path / "rank0.samples.jsonl"
    path.write_bytes(head)
    with pytest.raises(InputError, match=r"holds no samples"):
        Followed(path).look()
    with pytest.raises(InputError, match=r"cannot be read"):
        Followed(tmp_path / "none").look()
