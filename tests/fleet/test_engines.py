"""Engines: every item gets its result, whoever dies on the way."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from whystall.errors import UsageError
from whystall.fleet.engines import Done, Engine, Work, engine_named
from whystall.fleet.engines.local import LocalEngine
from whystall.fleet.engines.machine import free_bytes, needed_bytes

GIB = 1 << 30


@pytest.fixture(autouse=True)
def _path_of_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "jobs"))


def mapped(engine: Engine, name: str, items: list[bytes], memory_bytes: int = 1) -> list[Done]:
    found = list(engine.map([Work(f"fleet_work:{name}", item, memory_bytes) for item in items]))
    return sorted(found, key=lambda done: done.place)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_every_item_has_its_result(workers: int) -> None:
    items = [f"item {number}".encode() for number in range(7)]
    found = mapped(LocalEngine(workers), "reversed_bytes", items)
    assert found == [Done(place, item[::-1]) for place, item in enumerate(items)]


def test_nothing_to_do_starts_nothing() -> None:
    assert mapped(LocalEngine(2), "reversed_bytes", []) == []


def test_a_large_result_arrives_whole() -> None:
    item = os.urandom(3 << 20)
    assert mapped(LocalEngine(1), "reversed_bytes", [item]) == [Done(0, item[::-1])]


def test_workers_are_other_processes_and_work_for_many_items() -> None:
    processes = {done.result for done in mapped(LocalEngine(2), "process", [b""] * 8)}
    assert 1 <= len(processes) <= 2
    assert str(os.getpid()).encode() not in processes


def test_a_fault_in_the_function_is_a_sentence_on_that_item() -> None:
    found = mapped(LocalEngine(2), "fails", [b"a", b"bad", b"c"])
    assert [done.result for done in found] == [b"a", None, b"c"]
    assert found[1].failure == "ValueError: this one is bad"


def test_what_a_worker_prints_is_no_result() -> None:
    assert mapped(LocalEngine(1), "prints", [b"a", b"b"]) == [Done(0, b"a"), Done(1, b"b")]


def test_a_worker_that_dies_is_retried(tmp_path: Path) -> None:
    items = [str(tmp_path / name).encode() for name in ("a", "dies", "c", "dies too", "e")]
    found = mapped(LocalEngine(2), "dies_once", items)
    assert [done.result for done in found] == items


@pytest.mark.parametrize("name", ["dies_always", "out_of_memory"])
def test_an_item_whose_worker_always_dies_is_left_out_and_the_others_are_not(name: str) -> None:
    found = mapped(LocalEngine(2), name, [b"a", b"bad", b"c", b"d"])
    assert [done.result for done in found] == [b"a", None, b"c", b"d"]
    assert "ended twice before it was done" in (found[1].failure or "")


def test_never_more_at_once_than_fits_in_memory(tmp_path: Path) -> None:
    items = [str(tmp_path).encode()] * 6
    found = mapped(LocalEngine(4, free=lambda: GIB), "overlapping", items, memory_bytes=GIB // 2 + 1)
    assert {done.result for done in found} == {b"1"}


def test_what_does_not_fit_at_all_is_tried_alone() -> None:
    assert mapped(LocalEngine(2, free=lambda: 0), "fails", [b"a", b"b"], GIB) == [Done(0, b"a"), Done(1, b"b")]


def test_who_stops_listening_ends_the_workers() -> None:
    running = LocalEngine(2).map([Work("fleet_work:process", b"", 1)] * 4)
    process = int(next(running).result or b"0")
    running.close()  # type: ignore[attr-defined]
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


def test_the_group_of_a_container_bounds_the_memory(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text(f"{8 << 20}\n")
    (tmp_path / "memory.current").write_text(f"{6 << 20}\n")
    (tmp_path / "memory.stat").write_text(f"anon 5\ninactive_file {1 << 20}\n")
    assert free_bytes(tmp_path) == int((3 << 20) * 0.9)
    (tmp_path / "memory.max").write_text("max\n")
    assert free_bytes(tmp_path) == pytest.approx(free_bytes(tmp_path / "nowhere"), rel=0.2)
    assert needed_bytes(2 * GIB) > needed_bytes(GIB) > GIB // 2


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda: engine_named("dask"), "there is no engine 'dask': choose one of local, ray"),
        (lambda: engine_named("local", address="auto"), "goes with the engine ray"),
        (lambda: engine_named(None, workers=0), "at least one worker"),
    ],
)
def test_an_engine_that_makes_no_sense_is_refused(ask: Callable[[], Engine], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        ask()


def test_without_ray_a_sentence_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(UsageError, match=r"pip install 'whystall\[ray\]'"):
        engine_named("ray")
