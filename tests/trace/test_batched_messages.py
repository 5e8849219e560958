"""A kernel that carries out several messages is between the ranks of these, which operators before it tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import whystall
from whystall.testing import TraceBuilder, trace
from whystall.trace.collectives import between_peers

KERNEL = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
MS = 1_000_000


def record(kind: str, peer: int | None, elements: int = 100, world: int = 4) -> dict[str, Any]:
    told: dict[str, Any] = {
        "Collective name": kind, "dtype": "Float", "In msg nelems": elements, "Out msg nelems": elements,
        "Process Group Name": "pp", "Process Group Ranks": str(list(range(world))), "Group size": world,
    }  # fmt: skip
    return told | ({} if peer is None else {"Dst Rank" if kind == "send" else "Src Rank": peer})


def of_rank(rank: int, world: int = 4) -> TraceBuilder:
    return trace(distributedInfo={"rank": rank, "world_size": world, "backend": "nccl"})


def batch(built: TraceBuilder, *messages: dict[str, Any], at: int = 0) -> TraceBuilder:
    """Each message posted by an operator that launches nothing, then one kernel for all."""
    for number, message in enumerate(messages):
        built.operator("record_param_comms", at=at + 1_000 * number, lasts=900, **message)
    return built.launch(KERNEL, at=at + 10_000, runs_at=at + 20_000, lasts=5_000, stream=20)


def on_device(built: TraceBuilder) -> list[tuple[Any, ...]]:
    loaded = built.load()
    table = between_peers(loaded.collectives, loaded.metadata.rank).filter(source="device")
    return table.select("row", "collective", "in_elements", "out_elements", "dtype", "group_ranks", "group_size").rows()


@pytest.mark.parametrize(
    ("messages", "told"),
    [
        ([record("send", 2), record("recv", 2)], ("send_recv", 100, 100, "Float", "[1, 2]", 2)),
        ([record("send", 2, 300), record("recv", 2, 100)], ("send_recv", 300, 300, "Float", "[1, 2]", 2)),
        ([record("send", 0, 40), record("send", 0, 60)], ("send", 100, 100, "Float", "[0, 1]", 2)),
        ([record("recv", 3)], ("recv", 100, 100, "Float", "[1, 3]", 2)),
        ([record("send", 2), record("recv", 0)], ("send_recv", 100, 100, "Float", "[0, 1, 2]", 3)),
        (
            [record("send", 2), record("recv", 2) | {"dtype": "Half"}],
            ("send_recv", 100, 100, None, "[1, 2]", 2),
        ),
    ],
)
def test_a_kernel_is_between_the_ranks_of_its_messages(messages: list[dict[str, Any]], told: tuple[Any, ...]) -> None:
    assert on_device(batch(of_rank(1), *messages)) == [(0, *told)]


def test_each_batch_has_its_own_messages() -> None:
    built = of_rank(1)
    batch(built, record("send", 2), record("recv", 2))
    batch(built, record("recv", 0), at=MS)
    assert [row[5] for row in on_device(built)] == ["[1, 2]", "[0, 1]"]


def test_messages_of_another_thread_are_another_batch() -> None:
    built = of_rank(1)
    built.operator("record_param_comms", at=500, lasts=100, thread=2, **record("send", 3))
    assert [row[5] for row in on_device(batch(built, record("recv", 0)))] == ["[0, 1]"]


def test_a_message_with_a_kernel_of_its_own_is_in_no_batch() -> None:
    built = of_rank(1)
    built.operator("record_param_comms", at=0, lasts=9_000, **record("send", 3))
    built.launch(KERNEL, at=2_000, runs_at=15_000, lasts=1_000, stream=20, **record("send", 3))
    batch(built, record("recv", 0), at=MS)
    assert [(row[1], row[5]) for row in on_device(built)] == [("send", "[1, 3]"), ("recv", "[0, 1]")]


def test_what_was_launched_in_between_ends_the_batch() -> None:
    """The kernel of these messages was not recorded: they are not those of the next one."""
    built = of_rank(1)
    built.operator("record_param_comms", at=0, lasts=900, **record("send", 3))
    built.launch("gemm", at=2_000, runs_at=3_000, lasts=1_000)
    batch(built, at=MS)
    assert on_device(built) == []


def test_of_a_batch_in_which_a_peer_is_not_known_nothing_is_said() -> None:
    assert on_device(batch(of_rank(1), record("send", 2), record("recv", None))) == []


def test_a_kernel_that_is_no_exchange_takes_no_messages() -> None:
    built = of_rank(1)
    built.operator("record_param_comms", at=0, lasts=900, **record("send", 3))
    built.launch("gemm", at=2_000, runs_at=3_000, lasts=1_000)
    assert on_device(built) == []


def test_ranks_wait_for_those_that_they_talk_to(tmp_path: Path) -> None:
    """Two pairs that exchange at the same times: rank 1 comes 0.2 ms late each time, and ranks 2 and 3 know nothing."""
    rounds = 6
    for rank, (peer, late) in enumerate([(1, 0), (0, 200_000), (3, 0), (2, 0)]):
        built = of_rank(rank)
        for number in range(rounds):
            at = number * MS
            for place, kind in enumerate(("send", "recv")):
                built.operator("record_param_comms", at=at + 1_000 * place, lasts=900, **record(kind, peer))
            begin, end = at + 20_000 + late, at + (320_000 if rank < 2 else 70_000)
            built.launch(KERNEL, at=at + 10_000, runs_at=begin, lasts=end - begin, stream=20)
        built.write(tmp_path / f"rank{rank}.json")
    report = whystall.analyze(tmp_path, cache=False)
    assert [(row.rank, row.ranks, row.collective, row.count, row.wait_ns) for row in report.communication] == [
        (0, [0, 1], "send_recv", rounds, rounds * 200_000),
        (1, [0, 1], "send_recv", rounds, 0),
        (2, [2, 3], "send_recv", rounds, 0),
        (3, [2, 3], "send_recv", rounds, 0),
    ]
    assert [(row.rank, row.alone_ns) for row in report.ranks if row.alone_ns] == [(1, rounds * 200_000)]


def test_a_record_that_says_no_more_than_coalesced_gives_way_to_the_messages() -> None:
    built = of_rank(1)
    built.operator("record_param_comms", at=0, lasts=900, **record("send", 2))
    built.launch(KERNEL, at=10_000, runs_at=20_000, lasts=5_000, stream=20, **record("coalesced", None))
    assert on_device(built) == [(0, "send", 100, 100, "Float", "[1, 2]", 2)]


def test_messages_to_unknown_ranks_are_between_no_others() -> None:
    """The group is all stages: its ranks do not meet in each message."""
    built = of_rank(1)
    built.launch(KERNEL, at=10_000, runs_at=20_000, lasts=5_000, stream=20, **record("coalesced", None))
    assert on_device(built) == [(0, "send_recv", 100, 100, "Float", "[1]", 4)]
    pair = trace(distributedInfo={"rank": 1, "world_size": 2, "backend": "nccl"})
    pair.launch(KERNEL, at=10_000, runs_at=20_000, lasts=5_000, stream=20, **record("coalesced", None, world=2))
    assert on_device(pair) == [(0, "send_recv", 100, 100, "Float", "[0, 1]", 2)]


def test_coalesced_collectives_of_all_ranks_stay() -> None:
    built = of_rank(1)
    kernel = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    built.launch(kernel, at=10_000, runs_at=20_000, lasts=5_000, stream=20, **record("coalesced", None))
    assert on_device(built) == [(0, "coalesced", 100, 100, "Float", "[0, 1, 2, 3]", 4)]
