"""Which ranks are looked at: the late one, one that waits for it, one of each stage; whatever the clocks say."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fleet.ranks import rank_trace

from whystall.analysis.trace_analysis import analyze_trace
from whystall.fleet.choosing import Chosen, chosen_ranks
from whystall.fleet.gatherings import gatherings
from whystall.fleet.ranks import looked_at
from whystall.fleet.spans import spans
from whystall.fleet.summary import Candidate, summary_of
from whystall.testing import TraceBuilder, trace


def candidate(rank: int, built: TraceBuilder) -> Candidate:
    loaded = built.load()
    return Candidate(rank, summary_of(loaded, analyze_trace(loaded, rank=rank)))


def chosen(candidates: list[Candidate], most: int = 8) -> dict[int, str]:
    found = gatherings(candidates)
    return {one.rank: one.why for one in chosen_ranks(candidates, found, most)}


@pytest.mark.parametrize("clock_ns", [0, 1_000, 50_000_000])
def test_the_rank_that_comes_last_is_chosen_with_one_that_waits_whatever_the_clocks_say(clock_ns: int) -> None:
    ranks = [
        candidate(rank, rank_trace(rank, 20, late_ns=150_000 * (rank == 13), clock_ns=clock_ns * rank))
        for rank in range(20)
    ]
    found = chosen(ranks)
    assert found[13] == "comes last to 3 of 3 collectives"
    assert "waits for rank 13 as most do" in found.values()
    assert len(found) == 8


def test_recordings_that_begin_at_different_steps_match_by_sequence_number() -> None:
    def numbered(rank: int, first: int) -> TraceBuilder:
        built = trace(distributedInfo={"rank": rank, "world_size": 2})
        for number in range(first, first + 4):
            at = number * 1_000_000 + 300_000 * rank
            record: dict[str, Any] = {"Collective name": "allreduce", "Seq": number, "Process Group Name": "0"}
            built.launch("ncclAllReduce", at=at, runs_at=at + 10_000, lasts=500_000 - 300_000 * rank, **record)
        return built

    ranks = [candidate(0, numbered(0, 0)), candidate(1, numbered(1, 1))]
    if ranks[0].summary.instances.table()["sequence_number"].is_null().all():
        pytest.skip("this reader knows no sequence numbers")
    late = gatherings(ranks).late()
    assert [(one.rank, one.times) for one in late] == [(1, 3)]


def test_a_file_that_ends_early_is_not_looked_at_while_there_are_whole_ones() -> None:
    ranks = [candidate(rank, rank_trace(rank, 12)) for rank in range(12)]
    broken = msgspec.structs.replace(ranks[0].summary, truncated=True)
    assert 0 not in chosen([Candidate(0, broken), *ranks[1:]])


def test_whole_pipelines_are_chosen_where_messages_show_stages() -> None:
    def stage(rank: int) -> TraceBuilder:
        built = rank_trace(rank, 24)
        pipeline = [member for member in range(24) if member % 6 == rank % 6]
        group: dict[str, Any] = {
            "Collective name": "send", "Process Group Name": "pp", "Process Group Ranks": str(pipeline)
        }  # fmt: skip
        for at in (10_000, 2_000_000):
            built.launch("ncclDevKernel_SendRecv", at=at, runs_at=at + 5_000, lasts=1_000, stream=30, **group)
        return built

    found = chosen([candidate(rank, stage(rank)) for rank in range(24)])
    assert len(found) == 8
    for pipeline in {rank % 6 for rank in found}:
        assert {rank // 6 for rank in found if rank % 6 == pipeline} == {0, 1, 2, 3}


def test_few_ranks_are_all_chosen_and_without_collectives_they_are_spread() -> None:
    alone = [candidate(rank, trace().launch("gemm", at=0, runs_at=10, lasts=100 + rank)) for rank in range(30)]
    assert len(chosen(alone[:5])) == 5
    found = chosen(alone, 4)
    assert found[29] == "computes longest"
    assert min(found) == 0


@settings(max_examples=20)
@given(st.permutations(range(6)))
def test_the_order_of_ranks_is_nothing(order: list[int]) -> None:
    ranks = _SIX
    assert chosen([ranks[place] for place in order], 3) == chosen(ranks, 3)


_SIX = [candidate(rank, rank_trace(rank, 6, late_ns=90_000 * (rank == 4))) for rank in range(6)]


def test_ranks_in_few_words() -> None:
    assert spans([]) == ""
    assert spans([3, 1, 2, 9]) == "1-3, 9"
    told = looked_at([Chosen(0, "stands for the others"), Chosen(5, "stands for the others"), Chosen(7, "is late")], 90)
    assert "of 90 ranks" in told
    assert "ranks 0, 5 stand for the others; rank 7 is late" in told
