"""communication.redundant-sync: gradients reduced in every pass before one optimizer step fire it;
needed reductions do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pytest
from tests.diagnosis.cases import case_of, found_in, run
from tests.diagnosis.jobs import A100, Job, is_worth, message, shaped

from whystall.diagnosis.diagnose import diagnose
from whystall.diagnosis.rules import RULES
from whystall.testing import TraceBuilder, trace

GEMM_NS: Final = 500_000
REDUCE_NS: Final = 400_000
MIB: Final = 1 << 20
NCCL: Final = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"


def copies(built: TraceBuilder, at: int, name: str, runs_at: int, lasts: int) -> int:
    """A copy of gradients into or out of a bucket; when it ends."""
    built.operator(f"torch.distributed.ddp.reducer::{name}", at=at, lasts=5_000)
    built.launch("vectorized_elementwise_kernel", at=at + 500, call_lasts=4_000, runs_at=runs_at, lasts=lasts)
    return runs_at + lasts


def passes(
    step: Sequence[Sequence[int]],
    *,
    optimizer_after: Sequence[int] = (-1,),
    kernel: str = NCCL,
    api: str = "cuda",
    copy_ns: int = 0,
) -> TraceBuilder:
    """Eight steps of backward passes; each pass reduces messages of some MiB, for which the host waits."""
    built = trace()
    at = 0
    for number in range(8):
        begin = at
        for index, sizes in enumerate(step):
            built.annotation("DistributedDataParallel.forward", at=at, lasts=20_000)
            built.operator("aten::mm", at=at + 2_000, lasts=10_000)
            call = f"{api}LaunchKernel"
            built.launch("gemm", at=at + 5_000, call=call, call_lasts=4_000, runs_at=at + 12_000, lasts=GEMM_NS)
            runs = at + 12_000 + GEMM_NS
            if copy_ns:
                runs = copies(built, at + 24_000, "mul_out", runs, copy_ns)
            for place, mib in enumerate(sizes):
                built.launch(
                    kernel,
                    at=at + 30_000 + 8_000 * place,
                    call=call,
                    call_lasts=4_000,
                    runs_at=runs,
                    lasts=REDUCE_NS,
                    **message("allreduce", mib * MIB),
                )
                runs += REDUCE_NS
            if copy_ns:
                runs = copies(built, at + 80_000, "copy_bucket_to_grad", runs, copy_ns)
            built.runtime(f"{api}DeviceSynchronize", at=at + 100_000, lasts=runs - at - 98_000)
            at = runs + 10_000
            if index in optimizer_after or index == len(step) + min(optimizer_after):
                built.annotation("Optimizer.step#AdamW.step", at=at, lasts=20_000)
                at += 25_000
        built.step(number, at=begin, lasts=at - begin)
    return built


@pytest.mark.parametrize(
    ("ranks", "kernel", "api"),
    [
        (1, NCCL, "cuda"),
        (2, NCCL, "cuda"),
        (1, "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", "hip"),
        (1, "ncclKernel_AllReduce_RING_LL_Sum_half(ncclWorkElem)", "cuda"),
    ],
)
def test_gradients_that_are_reduced_in_every_pass(ranks: int, kernel: str, api: str) -> None:
    """Of four passes the last one alone needs its two reductions."""
    finding = found_in(*[passes([[24, 8]] * 4, kernel=kernel, api=api)] * ranks)["communication.redundant-sync"]
    assert finding.gain is not None
    whole = 4 * (GEMM_NS + 2 * REDUCE_NS + 22_000)
    truth = whole / (whole - 6 * REDUCE_NS)
    assert finding.gain.floor <= truth <= finding.gain.ceiling
    assert finding.gain.expected == pytest.approx(truth, rel=0.03)
    assert [fact.value for fact in finding.evidence] == [4, 6, 6 * REDUCE_NS]


def test_copies_into_the_buckets_of_needless_reductions_go_with_them() -> None:
    copy_ns = 400_000
    finding = found_in(passes([[24, 8]] * 4, copy_ns=copy_ns))["communication.redundant-sync"]
    assert finding.gain is not None
    whole = 4 * (GEMM_NS + 2 * REDUCE_NS + 2 * copy_ns + 22_000)
    truth = whole / (whole - 6 * (REDUCE_NS + copy_ns))
    assert finding.gain.expected == pytest.approx(truth, rel=0.03)


@pytest.mark.parametrize(
    ("step", "optimizer_after"),
    [
        pytest.param([[], [], [], [24, 8]], (-1,), id="no_sync"),
        pytest.param([[24, 8]], (-1,), id="one-pass"),
        pytest.param([[24, 8], [16]], (-1,), id="two-models"),
        pytest.param([[24, 8], [24, 8]], (0, 1), id="a-step-after-each"),
        pytest.param([[]] * 4, (-1,), id="one-rank"),
    ],
)
def test_reductions_that_are_needed(step: list[list[int]], optimizer_after: tuple[int, ...]) -> None:
    assert "communication.redundant-sync" not in found_in(passes(step, optimizer_after=optimizer_after))


WEIGHT: Final = [1024, 4096]


def averaged(*reduced: int, steps: int = 8, last_alone: bool = False, models: int = 1) -> TraceBuilder:
    """Steps of four passes without a wrapper, each of which sums ``reduced`` bytes after its backward pass.

    A pass multiplies by one weight, for whose gradient autograd takes a thread of its own. Of several ``models`` each
    pass is another's, and so are its gradients.
    """
    built, at = trace(), 0
    for number in range(steps):
        begin = at
        for index in range(4):
            built.operator("aten::mm", at=at, lasts=10_000, **shaped([2048, 1024], WEIGHT))
            built.launch("gemm", at=at + 2_000, call_lasts=4_000, runs_at=at + 12_000, lasts=GEMM_NS)
            engine = "autograd::engine::evaluate_function: "
            for place, name in enumerate(("MmBackward0", "torch::autograd::AccumulateGrad")):
                inner = at + 20_000 + 5_000 * place
                built.operator(engine + name, at=inner, lasts=4_000, thread=9)
            built.operator("torch::autograd::AccumulateGrad", at=at + 26_000, lasts=2_000, thread=9, **shaped(WEIGHT))
            if index >= models:
                built.operator("aten::add_", at=at + 26_500, lasts=1_000, thread=9, **shaped(WEIGHT, WEIGHT))
            runs = at + 12_000 + GEMM_NS
            for place, size in enumerate(reduced if index == 3 or not last_alone else ()):
                told = {"runs_at": runs, "lasts": REDUCE_NS, **message("allreduce", size)}
                built.launch(NCCL, at=at + 30_000 + 8_000 * place, call_lasts=4_000, **told)
                runs += REDUCE_NS
            built.runtime("cudaDeviceSynchronize", at=at + 100_000, lasts=runs - at - 98_000)
            at = runs + 10_000
        built.annotation("Optimizer.step#AdamW.step", at=at, lasts=20_000)
        at += 25_000
        built.step(number, at=begin, lasts=at - begin)
    return built


@pytest.mark.parametrize("sent", [(8 * MIB,), (16 * MIB,), (6 * MIB, 2 * MIB)], ids=["halves", "floats", "in-two"])
def test_gradients_that_the_job_averages_itself_after_every_pass(sent: tuple[int, ...]) -> None:
    """4 Mi gradients as halves or as floats; of four averages the last one alone is needed."""
    finding = found_in(averaged(*sent))["communication.redundant-sync"]
    assert finding.gain is not None
    whole = 4 * (GEMM_NS + len(sent) * REDUCE_NS + 22_000) + 25_000
    assert finding.gain.expected == pytest.approx(whole / (whole - 3 * len(sent) * REDUCE_NS), rel=0.03)
    assert finding.remedy is not None
    assert "average_gradients" in str(finding.remedy.patch)


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(averaged(16 * MIB, last_alone=True), id="once-a-step"),
        pytest.param(averaged(5 * MIB), id="not-of-the-gradients"),
        pytest.param(averaged(16 * MIB, models=4), id="of-four-models"),
        pytest.param(averaged(4), id="a-loss"),
    ],
)
def test_sums_in_every_pass_that_are_no_gradients(job: TraceBuilder) -> None:
    assert "communication.redundant-sync" not in found_in(job)


JUDGE: Final = 28
PAINTER: Final = 4


def turns(
    *updated: Sequence[int],
    reduced: Sequence[Sequence[int]] = ((JUDGE,), (JUDGE, PAINTER)),
    mark: str = "DistributedDataParallel.forward",
    cleared: str = "to none",
    steps: int = 8,
) -> TraceBuilder:
    """Some steps in which two networks learn in turn: what is reduced in each turn, and what its optimizer updates.

    All in MiB of numbers of four bytes. Gradients are ``cleared`` before each turn, ``"at first"`` before the first of
    a step alone: more is added to them in the others.
    """
    built, at = trace(), 0
    for number in range(steps):
        begin = at
        for mine, own in zip(reduced, updated, strict=True):
            built.annotation(mark, at=at, lasts=20_000)
            built.operator("aten::mm", at=at + 2_000, lasts=10_000)
            added = cleared == "to zero" or (cleared == "at first" and at > begin)
            for place, mib in enumerate(mine):
                sizes, then = [mib * MIB // 4], at + 22_000 + 2_000 * place
                if cleared == "to zero":
                    built.operator("aten::zero_", at=at - 4_000 + 1_000 * place, lasts=900, **shaped(sizes))
                built.operator("torch::autograd::AccumulateGrad", at=then, lasts=1_800, **shaped(sizes))
                if added:
                    built.operator("aten::add_", at=then + 400, lasts=1_000, **shaped(sizes, sizes))
            built.launch("gemm", at=at + 5_000, call_lasts=4_000, runs_at=at + 12_000, lasts=GEMM_NS)
            runs = at + 12_000 + GEMM_NS
            for place, mib in enumerate(mine):
                record = message("allreduce", mib * MIB)
                asked_at = at + 30_000 + 8_000 * place
                built.launch(NCCL, at=asked_at, call_lasts=4_000, runs_at=runs, lasts=REDUCE_NS, **record)
                runs += REDUCE_NS
            built.runtime("cudaDeviceSynchronize", at=at + 100_000, lasts=runs - at - 98_000)
            at = runs + 10_000
            built.annotation("Optimizer.step#SGD.step", at=at, lasts=20_000)
            for place, mib in enumerate(own):
                sizes = [mib * MIB // 4]
                built.operator("aten::add_", at=at + 1_000 + 2_000 * place, lasts=1_000, **shaped(sizes, sizes))
            at += 25_000
        built.step(number, at=begin, lasts=at - begin)
    return built


@pytest.mark.parametrize("painter", [PAINTER, JUDGE - 2, 2 * JUDGE])
def test_gradients_of_a_network_that_only_judges_are_used_by_nobody(painter: int) -> None:
    finding = found_in(turns([JUDGE], [painter], reduced=([JUDGE], [JUDGE, painter])))["communication.redundant-sync"]
    whole = 2 * (GEMM_NS + 47_000) + 3 * REDUCE_NS
    truth = whole / (whole - REDUCE_NS)
    assert finding.gain is not None
    assert finding.gain.floor <= truth <= finding.gain.ceiling
    assert finding.gain.expected == pytest.approx(truth, rel=0.03)
    assert "does not use" in finding.title
    assert finding.remedy is not None
    assert "requires_grad_(False)" in (finding.remedy.patch or "")


def test_gradients_may_be_set_to_zero() -> None:
    found = found_in(turns([JUDGE], [PAINTER], cleared="to zero"))
    assert "does not use" in found["communication.redundant-sync"].title


def test_a_judge_may_have_several_turns_for_each_of_the_other() -> None:
    job = turns(*[[JUDGE]] * 5, [PAINTER], reduced=[*[[JUDGE]] * 5, [JUDGE, PAINTER]])
    finding = found_in(job)["communication.redundant-sync"]
    whole = 6 * (GEMM_NS + 47_000) + 7 * REDUCE_NS
    is_worth(finding, whole / (whole - REDUCE_NS), within=0.03)


def test_networks_may_have_some_tensors_of_the_same_size() -> None:
    job = turns([JUDGE, 2], [PAINTER, 2], reduced=([JUDGE, 2], [JUDGE, 2, PAINTER, 2]))
    assert "does not use" in found_in(job)["communication.redundant-sync"].title


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(
            turns([JUDGE], [PAINTER], [JUDGE], [JUDGE], reduced=([JUDGE], [JUDGE, PAINTER], [JUDGE], [JUDGE]), steps=1),
            id="once: a recording begins or ends within a step",
        ),
        pytest.param(
            turns([JUDGE, PAINTER], [JUDGE, 2], reduced=([JUDGE, PAINTER], [JUDGE, PAINTER, 2])),
            id="most of what the first updates the second does as well",
        ),
        pytest.param(turns([JUDGE], [JUDGE, PAINTER]), id="both networks learn in the second turn"),
        pytest.param(turns([JUDGE], [PAINTER], reduced=([JUDGE], [PAINTER])), id="each its own"),
        pytest.param(
            turns([JUDGE], [PAINTER], [JUDGE], reduced=([JUDGE], [JUDGE, PAINTER], [])),
            id="two optimizers step with what one pass reduced",
        ),
        pytest.param(
            turns([PAINTER], [JUDGE], reduced=([JUDGE, PAINTER], [JUDGE]), cleared="at first"),
            id="more is added to them in the judge's turn",
        ),
        pytest.param(turns([], []), id="what optimizers update is not known"),
        pytest.param(turns([JUDGE], []), id="what the second one updates is not known"),
        pytest.param(turns([JUDGE] * 12, [JUDGE, PAINTER]), id="its optimizer reads it more often in its own turn"),
        pytest.param(turns([JUDGE], [PAINTER], mark="forward"), id="sums of activations, as nothing says replica"),
        pytest.param(turns([JUDGE], [JUDGE], reduced=([JUDGE], [JUDGE, JUDGE])), id="networks of equal sizes"),
        pytest.param(
            turns([JUDGE, JUDGE], [JUDGE, JUDGE], reduced=([JUDGE], [JUDGE, JUDGE])), id="one optimizer, two tasks"
        ),
    ],
)
def test_gradients_that_one_of_two_optimizers_uses(job: TraceBuilder) -> None:
    assert "communication.redundant-sync" not in found_in(job)


def on_hosts(micro_batches: int) -> list[TraceBuilder]:
    """Two ranks over gloo: eight steps of passes of 10 ms, of which each reduces for 4 ms, and an optimizer's step."""
    ranks = []
    for _ in range(2):
        built, at = trace(), 0
        for number in range(8):
            begin = at
            for _ in range(micro_batches):
                built.annotation("DistributedDataParallel.forward", at=at, lasts=20_000)
                built.operator("aten::mm", at=at, lasts=10_000_000)
                built.operator("gloo:all_reduce", at=at + 10_000_000, lasts=4_000_000, **message("all_reduce", MIB))
                at += 14_000_000
            built.annotation("Optimizer.step#AdamW.step", at=at, lasts=1_000_000)
            at += 1_000_000
            built.step(number, at=begin, lasts=at - begin)
        ranks.append(built)
    return ranks


