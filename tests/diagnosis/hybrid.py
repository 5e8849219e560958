"""Jobs of several parallel dimensions with known truth: pipelines with replicas, and slices with replicas."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, Final

from tests.diagnosis.jobs import GAP_NS, LATENCY_NS, Job, meet, message, together

from whystall.testing import trace

NCCL: Final = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
EXCHANGE: Final = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
PRODUCT: Final = "nvjet_tst_128x256_64x4_1x2_h_bz_TNT"
LAYER_NS: Final = 500_000


def pipelines(  # noqa: C901 - a schedule is a nest of loops
    stages: int,
    replicas: int,
    micro_batches: int,
    lasts: Mapping[tuple[int, int], int] | None = None,
    *,
    whole_groups: bool = False,
) -> list[Job]:
    """Eight steps of all micro-batches, stage after stage; rank = stage * replicas + replica, as Megatron numbers them.

    A micro-batch takes 1 ms in each stage, or as long as ``lasts`` has for a stage and replica. At the end the replicas
    of a stage reduce, and all ranks. Two neighbours are a group, or with ``whole_groups`` all stages are, and who sends
    to whom stands beside it.
    """
    drawn = random.Random(2)  # noqa: S311 - to be drawn alike each time
    jobs = [Job() for _ in range(stages * replicas)]
    for number, job in enumerate(jobs):
        job.built = trace(distributedInfo={"rank": number, "world_size": len(jobs), "backend": "nccl"})

    def passed(kind: str, sender: int, replica: int) -> dict[str, Any]:
        pair = tuple((at * replicas + replica) for at in (sender, sender + 1))
        if not whole_groups:
            return message(kind, 1 << 20, ranks=pair, group=f"p2p{sender + 1}_{replica}")
        everyone = tuple(at * replicas + replica for at in range(stages))
        peer = {"Dst Rank": pair[1]} if kind == "send" else {"Src Rank": pair[0]}
        return message(kind, 1 << 20, ranks=everyone, group=f"pp{replica}") | peer

    usual = lasts or {}
    for _ in together(jobs, 8):
        for replica in range(replicas):
            sent = [0] * micro_batches
            for stage in range(stages):
                job = jobs[stage * replicas + replica]
                each = usual.get((stage, replica), 1_000_000)
                for micro in range(micro_batches):
                    if stage:
                        runs = max(job.at + LATENCY_NS, job.busy_until.get(7, -GAP_NS) + GAP_NS)
                        job.launch(EXCHANGE, max(sent[micro] - runs, 10_000), **passed("recv", stage - 1, replica))
                    job.launch(PRODUCT, round(each * (1 + drawn.gauss(0, 0.003))))
                    if stage + 1 < stages:
                        job.launch(EXCHANGE, 10_000, **passed("send", stage, replica))
                    sent[micro] = job.busy_until[7]
        for stage in range(stages if replicas > 1 else 0):
            own = tuple(range(stage * replicas, (stage + 1) * replicas))
            record = message("allreduce", 1 << 20, ranks=own, group=f"dp{stage}")
            meet([jobs[rank] for rank in own], NCCL, 10_000, **record)
        whole = tuple(range(len(jobs)))
        meet(jobs, NCCL, 10_000, **message("allreduce", 1 << 20, ranks=whole, group="all"))
        for job in jobs:
            job.wait()
    return jobs


def slices(
    tensor: int,
    replicas: int,
    *,
    late: int = 5,
    slower: float = 1.0,
    python: int = 0,
    noise: float = 0.005,
    seed: int = 1,
) -> list[Job]:
    """Ten steps of four layers, of which each rank has a slice: the slices of a layer reduce, at the end the replicas.

    The products of the ``late`` rank take ``slower`` times as long, or it has Python in each step; ``noise`` is by what
    share each product differs from the others.
    """
    drawn = random.Random(seed)  # noqa: S311 - to be drawn alike each time
    count = tensor * replicas
    jobs = [Job() for _ in range(count)]
    for _ in together(jobs, 10):
        for layer in range(4):
            for rank, job in enumerate(jobs):
                if rank == late and python and not layer:
                    job.python(python)
                lasts = LAYER_NS * (slower if rank == late else 1) * max(1 + drawn.gauss(0, noise), 0.3)
                job.operator("aten::mm", PRODUCT, round(lasts))
            for replica in range(replicas):
                own = tuple(range(replica * tensor, (replica + 1) * tensor))
                record = message("allreduce", 4 << 20, ranks=own, group=f"tp{replica}")
                meet([jobs[rank] for rank in own], NCCL, 30_000, **record)
        for place in range(tensor):
            own = tuple(range(place, count, tensor))
            record = message("allreduce", 64 << 20, ranks=own, group=f"dp{place}")
            meet([jobs[rank] for rank in own], NCCL, 100_000, **record)
        for job in jobs:
            job.wait()
    return jobs


def rings(count: int, *, slow: int | None = None, one_after_the_other: bool = False) -> list[Job]:
    """Eight steps of four layers; in each, keys go around the ring while a rank's own part is attended.

    ``slow`` names a rank whose products take 1.4 times as long. ``one_after_the_other``: a pipeline that generates
    instead, whose last stage sends a token back to the first.
    """
    jobs = [Job() for _ in range(count)]
    for rank, job in enumerate(jobs):
        job.built = trace(distributedInfo={"rank": rank, "world_size": count, "backend": "nccl"})
    everyone = tuple(range(count))
    for _ in together(jobs, 8):
        for _layer in range(4):
            for hop in range(count):
                posted = {}
                for rank in [hop] if one_after_the_other else range(count):
                    job = jobs[rank]
                    job.launch(PRODUCT, round(LAYER_NS * (1.4 if rank == slow else 1)))
                    to = {"Dst Rank": (rank + 1) % count}
                    job.launch(EXCHANGE, 50_000, **message("send", 4 << 20, ranks=everyone, group="cp") | to)
                    posted[rank] = job.busy_until[7]
                for rank, sent in posted.items():
                    job = jobs[(rank + 1) % count]
                    runs = max(job.at + LATENCY_NS, job.busy_until.get(7, -GAP_NS) + GAP_NS)
                    record = message("recv", 4 << 20, ranks=everyone, group="cp") | {"Src Rank": rank}
                    job.launch(EXCHANGE, max(sent - runs, 10_000), **record)
        if not one_after_the_other:
            meet(jobs, NCCL, 100_000, **message("allreduce", 32 << 20, ranks=everyone, group="dp"))
        for job in jobs:
            job.wait()
    return jobs
