"""host.sync: a wait after which the device runs dry fires it, however the call is named;
a wait that costs nothing does not.
"""

from __future__ import annotations

from contextlib import ExitStack, nullcontext
from typing import Final

import pytest
from tests.diagnosis.cases import case_of, found_in, told_of
from tests.diagnosis.jobs import GAP_NS, Job, is_worth

from whystall.diagnosis.rules.host import sync
from whystall.testing import trace

PRODUCT_NS: Final = 400_000
LATER: Final = 12  # operators that the host dispatches after it has waited


def read(job: Job, *, call: str, operator: str) -> None:
    """A value is read: it is copied behind all that was launched, and the host waits for it."""
    with job.inside(operator), job.inside("aten::_local_scalar_dense"):
        job.launch("Memcpy DtoH (Device -> Pinned)", 2_000, call="MemcpyAsync", category="gpu_memcpy")
        until = job.busy_until[7] + 2_000
        job.built.runtime(f"{job.api}{call}", at=job.at, lasts=until - job.at)
        job.at = until


def reading(
    *, api: str = "cuda", call: str = "StreamSynchronize", operator: str = "aten::item", later: int = LATER
) -> Job:
    """Eight steps of two products; between them a value is read, and operators run that launch nothing."""
    job = Job(api=api)
    for _ in job.steps(8):
        job.operator("aten::mm", "gemm", PRODUCT_NS)
        read(job, call=call, operator=operator)
        for _ in range(later):
            job.operator("aten::view")
        job.operator("aten::mm", "gemm", PRODUCT_NS)
    return job


@pytest.mark.parametrize(
    ("api", "call", "operator"),
    [
        ("cuda", "StreamSynchronize", "aten::item"),
        ("cuda", "EventSynchronize", "aten::is_nonzero"),
        ("cuda", "StreamSynchronize_ptsz", "aten::nonzero"),
        ("hip", "StreamSynchronize", "aten::item"),
        ("hip", "DeviceSynchronize", "aten::masked_select"),
    ],
)
def test_a_wait_is_worth_the_gap_after_it(api: str, call: str, operator: str) -> None:
    """Without it the host runs ahead, and the device has nothing but its kernels and the copy."""
    job = reading(api=api, call=call, operator=operator)
    finding = found_in(job.built)["host.sync"]
    is_worth(finding, job.step_ns / (2 * PRODUCT_NS + 2_000 + 3 * GAP_NS))
    assert finding.evidence[0].value == pytest.approx(1, abs=0.2)


def side_by_side(*, halves: tuple[tuple[int, int], ...] = ((600_000, 200_000), (200_000, 600_000))) -> Job:
    """Steps of two halves, each ended by a wait of the host.

    Products and exchanges run on streams of their own; one waits for another, and never for the last of the others.
    """
    job = Job()
    for _ in job.steps(8):
        for product_ns, exchange_ns in halves:
            kernels = [("gemm", product_ns, 7), ("exchange", exchange_ns, 20)]
            for name, lasts, stream in sorted(kernels, key=lambda kernel: -kernel[1]) * 4:
                job.call("StreamWaitEvent", 1_000)
                job.launch(name, lasts, stream=stream)
            job.wait()
    return job


def test_streams_that_were_seen_side_by_side_share_one_device() -> None:
    """Without the wait they might overlap more: whether the device has room for that no recording shows."""
    job = side_by_side()
    found = told_of(job.built).get("host.sync")
    busy = 4 * 800_000 * 2 - 4 * 200_000 * 2
    assert found is None or found.gain is None or found.gain.expected <= job.step_ns / busy


def test_a_long_wait_with_a_short_gap_after_it_costs_nothing() -> None:
    """400 us of waiting, and 20 us until the next kernel runs: what counts is the gap (reference: causes.md)."""
    job = reading(later=0)
    kernels = 2 * PRODUCT_NS + 2_000
    assert job.step_ns / kernels < 1.06  # what is left to gain, at the very most
    shorter = Job()
    for _ in shorter.steps(8):
        shorter.operator("aten::mm", "gemm", 4 * PRODUCT_NS)
        read(shorter, call="StreamSynchronize", operator="aten::item")
    assert "host.sync" not in found_in(shorter.built)


def test_a_loop_without_waits_has_none() -> None:
    job = Job()
    for _ in job.steps(8):
        for _ in range(4):
            job.operator("aten::mm", "gemm", PRODUCT_NS)
    assert "host.sync" not in told_of(job.built)


