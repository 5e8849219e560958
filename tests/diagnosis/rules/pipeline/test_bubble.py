"""pipeline.bubble: stages with too few micro-batches on their way fire it, by their messages; many do not."""

from __future__ import annotations

from typing import Any, Final

import pytest
from tests.diagnosis.cases import case_of, found_in, line, run
from tests.diagnosis.jobs import GAP_NS, LATENCY_NS, Job, is_worth, message, together

from whystall.diagnosis.diagnose import diagnose
from whystall.diagnosis.finding import Finding
from whystall.diagnosis.rules import RULES
from whystall.diagnosis.run_facts import RunFacts
from whystall.testing import trace

FORWARD_NS: Final = 1_000_000
MESSAGE_NS: Final = 10_000
NCCL: Final = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


def pipeline(
    stages: int,
    micro_batches: int,
    *,
    lasts: tuple[int, ...] | None = None,
    kernel: str = NCCL,
    compute: str = "gemm",
    api: str = "cuda",
    apart: str = "",
) -> list[Job]:
    """Eight steps in which each stage computes all micro-batches, as soon as the one before has sent them.

    ``apart`` is added to the name of a message's group where it is sent.
    """
    jobs = [Job(api=api) for _ in range(stages)]
    lasts = lasts or (FORWARD_NS,) * stages
    for _ in together(jobs, 8):
        begin = max(job.at for job in jobs)
        for job in jobs:
            job.at = begin
        sent = [begin] * micro_batches
        for stage, job in enumerate(jobs):
            for micro in range(micro_batches):
                if stage:
                    record = message("recv", 1 << 20, ranks=(stage - 1, stage), group=f"p2p{stage}")
                    runs = max(job.at + LATENCY_NS, job.busy_until.get(7, -GAP_NS) + GAP_NS)
                    job.launch(kernel, max(sent[micro] - runs, MESSAGE_NS), **record)
                job.launch(compute, lasts[stage])
                if stage + 1 < stages:
                    record = message("send", 1 << 20, ranks=(stage, stage + 1), group=f"p2p{stage + 1}{apart}")
                    job.launch(kernel, MESSAGE_NS, **record)
                sent[micro] = job.busy_until[7]
        until = max(job.busy_until[7] for job in jobs)
        for job in jobs:
            job.busy_until[7] = until
            job.wait()
    return jobs


@pytest.mark.parametrize(
    ("stages", "micro_batches", "kernel", "compute", "api"),
    [
        (2, 2, NCCL, "gemm", "cuda"),
        (4, 4, NCCL, "gemm", "cuda"),
        (
            4,
            4,
            "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)",
            "Cijk_Alik_Bljk_BBS_BH_MT256x128x64",
            "hip",
        ),
        (4, 4, "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)", "gemm", "cuda"),
    ],
)
def test_four_times_as_many_micro_batches_are_worth_three_quarters_of_the_bubble(
    stages: int, micro_batches: int, kernel: str, compute: str, api: str
) -> None:
    """A step of m micro-batches through p stages takes m + p - 1 of their times (reference: causes.md)."""
    jobs = pipeline(stages, micro_batches, kernel=kernel, compute=compute, api=api)
    finding = found_in(*(job.built for job in jobs))["pipeline.bubble"]
    whole = micro_batches + stages - 1
    smaller = (4 * micro_batches + stages - 1) / 4
    is_worth(finding, whole / smaller, within=0.02)
    values = {one.what: one.value for one in finding.evidence}
    assert values["stages"] == stages
    assert values["micro-batches"] == micro_batches
    assert values["bubble by the schedule, (p - 1) / (m + p - 1)"] == pytest.approx((stages - 1) / whole, rel=0.01)


def test_messages_meet_whatever_each_side_calls_their_group() -> None:
    finding = found_in(*(job.built for job in pipeline(4, 4, apart="s")))["pipeline.bubble"]
    assert finding.gain == found_in(*(job.built for job in pipeline(4, 4)))["pipeline.bubble"].gain


def test_a_message_that_one_side_did_not_record_leaves_the_pipeline() -> None:
    """A rank's recording begins or ends a little later than the others'."""
    jobs = pipeline(4, 4)
    events = jobs[1].built.events
    last = max(place for place, event in enumerate(events) if event["args"].get("Collective name") == "send")
    del events[last]
    assert "pipeline.bubble" in found_in(*(job.built for job in jobs))


