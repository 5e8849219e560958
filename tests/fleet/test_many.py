"""Many ranks: the same report whatever runs the workers, and whoever is missing is named."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from tests.fleet.ranks import job, rank_trace

import whystall
from whystall.errors import InputError
from whystall.fleet import summarise
from whystall.fleet.engines import Done, Work
from whystall.fleet.inputs import FEW_RANKS, RecordedFile, find_files
from whystall.fleet.many import summarise_all
from whystall.fleet.summarise import Manner
from whystall.fleet.summary_cache import SummaryCache
from whystall.report.shell import MAX_BYTES
from whystall.trace.load import load_traces

RANKS = FEW_RANKS + 4


class Here:
    """An engine that works in this process, in any order."""

    name = "here"

    def __init__(self, *, backwards: bool = False) -> None:
        self.backwards = backwards
        self.asked = 0

    def map(self, work: Sequence[Work]) -> Iterator[Done]:
        places = range(len(work))
        for place in reversed(places) if self.backwards else places:
            self.asked += 1
            yield Done(place, summarise.summarise(work[place].item))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return job(tmp_path_factory.mktemp("job"), RANKS, late=7, clocks_ns=700, steps=20)


def report(folder: Path, **options: object) -> whystall.Report:
    return whystall.analyze(folder, cache=False, **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def usual(folder: Path) -> str:
    return whystall.render(report(folder, workers=2), "json")


def test_the_report_has_all_ranks_and_says_which_were_looked_at(usual: str) -> None:
    found = msgspec.json.decode(usual, type=whystall.Report)
    assert found.source.ranks == list(range(RANKS))
    assert [device.rank for device in found.devices] == list(range(RANKS))
    assert all(device.ledger.total_ns == device.window_ns for device in found.devices)
    assert len(found.source.files) == RANKS
    assert found.source.events == sum(file.events for file in found.source.files)
    (sentence, *_) = [text for text in found.source.warnings if "looked at in depth" in text]
    assert "of 20 ranks, each summarised by itself, 8 were looked at" in sentence
    assert "rank 7 comes last to 20 of 20 collectives" in sentence
    assert 7 in {row.rank for row in found.operators}
    assert len({row.rank for row in found.operators}) == 8


def test_the_late_rank_is_named_with_what_it_costs_and_all_ranks_are_known_to_wait_for_it(usual: str) -> None:
    found = msgspec.json.decode(usual, type=whystall.Report)
    assert (found.verdict.cause, found.findings[0].scope.ranks) == ("communication.straggler", [7])
    assert found.findings[0].gain is not None
    assert found.findings[0].gain.expected == pytest.approx(690 / 490, rel=0.01)
    assert [(row.rank, row.last, row.meetings) for row in found.ranks] == [
        (rank, 20 if rank == 7 else 0, 20) for rank in range(RANKS)
    ]
    assert [row.clock_offset_ns for row in found.ranks] == pytest.approx([-700 * rank for rank in range(RANKS)], abs=10)


@pytest.mark.parametrize("workers", [1, 3])
def test_the_report_is_the_same_whatever_the_number_of_workers(folder: Path, usual: str, workers: int) -> None:
    assert whystall.render(report(folder, workers=workers), "json") == usual


def test_the_order_in_which_files_are_named_is_nothing(folder: Path, usual: str) -> None:
    paths = sorted(folder.glob("*.json"), reverse=True)
    assert whystall.render(whystall.analyze(paths, cache=False, workers=2), "json") == usual


def test_the_order_in_which_ranks_are_done_is_nothing(folder: Path) -> None:
    files = find_files([folder], [])
    forwards, backwards = (summarise_all(files, Manner(), Here(backwards=way), cache=None) for way in (False, True))
    assert forwards.candidates == backwards.candidates


def test_few_ranks_are_analysed_as_ever_and_give_the_same_ledgers_through_an_engine(tmp_path: Path) -> None:
    folder = job(tmp_path, 4, late=2)
    together, one_by_one = report(folder), report(folder, engine="local")
    assert not any("summarised" in text for text in together.source.warnings)
    assert one_by_one.devices == together.devices
    assert one_by_one.findings == together.findings
    assert one_by_one.verdict == together.verdict


def test_a_worker_that_is_killed_on_the_way_changes_nothing(folder: Path, usual: str) -> None:
    killed: list[int] = []
    over = threading.Event()

    def kill_one() -> None:
        while not killed and not over.wait(0.01):
            for one in psutil.Process().children():
                if any("fleet.engines.worker" in part for part in one.cmdline()):
                    one.kill()
                    killed.append(one.pid)
                    break

    killer = threading.Thread(target=kill_one)
    killer.start()
    try:
        found = whystall.render(report(folder, workers=2), "json")
    finally:
        over.set()
        killer.join()
    assert killed
    assert found == usual


def test_ranks_that_are_missing_twice_or_half_there_are_named(tmp_path: Path) -> None:
    folder = job(tmp_path, RANKS, late=7)
    (folder / "rank3.json").unlink()
    (folder / "rank4.json").write_text("no trace")
    (folder / "rank5.json").write_text('{"traceEvents": []}')
    whole = (folder / "rank6.json").read_text()
    (folder / "rank6.json").write_text(whole[: len(whole) // 2])
    rank_trace(8, RANKS, steps=4).write(folder / "again8.json")
    (folder / "copy9.json").write_bytes((folder / "rank9.json").read_bytes())
    found = report(folder)
    told = "\n".join(found.source.warnings)
    assert "the job has 20 ranks, and 3 of them have no recording here: 3-5" in told
    assert "rank5.json: nothing was recorded" in told
    assert "rank4.json" in told
    assert "it is listed under a free number" in told
    assert "holds the same recording as" in told
    assert [file.path for file in found.source.files if file.truncated] == ["rank6.json"]
    assert 6 not in {row.rank for row in found.operators}
    assert "rank 7 comes last" in told


def test_where_nothing_can_be_read_the_reason_is_told(tmp_path: Path) -> None:
    for rank in range(RANKS):
        (tmp_path / f"rank{rank}.json").write_text("no trace")
    with pytest.raises(InputError, match=r"(?s)no trace could be read: rank0\.json.*; and 4 more$"):
        report(tmp_path)


def test_the_windows_of_few_ranks_are_no_many_ranks(tmp_path: Path) -> None:
    for window in range(9):
        for rank in range(2):
            built = rank_trace(rank, 2, clock_ns=window * 1_000_000_000)
            built.write(tmp_path / f"rank{rank}.window{window}.trace.json")
    found = report(tmp_path)
    assert found.source.ranks == [0, 1]
    assert not any("summarised" in text for text in found.source.warnings)


def test_a_run_that_broke_off_goes_on_where_it_was(folder: Path, tmp_path: Path) -> None:
    files = find_files([folder], [])
    cache = tmp_path / "kept"
    broken = Here().map(_work(files, cache))
    for _ in range(5):
        next(broken)
    kept = {path: path.stat().st_ino for path in (cache / "summaries").iterdir()}
    assert len(kept) == 5
    whole = summarise_all(files, Manner(), Here(), cache=cache)
    assert len(list((cache / "summaries").iterdir())) == RANKS
    assert {path: path.stat().st_ino for path in kept} == kept
    assert whole.candidates == summarise_all(files, Manner(), Here(), cache=None).candidates


def _work(files: Sequence[RecordedFile], cache: Path) -> list[Work]:
    tasks = [summarise.Task(of=file, manner=Manner(), cache=str(cache)) for file in files]
    return [Work(summarise.FUNCTION, msgspec.msgpack.encode(task), 1) for task in tasks]


def test_a_file_that_changed_is_read_again_and_one_that_did_not_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = job(tmp_path / "job", 3)
    cache = tmp_path / "kept"
    first = summarise_all(find_files([folder], []), Manner(), Here(), cache=cache)
    read: list[Path] = []

    def load(path: Path, **options: Any) -> list[whystall.Trace]:
        read.append(path)
        return load_traces(path, **options)

    monkeypatch.setattr(summarise, "load_traces", load)
    assert summarise_all(find_files([folder], []), Manner(), Here(), cache=cache).candidates == first.candidates
    assert read == []
    rank_trace(1, 3, steps=5).write(folder / "rank1.json")
    again = summarise_all(find_files([folder], []), Manner(), Here(), cache=cache)
    assert [path.name for path in read] == ["rank1.json"]
    assert len(again.candidates[1].summary.devices[0].steps) == 5


def test_an_entry_that_was_tampered_with_is_not_believed(tmp_path: Path) -> None:
    folder = job(tmp_path / "job", 2)
    cache = tmp_path / "kept"
    first = summarise_all(find_files([folder], []), Manner(), Here(), cache=cache)
    for entry in (cache / "summaries").iterdir():
        content = bytearray(entry.read_bytes())
        content[len(content) // 2] ^= 1
        entry.write_bytes(content)
    assert summarise_all(find_files([folder], []), Manner(), Here(), cache=cache).candidates == first.candidates
    for entry in (cache / "summaries").iterdir():
        entry.chmod(0o666)  # anybody might have written it
    assert SummaryCache(cache).read(entry.name.removesuffix(".summary")) is None


def test_a_summary_under_another_name_or_behind_a_link_is_ignored(tmp_path: Path) -> None:
    store = SummaryCache(tmp_path)
    store.write("a" * 40, b"of one")
    folder = tmp_path / "summaries"
    (folder / f"{'b' * 40}.summary").write_bytes((folder / f"{'a' * 40}.summary").read_bytes())
    (folder / f"{'b' * 40}.summary").chmod(0o600)
    (folder / f"{'c' * 40}.summary").symlink_to(folder / f"{'a' * 40}.summary")
    assert [store.read(name * 40) for name in "abc"] == [b"of one", None, None]
    tmp_path.chmod(0o777)
    assert store.read("a" * 40) is None


def test_the_cache_of_summaries_has_a_bound(tmp_path: Path) -> None:
    store = SummaryCache(tmp_path)
    for number in range(4):
        store.write(store.key(str(number)), bytes(1000))
        os.utime(tmp_path / "summaries" / f"{store.key(str(number))}.summary", (number, number))
    store.shrink(2500)
    assert [store.read(store.key(str(number))) is not None for number in range(4)] == [False, False, True, True]


def test_progress_ends_with_all_bytes_read(folder: Path) -> None:
    told: list[tuple[int, int | None]] = []
    summarise_all(
        find_files([folder], []), Manner(), Here(), cache=None, progress=lambda done, all_: told.append((done, all_))
    )
    size = sum(path.stat().st_size for path in folder.iterdir())
    assert told[-1] == (size, size)
    assert told == sorted(told)


@pytest.mark.parametrize("format_", ["terminal", "markdown", "html"])
def test_a_report_of_a_thousand_ranks_stays_readable(usual: str, format_: str) -> None:
    found = msgspec.json.decode(usual, type=whystall.Report)
    devices = [msgspec.structs.replace(found.devices[rank % RANKS], rank=rank, device=rank % 8) for rank in range(1024)]
    text = whystall.render(msgspec.structs.replace(found, devices=devices), format_)
    assert len(text.encode()) < {"terminal": 20_000, "markdown": 60_000, "html": MAX_BYTES}[format_]
    assert ("Ranks in groups" if format_ != "terminal" else "RANKS IN GROUPS") in text
    assert "more" in text
