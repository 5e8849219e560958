"""What collectives hold a step up for, against steps that were built with known lengths."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.diagnosis.cases import case_of, diagnosed
from tests.diagnosis.jobs import Job, meet, message, together
from tests.diagnosis.test_many_ranks import GROUPED, uneven_experts

from whystall.diagnosis.blocking import blocking as found_by
from whystall.diagnosis.diagnose import diagnose
from whystall.diagnosis.finding import Blocking
from whystall.diagnosis.rules import RULES

COMPUTE_NS, TRANSFER_NS = 2_000_000, 800_000
LARGE = 64 << 20
REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
EXCHANGE = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


def of(rows: list[Blocking], collective: str | None) -> Blocking:
    (row,) = (row for row in rows if row.collective == collective)
    return row


def steps(*, stream: int, groups: str = "undefined", late: int = 0) -> list[Job]:
    """Two ranks that compute twice; the sum after the first time is in the way, or beside the second."""
    jobs = [Job(), Job()]
    for job in jobs:
        job.built.metadata["distributedInfo"] = {
            "rank": jobs.index(job),
            "world_size": 2,
            "pg_config": [{"pg_name": "0", "pg_desc": groups, "pg_size": 2, "ranks": [0, 1]}],
        }
    for _ in together(jobs, 10):
        for rank, job in enumerate(jobs):
            job.launch("gemm", COMPUTE_NS + late * rank)
        meet(jobs, REDUCE, TRANSFER_NS, stream=stream, **message("allreduce", LARGE))
        for job in jobs:
            job.launch("gemm", COMPUTE_NS)
            job.wait()
    return jobs


def blocking(jobs: list[Job]) -> list[Blocking]:
    found = found_by(case_of(*(job.built for job in jobs)))
    # As a report holds it: plain numbers.
    assert msgspec.json.decode(msgspec.json.encode(found), type=list[Blocking]) == found
    return found


def test_what_is_in_the_way_blocks_for_all_of_its_time() -> None:
    row = of(blocking(steps(stream=7)), "all_reduce")
    assert row.blocking_ns == pytest.approx(TRANSFER_NS, rel=0.02)
    assert row.transfer_ns == pytest.approx(TRANSFER_NS, rel=0.05)
    assert (row.calls_per_step, row.group_size) == (1.0, 2)


def test_collectives_of_a_step_before_the_recording_are_of_none_of_its_steps() -> None:
    """A device that is behind its host still runs a step whose launches were not recorded."""
    jobs = steps(stream=7)
    for job in jobs:
        for number in range(1, 8):
            job.built.kernel(REDUCE, at=-number * TRANSFER_NS, lasts=TRANSFER_NS // 2, stream=20)
    row = of(blocking(jobs), "all_reduce")
    assert row.calls_per_step == 1.0
    found = diagnose(case_of(*(job.built for job in jobs)), RULES).findings
    (told,) = (one for one in found if one.id == "communication.exposed")
    assert told.evidence[0].value == pytest.approx(TRANSFER_NS, rel=0.02)


def test_what_is_hidden_blocks_nothing() -> None:
    row = of(blocking(steps(stream=20)), "all_reduce")
    assert row.blocking_ns < 0.02 * TRANSFER_NS
    assert row.transfer_ns > 0.9 * TRANSFER_NS


def test_a_late_rank_is_no_transfer() -> None:
    """The others wait for 1 ms and the transfer takes 0.8: without transfers the rank is as late."""
    row = of(blocking(steps(stream=7, late=1_000_000)), "all_reduce")
    assert row.blocking_ns == pytest.approx(TRANSFER_NS, rel=0.02)
    assert row.transfer_ns == pytest.approx(TRANSFER_NS, rel=0.02)


@pytest.mark.parametrize(
    ("groups", "dimension"), [("mesh_tp", "tensor"), ("DATA_PARALLEL_GROUP", "data"), ("mesh_ep", "expert")]
)
def test_what_a_group_is_for_is_known_by_its_description(groups: str, dimension: str) -> None:
    assert of(blocking(steps(stream=7, groups=groups)), "all_reduce").dimension == dimension


def trains(*, forward: bool, size: int = LARGE) -> list[Blocking]:
    """A step of forward and backward, with a sum in one of them; nobody describes the group."""
    jobs = [Job(), Job()]

    def part(name: str, sequence: int, *, sums: bool, **more: Any) -> None:
        records = message("allreduce", size)
        for job in jobs:
            job.operator(name, "gemm", COMPUTE_NS, **{"Sequence number": sequence}, **more)
        if sums:
            begins = [job.at for job in jobs]
            meet(jobs, REDUCE, TRANSFER_NS, **records)
            for job, begin in zip(jobs, begins, strict=True):
                job.built.operator("record_param_comms", at=begin, lasts=job.at - begin)

    for number in together(jobs, 10):
        part("aten::mm", number, sums=forward)
        part("MmBackward0", number, sums=not forward, **{"Fwd thread id": 1})
        for job in jobs:
            job.wait()
    return blocking(jobs)


@pytest.mark.parametrize(("forward", "dimension"), [(True, "tensor"), (False, "data")])
def test_what_a_group_is_for_is_else_known_by_when_it_sums(forward: bool, dimension: str) -> None:
    assert of(trains(forward=forward), "all_reduce").dimension == dimension


def test_without_operators_nobody_knows_what_a_group_is_for() -> None:
    """The sums of a training job look the same as those of a served model whose layers are sliced."""
    assert of(blocking(steps(stream=7)), "all_reduce").dimension is None


def test_a_count_that_is_summed_tells_nothing() -> None:
    assert of(trains(forward=True, size=8), "all_reduce").dimension is None


def test_kinds_of_one_dimension_are_told_together_too() -> None:
    """Two transfers of one group that hide each other's wait: together they block for more than each alone."""
    jobs = [Job(), Job()]
    for job in jobs:
        job.built.metadata["distributedInfo"] = {
            "pg_config": [{"pg_name": "0", "pg_desc": "mesh_ep", "pg_size": 2, "ranks": [0, 1]}]
        }
    for _ in together(jobs, 10):
        for job in jobs:
            job.launch("gemm", COMPUTE_NS)
        meet(jobs, EXCHANGE, TRANSFER_NS, **message("all_to_all", LARGE))
        meet(jobs, REDUCE, TRANSFER_NS, **message("allreduce", LARGE))
        for job in jobs:
            job.wait()
    rows = blocking(jobs)
    assert {row.collective for row in rows} == {None, "all_reduce", "all_to_all"}
    assert of(rows, None).dimension == "expert"
    assert of(rows, None).blocking_ns == pytest.approx(2 * TRANSFER_NS, rel=0.02)
    assert rows[0].collective is None


