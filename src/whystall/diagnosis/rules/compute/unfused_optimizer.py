"""An optimizer that goes through the parameters one by one."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator
from functools import partial
from math import prod
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.analysis.chains import BANDWIDTH_SHARE
from whystall.analysis.intervals import within
from whystall.analysis.run_results import RunSummary, SampledLine
from whystall.cost.recorded import parse
from whystall.cost.spec import TensorSpec
from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Replayed, Sampled
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.discarded import outside_of_autograd
from whystall.diagnosis.detectors.loops_over_tensors import FEW_KERNELS, joined
from whystall.diagnosis.detectors.samples import code_of_lines, from_samples, lines_where, measured_runs, share_of
from whystall.diagnosis.finding import Remedy
from whystall.diagnosis.rank_case import RankCase
from whystall.diagnosis.rule import Finder, Rule
from whystall.diagnosis.where import code_of
from whystall.replay.graph import Mask, Times
from whystall.trace.columns import judged, matching
from whystall.trace.recorded_sizes import Shape, first_elements, first_size
from whystall.vocabulary.autograd import ACCUMULATE
from whystall.vocabulary.optimizers import optimizer_named, optimizers

CAUSE: Final = cause_beside(__name__)
_LEAST_KERNELS: Final = CAUSE.threshold("least_kernels")
_ADAM_PASSES: Final = int(CAUSE.threshold("adam_passes"))
_LEAST_SHARE: Final = CAUSE.threshold("least_share")
_BYTES_PER_S: Final = CAUSE.threshold("bytes_per_s")
_AVERAGE_PASSES: Final = int(CAUSE.threshold("average_passes"))
_COLD_NS: Final = CAUSE.threshold("cold_ns")
_MOST_OF_THEM: Final = 0.8
_MOST_OF_ONE: Final = 1.5
# How torch marks an optimizer's step, and names its loop over parameters: "Optimizer.step#AdamW.step",
# "torch.optim.adam:_single_tensor_adam".
_MARKED: Final = re.compile(r"^Optimizer\.step#(?:\w+\.)*?(\w+)\.step$")
_LOOP: Final = re.compile(r"_single_tensor_(\w+)$")
# DistributedDataParallel's operators on gradients, which have the parameters' sizes.
_REDUCER: Final = re.compile(r"^(torch(\.|::)distributed|c10d)")
_WHOLE_STEP: Final = re.compile(r"^aten::(coalesce$|_coalesced?_?$|_fused_(adamw?|sgd|adagrad)_$)")
_BYTES: Final = 4
_ADAMS: Final = frozenset({"Adam", "AdamW"})
_ONCE_FOR_A_LIST: Final = "aten::_foreach_addcdiv_"
_PASSES: Final = {
    "aten::_foreach_add_": 2,
    "aten::_foreach_addcdiv_": 4,
    "aten::_foreach_addcmul_": 3,
    "aten::_foreach_div_": 2,
    "aten::_foreach_lerp_": 3,
    "aten::_foreach_mul_": 2,
    "aten::_foreach_sqrt": 2,
}
"""The tensors that Adam's operations read and write, each once (torch/optim/adam.py: ``_multi_tensor_adam``)."""
_MOST_PRODUCTS: Final = 0.2
# Optimizers that have nothing to join: they work on one long vector, or on other matrices each.
_WHOLE: Final = frozenset({"LBFGS", "SparseAdam", "Muon"})


_AVERAGED: Final = Remedy(
    text="Go through all parameters in one call, in place, and without copies of them: an average with "
    "torch._foreach_lerp_ (torch.optim.swa_utils.AveragedModel takes it as multi_avg_fn), and less often than in each "
    "step where that is enough.",
    patch="with torch.no_grad():\n"
    "    torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 1 - decay)",
    risk="Buffers (running statistics of norms) are no parameters: copy them as before.",
)


def _marked(rank: RankCase) -> list[str]:
    """The classes of the optimizers whose steps are marked, as the recording names them."""
    names = rank.trace.annotations["name"].cast(str).unique().sort().to_list()
    return [match[1] for name in names if (match := _MARKED.match(name))]


