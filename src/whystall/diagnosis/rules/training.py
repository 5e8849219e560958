"""Causes in the training loop: the optimizer, work done twice, checkpoints, logging, evaluation, fusible chains."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall._native import nearest_marked
from whystall.analysis.chains import BANDWIDTH_SHARE, chain_events
from whystall.analysis.host_states import SYNC_CALL
from whystall.analysis.intervals import ANY, class_timeline
from whystall.analysis.operators import OperatorTree
from whystall.cost.recorded import parse
from whystall.cost.spec import TensorSpec
from whystall.diagnosis.case import Case, RankCase, within
from whystall.diagnosis.rule import Candidate, Rule
from whystall.diagnosis.rules import facts
from whystall.diagnosis.rules.stretches import recurrence, stretches
from whystall.replay.graph import Change, EdgeKind, Mask
from whystall.trace.columns import matching

_MULTI_TENSOR: Final = re.compile(r"multi_tensor|fused_?adam|foreach|fused_sgd|FusedAdam|lamb", re.IGNORECASE)
_LEAST_KERNELS: Final = 60
# A step of Adam reads gradient, parameter and two moments, and writes the last three (reference: causes.md, "28 B/param").
_ADAM_PASSES: Final = 7
_CHECKPOINT: Final = re.compile(r"\bsave\b|checkpoint|state_dict|serialization", re.IGNORECASE)
_NO_CHECKPOINT: Final = re.compile(
    r"utils/checkpoint\.py|activation_?checkpoint|CheckpointFunction|load", re.IGNORECASE
)
_LOGGING: Final = re.compile(r"\blog(ger|ging)?\b|print|wandb|tensorboard|add_scalar|fsync|tqdm|mlflow", re.IGNORECASE)
_EVALUATION: Final = re.compile(r"\beval(uate|uation)?\b|\bvalid(ate|ation)?\b", re.IGNORECASE)
# What torch marks while it compiles: its own annotations, and the function in its Python stacks.
_COMPILATION: Final = re.compile(r"\(dynamo_timed\)|_dynamo/convert_frame\.py\(\d+\): _compile_inner")
_MANY_COPIES: Final = 16
# What torch's fused AdamW takes on a CPU of what its loop over parameters takes, for 122 parameters of 9,216 elements at
# most: 2.2 of 7.0 ms on one thread (benchmarks/accuracy, tabular-optimizer, its optimizer.step timed in four runs).
FUSED_ON_CPU: Final = 0.3
# Operators in a chain: two or three in a row are how networks are written, and are fused by hand by nobody.
_LEAST_CHAIN: Final = 4
# Operators that autograd numbers and never uses are a few per cent of any step.
_LEAST_SHARE_OF_WORK: Final = 0.05


def unfused_optimizer(case: Case) -> Iterator[Candidate]:
    """An optimizer that launches kernels for each parameter by itself."""
    graph = case.replayed
    for rank in case.ranks:
        begin, end, _ = rank.optimizer_steps
        if not len(begin):
            continue
        if not rank.on_device:
            yield from _loop_on_a_cpu(case, rank, begin, end)
            continue
        own = rank.launched_in(begin, end)
        many = rank.device_named(lambda name: bool(_MULTI_TENSOR.search(name)))
        steps = max(len(begin), 1)
        count = int(np.count_nonzero(own)) / steps
        if count < _LEAST_KERNELS or np.count_nonzero(own & many) > np.count_nonzero(own) / 10:
            continue
        nodes = case.nodes(rank, device=own)
        host = case.host_within(rank, begin, end)
        duration = graph.duration.astype(np.float64)
        total = float(duration[nodes].sum())
        fused = _fused_ns(rank, begin, end, steps) * len(begin)
        left = min(fused / max(total, 1.0), 1.0) if fused else 1 / 3
        duration[nodes] *= left
        duration[host] *= min(4 / count, 1.0)
        lag = np.where((graph.edge_kind == EdgeKind.STREAM) & nodes[graph.target], np.minimum(graph.lag, 0), graph.lag)
        delay = _prompt(case, nodes)
        per_step = case.time_of(nodes)
        yield Candidate(
            cause="compute.unfused-optimizer",
            attributed_ns=per_step,
            evidence=(
                facts.count("kernels in an optimizer's step", count, case.events_of(nodes)),
                facts.time("their device time per step", per_step),
                facts.time("host time of an optimizer's step", case.time_of(host)),
            ),
            expected=Change(duration=duration.astype(np.int64), lag=lag, delay=delay),
            ceiling=case.without(nodes | host),
            method="replay: a few kernels that read and write each parameter's state once",
            ranks=(rank.rank,),
            uncertainty=0.2,
            rivals=("host.launch-bound", "compute.fusible"),
        )


def _loop_on_a_cpu(case: Case, rank: RankCase, begin: NDArray[np.int64], end: NDArray[np.int64]) -> Iterator[Candidate]:
    """The same on a job without an accelerator: operators of an optimizer's step, for each parameter by itself."""
    table = rank.trace.operators
    inside = within(table["ts_ns"].to_numpy(), begin, end)
    count = int(np.count_nonzero(inside & table["parent"].is_null().to_numpy())) / len(begin)
    if count < _LEAST_KERNELS or table["name"].cast(str).str.contains("_fused_").to_numpy()[inside].any():
        return
    nodes = case.host_within(rank, begin, end)
    per_step = case.time_of(nodes)
    run = case.sampled(rank)
    yield Candidate(
        cause="compute.unfused-optimizer",
        attributed_ns=per_step,
        most=run.shares.get("optimizer", 1.0) if run is not None else 1.0,
        evidence=(
            facts.count("operators in an optimizer's step", count),
            facts.time("time of an optimizer's step", per_step, case.events_of(nodes)),
        ),
        expected=case.without(nodes, FUSED_ON_CPU),
        ceiling=case.without(nodes),
        method="replay: one fused operator for all parameters",
        ranks=(rank.rank,),
        uncertainty=0.3,
        confidence=0.85,
        rivals=("host.python",),
    )


