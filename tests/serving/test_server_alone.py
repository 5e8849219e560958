"""A served run without a client's file: by spans all requests are known, by counters and steps their mean."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.serving.samples import folder
from tests.serving.server import MS, Engine, steady

from whystall.serving.folder import read_run
from whystall.serving.outcome import Outcome, explain_run
from whystall.serving.parts import Part
from whystall.serving.run_analysis import analyze_run

BY_SPANS = ("a", "d", "e", "f")
BY_COUNTS = ("a", "d", "e")
FAULTS = {
    "sched.max-num-seqs": lambda: Engine(max_num_seqs=1).serve(steady()),
    "kv.pressure": lambda: Engine(blocks=12).serve(steady(gap=20 * MS, output=120)),
    "sched.budget-small": lambda: Engine(budget=64).serve(steady(30, gap=400 * MS, prompt=640, output=8)),
}


def explained(engine: Engine, home: Path, names: tuple[str, ...], **more: str) -> Outcome:
    engine.write(home, spans=True, **more)
    return explain_run([home / name for name in names])


@pytest.mark.parametrize("names", [BY_SPANS, BY_COUNTS], ids=["spans", "counters"])
@pytest.mark.parametrize("cause", FAULTS)
def test_the_fault_stands_first(tmp_path: Path, cause: str, names: tuple[str, ...]) -> None:
    found = explained(FAULTS[cause](), tmp_path, names)
    assert found.findings
    assert found.findings[0].cause.id == cause


@pytest.mark.parametrize("names", [BY_SPANS, BY_COUNTS], ids=["spans", "counters"])
def test_a_healthy_server_is_not_accused(tmp_path: Path, names: tuple[str, ...]) -> None:
    found = explained(Engine().serve(steady()), tmp_path, names)
    assert found.findings == ()


def test_requests_of_spans_are_placed_and_add_up(tmp_path: Path) -> None:
    engine = Engine(max_num_seqs=2).serve(steady())
    engine.write(tmp_path, spans=True)
    found = analyze_run(read_run([tmp_path / name for name in BY_SPANS]))

    assert found.membership is not None
    assert found.membership.mismatched == 0
    assert all(found.placed)
    for ledger, span in zip(found.ledgers, found.run.spans, strict=True):
        assert sum(ledger.parts.values()) == ledger.total_ns == span.e2e_ns
        assert ledger.of(Part.LATE_SEND, Part.CLIENT_GATE) == 0


def test_a_clients_file_goes_before_spans(tmp_path: Path) -> None:
    found = explained(Engine().serve(steady()), tmp_path, ("a", "b", "d", "e", "f"))
    assert not found.by_server
    assert found.server_means is None


def test_the_mean_request_adds_up_and_is_the_servers(tmp_path: Path) -> None:
    engine = Engine(max_num_seqs=2).serve(steady())
    found = explained(engine, tmp_path, BY_COUNTS)

    means = found.server_means
    assert means is not None
    assert sum(means.parts.values()) == means.total_ns
    assert means.requests == len(engine.calls)
    assert means.parts[Part.QUEUE] == pytest.approx(sum(one.queued for one in engine.calls) / len(engine.calls), abs=1)
    assert (found.requests, found.p50, found.placement) == (0, None, None)


def test_without_two_readings_there_is_no_mean(tmp_path: Path) -> None:
    found = explained(Engine().serve(steady()), tmp_path, ("a", "e"))
    assert found.server_means is None
    assert found.blame == "unknown"
    assert found.steps is not None


def gauges(rows: list[tuple[int, int, float]]) -> str:
    """The series that ``serve run`` and ``serve watch`` keep of running and waiting requests and the cache."""
    lines = [
        {"at_s": float(at), "running": running, "waiting": waiting, "cache": cache}
        for at, (running, waiting, cache) in enumerate(rows)
    ]
    return '{"schema":"whystall.serving-series/1"}\n' + "".join(json.dumps(line) + "\n" for line in lines)


@pytest.mark.parametrize(
    ("rows", "is_found"),
    [
        ([(1, 5, 0.1), (1, 9, 0.1), (1, 7, 0.1), (0, 0, 0.0)], True),
        ([(1, 5, 0.9), (1, 9, 0.9), (1, 7, 0.9)], False),
        ([(1, 5, 0.1), (7, 9, 0.1), (4, 7, 0.1), (9, 2, 0.1)], False),
        ([(1, 5, 0.1), (1, 0, 0.1)], False),
    ],
    ids=["always-one", "cache-full", "never-the-same", "two-readings"],
)
def test_gauges_alone_hint_at_too_few_places(
    tmp_path: Path, rows: list[tuple[int, int, float]], is_found: bool
) -> None:
    Engine(max_num_seqs=1).serve(steady()).write(tmp_path)
    (tmp_path / "series").write_text(gauges(rows))

    found = explain_run([tmp_path / name for name in ("d", "e", "series")])

    assert [one.cause.id for one in found.findings] == (["sched.max-num-seqs"] if is_found else [])
    if is_found:
        assert not found.findings[0].certain
        assert "no more than 1 run at once" in found.headline


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("healthy", None),
        ("healthy-again", None),
        ("kv-enough", None),
        ("mixed-budget-256", None),
        ("prefix-shared", None),
        ("kv-preemption", "kv.pressure"),
        ("max-num-seqs-1", "sched.max-num-seqs"),
        ("slow-logits-processor", "host.logits-processor"),
    ],
)
def test_recorded_servers_have_their_cause_without_the_client(name: str, cause: str | None) -> None:
    wanted = ("server.log.gz", "server-start.log", "metrics-before.txt.gz", "metrics-after.txt.gz")
    found = explain_run([folder(name) / one for one in wanted])
    assert [one.cause.id for one in found.findings[:1]] == ([cause] if cause else [])
