"""Collectives of traces, read without the rest of them: the same as reading all, and who comes last by construction."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import RealTraces
from tests.fleet.logs import samples
from tests.fleet.ranks import job, rank_trace
from tests.trace.test_batched_messages import KERNEL, of_rank, record

from whystall.analysis.communication import attendance_of
from whystall.analysis.kernel_classes import classify
from whystall.errors import InputError
from whystall.fleet.logs import CommLog, read_logs
from whystall.fleet.logs.traces import READER, is_trace
from whystall.report.comm_log_text import render_logs, summarize
from whystall.trace.load import load_trace
from whystall.trace.readers.kineto.reader import KinetoReader


def told(*paths: Path) -> CommLog:
    (found,) = read_logs(list(paths), {})
    return found


@pytest.mark.parametrize(
    "name",
    [
        "ddp-2rank-a100.json.gz",
        "dlrm-8rank-a100.json.gz",
        "recsys-2rank-v100.json.gz",
        "deepseek-v3-dualpipe-h800.json",
        "tp-decode-b200.json.gz",
    ],
)
def test_collectives_alone_are_those_of_the_whole_trace(real_traces: RealTraces, name: str) -> None:
    path = real_traces.path(name)
    alone, whole = (load_trace(path, cache=False, readers=[reader]) for reader in (READER, KinetoReader()))
    told_alone = name.startswith("ddp")  # of the others' kernels some say nothing themselves
    assert (len(alone.device_events) < len(whole.device_events) / 2) is told_alone
    seen, wanted = (attendance_of(one, 0, classify(one.device_events).class_of) for one in (alone, whole))
    assert len(wanted.start)
    assert (seen.start.tolist(), seen.end.tolist()) == (wanted.start.tolist(), wanted.end.tolist())
    assert seen.records.equals(wanted.records)
    assert (alone.rank, alone.metadata) == (whole.rank, whole.metadata)


def test_the_late_rank_is_named_with_what_the_others_wait(tmp_path: Path) -> None:
    found = told(job(tmp_path / "job", 4, late=2, late_ns=200_000, steps=12, clocks_ns=3_000_000))
    (row,) = found.rows
    assert (found.format, found.files, found.communicators) == ("PyTorch traces", 4, 1)
    assert (row.collective, row.bytes, row.ranks, row.count, row.without_waiting) == ("all_reduce", 4096, 4, 12, True)
    assert row.time_ns == pytest.approx(50_000, abs=20)
    late = next(one for one in found.waits if one.stands_out)
    assert (late.rank, late.last, late.collectives) == (2, 12, 12)
    assert late.kept_waiting_ns == pytest.approx(12 * 200_000, rel=1e-3)
    assert [one.wait_ns for one in found.waits if one.rank != 2] == pytest.approx([12 * 200_000] * 3, rel=1e-3)
    assert summarize(found).startswith("Rank 2 of communicator 0 comes last in 12 of 12 collectives")
    assert "PyTorch traces of 4 files" in render_logs([found])


def test_ranks_that_are_alike_are_not_named(tmp_path: Path) -> None:
    found = told(job(tmp_path / "job", 4, steps=12))
    assert found.waits
    assert not any(one.stands_out for one in found.waits)


def test_a_missing_rank_leaves_waiting_unknown_and_says_so(tmp_path: Path) -> None:
    folder = job(tmp_path / "job", 4, late=2, steps=12)
    next(folder.glob("*3*")).unlink()
    found = told(folder)
    assert found.waits == ()
    assert not found.rows[0].without_waiting
    assert any("lack ranks of their group" in note for note in found.notes)


def test_windows_of_a_rank_are_read_together(tmp_path: Path) -> None:
    for rank in range(2):
        for window in range(2):
            built = rank_trace(rank, 2, late_ns=200_000 * rank, clock_ns=window * 10**9, steps=8, first=2 + 8 * window)
            built.events.sort(key=lambda one: one.get("cat") != "user_annotation")  # not the last of the file
            built.write(tmp_path / f"rank{rank}.window{window}.json")
    found = told(tmp_path)
    assert [(one.rank, one.collectives, one.last) for one in found.waits] == [(0, 16, 0), (1, 16, 16)]
    assert found.notes == ()


def test_packed_traces_damage_and_other_files_of_a_folder(tmp_path: Path) -> None:
    folder = job(tmp_path / "job", 2, late=1, steps=12)
    for path in folder.iterdir():
        packed = gzip.compress(path.read_bytes()) if path.suffix == ".json" else path.read_bytes()
        (folder / f"{path.name.partition('.')[0]}.json.gz").write_bytes(packed)
        if path.suffix == ".json":
            path.unlink()
    (folder / "broken.json").write_text('{"traceEvents": [{"ph": "X", "ts": ')
    (folder / "notes.txt").write_text("nothing of the kind")
    found = told(folder)
    assert [one.rank for one in found.waits if one.stands_out] == [1]


def test_a_trace_without_collectives_is_told_in_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 1}]}))
    with pytest.raises(InputError, match="hold no collective"):
        told(path)


def test_collectives_of_a_library_on_the_host_are_read_from_the_whole_trace(real_traces: RealTraces) -> None:
    found = told(real_traces.path("gloo-cpu-only-rank34.json.gz"))
    assert sum(row.count for row in found.rows) == 10
    assert found.waits == ()  # a message is handed over long before, or after, it is sent
    assert not any(row.without_waiting for row in found.rows)
    assert any(note.startswith("a library on the host") for note in found.notes)


def test_other_json_is_no_trace(tmp_path: Path) -> None:
    for number, text in enumerate(('{"results": []}', "[]", "", "plain", '{"a": {"pha": 1}}')):
        path = tmp_path / str(number)
        path.write_text(text)
        assert not is_trace(path)
    assert not is_trace(tmp_path / "nowhere")
    rank_trace(0, 2).write(tmp_path / "trace.json")
    assert is_trace(tmp_path / "trace.json")


def test_what_a_trace_says_of_its_environment_reaches_no_output(tmp_path: Path) -> None:
    folder = job(tmp_path / "job", 2, late=1, steps=12)
    for path in folder.iterdir():
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rt") as file:
            document = json.load(file)
        document |= {"env": {"HF_TOKEN": "hf_planted"}, "cmdline": "train --key hf_planted", "host": "hf_planted"}
        with opened(path, "wt") as file:
            json.dump(document, file)
    found = told(folder)
    assert found.waits
    assert "hf_planted" not in render_logs([found]) + repr(found)


def exchanged(rank: int, peer: int, start: int, end: int) -> Any:
    """Batched messages with a peer, of which only the calls before the kernel tell, and a reduction of all ranks."""
    built = of_rank(rank)
    group = record("allreduce", None) | {"Process Group Name": "0"}
    for number in range(30):
        at = number * 1_000_000
        for place, kind in enumerate(("send", "recv")):
            built.operator("record_param_comms", at=at + 1_000 * place, lasts=900, **record(kind, peer))
        built.launch(KERNEL, at=at + 10_000, runs_at=at + start, lasts=end - start, stream=20)
        reduce: dict[str, Any] = {"at": at + 500_000, "runs_at": at + 600_000, "lasts": 100_000, "stream": 24}
        built.launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL", **reduce, **group)
    return built


def test_kernels_that_only_their_calls_tell_of_are_told_from_the_whole_trace(tmp_path: Path) -> None:
    """Rank 1 comes late to its peer; ranks 2 and 3 exchange later, as none of the other pair does."""
    pairs = [(1, 50_000, 300_000), (0, 250_000, 300_000), (3, 400_000, 460_000), (2, 402_000, 460_000)]
    for rank, (peer, start, end) in enumerate(pairs):
        exchanged(rank, peer, start, end).write(tmp_path / f"rank{rank}.json")
    found = told(tmp_path)
    late = max(found.waits, key=lambda one: one.kept_waiting_ns)
    assert (late.rank, late.last, late.stands_out) == (1, 30, True)
    assert late.kept_waiting_ns == pytest.approx(30 * 200_000, rel=1e-2)
    assert found.communicators == 3
    assert {(row.collective, row.ranks, row.count) for row in found.rows} == {
        ("all_reduce", 4, 30),
        ("send_recv", 2, 60),
    }


def plain(rank: int, number: int, *, category: str = "kernel", recorded: bool = True) -> dict[str, Any]:
    group = {"Collective name": "allreduce", "In msg nelems": 1024, "Out msg nelems": 1024, "dtype": "Float"}
    group |= {"Group size": 2, "Process Group Name": "0", "Process Group Ranks": "[0, 1]"}
    late = 100 * rank
    arguments = {"device": rank, "stream": 7} | (group if recorded else {})
    where = {"cat": category, "name": "ncclDevKernel_AllReduce", "pid": rank, "tid": 7}
    return {"ph": "X", **where, "ts": 1000 * number + late, "dur": 200 - late, "args": arguments}


OTHER = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 9, "tid": 9, "ts": 0, "dur": 5, "args": {}}


def written(folder: Path, rank: int, events: list[dict[str, Any]], **more: Any) -> None:
    document = {"schemaVersion": 1, "distributedInfo": {"rank": rank, "world_size": 2}, **more, "traceEvents": events}
    (folder / f"rank{rank}.json").write_text(json.dumps(document))


@pytest.mark.parametrize("last", ["Memcpy", "Kernel", "cpu_op"])
def test_traces_of_2021_call_their_kernels_otherwise(tmp_path: Path, last: str) -> None:
    for rank in range(2):
        kernels = [plain(rank, number, category="Kernel", recorded=False) for number in range(12)]
        end = {"Memcpy": [OTHER | {"cat": "Memcpy", "name": "Memcpy HtoD"}], "cpu_op": [OTHER]}.get(last, [])
        written(tmp_path, rank, [OTHER, *kernels, *end])
    found = told(tmp_path)
    assert [(one.rank, one.collectives, one.last) for one in found.waits] == [(0, 12, 0), (1, 12, 12)]


@pytest.mark.parametrize("recorded", [True, False])
def test_events_that_do_not_begin_with_their_phase_are_not_lost(tmp_path: Path, recorded: bool) -> None:
    for rank in range(2):
        kernels = [plain(rank, number, recorded=recorded) for number in range(13)]
        turned = [
            {key: one[key] for key in ("name", "ph", "cat", "pid", "tid", "ts", "dur", "args")} for one in kernels[1:]
        ]
        written(tmp_path, rank, [kernels[0], *(one for kernel in turned for one in (OTHER, kernel)), OTHER])
    assert [one.collectives for one in told(tmp_path).waits] == [13, 13]


def test_a_list_of_ranks_is_heeded(tmp_path: Path) -> None:
    folder = job(tmp_path / "job", 2, late=1, steps=12)
    recordings = [{"file": f"rank{own}.json", "rank": 1 - own} for own in range(2)]
    (folder / "ranks.json").write_text(json.dumps({"schema": "whystall.ranks/1", "recordings": recordings}))
    assert [one.rank for one in told(folder).waits if one.stands_out] == [0]


def test_what_is_cut_off_or_missing_is_named(tmp_path: Path) -> None:
    folder = job(tmp_path / "job", 4, late=2, steps=12)
    (folder / "rank3.json").unlink()
    cut = folder / "rank1.json"
    cut.write_text(cut.read_text()[: cut.stat().st_size * 2 // 3])
    notes = told(folder).notes
    assert any(note.startswith("rank1.json: the file ends in the middle") for note in notes)
    assert "the job has 4 ranks, and 1 of them has no recording here: 3" in notes


@pytest.mark.parametrize("size", [1 << 40, -1])
def test_a_damaged_count_of_ranks_costs_nothing(tmp_path: Path, size: int) -> None:
    folder = job(tmp_path / "job", 2, late=1, steps=12)
    for path in folder.iterdir():
        path.write_text(path.read_text().replace('"world_size": 2', f'"world_size": {size}'))
        assert f'"world_size": {size}' in path.read_text()
    assert not [note for note in told(folder).notes if "no recording" in note]


def test_a_trace_without_collectives_beside_logs_spoils_nothing(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text(samples.NCCL_TESTS_TEXT)
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": [OTHER]}))
    assert told(tmp_path).format == "nccl-tests"
    with pytest.raises(InputError, match="hold no collective"):
        read_logs([tmp_path / "log.txt", tmp_path / "trace.json"], {})


def test_unknown_groups_have_no_number_of_ranks(tmp_path: Path) -> None:
    for rank in range(2):
        written(tmp_path, rank, [plain(rank, number, recorded=False) for number in range(12)])
    found = told(tmp_path)
    assert [row.ranks for row in found.rows] == [None]
    assert "from when the last rank has come until the first is done" in render_logs([found])
