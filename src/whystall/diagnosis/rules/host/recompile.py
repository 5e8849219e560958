"""A compiler that is at work in steps after the first."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from whystall.diagnosis import evidence
from whystall.diagnosis.candidate import Code, Replayed, Sampled
from whystall.diagnosis.case import Case
from whystall.diagnosis.causes import cause_beside
from whystall.diagnosis.detectors.episodes import named_episodes
from whystall.diagnosis.detectors.samples import (
    LEAST_SEEN,
    from_stack_samples,
    lines_where,
    measured_runs,
    share_of,
)
from whystall.diagnosis.detectors.uncompiled import uncompiled
from whystall.diagnosis.finding import CodeLocation, Remedy
from whystall.diagnosis.rule import Finder, Rule
from whystall.run_folder.observations import CompileLimit

CAUSE: Final = cause_beside(__name__)
_MANY_VERSIONS: Final = CAUSE.threshold("many_versions")
_LEAST_SHARE: Final = CAUSE.threshold("least_share")
# torch's prefix of a reason: the number of the function and its version.
_NUMBER: Final = re.compile(r"^\d+/\d+: ")
# torch's suffix of a reason: the line of code as a comment, and hints.
_AFTERWARDS: Final = re.compile(r"\s+#|\s\(HINT")
# Where the time of torch.jit.trace, script and freeze goes, and of the compiler.
_TRACER: Final = re.compile(r"^torch\.(jit\b|_jit_internal|_sources|testing\b|fx\b|export\b)")
_COMPILER: Final = re.compile(r"^torch\._(dynamo|inductor|functorch)\b")
_AGAIN: Final = "it is traced or scripted again in steps"
_TRACED: Final = Remedy(
    text="Trace or script it once, before the loop: a traced module holds the model's own parameters, so that steps of "
    "the optimizer reach it. A frozen module holds copies of the weights: leave freezing out while they change, or "
    "call the "
    "model as it is, which takes less than a new trace and the slow first calls of what it makes.",
    patch="traced = torch.jit.trace(model, example)  # once, before the loop",
    risk="A trace holds for the branches and sizes of its example.",
)
# torch/_inductor/cudagraph_trees.py, and its marks by dynamo_timed.
_GRAPH: Final = re.compile(r"CUDAGraphNode|cudagraph_trees")
_RECORDED: Final = "CUDA graphs are recorded again"
_FEWER_SIZES: Final = Remedy(
    text="A graph is recorded for each new size: pad inputs to a few sizes, or compile without graphs "
    '(mode="default").',
    patch='torch.compile(mode="default")',
    risk="Padding computes more; without graphs each launch costs the host time again.",
)
_ONE_VERSION: Final = Remedy(
    text="Compile one version for all sizes, or for a few of them: dynamic=True (or mark_dynamic) for a shape that "
    "changes, batches padded to a few lengths, a tensor for a number that changes. A higher "
    "torch._dynamo.config.recompile_limit only helps where the versions are few.",
    patch="model = torch.compile(model, dynamic=True)",
    risk="Code for dynamic shapes can be slower than for one shape.",
)


def in_trace(case: Case) -> Iterator[Replayed]:
    """Marks of torch's compiler while it runs: its own annotations, and the function in its Python stacks."""
    for found in named_episodes(case, CAUSE.id, "compilation"):
        graphs = any(_GRAPH.search(event.name) for one in found.evidence for event in one.events)
        yield replace(found, detail=_RECORDED, remedy=_FEWER_SIZES) if graphs else found


def in_samples(case: Case) -> Iterator[Sampled]:
    """Stack samples in the function that turns a frame into compiled code."""
    for run in measured_runs(case):
        lines = lines_where(run, lambda line: line.part == "compile")
        share = share_of(lines)
        # A function that was given up was compiled before; its cost since then is a separate cause.
        if share >= LEAST_SEEN and not case.facts.of_rank(run.rank).given_up:
            found = from_stack_samples(CAUSE.id, run, lines, share, "the compiler of models", ("host.python",))
            traced = share_of([line for line in lines if _TRACER.match(line.leaf)])
            compiled = share_of([line for line in lines if _COMPILER.match(line.leaf)])
            yield replace(found, remedy=_TRACED, detail=_AGAIN) if traced > compiled else found


def past_the_limit(case: Case) -> Iterator[Replayed]:
    """Functions that are looked up among compiled versions, and run as they are since none of these fits."""
    for rank in case.ranks:
        found = uncompiled(rank)
        given_up = case.facts.of_rank(rank.rank).given_up
        if found is None or not (given_up or found.versions >= _MANY_VERSIONS):
            continue
        nodes = case.host_within(rank, found.begin, found.end)
        per_step = case.time_of(nodes)
        least, left, most = found.left
        if per_step * (1 - left) < _LEAST_SHARE * case.step_ns:
            continue
        versions = max([found.versions, *(one.versions for one in given_up)])
        yield Replayed(
            cause=CAUSE.id,
            attributed_ns=per_step,
            evidence=(
                evidence.time("run as it is, after compiled versions were looked up in vain", per_step, per=case.per),
                evidence.count("compiled versions of a function", versions),
            ),
            removal=case.without(nodes, left),
            floor=case.without(nodes, most),
            ceiling=case.without(nodes, least),
            method="replay: what is run as it is takes, for its products, what the compiled versions took for theirs"
            if found.measured
            else "replay: a compiled version takes a part of the time",
            code=Code(tuple(CodeLocation(file=one.file, line=one.line, symbol=one.text) for one in given_up[:3])),
            ranks=(rank.rank,),
            uncertainty=0.3,
            confidence=0.9 if given_up else 0.75,
            detail="past the limit of versions it runs uncompiled" + "".join(map(_because, given_up[:1])),
            remedy=_ONE_VERSION,
            rivals=("compute.fusible", "host.small-operators", "host.python"),
        )


def _because(limit: CompileLimit) -> str:
    reason = _AFTERWARDS.split(_NUMBER.sub("", limit.reason))[0]
    return f" ({reason})" if reason else ""


RULE = Rule(
    CAUSE,
    (
        Finder(in_trace, ("trace",)),
        Finder(past_the_limit, ("trace", "no_device", "operators")),
        Finder(in_samples, ("samples", "no_device")),
    ),
)
