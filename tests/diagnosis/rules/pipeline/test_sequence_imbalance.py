"""pipeline.sequence-imbalance: attention that grows with packed sequences fires it, in replicas and in pipelines;
slow devices, batches of other sizes, noise, layers of different windows and inference do not.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

import pytest
from tests.diagnosis.cases import found_in
from tests.diagnosis.jobs import GAP_NS, LATENCY_NS, Job, is_worth, meet, message, together

CAUSE: Final = "pipeline.sequence-imbalance"
NCCL: Final = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
EXCHANGE: Final = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
PRODUCT: Final = "nvjet_tst_128x256_64x4_1x2_h_bz_TNT"
FORWARD: Final = "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4>>"
BACKWARD: Final = "void flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<128, 64, 128, 8>>"
RANKS, STEPS, LAYERS = 4, 8, 3
MANY = 40  # of few ranks the steps differ more than the ranks, and few of them tell little
ATTENTION_NS: Final = 400_000
PRODUCT_NS: Final = 500_000

Length = Callable[[int, int], float]
"""By rank and step (or by micro-batch and step): the sum of squared lengths, of what even packing has."""


def packed(seed: int = 4) -> Length:
    """Documents of 64 to 8,192 tokens, cut and packed into batches of 8,192: what their squares add up to."""
    drawn = random.Random(seed)  # noqa: S311 - to be drawn alike each time
    squares: dict[tuple[int, int], float] = {}

    def length(who: int, step: int) -> float:
        if (who, step) not in squares:
            room, total = 8192, 0
            while room:
                document = min(room, round(2 ** drawn.uniform(6, 13)))
                total, room = total + document**2, room - document
            squares[who, step] = total / 8192**2 / 0.4
        return squares[who, step]

    return length


def replicas(
    forward: Length,
    backward: Length | None = None,
    *,
    products: Length = lambda _rank, _step: 1.0,
    ranks: int = RANKS,
    windows: tuple[float, ...] = (1.0,) * LAYERS,
    collective: str = "allreduce",
    noise: float = 0.004,
    steps: int = STEPS,
) -> list[Job]:
    """Replicas of a model of some layers that reduce their gradients; a backward pass takes twice its forward pass."""
    drawn = random.Random(5)  # noqa: S311 - to be drawn alike each time
    jobs = [Job() for _ in range(ranks)]
    for step in together(jobs, steps):
        for rank, job in enumerate(jobs):
            for kernel, times, length in ((FORWARD, 1, forward), (BACKWARD, 2, backward or forward)):
                for layer in range(LAYERS):
                    dense = PRODUCT_NS * products(rank, step) * drawn.gauss(1, noise)
                    job.launch(PRODUCT, round(times * dense))
                    if not (kernel == BACKWARD and backward is none):
                        own = ATTENTION_NS * windows[layer] * length(rank, step) * drawn.gauss(1, noise)
                        job.launch(kernel, round(times * own))
        meet(jobs, NCCL, 100_000, **message(collective, 32 << 20, ranks=tuple(range(ranks))))
        for job in jobs:
            job.wait()
    return jobs


def none(_rank: int, _step: int) -> float:
    """No backward pass."""
    return 0.0


def even(_rank: int, _step: int) -> float:
    return 1.0


def evened(length: Length, who: int) -> Length:
    """What each has where the squares of a step are shared out evenly."""
    return lambda _who, step: sum(length(one, step) for one in range(who)) / who


def pipeline(stages: int, micro_batches: int, length: Length, steps: int = STEPS) -> list[Job]:
    """All micro-batches forward through the stages, then back in the same order; a stage is a product and attention."""
    drawn = random.Random(6)  # noqa: S311 - to be drawn alike each time
    jobs = [Job() for _ in range(stages)]
    for step in together(jobs, steps):
        sent = [0] * micro_batches
        for times, kernel in ((1, FORWARD), (2, BACKWARD)):
            order = list(range(stages))[:: 1 if times == 1 else -1]
            for before, stage, after in zip([None, *order], order, [*order[1:], None], strict=False):
                job = jobs[stage]
                for micro in range(micro_batches):
                    if before is not None:
                        runs = max(job.at + LATENCY_NS, job.busy_until.get(7, -GAP_NS) + GAP_NS)
                        record = message("recv", 1 << 20, ranks=(before, stage), group=f"p{before}{stage}")
                        job.launch(EXCHANGE, max(sent[micro] - runs, 10_000), **record)
                    job.launch(PRODUCT, round(times * PRODUCT_NS * drawn.gauss(1, 0.004)))
                    job.launch(kernel, round(times * 2 * ATTENTION_NS * length(micro, step) * drawn.gauss(1, 0.004)))
                    if after is not None:
                        record = message("send", 1 << 20, ranks=(stage, after), group=f"p{stage}{after}")
                        job.launch(EXCHANGE, 10_000, **record)
                    sent[micro] = job.busy_until[7]
        meet(jobs, NCCL, 10_000, **message("allreduce", 1 << 20, ranks=tuple(range(stages)), group="all"))
        for job in jobs:
            job.wait()
    return jobs


@pytest.mark.parametrize(("ranks", "steps"), [(2, MANY), (4, STEPS), (8, STEPS)])
def test_replicas_with_packed_sequences_are_worth_what_the_longest_has_more(ranks: int, steps: int) -> None:
    length = packed()
    jobs = replicas(length, ranks=ranks, steps=steps)
    found = found_in(*(job.built for job in jobs))
    is_worth(found[CAUSE], jobs[0].step_ns / replicas(evened(length, ranks), ranks=ranks, steps=steps)[0].step_ns)
    assert found[CAUSE].scope.ranks == list(range(ranks))
    assert "communication.straggler" not in found


@pytest.mark.parametrize(("stages", "micro_batches", "steps"), [(2, 4, MANY), (4, 8, STEPS)])
def test_a_pipeline_waits_for_the_longest_micro_batch(stages: int, micro_batches: int, steps: int) -> None:
    length = packed()
    jobs = pipeline(stages, micro_batches, length, steps)
    found = found_in(*(job.built for job in jobs))
    balanced = pipeline(stages, micro_batches, evened(length, micro_batches), steps)
    is_worth(found[CAUSE], jobs[0].step_ns / balanced[0].step_ns)
    assert "pipeline.stage-imbalance" not in found


def test_documents_among_experts_are_no_matter_of_the_experts() -> None:
    """Attention that differs from rank to rank, between exchanges: the router has no part in it."""
    jobs = replicas(packed(), collective="all_to_allv")
    found = found_in(*(job.built for job in jobs))
    assert CAUSE in found
    assert "communication.expert-imbalance" not in found


def late(rank: int, step: int) -> float:
    return 1.5 if (rank + step) % RANKS == 0 else 1.0


def windowed() -> list[Job]:
    return replicas(even, windows=(0.2, 1.0, 3.0))


@pytest.mark.parametrize(
    "jobs",
    [
        pytest.param(replicas(even), id="equal"),
        pytest.param(replicas(even, noise=0.1), id="noise"),
        pytest.param(replicas(packed(), even), id="forward alone"),
        pytest.param(replicas(packed(), packed(seed=9)), id="each on its own"),
        pytest.param(replicas(late, products=late), id="a device that is slow now and then"),
        pytest.param(replicas(lambda rank, step: late(rank, step) ** 2, products=late), id="batches of other sizes"),
        pytest.param(replicas(lambda rank, _: 1.0 + rank), id="always the same rank"),
        pytest.param(windowed(), id="layers of different windows"),
        pytest.param(replicas(packed(), none), id="inference"),
        pytest.param(pipeline(4, 4, even), id="an even pipeline"),
        pytest.param(pipeline(4, 4, lambda micro, _: 1.0 + micro), id="the same micro-batch in each step"),
    ],
)
def test_other_lateness_is_none(jobs: list[Job]) -> None:
    assert CAUSE not in found_in(*(job.built for job in jobs))


def test_long_sequences_that_fall_to_any_rank_make_none_guilty() -> None:
    """In each step another rank has the longest sequences: the waits are real, and no rank is to blame."""
    jobs = [Job() for _ in range(4)]
    for number in together(jobs, 12):
        for rank, job in enumerate(jobs):
            job.launch("gemm", 2_000_000 + (1_000_000 if rank == number % 4 else 0))
        meet(jobs, NCCL, 200_000, **message("allreduce", 32 << 20, ranks=(0, 1, 2, 3)))
        for job in jobs:
            job.wait()
    found = found_in(*(job.built for job in jobs))
    assert not {"communication.straggler", CAUSE, "pipeline.stage-imbalance"} & set(found)
