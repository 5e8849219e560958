"""The simulator keeps the laws of the machines that it simulates."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from benchmarks.accuracy.simulator.case import Case
from benchmarks.accuracy.simulator.job import Host, Job, Parallel
from benchmarks.accuracy.simulator.machine import Fabric, Machine
from benchmarks.accuracy.simulator.registry import all_cases
from benchmarks.accuracy.simulator.simulate import Run, simulate
from benchmarks.accuracy.simulator.transformer import Transformer
from benchmarks.accuracy.simulator.truth import truth_of, write_case

TINY = Transformer(layers=2, hidden=256, heads=4, feed_forward=1024, batch=4, sequence=128, vocabulary=1024)
JOBS = {
    "alone": Job(TINY, host=Host(items_per_step=2, gc_every=2, gc_ns=400_000), steps=5, stacks=True, sync_events=True),
    "ddp": Job(
        TINY, parallel=Parallel("ddp", 3, bucket_bytes=100_000, clock_offsets_ns=(0, 500_000, -90_000)), steps=5
    ),
    "fsdp": Job(TINY, parallel=Parallel("fsdp", 2), steps=5),
    "expert": Job(TINY, parallel=Parallel("expert", 2, expert_load=(0.5, 1.5)), steps=5),
    "pipeline": Job(replace(TINY, layers=4), parallel=Parallel("pipeline", 2, micro_batches=2), steps=5),
    "decode": Job(TINY, kind="decode", graphs=True, steps=5),
    "allocations": Job(TINY, host=Host(allocations_per_step=3, frees_too=True), steps=5),
}
COLLECTIVE = "Collective name"


@pytest.fixture(scope="module", params=sorted(JOBS))
def run(request: pytest.FixtureRequest) -> Run:
    return simulate(JOBS[request.param])


def test_a_stream_runs_one_thing_at_a_time(run: Run) -> None:
    for rank in run.ranks:
        streams: dict[int, list[tuple[int, int]]] = {}
        for activity in rank.device.activities:
            streams.setdefault(activity.stream, []).append((activity.start_ns, activity.end_ns))
        for spans in streams.values():
            spans.sort()
            assert all(before[1] <= after[0] for before, after in pairwise(spans))


def test_everything_submitted_ran_after_its_launch(run: Run) -> None:
    for rank in run.ranks:
        calls = {span.arguments["correlation"]: span for span in rank.spans if "correlation" in span.arguments}
        for activity in rank.device.activities:
            assert calls[activity.correlation].start_ns < calls[activity.correlation].end_ns <= activity.start_ns
            assert activity.start_ns < activity.end_ns


def test_ranks_leave_a_meeting_together(run: Run) -> None:
    met: dict[int, list[int]] = {}
    for rank in run.ranks:
        for activity in rank.device.activities:
            if activity.meeting is not None:
                met.setdefault(id(activity.meeting), []).append(activity.end_ns)
                assert activity.end_ns - activity.start_ns >= activity.meeting.transfer_ns

    assert all(len(set(ends)) == 1 and len(ends) > 1 for ends in met.values())


def test_host_events_nest_on_their_thread(run: Run) -> None:
    for rank in run.ranks:
        for thread in {span.thread for span in rank.spans}:
            open_until: list[int] = []
            spans = [span for span in rank.spans if span.thread == thread]
            for span in sorted(spans, key=lambda span: (span.start_ns, -span.end_ns)):
                while open_until and open_until[-1] <= span.start_ns:
                    open_until.pop()
                assert not open_until or span.end_ns <= open_until[-1]
                open_until.append(span.end_ns)


def test_a_synchronisation_ends_after_what_it_waits_for() -> None:
    (rank,) = simulate(JOBS["alone"]).ranks
    syncs = [span for span in rank.spans if span.name == "cudaStreamSynchronize"]
    copies = {each.end_ns for each in rank.device.activities if "DtoH" in each.name}

    assert len(syncs) == 2 * JOBS["alone"].steps
    assert all(any(span.start_ns <= end <= span.end_ns for end in copies) for span in syncs)


def test_the_same_job_gives_the_same_bytes(tmp_path: Path, run: Run) -> None:
    first = [path.read_bytes() for path in run.write(tmp_path / "one")]
    second = [path.read_bytes() for path in simulate(run.job).write(tmp_path / "two")]

    assert first == second


def test_another_seed_gives_other_durations() -> None:
    assert simulate(JOBS["alone"]).step_ns() != simulate(replace(JOBS["alone"], seed=9)).step_ns()


def read(path: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return data


def test_a_trace_is_json_with_what_kineto_writes(tmp_path: Path, run: Run) -> None:
    for number, path in enumerate(run.write(tmp_path)):
        document = read(path)
        events = [event for event in document["traceEvents"] if event["ph"] == "X"]
        categories = {event["cat"] for event in events}

        assert {"cuda_runtime", "kernel", "user_annotation", "Trace"} <= categories
        assert all(event["dur"] >= 0 for event in events)
        steps = [event["name"] for event in events if event["cat"] == "user_annotation" and "Step#" in event["name"]]
        assert steps == [f"ProfilerStep#{step}" for step in range(run.job.steps)]
        if len(run.ranks) > 1:
            assert document["distributedInfo"]["rank"] == number
            assert any(COLLECTIVE in event["args"] for event in events if event["cat"] == "kernel")


def test_clocks_differ_by_their_offsets(tmp_path: Path) -> None:
    run = simulate(JOBS["ddp"])
    ends = []
    for path in run.write(tmp_path):
        met = [
            event for event in read(path)["traceEvents"] if event.get("cat") == "kernel" and COLLECTIVE in event["args"]
        ]
        ends.append([round((event["ts"] + event["dur"]) * 1000) for event in met])

    assert {late - base for base, late in zip(ends[0], ends[1], strict=True)} == {500_000}
    assert {late - base for base, late in zip(ends[0], ends[2], strict=True)} == {-90_000}


def test_communication_slows_what_computes_beside_it() -> None:
    job = replace(JOBS["ddp"], machine=Machine(fabric=Fabric(bus_bandwidth=1e9)))
    slowed = replace(job, machine=Machine(fabric=Fabric(bus_bandwidth=1e9, slows_compute_milli=1_500)))

    def computing(job: Job) -> int:
        activities = simulate(job).ranks[0].device.activities
        return sum(each.end_ns - each.start_ns for each in activities if each.meeting is None)

    assert computing(job) < computing(slowed) <= 1.5 * computing(job)


CASES = {case.name: case for case in all_cases()}
SAMPLE = [case for case in CASES.values() if case.quick and case.job.parallel.ranks == 1][::3]
"""Enough for a test; writing all cases checks all."""


def test_cases_have_names_of_their_own() -> None:
    assert len(CASES) == len(all_cases())
    assert sum(case.healthy for case in CASES.values()) >= 20


@pytest.mark.parametrize("case", SAMPLE, ids=lambda case: case.name)
def test_curing_never_lengthens_the_step(case: Case) -> None:
    truth = truth_of(case)

    assert all(cured * 1.02 <= truth.step_ns for cured in truth.cured_step_ns.values()), "a fault is worth 2 % at least"


DECOYS = [case for case in CASES.values() if case.undisguised and case.job.parallel.ranks == 1][::2]


@pytest.mark.parametrize("case", DECOYS, ids=lambda case: case.name)
def test_a_decoy_costs_next_to_nothing(case: Case) -> None:
    assert case.undisguised is not None
    assert simulate(case.job).step_ns() <= 1.015 * simulate(case.undisguised).step_ns()


def test_a_case_is_written_with_its_truth(tmp_path: Path) -> None:
    case = Case("example", JOBS["alone"], {"host.gc": replace(JOBS["alone"], host=Host(items_per_step=2))})

    truth = write_case(case, tmp_path)

    assert json.loads((tmp_path / "truth.json").read_text()) == truth
    assert truth["causes"] == ["host.gc"]
    assert truth["removed_speedup"]["host.gc"] > 1
    assert [path.name for path in tmp_path.glob("rank*")] == ["rank0.trace.json.gz"]