def test_reducing_takes_cores_from_what_computes_beside_it() -> None:
    """By the recording 12 of 57 ms go away; the ranks of the whole run were off their cores for 40 % of the time."""
    runs = [run(rank=rank, on_cpu_share=0.6) for rank in range(2)]
    told = {one.id: one for one in diagnose(case_of(*on_hosts(4), runs=runs), RULES).findings}
    gain = told["communication.redundant-sync"].gain
    assert gain is not None
    assert gain.method.startswith("samples")
    off = 0.4 * 3 / 4
    assert gain.expected == pytest.approx(1 / (1 - 0.85 * off), rel=0.02)
    assert gain.floor <= 57 / 45
    assert gain.ceiling >= 1 / (1 - off)
    once = {one.id for one in diagnose(case_of(*on_hosts(1), runs=runs), RULES).findings}
    assert "communication.redundant-sync" not in once


def replicas(
    sent: Sequence[int], *, ddp: bool = True, every: int = 1, within_forward: bool = False, zero: bool = False
) -> tuple[list[TraceBuilder], float]:
    """Two ranks over gloo that reduce 12 MiB of gradients and then broadcast so many bytes; and a step without that."""
    ranks = []
    for _ in range(2):
        built, at = trace(), 0
        for number in range(8):
            begin = at
            sends = sent if number % every == 0 else ()
            lasts = 20_000_000 if within_forward else 20_000
            if ddp:
                built.annotation("DistributedDataParallel.forward", at=at, lasts=lasts)
            built.operator("aten::mm", at=at, lasts=10_000_000)
            for _ in range(2):
                record = message("all_reduce", 6 * MIB)
                built.operator("gloo:all_reduce", at=at + 10_000_000, lasts=2_000_000, **record)
                at += 2_000_000
            at += 10_000_000
            if not within_forward:
                of = "ZeroRedundancyOptimizer" if zero else "Adam"
                lasts = 1_000_000 + (len(sends) * 500_000 if zero else 0)
                built.annotation(f"Optimizer.step#{of}.step", at=at, lasts=lasts)
                at += 1_000_000
            for size in sends:
                built.operator("gloo:broadcast", at=at, lasts=500_000, **message("broadcast", size))
                at += 500_000
            built.step(number, at=begin, lasts=at - begin)
        ranks.append(built)
    return ranks, 15_000_000.0