def _fused_ns(rank: RankCase, begin: NDArray[np.int64], end: NDArray[np.int64], steps: int) -> float:
    """What a fused step takes, from the parameters' sizes; 0 where sizes or bandwidth are not known."""
    peak = rank.device_work.peak
    speed = peak.memory_bytes_per_s if peak is not None else None
    table = rank.trace.operators
    if speed is None or table.is_empty() or not table["input_dims"].is_not_null().any():
        return 0.0
    inside = within(table["ts_ns"].to_numpy(), begin, end) & (table["name"].cast(str) == "aten::addcdiv_").to_numpy()
    columns = ("input_dims", "input_types", "concrete_inputs", "input_strides")
    moved = 0
    for row in table.filter(inside).select(columns).iter_rows():
        texts = [None if value is None else str(value) for value in row]
        tensor = next((one for one in parse(*texts) or [] if isinstance(one, TensorSpec)), None)
        moved += tensor.nbytes * _ADAM_PASSES if tensor is not None else 0
    return moved / max(steps, 1) / (BANDWIDTH_SHARE * speed) * 1e9


def fusible(case: Case) -> Iterator[Candidate]:
    """Chains of kernels bound by memory that could be one kernel each."""
    graph = case.replayed
    for rank in case.ranks:
        work = rank.device_work
        for device in rank.analysis.devices:
            chains = chain_events(
                rank.trace, device, work.tree, work.work, work.events, work.classified, work.peak, calls=_LEAST_CHAIN
            )
            if chains is None:
                continue
            begin, end, _ = rank.optimizer_steps
            # What an optimizer does in a loop is another cause.
            chains = chains.only(~rank.launched_in(begin, end)[chains.row])
            if not len(chains.row):
                continue
            target = rank.trace.device_events["duration_ns"].to_numpy().astype(np.float64)
            target[chains.row] *= chains.left
            careful = rank.trace.device_events["duration_ns"].to_numpy().astype(np.float64)
            careful[chains.row] *= chains.left_at_most
            chosen = np.zeros(len(target), np.bool_)
            chosen[chains.row] = True
            nodes = case.nodes(rank, device=chosen)
            inner = np.zeros(len(target), np.bool_)
            inner[chains.row[~chains.first]] = True
            later = case.nodes(rank, device=inner)
            duration, longer = (
                np.where(nodes, np.minimum(graph.duration, case.device_values(rank, values, np.inf)), graph.duration)
                for values in (target, careful)
            )
            lag = np.where(
                (graph.edge_kind == EdgeKind.STREAM) & later[graph.target], np.minimum(graph.lag, 0), graph.lag
            )
            per_step = case.time_of(nodes)
            yield Candidate(
                cause="compute.fusible",
                attributed_ns=per_step,
                evidence=(
                    facts.time("kernels in chains that could be fused, per step", per_step, case.events_of(nodes)),
                    facts.count("chains per step", int(np.count_nonzero(chains.first)) / max(len(device.steps), 1)),
                    facts.text("the costliest", " → ".join(chains.costliest)[:300]),
                ),
                expected=Change(duration=duration.astype(np.int64), lag=lag, delay=_prompt(case, later)),
                least=Change(duration=longer.astype(np.int64)),
                method="replay: one kernel for each chain, without its intermediate tensors",
                ranks=(rank.rank,),
                uncertainty=0.2,
                confidence=0.8,
                tier=1,
                rivals=("compute.unfused-attention", "compute.unfused-optimizer", "host.launch-bound"),
            )