def _not_to_be_joined(rank: RankCase) -> set[str]:
    """The classes of optimizers whose steps are fused already, or get sparse gradients, which no fused form takes."""
    table, marks = rank.trace.operators, rank.trace.annotations
    at = np.sort(table["ts_ns"].to_numpy()[matching(table["name"], lambda name: bool(_WHOLE_STEP.search(name)))])
    begin, end, _ = rank.optimizer_steps  # without the closures that they call, which are passes of the model
    inside = np.searchsorted(at, end) > np.searchsorted(at, begin)
    marked = np.isin((marks["ts_ns"] + marks["duration_ns"]).to_numpy(), end[inside])
    names = marks["name"].filter(marked).cast(str).unique().to_list()
    return {match[1] for name in names if (match := _MARKED.match(name))}


def _remedy(names: list[str]) -> Remedy:
    """The option of the job's own optimizer; for one unknown to torch, advice for its author."""
    known = [name for name in (optimizer_named(name) for name in names) if name is not None]
    if not known:
        text = "Update all parameters at once: with torch._foreach functions, or an optimizer that has a fused form."
        return Remedy(text=text, patch=None, risk=CAUSE.risk)
    form = optimizers()[known[0]]
    which = "fused" if form.fused else "foreach"
    patch = "\n".join(f"torch.optim.{name}(..., {optimizers()[name].option})" for name in known)
    return Remedy(text=f"Use the {which} implementation of {' and '.join(known)}.", patch=patch, risk=CAUSE.risk)


def on_a_device(case: Case) -> Iterator[Replayed]:
    """Optimizer steps that launch kernels for each parameter by itself."""
    for rank in case.ranks:
        begin, end, _ = rank.optimizer_steps
        if not len(begin) or not rank.on_device or _WHOLE.issuperset(_marked(rank)):
            continue
        own = rank.launched_in(begin, end)
        many = rank.workings.classified.has("multi-tensor")
        count = int(np.count_nonzero(own)) / len(begin)
        if count >= _LEAST_KERNELS and np.count_nonzero(own & many) <= np.count_nonzero(own) / 10:
            fused_ns = _fused_ns(rank, begin, end) * len(begin)
            nodes, host, removal = joined(case, rank, own, (begin, end), left=FEW_KERNELS / count, takes_ns=fused_ns)
            per_step = case.time_of(nodes)
            yield Replayed(
                cause=CAUSE.id,
                attributed_ns=per_step,
                evidence=(
                    evidence.count("kernels in an optimizer's step", count, case.events_of(nodes)),
                    evidence.time("their device time", per_step, per=case.per),
                    evidence.time("host time of an optimizer's step", case.time_of(host)),
                ),
                removal=removal,
                ceiling=case.without(nodes | host),
                method="replay: a few kernels that read and write each parameter's state once",
                ranks=(rank.rank,),
                uncertainty=0.2,
                rivals=("host.launch-bound", "compute.fusible"),
                remedy=_remedy(_marked(rank)),
            )


def in_lists(case: Case) -> Iterator[Replayed]:
    """Adam's steps over lists of tensors: each of its operations reads and writes all of them again."""
    for rank in case.ranks:
        begin, end, _ = rank.optimizer_steps
        names = _marked(rank)
        if not len(begin) or not rank.on_device or not names or not set(names) <= _ADAMS:
            continue
        table = rank.trace.operators
        over_lists = matching(table["name"], _PASSES.__contains__) & within(table["ts_ns"].to_numpy(), begin, end)
        own = rank.launched_by(over_lists)
        calls = table["name"].cast(str).filter(pl.Series(over_lists)).to_list()
        # Each list (of one dtype, device and group) is divided once.
        passes = sum(_PASSES[name] for name in calls) / max(calls.count(_ONCE_FOR_A_LIST), 1)
        if not own.any() or passes <= _ADAM_PASSES or _ONCE_FOR_A_LIST not in calls:
            continue
        nodes = case.nodes(rank, device=own)
        per_step = case.time_of(nodes)
        yield Replayed(
            cause=CAUSE.id,
            attributed_ns=per_step,
            evidence=(
                evidence.count("passes over parameters and their states in a step", passes),
                evidence.count("in a fused step", _ADAM_PASSES),
                evidence.time("device time of the step over lists", per_step, case.events_of(nodes), per=case.per),
            ),
            removal=case.without(nodes, _ADAM_PASSES / passes),
            method="replay: each parameter's state read and written once, at the rate of these kernels",
            code=code_of(case, nodes),
            ranks=(rank.rank,),
            uncertainty=0.25,
            confidence=0.85,
            detail="its operations go over lists of tensors one after the other",
            rivals=("compute.dense-embedding",),
            remedy=_remedy(names),
        )


