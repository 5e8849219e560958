"""Which class of cause is named for which observation, near misses and healthy jobs included."""

from __future__ import annotations

from typing import Any

import pytest
from tests.live.seen import (
    BACKWARD,
    BATCHES,
    FORWARD,
    OPTIMIZER,
    OWN,
    PID,
    SITE,
    WORKERS,
    looks,
    process,
    seen,
    stack,
    thread,
    torch,
)

from whystall.diagnosis.catalogue import causes
from whystall.live.kinds import KINDS
from whystall.live.observation import Observation, Stack
from whystall.live.verdict import verdict_of
from whystall.vocabulary.frames import Frame

WORK = ((FORWARD, 20), (BACKWARD, 20), (OPTIMIZER, 10))
TEXTS = {("train.py", 30): "gc.collect()", ("metrics.py", 41): "row[j] = min(a, b)"}


def nothing(frame: Frame) -> str | None:
    return None


def named(observation: Observation) -> str | None:
    kind = verdict_of(observation, nothing).kind
    return kind.id if kind else None


@pytest.mark.parametrize(
    ("at", "kind"),
    [
        (WORKERS, "workers"),
        (BATCHES, "batches"),
        (OWN, "python"),
        (torch("serialization", "_save"), "checkpoint"),
        (stack(("/usr/lib/python3.11/logging/__init__.py", 400, "LogRecord.getMessage")), "logging"),
        (
            stack(
                (f"{SITE}/wandb/sdk/wandb_run.py", 1, "Run.log"), ("/usr/lib/python3.11/json/encoder.py", 1, "encode")
            ),
            "logging",
        ),
        (
            stack(("/usr/lib/python3.11/http/client.py", 1, "x"), ("/usr/lib/python3.11/socket.py", 700, "readinto")),
            "network",
        ),
        (torch("distributed/distributed_c10d", "all_reduce"), "ranks"),
        (torch("_dynamo/convert_frame", "compile"), "compiler"),
        (stack(("<frozen importlib._bootstrap>", 1, "_find_and_load")), "start"),
    ],
)
def test_each_place_has_its_class(at: Stack, kind: str) -> None:
    observation = seen(*WORK, (at, 30))
    verdict = verdict_of(observation, nothing)
    assert verdict.kind
    assert (verdict.kind.id, verdict.share) == (kind, 30 / 80)
    assert "38%" in verdict.sentence


def test_what_takes_little_is_not_what_a_job_waits_for() -> None:
    assert named(seen(*WORK, (WORKERS, 5))) is None
    assert named(seen(*WORK, (WORKERS, 10))) == "workers"


def test_the_lines_of_the_user_s_own_are_named_with_their_texts() -> None:
    verdict = verdict_of(seen(*WORK, (OWN, 50)), lambda frame: TEXTS.get((frame.file, frame.line)))
    (place,) = verdict.places
    assert (place.frame.file, place.frame.line, place.text, place.share) == ("metrics.py", 41, "row[j] = min(a, b)", 1)
    assert "metrics.py:41" in verdict.sentence


def test_a_line_that_asks_for_a_collection_is_one() -> None:
    verdict = verdict_of(seen(*WORK, (stack(), 50)), lambda frame: TEXTS.get((frame.file, frame.line)))
    assert verdict.kind
    assert verdict.kind.id == "gc"


@pytest.mark.parametrize(
    ("told", "kind"),
    [
        ({"looks": looks(OWN, holder=PID)}, "python"),
        ({"looks": looks(OWN, holder=None)}, None),  # an operator lets the lock go
        ({"looks": looks(OWN, ran=False, holder=None)}, "waits"),
        ({"processes": {PID: process(PID, thread(on_disk=0.6, on_core=0.3))}}, "storage"),
        ({"processes": {PID: process(PID, thread(on_disk=0.1))}}, "python"),
    ],
)
def test_the_lock_and_the_disk_tell_what_own_code_is_at(told: dict[str, Any], kind: str | None) -> None:
    assert named(seen(*WORK, (OWN, 60), **told)) == kind