def test_a_blocking_copy_counts_as_a_wait() -> None:
    built = trace()
    for number in range(5):
        at = number * 3_000_000
        built.step(number, at=at, lasts=3_000_000)
        built.operator("aten::mm", at=at, lasts=20_000)
        built.launch("gemm", at=at + 5_000, call_lasts=5_000, runs_at=at + 12_000, lasts=1_000_000)
        built.operator("aten::_to_copy", at=at + 25_000, lasts=1_100_000)
        built.launch(
            "Memcpy DtoH (Device -> Pageable)",
            at=at + 30_000,
            call="cudaMemcpyAsync",
            call_lasts=1_090_000,
            runs_at=at + 1_012_000,
            lasts=100_000,
            category="gpu_memcpy",
        )
    case = case_of(built)
    [found] = list(sync.in_trace(case))
    values = {one.what: one.value for one in found.evidence}
    assert values["spent in them"] == pytest.approx(1_077_000, rel=0.02)
    assert values["calls in which the host waits for the device"] == 1
    assert values["called by"] == "aten::_to_copy"


@pytest.mark.parametrize("operator", ["aten::item", ""])
def test_reads_that_find_the_device_idle_cost_their_own_time(operator: str) -> None:
    """A hundred reads or waits a step of a host that is slower than its device: none waits, and all of them go."""
    job = Job()
    for _ in job.steps(8):
        for _ in range(100):
            job.operator("aten::add", "gemm", 3_000)
            job.python(10_000)
            with job.inside(operator) if operator else nullcontext():
                job.call("StreamSynchronize", 8_000)
    finding = found_in(job.built)["host.sync"]
    own = 10_000 if operator else 8_000
    is_worth(finding, (20_000 + own) / 20_000, within=0.05)


def waiting(
    *operators: str,
    frames: tuple[str, ...] = (),
    copy: str = "",
    waits: int = 3,
    mark: str = "",
) -> Job:
    """Eight steps that wait in nested operators and frames, each time before the device runs dry."""
    job = Job()
    for _ in job.steps(8):
        begin = job.at
        for _ in range(waits):
            job.operator("aten::mm", "gemm", PRODUCT_NS)
            since = job.at
            with ExitStack() as around:
                for name in operators:
                    around.enter_context(job.inside(name))
                if copy:
                    job.launch(copy, 2_000, call="MemcpyAsync", category="gpu_memcpy")
                until = job.busy_until[7] + 2_000
                job.call("StreamSynchronize", until - job.at)
            for depth, frame in enumerate(frames):
                job.built.python(frame, at=since - 20 + depth, lasts=job.at - since + 40 - 2 * depth)
            for _ in range(LATER):
                job.operator("aten::view")
        if mark:
            job.built.annotation(mark, at=begin, lasts=job.at - begin)
    return job


SCALER: Final = ("train.py(7): main", "torch/amp/grad_scaler.py(457): step")
ITEM: Final = ("aten::item", "aten::_local_scalar_dense")


@pytest.mark.parametrize(
    ("operators", "frames", "copy", "kind"),
    [
        (ITEM, SCALER, "", "scaler"),
        (ITEM, ("train.py(7): main", "torch/cuda/amp/grad_scaler.py(300): _maybe_opt_step"), "", "scaler"),
        (("aten::index", "aten::nonzero"), ("nn.Module: SyncBatchNorm_3",), "", "norms"),
        (("SyncBatchNorm", "aten::index", "aten::nonzero"), (), "", "norms"),
        (
            ("aten::is_nonzero", *ITEM),
            ("a.py(1): f", "torch/nn/utils/clip_grad.py(180): clip_grad_norm_"),
            "",
            "clipped",
        ),
        (("aten::is_nonzero", *ITEM), ("transformers/trainer.py(2500): _inner_training_loop",), "", "filtered"),
        (ITEM, ("a.py(1): f", "torchmetrics/metric.py(300): forward"), "", "metrics"),
        (("aten::index", "aten::nonzero"), ("a.py(1): f",), "", "shapes"),
        (("aten::nonzero",), (), "", "shapes"),
        (("aten::_unique2",), (), "", "shapes"),
        (("aten::repeat_interleave",), (), "", "shapes"),
        (("aten::is_nonzero", *ITEM), (), "", "branches"),
        (("aten::to", "aten::_to_copy", "aten::copy_"), (), "Memcpy DtoH (Device -> Pageable)", "brought"),
        (("aten::to", "aten::_to_copy", "aten::copy_"), (), "CopyDeviceToHost", "brought"),
        (("aten::to", "aten::_to_copy", "aten::copy_"), (), "CopyHostToDevice", "uploaded"),
        (("aten::_grouped_mm", "aten::to", "aten::copy_"), (), "Memcpy DtoH (Device -> Pageable)", "within"),
        (("lib::losses", "aten::copy_"), (), "CopyDeviceToHost", "within"),
        (("lib::losses", "aten::copy_"), (), "CopyHostToDevice", "uploaded"),
        (("MyFunction", "aten::copy_"), (), "CopyDeviceToHost", "brought"),
        ((), ("a.py(1): f",), "", "asked"),
        ((), ("a.py(1): f", "torch/distributed/distributed_c10d.py(4800): barrier"), "", "barrier"),
    ],
)
def test_a_remedy_fits_the_operator_and_the_library_that_wait(
    operators: tuple[str, ...], frames: tuple[str, ...], copy: str, kind: str
) -> None:
    """Without stacks the operators decide."""
    finding = found_in(waiting(*operators, frames=frames, copy=copy).built)["host.sync"]
    assert finding.remedy == sync.CAUSE.remedies[kind]


