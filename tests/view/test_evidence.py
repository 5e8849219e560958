"""The small trace of a finding: what is in it, where it points to, and that it is never larger than it may be."""

from __future__ import annotations

import gzip
import json
from decimal import Decimal
from typing import Any

import pytest
from tests.conftest import RealTraces
from tests.view.conftest import COMPUTE_NS, Fetching

from whystall.errors import InputError
from whystall.report.perfetto import OWN
from whystall.testing import trace
from whystall.testing.builder import EPOCH_NS
from whystall.view.evidence import MOST_BYTES, EvidenceTrace, cut_from, evidence_trace
from whystall.view.places import Place


def shown(job: Fetching, number: int | None = 0) -> EvidenceTrace:
    return cut_from(job.report, lambda rank: job.trace)(number)


def rows(evidence: EvidenceTrace) -> dict[str, list[tuple[int, int, str]]]:
    """Begin, end (on the recording's own clock) and name of the slices of each of whystall's rows."""
    file = json.loads(evidence.json, parse_float=Decimal)
    events: list[dict[str, Any]] = file["traceEvents"]
    own = next(event["pid"] for event in events if event["name"] == "process_name" and event["args"]["name"] == OWN)
    labels = {
        event["tid"]: event["args"]["name"]
        for event in events
        if event["name"] == "thread_name" and event["pid"] == own
    }
    out: dict[str, list[tuple[int, int, str]]] = {label: [] for label in labels.values()}
    for event in events:
        if event["ph"] == "X" and event["pid"] == own:
            begin = file["baseTimeNanoseconds"] + int(event["ts"] * 1000)
            out[labels[event["tid"]]].append((begin, begin + int(event["dur"] * 1000), event["name"]))
    return out


def test_it_points_to_the_finding_and_says_what_the_ledger_says(job: Fetching) -> None:
    evidence = shown(job)
    own = rows(evidence)
    assert tuple(own) == evidence.rows == ("finding input.synchronous-loader", "ledger", "idle by cause")
    (marked,) = own["finding input.synchronous-loader"]
    assert marked[:2] in job.fetches
    assert marked[2] == job.report.findings[0].title
    base = json.loads(evidence.json)["baseTimeNanoseconds"]
    assert evidence.focus == (marked[0] - base, marked[1] - base)
    assert {name for *_, name in own["ledger"]} == {"Compute", "Idle"}
    inside = [(begin, end, name) for begin, end, name in own["idle by cause"] if name == "Idle: input"]
    assert (marked[0], marked[1], "Idle: input") in inside
    assert max(end - begin for begin, end, name in own["ledger"] if name == "Compute") == COMPUTE_NS


def test_communication_that_nothing_hides_has_a_row_of_its_own() -> None:
    built = trace()
    built.launch("gemm", at=0, runs_at=10_000, lasts=20_000)
    built.launch("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", at=7_000, runs_at=20_000, lasts=30_000, stream=20)
    place = Place(0, 0, (EPOCH_NS, EPOCH_NS + 100_000), ())
    evidence = evidence_trace(built.load(), place)
    (exposed,) = rows(evidence)["exposed communication"]
    assert exposed[:2] == (EPOCH_NS + 30_000, EPOCH_NS + 50_000)
    assert evidence.focus is None
    assert evidence.streams == (20, 7)  # the busier one first


@pytest.mark.parametrize("most", [60_000, 25_000])
def test_it_is_shortened_around_the_finding_until_it_fits(most: int) -> None:
    """A thousand kernels, and a finding at the seven hundredth."""
    built = trace()
    for number in range(1000):
        built.launch(f"kernel{number}", at=number * 10_000, runs_at=number * 10_000 + 5_000, lasts=4_000)
    focus = (EPOCH_NS + 7_005_000, EPOCH_NS + 7_009_000)
    place = Place(0, 0, (EPOCH_NS, EPOCH_NS + 10_000_000), (focus,))
    evidence = evidence_trace(built.load(), place, most_bytes=most)
    assert most / 3 < len(evidence.json) <= most
    names = {event["name"] for event in json.loads(evidence.json)["traceEvents"]}
    assert "kernel700" in names
    assert "kernel0" not in names
    base = json.loads(evidence.json)["baseTimeNanoseconds"]
    assert evidence.focus
    assert base + evidence.focus[0] == focus[0]
    assert gzip.decompress(evidence.gzipped) == evidence.json


def test_what_cannot_be_made_small_is_refused_in_a_sentence() -> None:
    built = trace()
    for number in range(300):
        built.python(f"frame{number}" + "x" * 1000, at=0, lasts=1_000_000)
    place = Place(0, 0, (EPOCH_NS, EPOCH_NS + 1_000_000), ())
    with pytest.raises(InputError, match="more than"):
        evidence_trace(built.load(), place, most_bytes=100_000)


def test_the_same_recording_gives_the_same_bytes(job: Fetching) -> None:
    packed = shown(job).gzipped
    assert packed == shown(job).gzipped
    assert packed[4:8] == bytes(4), "a time of writing"


@pytest.mark.real_traces
def test_of_a_recorded_job_it_points_to_the_call_that_waits(real_traces: RealTraces) -> None:
    """Which calls wait is read from the file itself."""
    name = "dlrm-8rank-a100.json.gz"
    report = real_traces.report(name)
    number = [finding.id for finding in report.findings].index("host.sync")
    evidence = cut_from(report, lambda rank: real_traces.load(name))(number)
    base = json.loads(evidence.json)["baseTimeNanoseconds"]
    recorded = json.loads(gzip.decompress(real_traces.path(name).read_bytes()))["traceEvents"]
    waits = [event for event in recorded if "Synchronize" in event.get("name", "") and event.get("ph") == "X"]
    assert evidence.focus
    begin = base + evidence.focus[0]
    assert min(abs(int(event["ts"]) * 1000 - begin) for event in waits) <= 20_000


@pytest.mark.real_traces
@pytest.mark.parametrize(
    "name", ["resnet50-workers4-v100.json.gz", "tp-decode-b200.json.gz", "gloo-cpu-only-rank34.json.gz"]
)
def test_of_recorded_jobs_everything_that_is_shown_can_be_cut(name: str, real_traces: RealTraces) -> None:
    report = real_traces.report(name)
    cut = cut_from(report, lambda rank: real_traces.load(name))
    numbers = [number for number, finding in enumerate(report.findings) if finding.shown]
    for number in (None, *numbers):
        evidence = cut(number)
        file = json.loads(evidence.json)
        assert len(evidence.json) <= MOST_BYTES
        first = min(event["ts"] for event in file["traceEvents"] if "ts" in event)
        assert first == 0
        if number is not None:
            assert evidence.focus
            assert evidence.window[0] <= evidence.focus[0] <= evidence.window[1]
