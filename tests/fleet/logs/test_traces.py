"""Collectives of traces, read without the rest of them: the same as reading all, and who comes last by construction."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from tests.conftest import RealTraces
from tests.fleet.ranks import job, rank_trace

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
    assert len(alone.device_events) < len(whole.device_events) / 2
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
    assert any("not all ranks" in note for note in found.notes)


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
    with pytest.raises(InputError, match="tell of no collective"):
        told(path)


def test_collectives_of_a_library_on_the_host_are_read_from_the_whole_trace(real_traces: RealTraces) -> None:
    found = told(real_traces.path("gloo-cpu-only-rank34.json.gz"))
    assert sum(row.count for row in found.rows) == 10


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