def _fused_ns(rank: RankCase, begin: NDArray[np.int64], end: NDArray[np.int64]) -> float:
    """The time of a fused step, from the parameters' sizes; 0 where sizes or bandwidth are not known."""
    speed = rank.workings.bytes_per_s
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
    return moved / len(begin) / (BANDWIDTH_SHARE * speed) * 1e9


def on_a_cpu(case: Case) -> Iterator[Replayed]:
    """The same on a job without an accelerator: operators of an optimizer's step, for each parameter by itself."""
    for rank in case.ranks:
        begin, end, _ = rank.optimizer_steps
        names = _marked(rank)
        if not len(begin):
            continue
        table = rank.trace.operators
        inside = within(table["ts_ns"].to_numpy(), begin, end)
        run = case.sampled(rank)
        nodes = case.host_within(rank, begin, end)
        per_step = case.time_of(nodes)
        one = _of_an_update(run) if run is not None else per_step * max(case.steps, 1) / len(begin)
        left = _left_on_cpu(names, one) or _left_of_its_own(rank, inside, names)
        if left is None:
            continue
        count = int(np.count_nonzero(inside & table["parent"].is_null().to_numpy())) / len(begin)
        if count < _LEAST_KERNELS or table["name"].cast(str).str.contains("_fused_").to_numpy()[inside].any():
            continue
        yield Replayed(
            cause=CAUSE.id,
            attributed_ns=per_step,
            largest_share=run.shares.get("optimizer", 1.0) if run is not None else 1.0,
            evidence=(
                evidence.count("operators in an optimizer's step", count),
                evidence.time("time of an optimizer's step", per_step, case.events_of(nodes)),
            ),
            removal=case.without(nodes, left[1]),
            floor=case.without(nodes, left[2]),
            ceiling=case.without(nodes, left[0]),
            method="replay: one fused operator for all parameters",
            ranks=(rank.rank,),
            tier=1,  # of nearly any job: a cause that leaves the optimizer less to do is more specific
            uncertainty=0.3,
            confidence=0.85,
            rivals=("host.python",),
            remedy=_remedy(names),
        )


def beside_the_optimizer(case: Case) -> Iterator[Replayed]:
    """All parameters gone through again, one by one: an average of the weights that is kept by hand."""
    for rank in case.ranks:
        sizes = _sizes_of_parameters(rank)
        parameters = sum(prod(size) * count for size, count in sizes.items())
        again = _over_parameters(rank, sizes, parameters)
        if again is None:
            continue
        nodes = case.host_within(rank, *_stretches(rank, again))
        per_step = case.time_of(nodes)
        once = parameters * _BYTES * _AVERAGE_PASSES
        moved = float(rank.workings.work.moved[again].sum()) / len(rank.optimizer_steps[0])
        if moved < _MOST_OF_ONE * once:  # as clamping the weights is, one pass or two
            continue
        left = min(once / _BYTES_PER_S * 1e9 / max(per_step, 1), once / max(moved, 1.0), 1.0)
        if per_step * (1 - left) < _LEAST_SHARE * case.step_ns:
            continue
        run, code = case.sampled(rank), code_of(case, nodes)
        lines = lines_where(run, lambda line: line.part == "other") if run is not None else []
        yield Replayed(
            cause=CAUSE.id,
            attributed_ns=per_step,
            evidence=(
                evidence.time(
                    "work on parameters beside the optimizer's", per_step, case.events_of(nodes), per=case.per
                ),
                evidence.count("bytes moved, relative to one average of the parameters", moved / max(once, 1.0)),
            ),
            removal=case.without(nodes, left),
            floor=case.without(nodes, min(2 * left, 1.0)),
            ceiling=case.without(nodes, left / 2),
            method="replay: one pass that reads the weights and their average, and writes it, at a core's bandwidth",
            code=code if code.lines or not lines else code_of_lines(lines),
            ranks=(rank.rank,),
            uncertainty=0.3,
            confidence=0.8,
            detail="all are gone through again beside the optimizer, as for an average of the weights",
            remedy=_AVERAGED,
            rivals=("host.python", "host.small-operators"),
        )