def test_without_communication_there_is_nothing_to_tell() -> None:
    job = Job()
    for _ in job.steps(5):
        job.launch("gemm", COMPUTE_NS)
        job.wait()
    assert blocking([job]) == []


def test_where_it_fails_the_findings_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(case: object) -> list[Blocking]:
        raise ValueError(str(type(case)))

    monkeypatch.setattr("whystall.diagnosis.diagnose.blocking", fails)
    job = Job()
    for _ in job.steps(5):
        job.python(3 * COMPUTE_NS)
        job.launch("gemm", COMPUTE_NS)
        job.wait()
    found = diagnosed(job.built)
    assert found.findings
    assert found.blocking == []
    assert "the cost of communication could not be replayed" in found.failures[0]


@pytest.mark.parametrize(("kernel", "dimension"), [(GROUPED, "expert"), ("nvjet_tst_128x256_bz_TNT", None)])
def test_exchanges_are_of_experts_where_their_products_are(kernel: str, dimension: str | None) -> None:
    """Context parallelism exchanges heads in the same way: without products of experts nobody knows."""
    jobs, _ = uneven_experts(8, always=True)
    for job in jobs:
        for event in job.built.events:
            event["name"] = kernel if event["name"] == GROUPED else event["name"]
    assert {row.dimension for row in blocking(jobs)} == {dimension}


def test_kernels_that_send_tokens_to_experts_are_of_experts() -> None:
    """DeepEP has no records, and no groups."""
    job = Job()
    for _ in job.steps(5):
        job.launch("void deep_ep::internode::dispatch<false, 8, false, 8>(int4*, float*)", TRANSFER_NS)
        job.launch("gemm", COMPUTE_NS)
        job.launch("void deep_ep::internode::combine<false, 8, __nv_bfloat16>(int4*, float*)", TRANSFER_NS)
        job.wait()
    rows = blocking([job])
    assert {row.dimension for row in rows} == {"expert"}
    assert {row.collective for row in rows} == {"dispatch", "combine", None}
