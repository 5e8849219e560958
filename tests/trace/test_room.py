from __future__ import annotations

import resource
from pathlib import Path

import pytest

from whystall.errors import InputError
from whystall.testing import trace
from whystall.trace import room as room_module
from whystall.trace.load import load_trace
from whystall.trace.room import BYTES_A_DEVICE_EVENT, BYTES_AN_EVENT, Room, free_bytes


def test_what_a_user_is_allowed_bounds_what_is_free(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    unbounded = free_bytes(tmp_path)
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (1 << 20, 1 << 20))
    assert free_bytes(tmp_path) == 0 < unbounded


def test_what_a_group_may_take_bounds_it_too(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text(str(5 << 20))
    (tmp_path / "memory.current").write_text(str(3 << 20))
    (tmp_path / "memory.stat").write_text(f"anon 7\ninactive_file {1 << 20}\n")
    assert free_bytes(tmp_path) == 3 << 20


@pytest.mark.parametrize(("host", "device"), [(4_000_001, 0), (0, 1_000_001), (2_000_000, 600_000)])
def test_more_events_than_there_is_memory_for_are_refused(
    monkeypatch: pytest.MonkeyPatch, host: int, device: int
) -> None:
    monkeypatch.setattr(room_module, "free_bytes", lambda: 1_000_000_000)
    assert (BYTES_AN_EVENT, BYTES_A_DEVICE_EVENT) == (250, 1000)
    room = Room("trace.json")
    room.require(host + device - 1, device_events=max(device - 500_000, 0))
    with pytest.raises(InputError, match=r"trace.json holds at least .* events; analysing them takes .* GiB of memory"):
        room.require(host + device, device_events=device)


def test_a_small_trace_is_read_however_little_is_free(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(room_module, "free_bytes", lambda: 0)
    path = trace().step(0, at=0, lasts=1000).operator("aten::mm", at=0, lasts=900).write(tmp_path / "trace.json")
    assert load_trace(path, cache=False).operators.height == 1


def test_a_large_one_is_refused_before_its_tables_are_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(room_module, "_LITTLE", 0)
    monkeypatch.setattr(room_module, "free_bytes", lambda: 1000)
    path = trace().operator("aten::mm", at=0, lasts=900).operator("aten::mm", at=1000, lasts=900)
    for at in range(2, 9):
        path = path.operator("aten::mm", at=at * 1000, lasts=900)
    with pytest.raises(InputError, match="GiB is free"):
        load_trace(path.write(tmp_path / "trace.json"), cache=False)