def _over_parameters(rank: RankCase, sizes: Counter[Shape], parameters: int) -> Mask | None:
    """Arithmetic and copies on tensors of the parameters' sizes that is neither autograd's nor an optimizer's.

    ``None`` where that is not done to most of the sizes, for each of the steps.
    """
    table, work = rank.trace.operators, rank.workings.work
    begin, end, _ = rank.optimizer_steps
    if not len(begin) or not sizes:
        return None
    outside = outside_of_autograd(rank) & ~within(table["ts_ns"].to_numpy(), begin, end) & (work.dense == 0)
    library = matching(table["name"], lambda name: bool(_REDUCER.match(name)))
    rows = np.flatnonzero(outside & (work.moved > 0) & ~rank.workings.tree.below(library))
    given = judged(table.select("input_dims")[rows], first_size)
    on_one = np.array([size in sizes for size in given], np.bool_)
    touched = Counter(size for size, one in zip(given, on_one.tolist(), strict=True) if one)
    often = [size for size in sizes if touched[size] >= len(begin) * sizes[size] / 2]
    if sum(prod(size) * sizes[size] for size in often) < _MOST_OF_THEM * parameters:
        return None
    # A batch may have the size of a layer's width; a loop over all parameters covers the biases as well.
    if sum(sizes[size] for size in often) < _MOST_OF_THEM * sizes.total():
        return None
    again = np.zeros(len(table), np.bool_)
    again[rows[on_one]] = True
    return again


def _stretches(rank: RankCase, again: Mask) -> tuple[Times, Times]:
    """From the first of such operators to the last, with all that is between them, but for passes of a model."""
    table = rank.trace.operators
    at = table["ts_ns"].to_numpy()
    end = at + table["duration_ns"].to_numpy()
    differentiated = table["sequence"].fill_null(-1).to_numpy() >= 0
    seen = np.sort(at[rank.backward | differentiated | (rank.workings.work.dense > 0)])
    rows = np.flatnonzero(again & (table["thread"].to_numpy() == rank.training))
    rows = rows[np.argsort(at[rows], kind="stable")]
    run = np.searchsorted(seen, at[rows])
    first = np.flatnonzero(np.diff(run, prepend=-1))
    return at[rows[first]], np.maximum.reduceat(end[rows], first) if len(rows) else end[rows]


