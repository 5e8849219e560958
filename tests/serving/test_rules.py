"""Each cause by a server of the tests' own: one that has it, one that nearly has it; and servers without any."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from tests.serving.samples import folder
from tests.serving.server import MS, Call, Engine, steady

from whystall.serving.cause import BLAMES, flags
from whystall.serving.diagnose import Diagnosis, diagnose
from whystall.serving.folder import read_run
from whystall.serving.rules import RULES
from whystall.serving.run_analysis import analyze_run

Make = Callable[[Path, bool], object]


def gate(path: Path, has: bool) -> None:
    calls = steady()
    for one in calls:
        one.gate = 900 * MS if has else 4 * MS
    Engine().serve(calls).write(path)


def late(path: Path, has: bool) -> None:
    calls = steady()
    for number, one in enumerate(calls):
        one.late = number * 5 * MS if has else (number % 9 == 8) * 200 * MS  # growing, or single stalls
    Engine().serve(calls).write(path)


def slow_reader(path: Path, has: bool) -> None:
    """All tokens in one heap, or some pairs."""
    engine = Engine().serve(steady())
    for one in engine.calls:
        if has:
            end = one.token_at[-1] + 100 * MS
            one.token_at = [end + number * MS // 100 for number in range(len(one.token_at))]
        else:
            one.token_at = [b - MS // 100 if n % 4 == 0 else a for n, (a, b) in enumerate(pairwise(one.token_at))] + (
                one.token_at[-1:]
            )
    engine.write(path)


def bursty(path: Path, has: bool) -> None:
    if has:
        calls = [Call(burst * 4000 * MS + n * MS, 96 + n, 20) for burst in range(4) for n in range(18)]
    else:
        calls = [Call(n * 220 * MS + (n % 2) * 100 * MS, 96 + n, 20) for n in range(72)]
    Engine().serve(calls).write(path)


def saturated(path: Path, has: bool) -> None:
    calls = [Call(n * (14 if has else 60) * MS, 96 + n % 5, 20) for n in range(120)]
    Engine(max_num_seqs=1000).serve(calls).write(path)


def seats(path: Path, has: bool) -> None:
    Engine(max_num_seqs=1 if has else 8).serve(steady()).write(path)


def cache_full(path: Path, has: bool) -> None:
    Engine(blocks=12 if has else 400).serve(steady(output=60)).write(path)


def common_text(path: Path, has: bool) -> None:
    """A common text of 480 tokens, behind or before 32 of each request's own."""
    common = list(range(30))
    calls = []
    for number in range(60):
        own = [1000 + 2 * number, 1001 + 2 * number]
        calls.append(Call(number * 80 * MS, 512, 8, ids=own + common if has else common + own))
    Engine(caching=True).serve(calls).write(path)


def blocks_too_large(path: Path, has: bool) -> None:
    """A common beginning of 96 tokens, in blocks of 128 or of 32."""
    calls = [Call(n * 80 * MS, 160, 8, ids=[1, 2, 3, 4, 5, 6, *range(10 * n + 10, 10 * n + 14)]) for n in range(60)]
    Engine(caching=True, block=128 if has else 32).serve(calls).write(path)


def evicted(path: Path, has: bool) -> None:
    calls = [Call(n * 90 * MS, 512, 8, ids=[*range(28), 100 + n, 200 + n, 300 + n, 400 + n]) for n in range(60)]
    Engine(caching=True, remembers=not has).serve(calls).write(path)


def long_prompts(path: Path, has: bool) -> None:
    calls = steady(gap=90 * MS)
    for one in calls[4::9]:
        one.prompt = 1900 if has else 300
    Engine().serve(calls).write(path)


def small_budget(path: Path, has: bool) -> None:
    calls = [Call(n * 200 * MS, 300 + n, 6) for n in range(60)]
    Engine(budget=32 if has else 2048).serve(calls).write(path)


def drafts(path: Path, has: bool) -> None:
    engine = Engine().serve(steady())
    engine.write(path)
    accepted = 20 if has else 3000
    more = (
        'vllm:spec_decode_num_drafts_total{engine="0"} 1000\nvllm:spec_decode_num_draft_tokens_total{engine="0"} 5000\n'
        f'vllm:spec_decode_num_accepted_tokens_total{{engine="0"}} {accepted}\n'
    )
    (path / "e").write_text(engine.metrics(more=more))