WEIGHTS: Final = (5 * MIB, 4 * MIB, 3 * MIB)


@pytest.mark.parametrize("sent", [WEIGHTS, WEIGHTS * 3])
def test_weights_that_replicas_have_already(sent: Sequence[int]) -> None:
    """Weights alone, and with two moments of the optimizer."""
    ranks, without = replicas(sent)
    finding = found_in(*ranks)["communication.redundant-sync"]
    assert finding.title == "More is synchronised than needed: weights that the replicas have already"
    assert finding.gain is not None
    truth = (without + len(sent) * 500_000) / without
    assert finding.gain.floor <= truth <= finding.gain.ceiling
    assert finding.gain.expected == pytest.approx(truth, rel=0.03)
    assert [fact.value for fact in finding.evidence[:2]] == [len(sent) // 3, len(sent)]


def test_what_need_not_be_sent_is_no_matter_of_buckets() -> None:
    ranks, _ = replicas((256 << 10,) * 48)  # as many bytes as the gradients, in many messages
    found = found_in(*ranks)
    assert "communication.redundant-sync" in found
    assert "communication.small-messages" not in found


@pytest.mark.parametrize(
    "built",
    [
        pytest.param(replicas((7 * MIB,)), id="a batch that one rank reads"),
        pytest.param(replicas((8,) * 20), id="losses"),
        pytest.param(replicas(WEIGHTS, ddp=False), id="gradients reduced by hand, and nothing that keeps ranks alike"),
        pytest.param(replicas(WEIGHTS, every=4), id="now and then"),
        pytest.param(replicas(WEIGHTS, within_forward=True), id="buffers"),
        pytest.param(replicas(WEIGHTS, zero=True), id="weights of which each rank has stepped a part"),
        pytest.param(replicas(()), id="none"),
    ],
)
def test_broadcasts_that_are_wanted(built: tuple[list[TraceBuilder], float]) -> None:
    assert "communication.redundant-sync" not in found_in(*built[0])


def sharded(
    *,
    synced: Sequence[bool] = (True,) * 4,
    begins: str = "FSDP::root_pre_forward",
    mark: str = "FSDP::post_backward_reduce (blocks.0)",
    over_replicas: bool = False,
) -> TraceBuilder:
    """Eight steps of passes of FSDP2, whose layers also reduce something of their own; some reduce their gradients.

    In hybrid sharding a long sum ``over_replicas`` follows a reduce-scatter, which is then a tenth of it.
    """
    built = trace()
    at = 0
    for number in range(8):
        begin = at
        for reduces in synced:
            built.annotation(begins, at=at, lasts=2_000)
            built.operator("aten::mm", at=at + 2_000, lasts=10_000)
            built.launch("gemm", at=at + 5_000, call_lasts=4_000, runs_at=at + 12_000, lasts=GEMM_NS)
            runs = at + 12_000 + GEMM_NS
            own = message("_reduce_scatter_base", 4 * MIB)
            built.launch(NCCL, at=at + 20_000, call_lasts=4_000, runs_at=runs, lasts=REDUCE_NS, **own)
            runs += REDUCE_NS
            if reduces:
                built.annotation(mark, at=at + 30_000, lasts=20_000)
                gradients = message("_reduce_scatter_base", 24 * MIB)
                scatter_ns = REDUCE_NS // 10 if over_replicas else REDUCE_NS
                built.launch(NCCL, at=at + 35_000, call_lasts=4_000, runs_at=runs, lasts=scatter_ns, **gradients)
                runs += scatter_ns
                if over_replicas:
                    summed = message("allreduce", 12 * MIB)
                    built.launch(NCCL, at=at + 40_000, call_lasts=4_000, runs_at=runs, lasts=REDUCE_NS, **summed)
                    runs += REDUCE_NS
            built.runtime("cudaDeviceSynchronize", at=at + 100_000, lasts=runs - at - 98_000)
            at = runs + 10_000
        built.annotation("Optimizer.step#AdamW.step", at=at, lasts=20_000)
        at += 25_000
        built.step(number, at=begin, lasts=at - begin)
    return built


def test_sharded_gradients_that_are_reduced_in_every_pass() -> None:
    """Of four the last one alone needs to; what the layers send in their own passes (tensor parallelism) is needed."""
    finding = found_in(sharded())["communication.redundant-sync"]
    assert finding.gain is not None
    whole = 4 * (GEMM_NS + 2 * REDUCE_NS + 22_000)
    truth = whole / (whole - 3 * REDUCE_NS)
    assert finding.gain.floor <= truth <= finding.gain.ceiling
    assert finding.gain.expected == pytest.approx(truth, rel=0.03)
    assert finding.remedy is not None
    assert "set_requires_gradient_sync" in (finding.remedy.patch or "")


def test_in_hybrid_sharding_the_sums_over_replicas_are_left_out_and_gradients_stay_sharded() -> None:
    finding = found_in(sharded(over_replicas=True))["communication.redundant-sync"]
    assert finding.remedy is not None
    assert "set_requires_all_reduce" in (finding.remedy.patch or "")


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(sharded(synced=(False, False, False, True)), id="the last pass alone"),
        pytest.param(sharded(synced=(True,)), id="one pass"),
        pytest.param(sharded(mark="FSDP::all_gather (blocks.0)"), id="no gradients"),
        pytest.param(
            sharded(synced=(False, False, False, True), begins="DistributedDataParallel.forward"),
            id="what the layers of a model under DistributedDataParallel scatter",
        ),
    ],
)
def test_sharded_gradients_that_need_to_be_reduced(job: TraceBuilder) -> None:
    assert "communication.redundant-sync" not in found_in(job)