def _prompt(case: Case, nodes: Mask) -> NDArray[np.int64]:
    """The delays of nodes, some of which follow at once."""
    delay = case.replayed.delay
    # A node without edges begins when its delay says: it has nothing to follow.
    follows = np.diff(case.replayed.first.astype(np.int64)) > 0
    return np.where(nodes & follows & (delay > 0), 0, delay)


def redundant(case: Case) -> Iterator[Candidate]:
    """Forward work that is done again in the backward pass, or that no backward pass uses."""
    for rank in case.ranks:
        again, unused = _repeated_operators(rank)
        for rows, what in (
            (again, "forward work done again in the backward pass"),
            (unused, "forward work that no backward pass uses"),
        ):
            if not rows.any():
                continue
            nodes = case.work_of(rank, rows)
            per_step = case.time_of(nodes)
            if per_step < _LEAST_SHARE_OF_WORK * case.step_ns or not _in_most_steps(case, rank, nodes):
                continue
            host = case.host_within_operators(rank, rows)
            yield Candidate(
                cause="compute.redundant-work",
                attributed_ns=per_step,
                evidence=(facts.time(f"{what}, per step", per_step, case.events_of(nodes)),),
                expected=case.without(nodes | host),
                method="replay: without it",
                code=tuple(rank.code_of(np.flatnonzero(rows))),
                ranks=(rank.rank,),
                uncertainty=0.15,
                confidence=0.85,
                detail=what,
                rivals=("host.launch-bound",),
            )


def _in_most_steps(case: Case, rank: RankCase, nodes: Mask) -> bool:
    """Whether nodes take a share of the median step (what fills a few steps only is an episode)."""
    graph = case.replayed
    steps = rank.trace.steps
    if len(steps) < 2:
        return True
    chosen = np.flatnonzero(nodes)
    if rank.on_device:
        step = rank.trace.device_events["step"].fill_null(-1).to_numpy()[graph.event[chosen]]
    else:
        at = graph.start[chosen] - graph.clock_shift_ns.get(rank.rank, 0)
        step = np.searchsorted(steps["ts_ns"].to_numpy(), at, side="right") - 1
    inside = step >= 0
    time = np.bincount(step[inside], weights=graph.duration[chosen[inside]], minlength=len(steps))
    return float(np.median(time)) >= _LEAST_SHARE_OF_WORK * case.step_ns


