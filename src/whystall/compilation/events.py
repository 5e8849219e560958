"""The distinct events of a process: graph breaks, recompiles, uses of caches and failures, with their seconds."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from whystall.compilation.folding import BrokenAt, CacheRecord, OneCompile, ProcessLog
from whystall.compilation.guards import guard_kind, guard_shape
from whystall.compilation.results import Break, CacheUse, Failure, Place, Recompile
from whystall.compilation.wording import address_of, first_sentence, hint_of

__all__ = ["breaks_of", "cache_uses", "failures_of", "is_recompile", "recompiles_of", "saved_ns"]

_RESUME: Final = re.compile(r"^torch_dynamo_resume_in_(?P<function>.+)_at_(?P<line>\d{1,9})(?:_\w*)?$")
_NO_BREAK: Final = ("Restart", "restart", "SpeculationRestart", "Compile failed")
_NOT_RECORDED: Final = "the log does not hold the reason"
_CACHES: Final = ("FX graph", "AOTAutograd")
_MOST_REASONS: Final = 16


@dataclass(slots=True)
class _BreakSum:
    place: Place | None
    reason: str
    hint: str | None
    page: str | None
    times: int = 0
    restarts_ns: int = 0


def breaks_of(process: ProcessLog) -> tuple[Break, ...]:
    """The distinct graph breaks, those that threw most time away first.

    Where the log has no record of breaks (torch 2.4 and 2.5), they are known by reasons of restarts, and their lines by
    the names of the functions that resume.
    """
    resumed = _resumes(process.compiles)
    found: dict[tuple[str, int, str], _BreakSum] = {}
    free = dict.fromkeys(resumed)
    for one in process.compiles:
        broken = one.breaks if process.has_break_records else _by_restarts(one, free)
        restarts_ns = min(one.times.restarts_ns, one.total_ns) if one.times is not None else 0
        for at in broken:
            file, line = (at.place.file, at.place.line) if at.place is not None else ("", 0)
            place = _in_function(at.place, one.frame)
            known = found.setdefault((file, line, at.reason), _BreakSum(place, at.reason, at.hint, at.page))
            known.times += 1
            known.restarts_ns += restarts_ns // len(broken)
            free.pop((file, line), None)
    for file, line in free:
        reason = BrokenAt(Place(file, line, resumed[file, line].function), _NOT_RECORDED, None, None)
        found[file, line, reason.reason] = _BreakSum(reason.place, reason.reason, None, None, times=1)
    breaks = []
    claimed: set[tuple[str, int]] = set()
    for (file, line, _), known in found.items():
        resume = resumed.get((file, line)) if (file, line) not in claimed else None
        claimed.add((file, line))
        breaks.append(
            Break(
                place=known.place,
                reason=known.reason,
                hint=known.hint,
                page=known.page,
                times=known.times,
                restarts_ns=known.restarts_ns,
                resumes=resume.times if resume is not None else 0,
                resumes_ns=resume.total_ns if resume is not None else 0,
                resumes_dynamo_ns=resume.dynamo_ns if resume is not None else 0,
            )
        )
    return tuple(sorted(breaks, key=lambda one: (-one.restarts_ns - one.resumes_dynamo_ns, str(one.place))))


@dataclass(slots=True)
class _Resume:
    function: str
    times: int = 0
    total_ns: int = 0
    dynamo_ns: int = 0


def _resumes(compiles: Iterable[OneCompile]) -> dict[tuple[str, int], _Resume]:
    """The compiles of functions that resume after a graph break, by file and line, in the order of their first one."""
    found: dict[tuple[str, int], _Resume] = {}
    for one in compiles:
        name = _RESUME.match(one.frame.function) if one.frame is not None else None
        if name is None or one.frame is None:
            continue
        known = found.setdefault((one.frame.file, int(name["line"])), _Resume(name["function"]))
        known.times += not one.backward
        if not one.nested:
            known.total_ns += one.total_ns
            known.dynamo_ns += one.phases.dynamo_ns
    return found


def _by_restarts(one: OneCompile, free: dict[tuple[str, int], None]) -> list[BrokenAt]:
    """The breaks of a compile by the reasons of its restarts.

    Their lines are those of the next functions that resume in its file.
    """
    reasons = [reason for reason in one.restart_reasons if not first_sentence(reason).startswith(_NO_BREAK)]
    if one.frame is None:
        return [BrokenAt(None, first_sentence(reason), hint_of(reason), address_of(reason)) for reason in reasons]
    own = _RESUME.match(one.frame.function)
    after = int(own["line"]) if own is not None else one.frame.line
    lines = [line for file, line in free if file == one.frame.file and line >= after]
    found = []
    for place, reason in enumerate(reasons):
        at = Place(one.frame.file, lines[place], "") if place < len(lines) else None
        found.append(BrokenAt(at, first_sentence(reason), hint_of(reason), address_of(reason)))
    return found


def _in_function(place: Place | None, frame: Place | None) -> Place | None:
    """A line with the function of the compile that broke there; of one that resumed, the user's own."""
    if place is None:
        return None
    name = frame.function if frame is not None else "?"
    resumed = _RESUME.match(name)
    return Place(place.file, place.line, resumed["function"] if resumed is not None else name)