WITH_MEMORY: Final = {**A100, "totalGlobalMem": 80 << 30}


def gathering(
    *,
    again: bool = True,
    device: dict[str, Any] = WITH_MEMORY,
    megabytes: int = 64,
    mark: str = "FSDP::",
    scatters: Sequence[bool] = (),
) -> Job:
    """Eight steps of six layers whose parameters are gathered for the forward pass and (``again``) for the backward.

    ``scatters``: in which of the passes, if any, each layer also scatters sums.
    """
    job, gather = Job(device), message("_allgather_base", megabytes * MIB)
    for number in job.steps(8):
        for backward in (False, True):
            more: dict[str, Any] = {"Fwd thread id": 1, "Sequence number": number} if backward else {}
            for layer in range(6):
                if not backward or again:
                    with job.marked(f"{mark}{'pre_backward' if backward else 'pre_forward'} (layers.{layer})"):
                        job.python(5_000)
                        job.launch("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage)", 2_000_000, **gather)
                job.operator("aten::mm", "gemm", 3_000_000, **more)
                if backward in scatters:
                    job.launch(NCCL, 500_000, **message("_reduce_scatter_base", megabytes * MIB))
            if backward and mark == "DeepSpeed":
                job.operator("PreBackwardFunctionForModuleBackward", **more)
        job.wait()
    return job