def _repeated_operators(rank: RankCase) -> tuple[Mask, Mask]:
    """Operators of a forward pass that run again during the backward pass, and those no backward operator refers to.

    Autograd numbers what it will differentiate; a backward operator carries the number of its forward.
    """
    table = rank.trace.operators
    nothing = np.zeros(len(table), np.bool_)
    if table.is_empty() or "sequence" not in table.columns:
        return nothing, nothing
    sequence = table["sequence"].fill_null(-1).to_numpy()
    backward = table["forward_thread"].fill_null(0).to_numpy() > 0
    if not backward.any():
        return nothing, nothing
    used = np.unique(sequence[backward & (sequence >= 0)])
    forward = (sequence >= 0) & ~backward
    engine = matching(table["name"], lambda name: name.startswith("autograd::engine"))
    tree = rank.device_work.tree
    in_backward = backward | engine
    inside = in_backward | _below(tree, in_backward)
    unused_own = forward & ~np.isin(sequence, used)
    again_own = forward & inside & ~in_backward
    again = again_own | _below(tree, again_own)
    unused = (unused_own | _below(tree, unused_own)) & ~inside
    return again, unused if _does_matrices(table, unused) else nothing


def _below(tree: OperatorTree, marked: Mask) -> Mask:
    """Which operators lie inside a marked one."""
    return nearest_marked(tree.order, tree.parent, marked.astype(np.uint8)) >= 0


def _does_matrices(table: pl.DataFrame, rows: Mask) -> bool:
    return bool(matching(table["name"], _PRODUCTS.__contains__)[rows].any())


_PRODUCTS: Final = frozenset({"aten::mm", "aten::addmm", "aten::bmm", "aten::convolution"})


def episodes(case: Case) -> Iterator[Candidate]:
    """What happens in some steps only: checkpoints, logging, evaluation."""
    for rank in case.ranks:
        yield from _named_episode(case, rank, "host.recompile", _COMPILATION, None)
        yield from _named_episode(case, rank, "episodic.checkpoint", _CHECKPOINT, _NO_CHECKPOINT)
        yield from _named_episode(case, rank, "episodic.evaluation", _EVALUATION, None)
        yield from _named_episode(case, rank, "episodic.logging", _LOGGING, _CHECKPOINT)
        if rank.on_device and rank.trace.python_functions.is_empty():
            yield from _silent_episode(case, rank)


def _named_episode(
    case: Case, rank: RankCase, cause: str, pattern: re.Pattern[str], exception: re.Pattern[str] | None
) -> Iterator[Candidate]:
    def named(name: str) -> bool:
        return bool(pattern.search(name)) and not (exception and exception.search(name)) and "Optimizer" not in name

    events = rank.host_named(named, ("annotations", "python_functions"))
    if not events.any():
        return
    begin, end, thread = rank.intervals(events)
    own = thread == rank.training
    if own.any():
        yield _episode(case, rank, cause, begin[own], end[own])