@pytest.mark.parametrize(
    ("mark", "copy", "kind"),
    [
        ("## sparse_data_dist ##", "Memcpy DtoH (Device -> Pageable)", "splits"),
        ("KJTAllToAll.wait", "CopyDeviceToHost", "splits"),
        ("## sparse_data_dist ##", "CopyHostToDevice", "uploaded"),
        ("## metrics:publish ##", "CopyDeviceToHost", "brought"),
    ],
)
def test_sizes_that_an_exchange_needs_are_not_to_be_read_later(mark: str, copy: str, kind: str) -> None:
    job = waiting("aten::to", "aten::_to_copy", "aten::copy_", copy=copy, mark=mark)
    assert found_in(job.built)["host.sync"].remedy == sync.CAUSE.remedies[kind]


@pytest.mark.parametrize(("after", "kind"), [("c10d::barrier", "barrier"), ("c10d::allreduce_", "asked")])
def test_a_wait_behind_a_barrier_is_the_barriers(after: str, kind: str) -> None:
    """NCCL's barrier is a small all-reduce; its work waits for the stream once the operator has returned."""
    job = Job()
    for _ in job.steps(8):
        for _ in range(3):
            job.operator("aten::mm", "gemm", PRODUCT_NS)
            job.operator(after, "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 10_000)
            job.call("StreamSynchronize", job.busy_until[7] + 2_000 - job.at)
            for _ in range(LATER):
                job.operator("aten::view")
    finding = found_in(job.built)["host.sync"]
    assert finding.remedy == sync.CAUSE.remedies[kind]


def test_the_operator_that_reads_on_the_host_is_named() -> None:
    built = waiting("aten::_grouped_mm", "aten::to", "aten::copy_", copy="Memcpy DtoH (Device -> Pageable)").built
    assert found_in(built)["host.sync"].title.endswith(": aten::_grouped_mm reads on the host before it goes on")


@pytest.mark.parametrize("frames", [(), ("train.py(7): main",), (*SCALER, "hooks.py(9): report")])
def test_a_value_that_the_users_own_line_reads_keeps_the_general_remedy(frames: tuple[str, ...]) -> None:
    """A library around a function of the user's is not what reads."""
    finding = found_in(waiting(*ITEM, frames=frames, mark="Optimizer.step#SGD.step").built)["host.sync"]
    assert finding.remedy is not None
    assert finding.remedy not in sync.CAUSE.remedies.values() or finding.remedy == sync.CAUSE.remedies["when_inference"]


def test_a_server_that_waits_keeps_the_remedy_of_servers() -> None:
    """Its engine decides when it waits."""
    job = waiting("aten::index", "aten::nonzero", mark="execute_context_1(8192)_generation_0(0)")
    found = told_of(job.built)
    assert "host.sync" not in found or found["host.sync"].remedy in {None, sync.CAUSE.remedies["when_serving"]}


def test_a_remedy_needs_most_of_the_idle_time() -> None:
    """Three kinds of waits that are alike: the general remedy speaks of all."""
    job = Job()
    for _ in job.steps(8):
        for operator in ("aten::item", "aten::is_nonzero", "aten::nonzero"):
            job.operator("aten::mm", "gemm", PRODUCT_NS)
            read_in(job, operator)
    finding = found_in(job.built)["host.sync"]
    assert finding.remedy is not None
    assert finding.remedy == sync.CAUSE.remedies["when_inference"]
    [kinds] = [row.value for row in finding.evidence if row.what == "idle time around them, by kind"]
    assert sorted(str(kinds).split(", ")) == [
        "single values that are read (33%)",
        "sizes that depend on values (33%)",
        "truth values of tensors (33%)",
    ]


def read_in(job: Job, operator: str) -> None:
    """A wait in an operator, after which the device runs dry."""
    with job.inside(operator):
        job.call("StreamSynchronize", job.busy_until[7] + 2_000 - job.at)
    for _ in range(LATER):
        job.operator("aten::view")


def test_a_rank_with_stacks_gives_the_lines_and_the_remedy_of_all() -> None:
    """Stacks are recorded on one rank, and another waits longer."""
    jobs = waiting(*ITEM, frames=SCALER), waiting(*ITEM, waits=4)
    finding = found_in(*(job.built for job in jobs))["host.sync"]
    assert finding.scope.ranks == [0, 1]
    assert [(place.file, place.line) for place in finding.code] == [("train.py", 7)]
    assert finding.remedy == sync.CAUSE.remedies["scaler"]


@pytest.mark.parametrize(("reads", "looped"), [(1, False), (24, True)])
def test_many_reads_are_those_of_a_loop(reads: int, *, looped: bool) -> None:
    job = Job()
    for _ in job.steps(8):
        job.operator("aten::mm", "gemm", PRODUCT_NS)
        for _ in range(reads):
            job.operator("aten::mul", "elementwise", 5_000)
            read(job, call="StreamSynchronize", operator="aten::item")
            for _ in range(LATER):
                job.operator("aten::view")
        job.operator("aten::mm", "gemm", PRODUCT_NS)
    finding = found_in(job.built)["host.sync"]
    assert finding.remedy is not None
    assert ("torch.stack" in (finding.remedy.patch or "")) == looped


@pytest.mark.parametrize("count", [3, 5, 9])
def test_the_wait_at_the_end_of_the_last_step_counts_as_those_of_the_others(count: int) -> None:
    """Nothing is launched behind it, as in any recording whose steps end with the value of the loss."""
    job = Job()
    for _ in job.steps(count):
        job.launch("gemm", 5_000_000)
        begin = job.at
        job.call("StreamSynchronize", job.busy_until[7] - job.at)
        job.built.operator("aten::_local_scalar_dense", at=begin, lasts=job.at - begin)
    calls, spent, *_ = told_of(job.built)["host.sync"].evidence
    assert calls.value == 1
    assert spent.value == pytest.approx(5_000_000, rel=0.01)


def looping(*, waits: bool, room: int, steps: int = 6) -> tuple[Job, float]:
    """Two thousand small kernels, 10 us of the host for each, and ten of 3 ms; a launch waits for room in its queue."""
    job, ends = Job(), [0]
    begins = []
    for _ in job.steps(steps):
        begins.append(job.at)
        for lasts in [1_000] * 2_000 + [3_000_000] * 10:
            if len(ends) > room:
                job.at = max(job.at, ends[-room])
            job.launch("small" if lasts == 1_000 else "gemm", lasts)
            ends.append(job.busy_until[7])
            job.at += 6_000
        if waits:
            begin = job.at
            job.call("StreamSynchronize", job.busy_until[7] - job.at)
            job.built.operator("aten::_local_scalar_dense", at=begin, lasts=job.at - begin)
    return job, (begins[-1] - begins[2]) / (steps - 3)


def test_without_waits_the_host_is_no_further_ahead_than_its_launches_find_room() -> None:
    """CUDA's queues take some 1,022 launches: half of the loop's next round is launched while the device works."""
    recorded, step = looping(waits=True, room=1_022)
    _, limited = looping(waits=False, room=1_022)
    _, unlimited = looping(waits=False, room=1_000_000)
    found = told_of(recorded.built)["host.sync"]
    assert found.gain is not None
    assert step / unlimited > 1.5
    assert found.gain.expected == pytest.approx(step / limited, rel=0.03)


@pytest.mark.parametrize(("mark", "told"), [("forward", True), ("CUDAGraphNode.record (dynamo_timed)", False)])
def test_waits_of_torchs_compiler_as_it_records_a_graph_are_none_of_the_programs(mark: str, told: bool) -> None:
    job = Job()
    for _ in job.steps(8):
        for _ in range(4):
            job.operator("aten::mm", "gemm", 300_000)
        with job.marked(mark):
            job.wait()
            for _ in range(20):
                job.operator("aten::view")
        for _ in range(4):
            job.operator("aten::mm", "gemm", 300_000)
    assert ("host.sync" in told_of(job.built)) == told
