"""Bandwidths by hand: V1 and V2 are the figures of nccl-tests' formulas, worked out apart from the table."""

from __future__ import annotations

import pytest

from whystall.vocabulary.collectives import bandwidth, convention, conventions, kind_named, link_share

GIB = 1 << 30
TEN_MS = 10_000_000


@pytest.mark.parametrize(
    ("kind", "bus_gb_per_s"),
    [
        ("all_reduce", 187.904819),
        ("all_gather", 93.952410),
        ("reduce_scatter", 93.952410),
        ("all_to_all", 93.952410),
        ("all_to_all_v", 93.952410),
        ("gather", 93.952410),
        ("scatter", 93.952410),
        ("broadcast", 107.374182),
        ("reduce", 107.374182),
        ("send_recv", 107.374182),
    ],
)
def test_a_gibibyte_over_eight_ranks_in_ten_milliseconds(kind: str, bus_gb_per_s: float) -> None:
    found = bandwidth(kind, GIB, TEN_MS, 8)

    assert f"{found.algorithm_bytes_per_s / 1e9:.6f}" == "107.374182"
    assert found.bus_bytes_per_s is not None
    assert f"{found.bus_bytes_per_s / 1e9:.6f}" == f"{bus_gb_per_s:.6f}"
    assert found.wire_bytes_per_s == found.bus_bytes_per_s


def test_reductions_in_the_switch_put_less_on_the_wire_than_on_the_bus() -> None:
    found = bandwidth("all_reduce", 275_000_000, 1_000_000, 8, "NVLS")

    assert found.algorithm_bytes_per_s == pytest.approx(275e9, rel=1e-12)
    assert found.bus_bytes_per_s == pytest.approx(481.25e9, rel=1e-12)
    assert found.wire_bytes_per_s == pytest.approx(309.375e9, rel=1e-12)


@pytest.mark.parametrize("algorithm", ["NVLS", "NVLSTree", "CollNetDirect", None])
def test_more_than_the_link_on_the_bus_is_explained(algorithm: str | None) -> None:
    found = link_share("all_reduce", 275e9, 8, 450e9, algorithm)

    assert found.share == pytest.approx(0.6875)
    assert found.note is not None
    assert "bus bandwidth 481 GB/s is that of an equivalent ring" in found.note
    assert "309 GB/s cross the link" in found.note


def test_no_share_above_the_whole_goes_without_a_reason() -> None:
    ring = link_share("all_reduce", 275e9, 8, 450e9, "Ring")
    gather = link_share("all_gather", 600e9, 8, 450e9)

    for found in (ring, gather):
        assert found.share is not None
        assert found.share > 1
        assert found.note is not None
        assert "more than the link can carry" in found.note
    assert link_share("all_reduce", 200e9, 8, 450e9).note is None
    assert link_share("coalesced", 1e9, 8, 450e9).share is None


@pytest.mark.parametrize(
    ("kind", "total"),
    [("all_reduce", 1000), ("all_gather", 8000), ("reduce_scatter", 8000), ("all_to_all", 8000), ("hypercube", 7000)],
)
def test_a_ranks_count_becomes_the_size(kind: str, total: int) -> None:
    assert convention(kind).total_bytes(1000, 8) == total


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("allreduce", "all_reduce"), ("AllReduce", "all_reduce"), ("ncclDevKernel_AllReduce_Sum_f32_LL", "all_reduce"),
        ("gloo:all_reduce", "all_reduce"), ("allreduce_coalesced", "all_reduce"), ("all_reduce_perf", "all_reduce"),
        ("_allgather_base", "all_gather"), ("all_gather_into_tensor", "all_gather"), ("AllGather", "all_gather"),
        ("_reduce_scatter_base", "reduce_scatter"), ("reduce_scatter_tensor_coalesced", "reduce_scatter"),
        ("all_to_all_single", "all_to_all"), ("AlltoAll", "all_to_all"), ("all_to_allv", "all_to_all_v"),
        ("AlltoAllv", "all_to_all_v"), ("broadcast", "broadcast"), ("Reduce", "reduce"), ("gather", "gather"),
        ("scatter", "scatter"), ("SendRecv", "send_recv"), ("send 0->1", "send_recv"), ("nccl:recv 3<-?", "send_recv"),
        ("Recv", "send_recv"), ("coalesced", "coalesced"), ("barrier", None), ("", None),
    ],
)  # fmt: skip
def test_names_of_libraries_and_logs(name: str, kind: str | None) -> None:
    assert kind_named(name) == kind


def test_every_row_has_its_source_and_one_rank_needs_no_bus() -> None:
    assert all(one.source for one in conventions().values())
    assert bandwidth("all_reduce", 10, 1, 1).bus_bytes_per_s == 0


@pytest.mark.parametrize(("size", "time", "ranks"), [(1, 0, 2), (1, 5, 0), (-1, 5, 2)])
def test_what_gives_no_bandwidth(size: int, time: int, ranks: int) -> None:
    with pytest.raises(ValueError, match="no bandwidth"):
        bandwidth("all_reduce", size, time, ranks)
