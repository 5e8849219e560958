"""Graphs of traces whose dependencies are known by construction, and what replays of them say."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whystall import load
from whystall.replay.build import build_graph
from whystall.replay.graph import Change, EdgeKind, Graph, NodeKind, play
from whystall.replay.outcome import critical_path, fidelity, length_ns, path_parts, speedup, steady_steps
from whystall.testing import TraceBuilder, trace
from whystall.testing.builder import BACKWARD_THREAD

SHARED = Path(__file__).parents[3] / "shared" / "traces"
LINKED = (
    "bert-small-h100.json.gz",
    "cnn-v100-ns.json.gz",
    "ddp-2rank-a100.json.gz",
    "deepseek-v3-dualpipe-h800.json",
    "dlrm-8rank-a100.json.gz",
    "qwen-0.5b-prefill-h100.json.gz",
    "recsys-2rank-v100.json.gz",
    "resnet50-workers0-v100.json.gz",
    "resnet50-workers4-v100.json.gz",
    "toy-train-mi250.json.gz",
    "tp-decode-b200.json.gz",
)


MESSAGE: dict[str, Any] = {
    "Collective name": "allreduce",
    "In msg nelems": 1000,
    "Out msg nelems": 1000,
    "Group size": 2,
    "dtype": "BFloat16",
    "Process Group Name": "0",
    "Process Group Ranks": "[0, 1]",
}


def graph_of(built: TraceBuilder) -> Graph:
    return build_graph([(0, built.load())])


def without(graph: Graph, chosen: np.ndarray) -> Change:
    return Change(duration=np.where(chosen, 0, graph.duration))


def test_a_launch_bound_device_waits_for_its_launches() -> None:
    built = trace()
    for i in range(10):
        built.operator("aten::add", at=20_000 * i, lasts=15_000)
        built.launch("k", at=20_000 * i + 5_000, call_lasts=5_000, runs_at=20_000 * i + 12_000, lasts=2_000)
    graph = graph_of(built)
    host = graph.kind == NodeKind.HOST
    base = play(graph)
    assert (base.start == graph.start).all()
    # Without the host's work the kernels follow each other; only the last host event's own end is left.
    faster = play(graph, without(graph, host))
    device = graph.kind == NodeKind.DEVICE
    assert faster.end[device].max() - faster.start.min() < 10 * (2_000 + 10_000)
    assert base.end[device].max() - base.start.min() > 9 * 20_000


def test_a_kernel_that_begins_when_its_launch_does_still_waits_for_it() -> None:
    """Clocks of whole microseconds: a call and the copy that it launches carry the same time."""
    built = trace()
    for i in range(6):
        built.launch("copy", at=50_000 * i, call_lasts=4_000, runs_at=50_000 * i, lasts=10_000)
    graph = graph_of(built)
    assert graph.dropped_edges == 0
    host = graph.kind == NodeKind.HOST
    faster = play(graph, without(graph, host))
    assert faster.end.max() - faster.start.min() <= 6 * (10_000 + 1_000)  # and a short gap between two
    assert fidelity(graph, play(graph), critical_path(graph, play(graph))).unexplained_ns == 0


def test_a_sync_that_hides_nothing_is_worth_the_gap_after_it_and_not_its_length() -> None:
    """Every step: launch 4 us, kernel 100 us, wait for it, then 30 us of Python before the next launch."""
    built = trace()
    for i in range(6):
        at = 140_000 * i
        built.step(i, at=at, lasts=140_000)
        built.operator("aten::mm", at=at + 30_000, lasts=5_000)
        built.launch("gemm", at=at + 30_000, call_lasts=4_000, runs_at=at + 35_000, lasts=100_000)
        built.runtime("cudaDeviceSynchronize", at=at + 36_000, lasts=101_000)
    graph = graph_of(built)
    waits = graph.edge_kind == EdgeKind.SYNC
    assert waits.any()
    assert speedup(graph, play(graph), Change(removed_edges=waits)) == pytest.approx(140 / 100, rel=0.03)


def test_a_wait_between_streams_is_kept_for_every_producer() -> None:
    """A kernel waits for two streams, recorded as events; shortening one of them does not let it start early."""
    built = trace()
    built.launch("a", at=0, runs_at=5_000, lasts=50_000, stream=7)
    built.launch("b", at=2_000, runs_at=7_000, lasts=60_000, stream=8)
    built.runtime("cudaEventRecord", at=4_000, lasts=500, correlation=901)
    built.runtime("cudaEventRecord", at=5_000, lasts=500, correlation=902)
    for number, stream, record in ((903, 7, 901), (904, 8, 902)):
        built.runtime("cudaStreamWaitEvent", at=6_000 + number, lasts=50, correlation=number)
        built.event(
            "cuda_sync",
            "Stream Wait Event",
            at=6_000 + number,
            lasts=0,
            thread=9,
            pid=0,
            stream=9,
            correlation=number,
            wait_on_stream=stream,
            wait_on_cuda_event_record_corr_id=record,
        )
    built.launch("c", at=8_000, runs_at=68_000, lasts=10_000, stream=9)
    graph = graph_of(built)
    events = graph.edge_kind == EdgeKind.EVENT
    assert np.count_nonzero(events) == 2
    device = np.flatnonzero(graph.kind == NodeKind.DEVICE)
    third = device[np.argmax(graph.start[device])]
    shorter = graph.duration.copy()
    shorter[device[graph.duration[device] == 60_000]] = 1_000
    moved = play(graph, Change(duration=shorter))
    assert moved.start[third] - graph.start.min() == 5_000 + 50_000 + graph.delay[third]


def test_the_training_thread_waits_for_the_backward_thread() -> None:
    built = trace()
    built.annotation("loop", at=0, lasts=200_000)
    built.operator("aten::mm", at=0, lasts=20_000)
    for i in range(4):
        built.operator(
            "autograd::engine::evaluate_function: MmBackward0",
            at=30_000 + 30_000 * i,
            lasts=25_000,
            thread=BACKWARD_THREAD,
            **{"Sequence number": i, "Fwd thread id": 1},
        )
    built.operator("aten::add", at=170_000, lasts=20_000)
    built.step(0, at=0, lasts=200_000)
    graph = graph_of(built)
    assert (graph.edge_kind == EdgeKind.HANDOVER).any()
    lane = next(i for i, name in enumerate(graph.lanes) if name.endswith("thread 1"))
    gone = without(graph, (graph.lane == lane) & (graph.kind == NodeKind.HOST))
    base, faster = play(graph), play(graph, gone)
    assert length_ns(graph, base) - length_ns(graph, faster) == 115_000  # first begin to last end, pauses included


def test_ranks_meet_in_their_collectives_whatever_their_clocks_say() -> None:
    """Rank 1 is 1 ms late to an all-reduce, and its clock 7 ms ahead: rank 0's kernel waits 1 ms."""
    ranks = []
    for rank, (late, clock) in enumerate(((0, 0), (1_000_000, 7_000_000))):
        built = trace(distributedInfo={"rank": rank, "world_size": 2})
        for i in range(4):
            at = clock + 3_000_000 * i
            built.step(i, at=at, lasts=3_000_000)
            built.launch("gemm", at=at + 1_000, runs_at=at + 10_000, lasts=500_000 + late)
            built.launch(
                "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
                at=at + 9_000,
                runs_at=at + 512_000 + late,
                lasts=1_200_000 - late,
                **MESSAGE,
            )
        ranks.append((rank, built.load()))
    graph = build_graph(ranks)
    assert {rank: clock.offset_ns for rank, clock in graph.clocks.items()} == {0: 0, 1: -7_000_000}
    transfers = np.flatnonzero((graph.kind == NodeKind.JOINT) & (graph.rank == -1))
    assert graph.duration[transfers].tolist() == [200_000] * 4
    late_gemm = (graph.rank == 1) & (graph.kind == NodeKind.DEVICE) & (graph.duration == 1_500_000)
    assert np.count_nonzero(late_gemm) == 4
    prompt = play(graph, Change(duration=np.where(late_gemm, 500_000, graph.duration)))
    first = np.flatnonzero((graph.rank == 0) & (graph.kind == NodeKind.JOINT))[0]
    assert play(graph).end[first] - prompt.end[first] == 1_000_000


