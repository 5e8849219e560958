"""Real loaders, probed: what is measured where, without a word on seconds."""

from __future__ import annotations

from pathlib import Path

import pytest

from whystall.errors import InputError, UsageError

SOURCES = """
import time, torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

class Slow(Dataset):
    def __len__(self): return 40
    def __getitem__(self, index):
        time.sleep(0.003)
        return torch.zeros(5)

class Padded(Slow):
    def __getitem__(self, index): return index

def collate(rows):
    end = time.thread_time() + 0.004
    while time.thread_time() < end: pass
    return torch.tensor(rows)

class Endless(IterableDataset):
    def __iter__(self):
        return iter(torch.zeros(7, 3))

class Empty(Slow):
    def __len__(self): return 0

class Files(Slow):
    def __getitem__(self, index):
        with open(__file__ + '.data', 'rb') as file:
            return torch.tensor(list(file.read(4)))

slow = Slow()
padded = lambda: DataLoader(Padded(), batch_size=4, collate_fn=collate)
endless = lambda: DataLoader(Endless(), batch_size=2)
forked = lambda: DataLoader(Slow(), batch_size=2, num_workers=1, multiprocessing_context='spawn')
empty = Empty()
files = Files()
broken = lambda: 1 / 0
number = lambda: 3
"""


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    path = tmp_path / "sources_to_probe.py"
    path.write_text(SOURCES)
    (tmp_path / "sources_to_probe.py.data").write_bytes(bytes(4096))
    return path


@pytest.mark.alone
def test_time_waited_is_told_from_time_computed(sources: Path) -> None:
    from whystall.probe.data.run import probe_data

    found = probe_data(f"{sources}:slow", batch=4, seconds=0.05, most_workers=3)
    for one in found.stages:
        assert one.fetch_wait_ns > 4 * one.fetch_cpu_ns
        assert one.fetch_wait_ns > 10 * one.collate_cpu_ns
    assert [one.place for one in found.stages] == ["process", "worker"]
    assert found.binds == "storage"
    assert found.proposed.num_workers == 3
    assert found.gain > 1.5
    assert not found.nothing_to_gain
    assert [one.workers for one in found.workers] == [0, 1, 2, 3]
    assert found.samples_per_batch == 4
    assert found.bytes_per_batch == 4 * 5 * 4


def test_collation_is_told_from_fetching(sources: Path) -> None:
    from whystall.probe.data.run import probe_data

    found = probe_data(f"{sources}:padded", seconds=0.05, most_workers=2, step_s=10.0)
    for one in found.stages:
        assert one.collate_cpu_ns > 4 * (one.fetch_cpu_ns + one.fetch_wait_ns)
    # 4 ms of 10 s: nobody waits for that.
    assert found.nothing_to_gain
    assert found.proposed.num_workers == 0
    assert found.workers[0].wait_ns is not None
    assert 0 < found.workers[0].wait_ns < 1e9


def test_an_iterable_data_set_begins_anew(sources: Path) -> None:
    from whystall.probe.data.run import probe_data

    found = probe_data(f"{sources}:endless", seconds=0.01, most_workers=1)
    assert found.samples_per_batch == 2
    assert found.workers[1].measured_samples_per_s is not None


@pytest.mark.parametrize(
    ("scripted", "drains", "kept"),
    [
        ([1.0, 1.01, 1.02], 3, 1.01),
        ([1.0, 1.6, 1.01, 1.02, 1.03, 1.02, 1.04], 7, 1.02),  # other work came and went
        ([1.0, 2.0, 3.0, 1.0, 2.0, 3.0, 1.0, 2.0, 3.0], 9, 2.0),  # never agree: the middle one of nine
    ],
)
def test_rounds_that_differ_are_followed_by_more(
    monkeypatch: pytest.MonkeyPatch, sources: Path, scripted: list[float], drains: int, kept: float
) -> None:
    """Scripted times without workers; one worker is measured thrice, since its rounds agree."""
    from whystall.probe.data import run
    from whystall.probe.data.drain import Drained
    from whystall.probe.data.stages import Batch

    batch = Batch(fetch_cpu_s=0.1, fetch_wait_s=0.0, collate_cpu_s=0.1, collate_wait_s=0.0, process_cpu_s=0.2)
    heard: list[int] = []

    def drain(_: object, workers: int, *, seconds: float) -> Drained:
        assert seconds == pytest.approx(0.1)
        heard.append(workers)
        time_s = scripted[heard.count(0) - 1] if workers == 0 else 1.0
        return Drained(workers, 10, 0.1, time_s, 0.1, [batch])

    monkeypatch.setattr(run, "drain", drain)
    found = run.probe_data(f"{sources}:padded", seconds=0.3, most_workers=1)
    assert heard.count(0) == drains
    assert heard.count(1) == 3
    assert found.workers[0].samples_per_s == pytest.approx(4 / kept)


def test_files_that_a_data_set_opens_are_found(sources: Path) -> None:
    from whystall.probe.data.storage import data_files, opened_files

    heard: set[str] = set()
    with opened_files(heard), (sources.parent / "sources_to_probe.py.data").open("rb"):
        pass
    assert (sources.parent / "sources_to_probe.py.data", 4096) in data_files(heard)
    assert data_files([str(sources)]) == data_files([])  # code is no data


@pytest.mark.parametrize(
    ("name", "kind", "sentence"),
    [
        ("empty", InputError, "no batch"),
        ("number", UsageError, "gave int, neither a data set nor a DataLoader"),
        ("absent", InputError, "has no 'absent'"),
    ],
)
def test_what_is_no_loader_is_said(sources: Path, name: str, kind: type[Exception], sentence: str) -> None:
    from whystall.probe.data.run import probe_data

    with pytest.raises(kind, match=sentence):
        probe_data(f"{sources}:{name}")


def test_a_loader_has_its_own_batch_size(sources: Path) -> None:
    from whystall.probe.data.source import load_source

    with pytest.raises(UsageError, match="has its own batch size"):
        load_source(f"{sources}:padded", batch=8)


def test_the_fetchers_of_torch_are_as_they_were(sources: Path) -> None:
    from torch.utils.data._utils import fetch

    from whystall.probe.data.stages import Recorder, recording

    before = fetch._MapDatasetFetcher.fetch
    with recording(Recorder(1)):
        assert fetch._MapDatasetFetcher.fetch is not before
    assert fetch._MapDatasetFetcher.fetch is before