def test_a_pipeline_of_many_micro_batches_is_full() -> None:
    """Two stages and 32 micro-batches: 3 % of the step, of which a part may go away."""
    assert "pipeline.bubble" not in found_in(*(job.built for job in pipeline(2, 32)))


def test_ranks_that_reduce_are_no_stages() -> None:
    jobs = [Job() for _ in range(2)]
    for _ in together(jobs, 8):
        for job in jobs:
            job.launch("gemm", FORWARD_NS)
            job.launch("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", MESSAGE_NS, **message("allreduce", 1 << 20))
            job.wait()
            job.python(FORWARD_NS)
    assert "pipeline.bubble" not in found_in(*(job.built for job in jobs))


def test_a_stage_without_the_others_is_not_judged() -> None:
    assert "pipeline.bubble" not in found_in(pipeline(4, 4)[1].built)
    assert "pipeline.bubble" not in found_in(*(job.built for job in pipeline(4, 4)[:2]))


COMPUTES, SENDS, GETS = "csr"
HELD: Final = ("csr", "rcs")
"""What the first and the last stage do for each micro-batch when but one is on its way."""


def on_cpus(
    *does: str,
    works: float | tuple[float, float] = 0.5,
    cores: int = 8,
    at: str = "recv",
    seen: float | None = None,
    text: str = "dist.recv(g, src=1)",
    learns: str = "11",
    sums: bool = False,
    message_bytes: int = 1 << 16,
    answer: int = 1 << 16,
    goes_back: bool = True,
) -> dict[str, Finding]:
    """Two watched ranks on CPUs: what each does in a step, in order, and how much of it their threads work.

    ``seen`` is how often they were found waiting, and ``text`` and ``at`` where; ``learns`` says which have optimizers.
    What is sent has ``message_bytes``, what comes back ``answer``; when a rank computes it ``goes_back`` as well.
    """
    built = []
    for order, steps in zip(does, learns, strict=True):
        one = trace()
        for step in range(8):
            begin, part = 1_000_000 * step, 900_000 // len(order)
            one.step(step, at=begin, lasts=1_000_000)
            for place, what in enumerate(order):
                own = begin + place * part
                if what == COMPUTES:
                    one.operator("aten::mm", at=own, lasts=part // 2)
                    if goes_back:
                        engine = "autograd::engine::evaluate_function: AddmmBackward0"
                        one.operator(engine, at=own + part // 2, lasts=part // 2)
                else:
                    kind = "send" if what == SENDS else "recv"
                    record = message(kind, message_bytes if kind == "send" else answer)
                    one.operator(f"gloo:{kind}", at=own, lasts=part // 4, **record)
            if sums:
                one.annotation("gloo:all_reduce", at=begin + 910_000, lasts=20_000)
            if steps == "1":
                one.annotation("Optimizer.step#SGD.step", at=begin + 940_000, lasts=20_000)
        built.append(one)
    runs = []
    for rank, share in enumerate(works if isinstance(works, tuple) else (works, works)):
        found_waiting = 1 - share if seen is None else seen
        where = [line(found_waiting, text, leaf=f"torch.distributed.distributed_c10d:{at}", at=82)]
        runs.append(run(rank=rank, on_cpu_share=share, places=where))
    found = diagnose(case_of(*built, facts=RunFacts(cores=cores, threads=1, processes=2), runs=runs), RULES)
    return {finding.id: finding for finding in found.findings if finding.severity != "info"}


def each(order: str, tensors: int) -> str:
    """The same with several tensors for each message."""
    return order.replace(SENDS, SENDS * tensors).replace(GETS, GETS * tensors)


@pytest.mark.parametrize("tensors", [1, 3])
def test_stages_that_wait_for_each_micro_batch_are_worth_what_filling_the_schedule_brings(tensors: int) -> None:
    """Of eight micro-batches one is computed at a time, by two stages: sixteen times, where nine would do."""
    finding = on_cpus(*(each(order, tensors) * 8 for order in HELD))["pipeline.bubble"]
    is_worth(finding, 16 / 9, within=0.02)
    assert "come back before the next one" in finding.title
    assert finding.remedy is not None
    assert "1F1B" in finding.remedy.text
    assert [one.line for one in finding.code] == [82]
    assert finding.scope.ranks == [0, 1]
    assert finding.gain is not None
    assert finding.gain.floor <= 1.3  # of what the formula says half may stay


def test_messages_that_are_waited_for_later_are_waited_for() -> None:
    job = (order * 8 for order in HELD)
    is_worth(on_cpus(*job, at="wait", text="work.wait()")["pipeline.bubble"], 16 / 9, within=0.02)


@pytest.mark.parametrize(
    ("cores", "least"), [pytest.param(8, 0.4, id="one after another"), pytest.param(2, 1.4 / 2, id="on cores of both")]
)
def test_messages_are_at_best_on_their_way_beside_the_work(cores: int, least: float) -> None:
    """Each stage works for 30 % of a step, and for 40 none does. A message takes a core at both of its ends."""
    finding = on_cpus(*(order * 8 for order in HELD), works=0.3, cores=cores)["pipeline.bubble"]
    is_worth(finding, 1 / least, within=0.02)
    filled = 0.3 * 9 / 8
    assert finding.gain is not None
    assert finding.gain.floor <= 1 / (filled + 0.4)
    assert finding.gain.ceiling >= 1 / filled


def test_one_micro_batch_alone_is_worth_what_four_bring() -> None:
    finding = on_cpus(*HELD)["pipeline.bubble"]
    is_worth(finding, 2 / (5 / 4), within=0.02)
    assert "before the next one" not in finding.title


GPIPE: Final = ("cs" * 4 + "rc" * 4, "rc" * 4 + "cs" * 4)
AHEAD: Final = ("cs" * 2 + "rcs" * 6 + "rc" * 2, "rcs" * 8)


@pytest.mark.parametrize(
    ("does", "about"),
    [
        pytest.param([order * 8 for order in HELD], {"works": 0.6}, id="both work at once"),
        pytest.param([order * 8 for order in HELD], {"works": 0.09}, id="messages are on their way all the time"),
        pytest.param([order * 8 for order in HELD], {"works": (0.85, 0.1)}, id="one has nearly all of the work"),
        pytest.param(["csrcscsrr" * 4, "rcsrcrcss" * 4], {}, id="two on their way now and then"),
        pytest.param(["csr" * 7 + "cs", "rcs" * 7 + "rc"], {}, id="no answer to the last one"),
        pytest.param([order * 8 for order in HELD], {"at": "all_reduce"}, id="it waits for sums"),
        pytest.param(
            [order * 8 for order in HELD], {"at": "wait", "text": "work.wait()", "sums": True}, id="perhaps for sums"
        ),
        pytest.param([order * 8 for order in HELD], {"learns": "10"}, id="a server of parameters"),
        pytest.param([order * 8 for order in HELD], {"answer": 8}, id="tokens that the next pass is given"),
        pytest.param([order * 8 for order in HELD], {"answer": -2, "message_bytes": -2}, id="sizes are not known"),
        pytest.param(["csrcssr" * 4, "rcsrcrs" * 4], {}, id="more is sent now and then"),
        pytest.param([order * 8 for order in HELD], {"goes_back": False}, id="it serves"),
        pytest.param(GPIPE, {}, id="all on their way, over a slow link"),
        pytest.param(AHEAD, {}, id="two on their way, over a slow link"),
        pytest.param([each(order, 2) for order in GPIPE], {"works": 0.7}, id="two tensors for each micro-batch"),
        pytest.param(["csr" * 6] * 2, {}, id="a ring of two, both send first"),
        pytest.param(["csr" * 6, "crs" * 6], {}, id="a ring of two, one gets first"),
    ],
)
def test_schedules_that_are_filled_and_ranks_that_exchange_are_none(does: list[str], about: dict[str, Any]) -> None:
    found = on_cpus(*does, **about)
    assert "pipeline.bubble" not in found
    assert "communication.straggler" not in found


def test_work_between_messages_is_not_taken_for_waiting() -> None:
    """Lines that wait are counted as far as the thread is off its core."""
    assert "pipeline.bubble" not in on_cpus(*(order * 8 for order in HELD), works=0.95, seen=0.5)
