"""The distinct events of a process: graph breaks, recompiles, uses of caches and failures, with their seconds."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from whystall.compilation.folding import ProcessLog
from whystall.compilation.guards import guard_kind, guard_shape
from whystall.compilation.one_compile import OneCompile
from whystall.compilation.payloads import BrokenAt, CacheRecord
from whystall.compilation.results import Break, CacheUse, Failure, Place, Recompile

__all__ = ["breaks_of", "cache_uses", "failures_of", "is_recompile", "recompiles_of", "saved_ns"]

_RESUME: Final = re.compile(r"^torch_dynamo_resume_in_(?P<function>.+)_at_(?P<line>\d{1,9})(?:_\w*)?$")
_NO_BREAK: Final = ("Restart", "restart", "SpeculationRestart", "Compile failed")
_NOT_RECORDED: Final = "the log does not hold the reason"
_CACHES: Final = ("FX graph", "AOTAutograd")
_MOST_REASONS: Final = 16


Line = tuple[str, int]


@dataclass(slots=True)
class _BreakSum:
    """A distinct break while its compiles are counted; ``lines`` are those at which functions resume after it."""

    at: BrokenAt
    place: Place | None
    times: int = 0
    restarts_ns: int = 0
    lines: dict[Line, None] = field(default_factory=dict)


def breaks_of(process: ProcessLog) -> tuple[Break, ...]:
    """The distinct graph breaks, those that cost most first.

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
            line = _line(at.place)
            known = found.setdefault((*line, at.reason), _BreakSum(at, _in_function(at.place, one.frame)))
            known.times += 1
            known.restarts_ns += restarts_ns // len(broken)
            known.lines |= dict.fromkeys(_line(caller) for caller in at.callers)
            free.pop(line, None)
    for line in _unexplained(resumed, found.values()):
        at = BrokenAt(Place(*line, resumed[line].function), _NOT_RECORDED, None, None)
        found[(*line, at.reason)] = _BreakSum(at, at.place, times=1)
    claims = _claims(resumed, found)
    breaks = [_break(known, [resumed[line] for line in claims[key]]) for key, known in found.items()]
    return tuple(sorted(breaks, key=lambda one: (-one.restarts_ns - one.resumes_dynamo_ns, str(one.place))))


def _line(place: Place | None) -> Line:
    return ("", 0) if place is None else (place.file, place.line)


def _unexplained(resumed: dict[Line, _Resume], found: Iterable[_BreakSum]) -> list[Line]:
    """The lines at which functions resume and that belong to no break: they are breaks without a reason."""
    explained = {line for known in found for line in (_line(known.place), *known.lines)}
    return [line for line in resumed if line not in explained]


def _claims(
    resumed: dict[Line, _Resume], found: dict[tuple[str, int, str], _BreakSum]
) -> dict[tuple[str, int, str], list[Line]]:
    """The lines that resume after each break: each belongs to the break on it, else to the first one below it."""
    claims: dict[tuple[str, int, str], list[Line]] = {key: [] for key in found}
    for line in resumed:
        own = next((key for key in found if key[:2] == line), None)
        owner = own or next((key for key, known in found.items() if line in known.lines), None)
        if owner is not None:
            claims[owner].append(line)
    return claims


def _break(known: _BreakSum, resumed: Sequence[_Resume]) -> Break:
    return Break(
        place=known.place,
        called_at=known.at.called_at,
        reason=known.at.reason,
        hint=known.at.hint,
        page=known.at.page,
        times=known.times,
        restarts_ns=known.restarts_ns,
        resumes=sum(one.times for one in resumed),
        resumes_ns=sum(one.total_ns for one in resumed),
        resumes_dynamo_ns=sum(one.dynamo_ns for one in resumed),
    )


@dataclass(slots=True)
class _Resume:
    function: str
    times: int = 0
    total_ns: int = 0
    dynamo_ns: int = 0


def _resumes(compiles: Iterable[OneCompile]) -> dict[Line, _Resume]:
    """The compiles of functions that resume after a graph break, by file and line, in the order of their first one."""
    found: dict[Line, _Resume] = {}
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


def _by_restarts(one: OneCompile, free: dict[Line, None]) -> list[BrokenAt]:
    """The breaks of a compile by the reasons of its restarts.

    Their lines are those of the next functions that resume in its file.
    """
    broken = [at for at in one.restarts if not at.reason.startswith(_NO_BREAK)]
    if one.frame is None:
        return broken
    own = _RESUME.match(one.frame.function)
    after = int(own["line"]) if own is not None else one.frame.line
    lines = [line for file, line in free if file == one.frame.file and line >= after]
    return [
        replace(at, place=Place(one.frame.file, lines[place], "") if place < len(lines) else None)
        for place, at in enumerate(broken)
    ]


def _in_function(place: Place | None, frame: Place | None) -> Place | None:
    """A line with its function: where that is not known, the one that was compiled, without the name it resumes by."""
    if place is None or place.function:
        return place
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
    line: Place | None
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
        known = found.setdefault(key, _RecompileSum(one.frame, one.guard, one.guarded_at or one.line))
        known.functions.add(_function(one))
        known.times += 1
        known.total_ns += (0 if one.nested else one.total_ns) + backward_ns.pop(one.id, 0)
    results = []
    for known in found.values():
        kind = guard_kind(known.guard)
        results.append(
            Recompile(
                frame=known.frame,
                guard=known.guard,
                kind=kind.kind if known.guard else "a guard that is not recorded",
                is_value=kind.is_value,
                line=known.line,
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