def test_without_marks_the_sums_of_a_group_show_that_it_shares_parameters() -> None:
    job = gathering(mark="DeepSpeed", scatters=(True,))
    finding = found_in(job.built)["communication.redundant-sync"]
    alone = gathering(again=False, mark="DeepSpeed", scatters=(True,))
    is_worth(finding, job.step_ns / alone.step_ns, within=0.05)
    assert '"stage": 2' in str(finding.remedy)


def test_parameters_that_are_gathered_for_both_passes() -> None:
    job = gathering()
    finding = found_in(job.built)["communication.redundant-sync"]
    is_worth(finding, job.step_ns / gathering(again=False).step_ns, within=0.05)
    assert finding.remedy is not None
    assert "reshard_after_forward=False" in (finding.remedy.patch or "")
    assert next(one.value for one in finding.evidence if one.unit == "bytes") == 6 * 64 * MIB


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(gathering(again=False), id="kept"),
        pytest.param(gathering(megabytes=8 << 10), id="too large to be kept"),
        pytest.param(gathering(mark="sequence parallel "), id="of another kind"),
        pytest.param(gathering(mark="sequence parallel ", scatters=(False, True)), id="of activations"),
        pytest.param(gathering(mark="context parallel ", scatters=(True,)), id="of keys and values"),
        pytest.param(gathering(device=A100), id="of unknown memory"),
    ],
)
def test_parameters_that_must_be_gathered_twice(job: Job) -> None:
    assert "communication.redundant-sync" not in found_in(job.built)
