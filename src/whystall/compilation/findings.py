"""Causes of compile time in one process, and those of many together, with the seconds that their removal saves.

Each saves at most the total of its process. Savings of several overlap: they are not added.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from whystall.compilation.events import is_recompile
from whystall.compilation.folding import ProcessLog
from whystall.compilation.guards import guard_shape
from whystall.compilation.one_compile import OneCompile
from whystall.compilation.payloads import CacheRecord
from whystall.compilation.results import Break, CompileFinding, KernelCompiler, Place, Recompile

__all__ = ["Missed", "findings_of", "merged"]

_LEAST_SHARE: Final = 0.01
"""Share of the compile time of a process below which a cause is not named."""
_ALWAYS: Final = frozenset({"compile.graph-breaks", "compile.recompiles"})
"""Causes that cost steps as well, or grow as the job goes on."""
_LEAST_COPIES: Final = 4
_MOST: Final = 200
_KEEP: Final = "keep the line in the graph (torch.where, torch._check), or move it out of the function"
Missed = dict[str, int]
"""By cache and key: the end of the first compile that missed it and so filled it; nanoseconds."""


def findings_of(
    process: ProcessLog, total_ns: int, breaks: Sequence[Break], recompiles: Sequence[Recompile], missed: Missed
) -> tuple[CompileFinding, ...]:
    """The findings of a process, those first that save most."""
    found = [
        *_breaks(breaks),
        *_recompiles(recompiles),
        *_cold_cache(process, missed),
        *_bypassed(process),
        *_kernel_compilers(process),
        *_copies(process),
        *_autotuned(process),
    ]
    least_ns = _LEAST_SHARE * total_ns
    kept = [
        replace(one, saves_ns=min(one.saves_ns, total_ns))
        for one in found
        if one.saves_ns >= least_ns or one.id in _ALWAYS
    ]
    return tuple(sorted(kept, key=_order)[:_MOST])


def merged(groups: Iterable[Sequence[CompileFinding]]) -> tuple[CompileFinding, ...]:
    """The findings of all processes: the same cause at the same line is one, by the process that loses most to it."""
    found: dict[tuple[str, str | None, str], CompileFinding] = {}
    counted: Counter[tuple[str, str | None, str]] = Counter()
    for group in groups:
        for one in group:
            key = (one.id, one.where, guard_shape(one.says))
            counted[key] += 1
            known = found.get(key)
            if known is None or one.saves_ns > known.saves_ns:
                found[key] = one
    return tuple(sorted((replace(one, processes=counted[key]) for key, one in found.items()), key=_order)[:_MOST])


def _order(one: CompileFinding) -> tuple[int, str, str]:
    return (-one.saves_ns, one.id, one.where or "")


def _breaks(breaks: Sequence[Break]) -> Iterator[CompileFinding]:
    for one in breaks:
        resumed = f", and what resumes after it was compiled {_times(one.resumes)}" if one.resumes else ""
        page = f" ({one.page})" if one.page else ""
        yield CompileFinding(
            id="compile.graph-breaks",
            says=f"a graph ends here: {one.reason}",
            where=_at(one.place, one.called_at),
            saves_ns=one.restarts_ns + one.resumes_dynamo_ns,
            edit=(one.hint or _KEEP).rstrip(".") + page,
            known_by=f"it broke a compile {_times(one.times)}{resumed}; every call pays for the parts as well",
        )


def _recompiles(recompiles: Sequence[Recompile]) -> Iterator[CompileFinding]:
    for one in recompiles:
        limit = "; the limit is reached, and other inputs run without a graph" if one.at_limit else ""
        yield CompileFinding(
            id="compile.recompiles",
            says=f"compiled again for {one.kind}{': ' * bool(one.guard)}{one.guard}",
            where=_at(one.line),
            saves_ns=one.total_ns,
            edit=one.edit,
            known_by=f"it happened {_times(one.times)}, and there are {one.versions} versions{limit}",
        )


def _cold_cache(process: ProcessLog, missed: Missed) -> Iterator[CompileFinding]:
    """Graphs that an earlier compile of these logs had put into the cache, and that missed it again."""
    again = lost_ns = 0
    for one in process.compiles:
        looks = [look for look in one.caches if _missed_again(look, one, missed)]
        if looks:
            again += len(looks)
            below_dynamo_ns = one.total_ns - one.phases.dynamo_ns
            lost_ns += min(sum(look.taken_ns for look in looks) or below_dynamo_ns, below_dynamo_ns)
    if again:
        yield CompileFinding(
            id="compile.cold-cache",
            says="graphs that were compiled before missed the cache again",
            where=None,
            saves_ns=lost_ns,
            edit="keep the cache's folder: TORCHINDUCTOR_CACHE_DIR on a volume that outlives the job, or "
            "torch.compiler.save_cache_artifacts and load_cache_artifacts",
            known_by=f"keys that an earlier compile of these logs had filled missed {_times(again)}",
        )


def _missed_again(look: CacheRecord, one: OneCompile, missed: Missed) -> bool:
    """Whether a key missed that a compile had filled which had ended before this one began."""
    filled = missed.get(f"{look.cache} {look.key}") if look.key and look.outcome == "miss" else None
    return filled is not None and one.start_ns is not None and one.start_ns > filled


def _bypassed(process: ProcessLog) -> Iterator[CompileFinding]:
    """Graphs that no cache keeps, by reason: every start compiles them again."""
    lost: dict[tuple[str, str], int] = defaultdict(int)
    times: Counter[tuple[str, str]] = Counter()
    lines: dict[tuple[str, str], str | None] = {}
    for one in process.compiles:
        for look in one.caches:
            if look.outcome != "bypass":
                continue
            key = (look.cache, look.reason)
            phases = one.phases
            inner_ns = phases.inductor_ns + phases.code_ns + phases.kernels_ns
            lost[key] += phases.aot_ns if look.cache == "AOTAutograd" else inner_ns
            times[key] += 1
            lines.setdefault(key, _at(one.line))
    for (cache, reason), lost_ns in lost.items():
        yield CompileFinding(
            id="compile.cache-bypassed",
            says=f"the {cache} cache does not keep this graph: {reason.rstrip('.')}",
            where=lines.get((cache, reason)),
            saves_ns=lost_ns,
            edit="move what the reason names out of the compiled function, or update torch: later versions keep more",
            known_by=f"the cache was bypassed {_times(times[cache, reason])}",
        )


def _kernel_compilers(process: ProcessLog) -> Iterator[CompileFinding]:
    by_cpp = [one for one in _outer(process) if one.kernels_by in {KernelCompiler.CPP, KernelCompiler.BOTH}]
    waited_ns = sum(one.phases.kernels_ns for one in by_cpp)
    if waited_ns:
        longest = max(by_cpp, key=lambda one: one.phases.kernels_ns)
        yield CompileFinding(
            id="compile.host-compiler",
            says="the C++ compiler made kernels for the CPU, or precompiled headers",
            where=_at(longest.line),
            saves_ns=waited_ns,
            edit="fill the cache once and keep its folder (TORCHINDUCTOR_CACHE_DIR); torch.compile(..., "
            "backend='aot_eager') while CPU kernels do not matter",
            known_by=f"{len(by_cpp):,} compile{'s' * (len(by_cpp) > 1)} waited for it",
        )


def _copies(process: ProcessLog) -> Iterator[CompileFinding]:
    """Graphs with the same text, compiled again and again; recompiles have their own finding."""
    alike: dict[str, list[OneCompile]] = defaultdict(list)
    for one in _outer(process):
        if one.graph and not is_recompile(one) and not one.backward:
            alike[one.graph].append(one)
    for copies in alike.values():
        if len(copies) < _LEAST_COPIES:
            continue
        yield CompileFinding(
            id="compile.too-many-graphs",
            says=f"the same graph was compiled {len(copies)} times",
            where=_at(copies[0].line),
            saves_ns=sum(sorted(one.total_ns for one in copies)[:-1]),
            edit="compile the repeated block once: torch.compile on its class's forward (regional compilation), not on "
            "each copy",
            known_by="the log states the same checksum for each of these graphs",
        )


def _autotuned(process: ProcessLog) -> Iterator[CompileFinding]:
    """Autotuning in compiles that found their graph in the cache."""
    again = [
        one
        for one in _outer(process)
        if one.times is not None and one.times.autotune_ns and any(look.outcome == "hit" for look in one.caches)
    ]
    if again:
        yield CompileFinding(
            id="compile.autotune-each-time",
            says="kernels were tuned although their graph came from the cache",
            where=_at(again[0].line),
            saves_ns=sum(one.times.autotune_ns for one in again if one.times is not None),
            edit="keep Triton's cache too (TRITON_CACHE_DIR beside TORCHINDUCTOR_CACHE_DIR), or tune fewer choices: "
            "mode='max-autotune' only where it pays",
            known_by=f"a compile with a hit tuned kernels {_times(len(again))}",
        )


def _outer(process: ProcessLog) -> list[OneCompile]:
    return [one for one in process.compiles if not one.nested and one.times is not None]


def _at(place: Place | None, called_at: Place | None = None) -> str | None:
    if place is None or called_at is None:
        return None if place is None else str(place)
    return f"{place} (called at {called_at})"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"