def _sizes_of_parameters(rank: RankCase) -> Counter[Shape]:
    """The sizes of the gradients that are added up, and how many parameters have each."""
    table = rank.trace.operators
    gradients = np.flatnonzero(matching(table["name"], lambda name: name == ACCUMULATE))
    found = Counter(judged(table.select("input_dims")[gradients], first_size))
    passes = max(len(rank.optimizer_steps[0]), 1)
    return Counter({size: max(count // passes, 1) for size, count in found.items() if size})


def in_samples(case: Case) -> Iterator[Sampled]:
    """Time in an optimizer that was found in its loop; a profiler makes its many small operators look longer."""
    for run in measured_runs(case):
        whole = {name for rank in case.ranks if rank.rank == run.rank for name in _not_to_be_joined(rank)}
        lines = lines_where(run, partial(_in_a_loop, whole))
        share = _of_loops(run, lines)
        names = sorted({match[1] for line in lines if (match := _LOOP.search(line.leaf))})
        left = _left_on_cpu(names, share * run.mean_ns)
        if share > 0 and left is not None:
            yield from_samples(
                CAUSE.id,
                run,
                share * (1 - left[1]),
                evidence=(evidence.share("of the steps' time in the optimizer", share),),
                code=code_of_lines(lines),
                saved=(share * (1 - left[2]), share * (1 - left[1]), share * (1 - left[0])),
                tier=1,
                rivals=("host.python",),
                remedy=_remedy_in_run(case, run),
            )


def _in_a_loop(whole: Collection[str], line: SampledLine) -> bool:
    """Whether the thread was found in the loop of an optimizer that could be joined."""
    found = _LOOP.search(line.leaf)
    return found is not None and optimizer_named(found[1]) not in whole


def _remedy_in_run(case: Case, run: RunSummary) -> Remedy:
    """The option of the optimizer that a recording of the rank names; a loop's name may be that of a base class."""
    own = [rank for rank in case.ranks if rank.rank == run.rank]
    marked = [name for rank in own for name in _marked(rank) if name not in _not_to_be_joined(rank)]
    if marked:
        return _remedy(marked)
    return Remedy(text=CAUSE.remedy, patch="fused=True  # among the optimizer's arguments", risk=CAUSE.risk)


def _left_of_its_own(rank: RankCase, inside: Mask, names: list[str]) -> tuple[float, float, float] | None:
    """The remaining share of an unknown optimizer in one pass over parameters and state, relative to its bytes now.

    ``None`` where it does more than arithmetic element by element, or where sizes were not recorded. Parameters are
    known by their gradients, and have at most two moments each.
    """
    table, work = rank.trace.operators, rank.workings.work
    if not names or any(optimizer_named(name) is not None or name in _WHOLE for name in names):
        return None
    own, products = table["self_ns"].to_numpy(), inside & (work.dense > 0)
    moved = float(work.moved[inside].sum())
    gradients = np.flatnonzero((table["name"].cast(str) == ACCUMULATE).to_numpy())
    sizes = judged(table.select("input_dims")[gradients], first_elements)
    if moved <= 0 or not sum(sizes) or own[products].sum() > _MOST_PRODUCTS * own[inside].sum():
        return None
    least = sum(sizes) * _BYTES * _ADAM_PASSES / moved
    return (min(least / 2, 1.0), min(least, 1.0), min(2 * least, 1.0))


def _of_loops(run: RunSummary, lines: list[SampledLine]) -> float:
    """The share of time in optimizers that are called at lines where their loops were found: others are beside them."""
    places = {(line.file, line.line) for line in lines}
    every = lines_where(run, lambda line: line.part == "optimizer")
    at_loops = share_of([line for line in every if (line.file, line.line) in places])
    return run.shares.get("optimizer", 0.0) * at_loops / max(share_of(every), 1e-9)


def _of_an_update(run: RunSummary) -> float:
    """The mean time of an optimizer's step in a run, in nanoseconds."""
    return run.shares.get("optimizer", 0.0) * run.mean_ns


def _left_on_cpu(names: list[str], loop_ns: float) -> tuple[float, float, float] | None:
    """The remaining share of optimizers' loops in their fused forms, for loops of ``loop_ns``.

    Both begin with code and parameters that the passes before have evicted from the caches: that time stays. ``None``
    where an optimizer has no fused form for a CPU.
    """
    left = [optimizers()[known].left_on_cpu for known in map(optimizer_named, names) if known is not None]
    found = [one for one in left if one is not None]
    if not found or len(found) != len(names):
        return None
    stays = min(_COLD_NS / max(loop_ns, 1.0), 1.0)
    least, usually, most = (one + (1 - one) * stays for one in max(found))
    return least, usually, most


RULE = Rule(
    CAUSE,
    (
        Finder(on_a_device, ("trace", "device_events")),
        Finder(in_lists, ("trace", "device_events", "operators")),
        Finder(on_a_cpu, ("trace", "no_device")),
        Finder(beside_the_optimizer, ("trace", "no_device", "operators", "shapes")),
        Finder(in_samples, ("samples", "no_device")),
    ),
)