def imbalance(path: Path, has: bool) -> None:
    engine = Engine().serve(steady())
    engine.write(path)
    (path / "e").write_text(engine.metrics(engines=(100, 20) if has else (64, 56)))


def eager(path: Path, has: bool) -> None:
    engine = Engine().serve(steady(output=60))
    engine.write(path)
    (path / "a").write_text(engine.log().replace("device_config=cpu", f"device_config={'cuda' if has else 'cpu'}"))


def processor(path: Path, has: bool) -> None:
    Engine().serve(steady(output=60)).write(path, extra=", 'logits_processors': ['my:Processor']" if has else "")


def worker_trace(choosing_us: int) -> str:
    """Twelve steps: a forward pass of 5 ms, the choice of tokens, and 2 ms of the engine."""
    events: list[dict[str, object]] = []
    at = 1_000_000
    for _ in range(12):
        step = {"ph": "X", "pid": 1, "tid": 1}
        name = "execute_context_0(0)_generation_2(2)"
        events.append(step | {"cat": "user_annotation", "name": name, "ts": at, "dur": 5000})
        events.append(step | {"cat": "cpu_op", "name": "aten::mm", "ts": at + 10, "dur": 4900})
        events.append(step | {"cat": "cpu_op", "name": "aten::to", "ts": at + 5000, "dur": 5})
        events.append(step | {"cat": "cpu_op", "name": "aten::argmax", "ts": at + 5000 + choosing_us - 5, "dur": 5})
        at += 7000 + choosing_us
    return json.dumps({"schemaVersion": 1, "vllm_version": "0.32.0", "traceEvents": events})


def choice(path: Path, has: bool) -> None:
    Engine().serve(steady(output=60)).write(path)
    (path / "t").write_text(worker_trace(4000 if has else 300))