def test_a_collective_that_begins_as_another_ends_waits_for_it() -> None:
    """Back to back on one stream, to the nanosecond: the order in which nodes were drawn must not lose the edge."""
    built = trace()
    for i in range(4):
        at = 2_000_000 * i
        built.step(i, at=at, lasts=2_000_000)
        built.launch("gemm", at=at + 5_000, runs_at=at + 12_000, lasts=500_000)
        for number in range(2):
            runs_at = at + 512_000 + 400_000 * number
            built.launch("ncclDevKernel_AllReduce", at=at + 30_000 + number, runs_at=runs_at, lasts=400_000, **MESSAGE)
        built.runtime("cudaDeviceSynchronize", at=at + 100_000, lasts=1_220_000)
    graph = build_graph([(0, built.load()), (1, built.load())])
    assert graph.dropped_edges == 0
    transfers = (graph.kind == NodeKind.JOINT) & (graph.rank == -1)
    before, after = play(graph), play(graph, without(graph, transfers))
    begins = np.flatnonzero(transfers)[1]
    assert before.start[begins] - after.start[begins] == 400_000


@pytest.mark.parametrize(
    ("lasts", "call", "returns"),
    [
        ([50_000], "cudaLaunchKernel", 0),
        ([60_000, *[12_000] * 19], "cudaLaunchKernel", 0),
        ([70_000], "cudaGraphLaunch", 15_000),  # it still has its graph to hand over
    ],
)
def test_a_full_queue_of_launches_is_a_wait_and_not_work(lasts: list[int], call: str, returns: int) -> None:
    """1,500 kernels, launched in 2 us each until 1,024 wait; then each waits for a kernel to end, be it short."""
    built = trace()
    host = 0
    durations = (lasts * 1_500)[:1_500]
    runs = list(accumulate(durations, initial=10_000))
    for i, duration in enumerate(durations):
        waits = max(host + 2_000, runs[i - 1_024] + returns) if i > 1_024 else host + 2_000
        built.launch("k", at=host, call=call, call_lasts=waits - host, runs_at=runs[i], lasts=duration)
        host = waits
    graph = graph_of(built)
    device = graph.kind == NodeKind.DEVICE
    quicker = play(graph, Change(duration=np.where(device, graph.duration // 5, graph.duration)))
    host_alone = 1_024 * 2_000 + 476 * 5_000
    assert quicker.end.max() - quicker.start.min() < max(sum(durations) / 5, host_alone) + 600_000


@pytest.mark.parametrize("lasts", [12_000, 30_000, 300_000])
def test_a_queue_that_is_full_from_the_first_recorded_launch_on(lasts: int) -> None:
    """The launches of the first 1,022 kernels came before the recording, and all that it shows waited for room."""
    built = trace()
    count, queue = 3_000, 1_022
    for i in range(count):
        runs_at = 10_000 + lasts * i
        if i < queue:
            built.kernel("k", at=runs_at, lasts=lasts)
            continue
        returns = 10_000 + lasts * (i - queue + 1) + 1_500  # a kernel ended and made room
        begins = returns - lasts + 2_000
        built.launch("k", at=begins, call_lasts=returns - begins, runs_at=runs_at, lasts=lasts)
    graph = graph_of(built)
    device = graph.kind == NodeKind.DEVICE
    quicker = play(graph, Change(duration=np.where(device, graph.duration // 4, graph.duration)))
    host_alone = (count - queue) * (5_000 + 1_500 + 2_000)  # a call, its return, and the pause before the next
    assert quicker.end.max() - quicker.start.min() < max(count * lasts / 4, host_alone) * 1.05
    assert graph.dropped_edges == 0


def test_few_launches_that_wait_behind_long_kernels_are_waits_however_many_are_queued() -> None:
    """Events take room of the queue as well, in each step in other places: no two steps queue as many kernels."""
    built = trace()
    durations = ([10_000] * 800 + [40_000_000]) * 8
    room = 1_024
    taken = [1 + (i % 801 < 40 * (i // 801)) for i in range(len(durations))]
    ends = list(accumulate(durations, initial=10_000))[1:]
    host, entries, first = 0, 0, 0
    for i, duration in enumerate(durations):
        begins = host
        entries += taken[i]
        host += 4_000
        while entries > room or (entries and ends[first] <= host and first < i):
            if entries > room:
                host = max(host, ends[first] + 1_000)
            entries -= taken[first]
            first += 1
        built.launch("k", at=begins, call_lasts=host - begins, runs_at=ends[i] - duration, lasts=duration)
        host += 1_000
    graph = graph_of(built)
    device = (graph.kind == NodeKind.DEVICE) & (graph.duration >= 40_000_000)
    quicker = play(graph, Change(duration=np.where(device, graph.duration // 10, graph.duration)))
    alone = sum(duration // 10 if duration >= 40_000_000 else duration for duration in durations)
    assert quicker.end.max() - quicker.start.min() < alone * 1.15


def test_a_lead_that_grows_to_the_end_of_a_recording_is_no_full_queue() -> None:
    """Launches of 2 us ahead of kernels of 20 us, then one that takes long for another reason."""
    built = trace()
    for i in range(600):
        built.launch("k", at=3_000 * i, call_lasts=2_000, runs_at=10_000 + 20_000 * i, lasts=20_000)
    built.launch("k", at=1_800_000, call_lasts=1_000_000, runs_at=12_010_000, lasts=20_000)
    graph = graph_of(built)
    long = np.flatnonzero((graph.kind == NodeKind.HOST) & (graph.duration >= 900_000))
    assert len(long) == 1


def test_a_copy_that_its_call_waited_for_begins_with_that_call_however_full_the_queue_is() -> None:
    """Four hundred kernels are queued, of which one ends as the copy does: the call waited for its copy still."""
    built = trace()
    for number in range(400):
        built.launch("k", at=4_000 * number, call_lasts=3_000, runs_at=10_000 + 20_000 * number, lasts=20_000)
    built.launch(
        "Memcpy HtoD (Pageable -> Device)",
        at=1_600_000,
        call="cudaMemcpyAsync",
        call_lasts=1_002_000,
        runs_at=1_610_000,
        lasts=990_000,
        stream=77,
        category="gpu_memcpy",
    )
    built.operator("aten::add", at=2_603_000, lasts=2_000)
    graph = graph_of(built)
    [copy] = np.flatnonzero((graph.kind == NodeKind.DEVICE) & (graph.duration == 990_000))
    assert EdgeKind.LAUNCH in graph.edge_kind[graph.target == copy]
    assert graph.dropped_edges == 0


@pytest.mark.parametrize("name", LINKED)
def test_identity_is_exact_and_edges_explain_the_linked_real_traces(name: str) -> None:
    path = SHARED / name
    if not path.exists():
        pytest.skip("the shared traces are not here")
    graph = build_graph([(0, load(path))])
    base = play(graph)
    assert (base.start == graph.start).all()
    assert (base.end == graph.start + graph.duration).all()
    assert fidelity(graph, base, critical_path(graph, base)).share >= 0.95


def test_the_path_of_a_chain_is_the_whole_chain() -> None:
    built = trace()
    for i in range(5):
        built.operator("aten::add", at=10_000 * i, lasts=10_000)
    graph = graph_of(built)
    path = critical_path(graph, play(graph))
    assert int(graph.duration[path].sum()) == 50_000


@settings(max_examples=25)
@given(st.integers(0, 10_000), st.integers(1, 25))
def test_the_parts_of_the_path_add_up_to_the_window(seed: int, kernels: int) -> None:
    graph = graph_of(random_trace(seed, kernels, steps=8))
    base = play(graph)
    parts = path_parts(graph, base, critical_path(graph, base))
    assert sum(parts.values()) == length_ns(graph, base)
    assert min(parts.values()) > 0


def random_trace(seed: int, kernels: int, steps: int = 4) -> TraceBuilder:
    """A training loop with everything in it: two streams, syncs, copies, Python, random lengths."""
    random = np.random.default_rng(seed)
    built = trace()
    host, streams = 0, [0, 0]
    for step in range(steps):
        begin = host
        for _ in range(kernels):
            host += int(random.integers(0, 30_000))
            stream = int(random.integers(0, 2))
            lasts = int(random.integers(1_000, 60_000))
            call = int(random.integers(2_000, 9_000))
            runs = max(host + call, streams[stream]) + int(random.integers(500, 4_000))
            built.operator("aten::mm", at=host, lasts=call + 1_000)
            built.launch("k", at=host, call_lasts=call, runs_at=runs, lasts=lasts, stream=7 + stream)
            streams[stream] = runs + lasts
            host += call + 1_000
            if random.random() < 0.2:
                until = max(host, *streams) + 2_000
                built.runtime("cudaDeviceSynchronize", at=host, lasts=until - host)
                host = until
        built.step(step, at=begin, lasts=host - begin)
    return built


@settings(max_examples=25)
@given(st.integers(0, 10_000), st.integers(1, 25), st.data())
def test_less_work_never_takes_longer_and_nothing_changed_changes_nothing(
    seed: int, kernels: int, data: st.DataObject
) -> None:
    graph = graph_of(random_trace(seed, kernels))
    base = play(graph)
    assert (base.start == graph.start).all()
    assert (play(graph, Change(duration=graph.duration * 1)).start == base.start).all()
    removed = np.array(data.draw(st.lists(st.booleans(), min_size=len(graph.start), max_size=len(graph.start))), bool)
    shorter = play(graph, Change(duration=np.where(removed, 0, graph.duration)))
    assert (shorter.end <= base.end).all()
    edges = np.array(data.draw(st.lists(st.booleans(), min_size=len(graph.source), max_size=len(graph.source))), bool)
    fewer = play(graph, Change(removed_edges=edges))
    assert (fewer.end <= base.end).all()
    both = Change(duration=np.where(removed, 0, graph.duration)).then(Change(removed_edges=edges), graph)
    assert (play(graph, both).end <= np.minimum(shorter.end, fewer.end)).all()


def test_a_part_of_a_large_recording_has_the_same_steps() -> None:
    built = random_trace(1, 20, steps=12)
    whole, part = graph_of(built), build_graph([(0, built.load())], most_events=100)
    assert len(part.start) < len(whole.start)
    assert steady_steps(part) >= 1
    assert (play(part).start == part.start).all()


def test_nothing_recorded_is_no_graph() -> None:
    graph = graph_of(trace())
    assert len(graph.start) == 0
    assert length_ns(graph, play(graph)) == 0
    base = play(graph)
    assert fidelity(graph, base, critical_path(graph, base)).share == 1.0


def on_hosts(*lasts: int, told_late: int = 0) -> Graph:
    """Ranks of a CPU job: two steps of 10 ms of compute, a gradient that gloo's thread sums up, 1 ms of an optimizer.

    The thread begins 50 us after it was asked, and the collective takes each rank so long from the last arrival. The
    training thread waits, and goes on before the end is recorded. The second of the steps is the window.
    """
    ranks = [trace() for _ in lasts]
    at = [0 for _ in lasts]
    for number in range(2):
        arrived = max(at) + 10_070_000
        for rank, built in enumerate(ranks):
            begin = at[rank]
            built.operator("aten::mm", at=begin, lasts=10_000_000)
            built.operator("c10d::allreduce_", at=begin + 10_000_000, lasts=20_000)
            done = arrived + lasts[rank]
            talks = {"at": begin + 10_070_000, "lasts": done - begin - 10_070_000 + told_late}
            built.operator("gloo:all_reduce", **talks, thread=300, **MESSAGE)
            built.operator("aten::add_", at=done, lasts=1_000_000)
            at[rank] = done + 1_000_000
            built.step(number, at=begin, lasts=at[rank] - begin)
    return build_graph([(number, built.load()) for number, built in enumerate(ranks)])


def explained(graph: Graph) -> float:
    played = play(graph)
    return fidelity(graph, played, critical_path(graph, played)).share


def played_without(graph: Graph, chosen: np.ndarray) -> int:
    """How long the window takes if nodes take no time."""
    return length_ns(graph, play(graph, without(graph, chosen)))


@pytest.mark.parametrize("told_late", [0, 900_000, 3_800_000])
def test_a_thread_that_goes_on_before_an_end_is_recorded_waited_for_it(told_late: int) -> None:
    """A step of 11 ms of work, 0.07 ms to begin, and 20 ms of a collective that its removal takes away."""
    graph = on_hosts(20_000_000, 20_000_000, told_late=told_late)
    assert explained(graph) == pytest.approx(1.0, abs=1e-3)
    transfers = (graph.kind == NodeKind.JOINT) & (graph.duration > 0)
    assert length_ns(graph, play(graph)) == 31_070_000
    assert played_without(graph, transfers) == pytest.approx(11_070_000, rel=0.01)


def test_a_rank_that_leaves_a_collective_late_still_communicates() -> None:
    """One rank has its part after 12 ms, the other after 20 ms, as over a link that is slower one way."""
    graph = on_hosts(12_000_000, 20_000_000)
    assert explained(graph) == pytest.approx(1.0, abs=1e-3)
    rests = (graph.kind == NodeKind.JOINT) & (graph.rank >= 0) & (graph.duration > 0)
    assert graph.duration[rests].tolist() == [8_000_000, 8_000_000]
    transfers = (graph.kind == NodeKind.JOINT) & (graph.duration > 0)
    assert played_without(graph, transfers) == pytest.approx(11_070_000, rel=0.01)


def test_what_a_thread_is_asked_for_begins_once_it_was_asked() -> None:
    """Without its compute a rank asks at once, and its thread begins so much earlier."""
    graph = on_hosts(5_000_000, 5_000_000)
    assert np.count_nonzero(graph.edge_kind == EdgeKind.LAUNCH) == 4
    compute = (graph.kind == NodeKind.HOST) & (graph.duration >= 9_000_000)
    assert played_without(graph, compute) == pytest.approx(70_000 + 5_000_000 + 1_000_000, rel=0.02)


FIRST_ARROW = 1 << 40


def replayed_graph(*arrows: tuple[int, int, int]) -> TraceBuilder:
    """Three replays of a graph: b (stream 9) waits for a (stream 7); the host is ahead. ``arrows`` are more of them."""
    built = trace()
    for step in range(3):
        at, correlation = 200_000 * step, 50 + step
        built.runtime("cudaGraphLaunch", at=at, lasts=2_000, correlation=correlation)
        built.kernel("a", at=at + 10_000, lasts=50_000, stream=7, correlation=correlation)
        built.kernel("b", at=at + 75_000, lasts=40_000, stream=9, correlation=correlation)
        built.arrow(FIRST_ARROW + step, at=at + 60_000, into=at + 75_000, streams=(7, 9))
    for number, start, end in arrows:
        built.arrow(number, at=start, into=end, streams=(7, 9))
    return built


def named(graph: Graph, built: TraceBuilder, name: str) -> np.ndarray:
    names = built.load().device_events["name"].cast(str)
    rows = np.flatnonzero((names == name).to_numpy())
    chosen: np.ndarray = np.isin(graph.event, rows) & (graph.kind == NodeKind.DEVICE)
    return chosen


def test_the_edges_of_a_cuda_graph_hold() -> None:
    """15 us lie between a and b, too much to be evident: without the arrow b would begin when the graph is launched."""
    built = replayed_graph()
    graph = graph_of(built)
    edges = graph.edge_kind == EdgeKind.EVENT
    a, b = named(graph, built, "a"), named(graph, built, "b")
    assert edges.sum() == 3
    assert a[graph.source[edges]].all()
    assert b[graph.target[edges]].all()
    played = play(graph, without(graph, a))
    assert (played.start[b] == graph.start[b] - 50_000).all()


@pytest.mark.parametrize(
    "arrow",
    [
        (FIRST_ARROW + 9, 12_345, 75_000),  # nothing ends there
        (FIRST_ARROW + 9, 60_000, 12_345),  # nothing begins there
        (9, 60_000, 275_000),  # the number of a launch
        (FIRST_ARROW, 60_000, 275_000),  # a number that another arrow has
    ],
)
def test_an_arrow_that_leads_nowhere_is_no_edge(arrow: tuple[int, int, int]) -> None:
    graph = graph_of(replayed_graph(arrow))
    edges = graph.edge_kind == EdgeKind.EVENT
    assert edges.sum() == (2 if arrow[0] == FIRST_ARROW else 3)


def test_arrows_are_found_but_for_rounding() -> None:
    built = replayed_graph((FIRST_ARROW + 9, 260_001, 474_999))
    assert (graph_of(built).edge_kind == EdgeKind.EVENT).sum() == 4