def is_recompile(one: OneCompile) -> bool:
    """Whether a compile made a further version of a function."""
    return not one.backward and bool(one.version) and not one.at_limit and one.times is not None


_Function = tuple[int | None, int | None, Place | None]


def _function(one: OneCompile) -> _Function:
    """The identity of a function: its number begins again after a reset."""
    return one.autograd_id, one.frame_id, one.frame


@dataclass(slots=True)
class _RecompileSum:
    frame: Place | None
    guard: str
    guarded_at: Place | None
    functions: set[_Function] = field(default_factory=set)
    times: int = 0
    total_ns: int = 0


def recompiles_of(process: ProcessLog) -> tuple[Recompile, ...]:
    """The distinct recompiles by function and failed guard, the costliest first; lazy backward graphs included."""
    backward_ns: dict[str, int] = defaultdict(int)
    versions: dict[_Function, int] = defaultdict(int)
    limited = set()
    for one in process.compiles:
        function = _function(one)
        if one.backward and not one.nested:
            backward_ns[one.id] += one.total_ns
        if one.at_limit:
            limited.add(function)
        elif not one.backward and one.version is not None and one.times is not None:
            versions[function] = max(versions[function], one.version + 1)
    found: dict[tuple[Place | None, str], _RecompileSum] = {}
    for one in process.compiles:
        if not is_recompile(one):
            continue
        key = (one.frame, guard_shape(one.guard))
        known = found.setdefault(key, _RecompileSum(one.frame, one.guard, one.guarded_at))
        known.functions.add(_function(one))
        known.times += 1
        known.total_ns += (0 if one.nested else one.total_ns) + backward_ns.pop(one.id, 0)
    results = []
    for known in found.values():
        kind = guard_kind(known.guard)
        results.append(
            Recompile(
                frame=known.frame,
                guard=known.guard or "the log does not hold the guard",
                kind=kind.kind,
                is_value=kind.is_value,
                guarded_at=known.guarded_at,
                edit=kind.edit,
                times=known.times,
                versions=sum(versions[one] for one in known.functions),
                total_ns=known.total_ns,
                at_limit=bool(known.functions & limited),
            )
        )
    return tuple(sorted(results, key=lambda one: (-one.total_ns, str(one.frame), one.guard)))


def cache_uses(process: ProcessLog) -> tuple[CacheUse, ...]:
    """The use of each cache that the log mentions."""
    looks = [*process.caches, *(look for one in process.compiles for look in one.caches)]
    uses = []
    for cache in _CACHES:
        own = [look for look in looks if look.cache == cache]
        outcomes = Counter(look.outcome for look in own)
        reasons = Counter(look.reason for look in own if look.outcome == "bypass")
        if own:
            told = tuple(reasons.most_common(_MOST_REASONS))
            uses.append(CacheUse(cache, outcomes["hit"], outcomes["miss"], outcomes["bypass"], told))
    return tuple(uses)


def saved_ns(process: ProcessLog) -> int | None:
    """The time that hits saved as torch estimates it; ``None`` without a hit.

    AOTAutograd's estimate of a compile holds those of its graphs: the larger of both counts.
    """
    looks = [one.caches for one in process.compiles] + [process.caches]
    if not any(look.outcome == "hit" for group in looks for look in group):
        return None
    return sum(max(_saved(group, cache) for cache in _CACHES) for group in looks)


def _saved(looks: Sequence[CacheRecord], cache: str) -> int:
    return sum(look.saved_ns for look in looks if look.cache == cache and look.outcome == "hit")


def failures_of(process: ProcessLog) -> tuple[Failure, ...]:
    """The compiles that failed or were skipped, by function and reason; limits of recompiles are no failure."""
    found: dict[tuple[Place | None, str, str], tuple[int, int]] = {}
    for one in process.compiles:
        if one.fail_kind and not one.at_limit:
            key = (one.frame, one.fail_kind, one.fail_reason or _NOT_RECORDED)
            times, total_ns = found.get(key, (0, 0))
            found[key] = (times + 1, total_ns + (0 if one.nested else one.total_ns))
    failures = [Failure(*key, times, total_ns) for key, (times, total_ns) in found.items()]
    return tuple(sorted(failures, key=lambda one: (-one.total_ns, str(one.frame), one.kind)))