def _episode(
    case: Case, rank: RankCase, cause: str, begin: NDArray[np.int64], end: NDArray[np.int64], confidence: float = 0.9
) -> Candidate:
    graph = case.replayed
    host = case.host_within(rank, begin, end)
    device = case.nodes(rank, device=rank.launched_in(begin, end))
    waits = (graph.edge_kind == EdgeKind.SYNC) & host[graph.target]
    outer = _outermost(begin, end)
    per_step = min(_union_ns(begin, end) // max(len(rank.trace.steps), 1), case.step_ns)
    change = case.without(host | device)
    return Candidate(
        cause=cause,
        attributed_ns=per_step,
        evidence=(
            facts.time("spent in it per step, on average", per_step, case.events_of(host)),
            facts.count("times in the recording", len(outer)),
        ),
        expected=Change(duration=change.duration, removed_edges=waits),
        method="replay: without it",
        ranks=(rank.rank,),
        recurrence=recurrence(case, rank, outer),
        uncertainty=0.15,
        confidence=confidence,
        rivals=("host.python", "host.sync", "host.gc"),
    )


def _outermost(begin: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.int64]:
    """The begins of those of some intervals that lie in no other of them."""
    reached = np.maximum.accumulate(end)
    outer: NDArray[np.int64] = begin[np.append(True, begin[1:] >= reached[:-1])]
    return outer


def _union_ns(begin: NDArray[np.int64], end: NDArray[np.int64]) -> int:
    """The time in one at least of some intervals, which are sorted by begin."""
    before = np.append(begin[:1], np.maximum.accumulate(end)[:-1])
    return int(np.maximum(end - np.maximum(begin, before), 0).sum())


def _is_silent(rank: RankCase, begin: NDArray[np.int64], end: NDArray[np.int64]) -> Mask:
    """In which of some stretches no operator, call or annotation runs most of the time, on any thread.

    Annotations around whole steps name nothing.
    """
    events = rank.host_named(lambda _: True, ("operators", "annotations", "runtime_calls"))
    first, last, _ = rank.intervals(events)
    steps = rank.trace.steps
    at, until = steps["ts_ns"].to_numpy(), (steps["ts_ns"] + steps["duration_ns"]).to_numpy()
    next_step = np.searchsorted(at, first, side="left")
    around = (next_step < len(at)) & (until[np.minimum(next_step, len(at) - 1)] <= last)
    one_class = np.zeros(np.count_nonzero(~around), np.uint8)
    named = class_timeline(first[~around], last[~around], one_class).cumulative(ANY).within(begin, end)
    silent: Mask = named * 2 < end - begin
    return silent


def _silent_episode(case: Case, rank: RankCase) -> Iterator[Candidate]:
    """Long Python in a minority of the steps, which nothing names.

    With many copies from the device before it, it saves a checkpoint. Anything else may be a collection as well as logging.
    """
    begin, end = stretches(case, rank, rare=True)
    if len(begin):
        silent = _is_silent(rank, begin, end)
        begin, end = begin[silent], end[silent]
    if not len(begin):
        return
    copies = rank.device_named(lambda name: "DtoH" in name)
    launched = np.sort(rank.launch_time[copies & (rank.launch_time >= 0)])
    before = np.array([_copies_before(launched, at) for at in begin], np.int64)
    saves = before >= _MANY_COPIES
    if saves.any():
        first = _with_sync_before(rank, np.array([_first_copy(launched, at) for at in begin[saves]], np.int64))
        yield _episode(case, rank, "episodic.checkpoint", first, end[saves], confidence=0.7)
    others = ~saves
    if not others.any():
        return
    episode = _episode(case, rank, "host.python", begin[others], end[others], confidence=0.5)
    at = np.searchsorted(rank.trace.steps["ts_ns"].to_numpy(), _outermost(begin[others], end[others]), side="right")
    yield replace(
        episode,
        unnamed=True,
        missing=("Python stacks",),
        hidden=f"in {len(np.unique(at))} of {len(rank.trace.steps)} steps the host is at something long that no event "
        "names: Python, a garbage collection, or logging; record Python stacks (with_stack=True) to tell which",
    )


def _with_sync_before(rank: RankCase, begin: NDArray[np.int64]) -> NDArray[np.int64]:
    """Each instant, or the begin of the wait for the device that ended just before it."""
    start, end, _ = rank.intervals(rank.host_named(lambda name: bool(SYNC_CALL.search(name)), ("runtime_calls",)))
    if not len(start):
        return begin
    order = np.argsort(end, kind="stable")
    index = np.searchsorted(end[order], begin, side="right") - 1
    last = order[np.maximum(index, 0)]
    near = (index >= 0) & (begin - end[last] <= _COPY_PAUSE_NS)
    return np.where(near, start[last], begin)


_COPY_PAUSE_NS: Final = 5_000_000


def _copies_before(launched: NDArray[np.int64], at: int) -> int:
    """How many copies were launched in one unbroken series just before an instant."""
    return int(np.searchsorted(launched, at)) - _series_start(launched, at)


def _first_copy(launched: NDArray[np.int64], at: int) -> int:
    return int(launched[_series_start(launched, at)])


def _series_start(launched: NDArray[np.int64], at: int) -> int:
    index = int(np.searchsorted(launched, at))
    later = at
    while index > 0 and later - launched[index - 1] <= _COPY_PAUSE_NS:
        index -= 1
        later = int(launched[index])
    return index


RULES: Final = (
    Rule("compute.unfused-optimizer", ("trace",), unfused_optimizer),
    Rule("compute.fusible", ("trace", "device", "operators"), fusible),
    Rule("compute.redundant-work", ("trace", "operators"), redundant),
    Rule("episodic.checkpoint", ("trace",), episodes),
)