@pytest.mark.parametrize(("on_core", "held", "kind"), [(0.9, 10, "gil"), (0.05, 10, None), (0.9, 2, None)])
def test_another_thread_keeps_the_lock(on_core: float, held: int, kind: str | None) -> None:
    threads = process(PID, thread(on_core=0.2), thread(101, on_core=on_core, name="monitor"))
    observation = seen(
        *WORK, looks=looks(FORWARD, held, holder=101) + looks(FORWARD, 12 - held), processes={PID: threads}
    )
    verdict = verdict_of(observation, nothing)
    assert (verdict.kind.id if verdict.kind else None) == kind
    assert ("monitor" in " ".join(verdict.facts)) == (kind == "gil")


def test_workers_that_wait_for_storage_are_told_from_those_that_compute() -> None:
    children = {200: [BATCHES] * 40, 201: [BATCHES] * 40}
    for on_disk, kind in ((0.7, "storage"), (0.0, "workers")):
        below = {pid: process(pid, thread(pid, on_disk=on_disk, on_core=0.9 - on_disk)) for pid in children}
        observation = seen(*WORK, (WORKERS, 60), processes={PID: process(), **below}, children=children)
        verdict = verdict_of(observation, nothing)
        assert verdict.kind
        assert verdict.kind.id == kind
    assert "Its 2 workers keep 1.8 cores busy, mostly at data.py:12." in verdict.facts


def test_a_backward_pass_that_does_not_run_waits_for_other_ranks_if_there_are_any() -> None:
    ddp = stack((f"{SITE}/torch/nn/parallel/distributed.py", 1, "DistributedDataParallel.forward"))
    still = looks(BACKWARD, ran=False, holder=None)
    assert named(seen((ddp, 10), (BACKWARD, 80), looks=still)) == "ranks"
    with_gloo = {PID: process(PID, thread(on_core=0.02), thread(7, name="pt_gloo_runloop", on_core=0.0))}
    assert named(seen((BACKWARD, 80), looks=still, processes=with_gloo)) == "ranks"
    assert named(seen((ddp, 10), (BACKWARD, 80), looks=looks(BACKWARD, holder=None))) is None
    assert named(seen((FORWARD, 10), (BACKWARD, 80), looks=still)) is None


@pytest.mark.parametrize(("busy", "single"), [(1.0, True), (6.0, False)])
def test_a_job_that_computes_is_told_so(busy: float, single: bool) -> None:
    verdict = verdict_of(
        seen((FORWARD, 30), (BACKWARD, 70), processes={PID: process(PID, thread(on_core=busy))}), nothing
    )
    assert verdict.kind is None
    assert verdict.sentence.startswith(
        "One thread is busy in the backward pass: 70%" if single else "It computes, on 6.0"
    )


def test_what_is_beside_the_cause_is_told() -> None:
    use = process(PID, thread(late=0.4, on_core=0.5), resident_bytes=(1 << 30, (1 << 30) + (80 << 20)))
    facts = " ".join(verdict_of(seen(*WORK, processes={PID: use}), nothing).facts)
    assert "waits for a core 40%" in facts
    assert "grows by 20.0 MiB a second" in facts


def test_the_causes_that_it_leads_to_are_explained() -> None:
    assert {kind.cause for kind in KINDS.values()} - {None} <= causes().keys()


def test_threads_that_wait_for_a_core_are_not_one_busy_thread() -> None:
    use = process(PID, thread(on_core=0.4, late=0.6), thread(101, on_core=0.4, late=0.5))
    verdict = verdict_of(seen((FORWARD, 30), (BACKWARD, 70), processes={PID: use}), nothing)
    assert verdict.sentence.startswith("It computes, on 0.8 cores")


def test_too_few_looks_at_a_line_do_not_make_it_python() -> None:
    few = looks(OWN, 2) + looks(FORWARD, 20)
    assert named(seen(*WORK, (OWN, 20), looks=few)) is None
