"""Marks are given as the definitions say, on reports written by hand."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks.accuracy import ablate, peer_traceml, real_jobs, show
from benchmarks.accuracy.expectation import Expectation, from_folder
from benchmarks.accuracy.score import ablation, mark, summary
from benchmarks.accuracy.simulator.case import Case
from benchmarks.accuracy.simulator.job import Host, Job, Parallel
from benchmarks.accuracy.simulator.transformer import Transformer
from benchmarks.accuracy.simulator.truth import write_case
from benchmarks.accuracy.verdicts import Said, analyze, read

TINY = Transformer(layers=1, hidden=256, heads=4, feed_forward=512, batch=2, sequence=128, vocabulary=512)


def finding(cause: str, expected: float, *, severity: str = "major", ranks: tuple[int, ...] = ()) -> dict[str, Any]:
    gain = {"floor": expected * 0.95, "expected": expected, "ceiling": expected * 1.05}
    return {"id": cause, "severity": severity, "gain": gain, "confidence": 0.9, "scope": {"ranks": list(ranks)}}


def report(*findings: dict[str, Any], cause: str | None = None) -> Said:
    first = findings[0]["id"] if findings else None
    return read({"verdict": {"summary": "…", "cause": cause or first}, "findings": list(findings)})


SYNC = Expectation("sync", {"host.sync": 1.2})


def test_the_right_cause_is_right() -> None:
    given = mark(SYNC, report(finding("host.sync", 1.2)))

    assert given.top1
    assert given.recall3 == 1
    assert given.gains[0].error == 0
    assert given.gains[0].covered


def test_another_cause_first_is_wrong_and_recalled_if_it_is_among_three() -> None:
    given = mark(SYNC, report(finding("host.gc", 1.4), finding("host.sync", 1.5)))

    assert not given.top1
    assert given.recall3 == 1
    assert given.gains[0].error == pytest.approx(0.25)
    assert not given.gains[0].covered


def test_an_accepted_name_is_as_good() -> None:
    known = Expectation("gather", {"communication.exposed": 1.3}, accepted=("communication.no-prefetch",))

    given = mark(known, report(finding("communication.no-prefetch", 1.3)))

    assert given.top1
    assert given.recall3 == 1
    assert given.gains[0].error == 0


def test_of_two_causes_the_larger_comes_first_unless_they_are_alike() -> None:
    uneven = Expectation("pair", {"host.sync": 1.5, "host.gc": 1.1})
    even = Expectation("pair", {"host.sync": 1.30, "host.gc": 1.29})

    said = report(finding("host.gc", 1.2), finding("host.sync", 1.2))

    assert not mark(uneven, said).top1
    assert mark(even, said).top1
    assert mark(uneven, said).recall3 == 1


def test_a_healthy_job_wants_silence_or_its_limit() -> None:
    healthy = Expectation("healthy", resists=("host.sync",))

    assert mark(healthy, report()).top1
    assert mark(healthy, report(finding("compute.at-limit", 1.0))).false_alarms == ()
    assert mark(healthy, report(finding("host.sync", 1.01, severity="info"))).top1
    assert mark(healthy, report(finding("host.sync", 1.05, severity="minor"))).false_alarms == ("host.sync",)
    assert not mark(healthy, report(finding("host.sync", 1.05, severity="minor"))).top1


def test_the_rank_at_fault_must_be_named_alone() -> None:
    known = Expectation("straggler", {"communication.straggler": 1.2}, rank=1)

    assert mark(known, report(finding("communication.straggler", 1.2, ranks=(1,)))).rank_named is True
    assert mark(known, report(finding("communication.straggler", 1.2, ranks=(0, 1)))).rank_named is False
    assert mark(known, report()).rank_named is False
    assert mark(SYNC, report()).rank_named is None


def test_a_failure_is_no_answer() -> None:
    failed = Said(None, (), failure="exit code 3")

    assert not mark(Expectation("healthy"), failed).top1
    assert not mark(SYNC, failed).top1


def test_without_a_signal_silence_is_true_and_another_cause_is_not() -> None:
    before = report(finding("host.sync", 1.2))

    assert ablation(SYNC, "stacks", before, report()).truthful
    assert ablation(SYNC, "stacks", before, report(finding("host.sync", 1.1))).truthful
    assert not ablation(SYNC, "stacks", before, report(finding("host.gc", 1.1))).truthful
    assert ablation(SYNC, "stacks", before, report(finding("host.gc", 1.01, severity="info"))).truthful


def test_without_a_signal_a_cause_may_be_left_open() -> None:
    before = report(finding("host.sync", 1.2))
    gc = finding("host.gc", 1.1)

    marked = ablation(SYNC, "stacks", before, report({**gc, "could_be": ["host.sync"]}))
    assert (marked.truthful, marked.left_open) == (True, True)
    assert not ablation(SYNC, "stacks", before, report({**gc, "could_be": ["host.python"]})).truthful
    assert not ablation(SYNC, "stacks", before, report(finding("host.sync", 1.1))).left_open


def test_marks_are_summed_up() -> None:
    marks = [
        mark(SYNC, report(finding("host.sync", 1.2))),
        mark(SYNC, report(finding("host.gc", 1.2))),
        mark(Expectation("healthy"), report(finding("host.gc", 1.2))),
    ]

    found = summary(marks)

    assert (found.jobs, found.faulty, found.healthy, found.healthy_with_alarm) == (3, 2, 1, 1)
    assert (found.top1, found.recall3, found.gains, found.coverage) == (0.5, 0.5, 1, 1.0)
    assert "| all | 2 | 50.0 % | 50.0 % | 1 | 1 |" in show.summaries([("all", found)])
    assert "expected host.sync (1.2), got host.gc" in show.feedback(marks)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("case")
    host = Host(items_per_step=1, gc_every=1, gc_ns=2_000_000)
    job = Job(TINY, host=host, parallel=Parallel("ddp", 2), steps=6, stacks=True, sync_events=True)
    write_case(Case("example", job, {}, resists=("host.python",)), made)
    return made


def test_the_truth_is_read_back(folder: Path) -> None:
    known = from_folder(folder)

    assert known.healthy
    assert known.resists == ("host.python",)


@pytest.mark.parametrize("removed", ablate.REMOVALS)
def test_a_signal_is_removed_and_the_rest_kept(folder: Path, tmp_path: Path, removed: str) -> None:
    def events(path: Path) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        return found

    paths = ablate.write_without(folder, removed, tmp_path)
    after, before = events(paths[0]), events(folder / paths[0].name)

    assert len(paths) == 2
    assert after != before
    gone = {event.get("cat") for event in before} - {event.get("cat") for event in after}
    assert gone == {"stacks": {"python_function"}, "sync events": {"cuda_sync"}}.get(removed, set())


def test_half_a_file_breaks_off(folder: Path, tmp_path: Path) -> None:
    paths = ablate.write_without(folder, ablate.HALF, tmp_path)

    assert [path.name for path in paths] == ["rank0.trace.json", "rank1.trace.json"]
    with pytest.raises(json.JSONDecodeError):
        json.loads(paths[0].read_bytes())


def test_a_rank_is_left_out(folder: Path, tmp_path: Path) -> None:
    assert [path.name for path in ablate.write_without(folder, ablate.A_RANK, tmp_path)] == ["rank0.trace.json.gz"]


def test_the_command_line_is_asked(folder: Path) -> None:
    said = analyze([folder])

    assert said.failure == ""
    assert said.report["schema"].startswith("whystall.report/")


def test_an_unreadable_trace_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "rank0.trace.json").write_text("no trace")

    assert analyze([tmp_path]).failure


def test_a_class_of_causes_is_right_where_it_holds_the_cause() -> None:
    cases = {case.name: case for case in real_jobs.CASES}

    assert peer_traceml.right(cases["images-slow-storage"], "INPUT-BOUND")
    assert not peer_traceml.right(cases["images-slow-storage"], "COMPUTE-BOUND")
    assert peer_traceml.right(cases["images-healthy"], "COMPUTE-BOUND")
    assert not peer_traceml.right(cases["images-healthy"], "INPUT-BOUND")
    assert not peer_traceml.right(cases["language-python"], "BALANCED")


def test_what_a_healthy_job_is_called_tells_nothing() -> None:
    cases = {case.name: case for case in real_jobs.CASES}

    unfused = peer_traceml.judged(cases["language-attention"], "COMPUTE-BOUND")

    assert (unfused.right, unfused.told) == (True, False)
    assert peer_traceml.judged(cases["images-healthy"], "COMPUTE-BOUND").told
    assert peer_traceml.judged(cases["language-python"], "RESIDUAL-HEAVY").told


def test_real_jobs_have_scripts_and_names_of_their_own() -> None:
    assert len({case.name for case in real_jobs.CASES}) == len(real_jobs.CASES)
    assert all((real_jobs.JOBS / case.script).exists() for case in real_jobs.CASES)