def collections(path: Path, has: bool) -> None:
    """Every 40th step takes 25 times as long, or steps at no regular distance do."""

    def cost(prompt: int, rows: int, step: int) -> int:
        slow = step % 40 == 39 if has else step in {7, 9, 50, 51, 160, 300, 303, 420, 425, 426}
        return (4 * MS + prompt * MS // 8 + rows * MS // 10) * (25 if slow else 1)

    Engine(cost=cost).serve(steady(gap=150 * MS)).write(path)


def busy_front(path: Path, has: bool) -> None:
    calls = steady()
    for one in calls:
        one.front = 60 * MS
    engine = Engine().serve(calls)
    engine.write(path)
    (path / "e").write_text(engine.metrics(cpu=3.5 if has else 0.5))


def tokenizer(path: Path, has: bool) -> None:
    calls = steady(gap=300 * MS)
    for number, one in enumerate(calls):
        one.front = one.prompt * 2 * MS if has else (number * 37 % 100) * MS
    Engine().serve(calls).write(path, spans=True)


def gaps(path: Path, has: bool) -> None:
    Engine(gap=4 * MS if has else MS).serve(steady(gap=200 * MS, output=40)).write(path)


CASES: dict[str, Make] = {
    "client.concurrency-gate": gate,
    "client.late-sends": late,
    "client.slow-reader": slow_reader,
    "arrivals.bursty": bursty,
    "load.saturated": saturated,
    "sched.max-num-seqs": seats,
    "kv.pressure": cache_full,
    "cache.prefix-defeated": common_text,
    "cache.block-too-large": blocks_too_large,
    "cache.evicted": evicted,
    "sched.prefill-interference": long_prompts,
    "sched.budget-small": small_budget,
    "spec.low-acceptance": drafts,
    "dp.imbalance": imbalance,
    "execution.eager": eager,
    "host.logits-processor": processor,
    "host.sampling": choice,
    "host.gc": collections,
    "host.api-server-bound": busy_front,
    "host.tokenizer": tokenizer,
    "host.scheduler-gap": gaps,
}


def diagnosis(path: Path) -> Diagnosis:
    return diagnose(analyze_run(read_run([path])))


def test_every_rule_has_a_case() -> None:
    assert {rule.cause.id for rule in RULES} == set(CASES)


@pytest.mark.parametrize("cause", CASES)
def test_the_cause_is_blamed(cause: str, tmp_path: Path) -> None:
    CASES[cause](tmp_path / "run", True)

    found = diagnosis(tmp_path / "run")

    assert [one.cause.id for one in found.findings][:1] == [cause]
    assert found.headline == found.findings[0].headline
    assert found.findings[0].evidence
    assert found.findings[0].remedy


@pytest.mark.parametrize("cause", CASES)
def test_what_nearly_has_it_is_not_accused_of_it(cause: str, tmp_path: Path) -> None:
    CASES[cause](tmp_path / "run", False)

    assert cause not in [one.cause.id for one in diagnosis(tmp_path / "run").findings]


def test_a_full_cache_shows_in_metrics_without_the_log_of_steps(tmp_path: Path) -> None:
    cache_full(tmp_path / "run", has=True)
    (tmp_path / "run" / "a").unlink()

    found = diagnosis(tmp_path / "run")

    assert [one.cause.id for one in found.findings] == ["kv.pressure"]
    assert "preempted" in found.headline


def test_a_late_reader_shows_in_metrics_without_the_log_of_steps(tmp_path: Path) -> None:
    engine = Engine().serve(steady())
    engine.write(tmp_path / "run")
    before, after = engine.metrics(done=False), engine.metrics()
    for one in engine.calls:  # the server is done when the client begins to read
        end = one.token_at[-1]
        one.token_at = [end + number * MS // 100 for number in range(len(one.token_at))]
    (tmp_path / "run" / "b").write_text(engine.bench())
    (tmp_path / "run" / "d").write_text(before)
    (tmp_path / "run" / "e").write_text(after)
    (tmp_path / "run" / "a").unlink()

    assert [one.cause.id for one in diagnosis(tmp_path / "run").findings] == ["client.slow-reader"]


def test_a_trace_proves_what_a_logits_processor_takes(tmp_path: Path) -> None:
    processor(tmp_path / "run", has=True)
    (tmp_path / "run" / "t").write_text(worker_trace(6000))

    found = diagnosis(tmp_path / "run").findings[0]

    assert (found.cause.id, found.certain) == ("host.logits-processor", True)
    assert found.evidence[0].value == 6_000_000
    assert found.prediction is not None


def test_a_trace_clears_a_logits_processor(tmp_path: Path) -> None:
    processor(tmp_path / "run", has=True)
    (tmp_path / "run" / "t").write_text(worker_trace(200))

    assert diagnosis(tmp_path / "run").findings == ()


@pytest.mark.parametrize("gap", [60, 100, 250])
@pytest.mark.parametrize("spans", [False, True])
def test_healthy_servers_are_not_accused(gap: int, spans: bool, tmp_path: Path) -> None:
    Engine().serve(steady(gap=gap * MS)).write(tmp_path / "run", spans=spans)

    found = diagnosis(tmp_path / "run")

    assert (found.blame, found.findings) == ("healthy", ())


def test_thresholds_have_a_source_and_flags_are_in_the_table() -> None:
    for rule in RULES:
        assert rule.cause.blame in BLAMES
        assert all(one.source and one.is_ for one in rule.cause.thresholds.values())
        assert set(rule.cause.flags) <= set(flags())


@pytest.mark.real_traces
@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("bursty", "arrivals.bursty"),
        ("client-gate", "client.concurrency-gate"),
        ("healthy", None),
        ("healthy-again", None),
        ("healthy-otel", None),
        ("kv-enough", None),
        ("kv-preemption", "kv.pressure"),
        ("max-num-seqs-1", "sched.max-num-seqs"),
        ("mixed-budget-256", None),
        ("mixed-budget-default", "sched.prefill-interference"),
        ("prefix-shared", None),
        ("prefix-stamped", "cache.prefix-defeated"),
        ("slow-logits-processor", "host.logits-processor"),
        ("guidellm-small", None),
    ],
)
def test_recorded_servers_are_judged_by_their_truth(name: str, cause: str | None) -> None:
    found = diagnosis(folder(name))

    assert [one.cause.id for one in found.findings][:1] == ([] if cause is None else [cause])
