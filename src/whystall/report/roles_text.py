"""The ledger over the roles of a job, as a document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from whystall.analysis.roles import Role, Roles
from whystall.report.document import Document, Heading, Lines, Part, grid
from whystall.report.format import UNKNOWN, duration, plural, share
from whystall.report.names import clean
from whystall.report.tables import Cell

_LONGEST = 60
_WORTH_TELLING = 0.01  # share of the time; a smaller gain is left out
_BY = {
    "traces": "By traces: a process works while its device computes or copies; pauses up to 5 ms are none.",
    "samples": "By samples of watched runs, step by step: the passes of a step are taken to lie at its end.",
}


def roles_document(found: Roles, by: str, notes: Sequence[str]) -> Document:
    """The document: the sentence on top, the ledger, the roles."""
    parts: list[Part] = [
        summarize(found),
        Lines(tuple(_gains(found))),
        Heading("The ledger over roles", _BY[by], _BY[by]),
    ]
    parts += [
        grid("The time that all recordings share", ("Who works", "Time", "Share"), _ledger(found)),
        Heading("Roles"),
        grid("Each role, as shares of that time", _COLUMNS, [_row(role, found.window_ns) for role in found.roles]),
        Lines((_LEGEND, *_steps(found))),
    ]
    if notes:
        parts.append(Lines(tuple(clean(note, 300) for note in notes[:16]), marked=True))
    return Document("roles", summarize(found), tuple(part for part in parts if part != Lines(())))


def summarize(found: Roles) -> str:
    """The one sentence on top: who keeps the others waiting."""
    first = found.roles[0]
    if found.one_after_another:
        return f"{_name(first)} takes {_share(first.alone_ns, found)} of the time, and the phases follow each other."
    if first.alone_ns < _WORTH_TELLING * found.window_ns:
        return f"No role keeps the others waiting: several work {_share(found.several_ns, found)} of the time."
    others = [role for role in found.roles if role is not first]
    waiting = _name(others[0]) if len(others) == 1 else "the others"
    return (
        f"{_name(first)} works alone {_share(first.alone_ns, found)} of the time, and {waiting} "
        f"wait{'s' * (len(others) == 1)} for it."
    )


def _gains(found: Roles) -> Iterator[str]:
    at_most = found.at_most
    if at_most is not None and at_most >= 1 + _WORTH_TELLING:
        yield (
            f"Were the roles to work beside each other (asynchronously), the same work would be done at most "
            f"{at_most:.2f} times as fast: the busiest role then works all the time."
        )
    for role in found.roles:
        if role.spread_ns >= _WORTH_TELLING * found.window_ns:
            times = found.window_ns / (found.window_ns - role.spread_ns)
            yield (
                f"For {_share(role.tail_ns, found)} of the time {_name(role)} works alone on at most half of its "
                f"{role.processes} processes, its long tail: spread over all of them (shorter limits, work handed on, "
                f"partial rollouts), at most {times:.2f} times as fast."
            )


def _ledger(found: Roles) -> Iterator[tuple[str | Cell, ...]]:
    rows = [(f"{_name(role)} alone", role.alone_ns) for role in found.roles]
    rows += [
        ("several roles", found.several_ns),
        ("nobody; processes communicate", found.communication_ns),
        ("nobody", found.nobody_ns),
    ]
    for what, ns in rows:
        yield what, Cell(duration(ns), ns), Cell(_share(ns, found), ns / found.window_ns)
    yield "all", Cell(duration(found.window_ns), found.window_ns), Cell(share(1.0), 1.0)


_COLUMNS = (
    "Role",
    "Processes",
    "Works",
    "Each works",
    "Tail",
    "Waits",
    "Bubbles",
    "Longest",
    "Communicates",
    "Steps",
    "A step",
)
_LEGEND = (
    "Works: at least one of its processes does; each works: the mean over them; tail: it works alone, on at most half "
    "of them; waits: another role works and none of them does, with the number of bubbles; communicates: and does not "
    "work, the "
    "mean over them."
)


def _row(role: Role, window_ns: int) -> tuple[str | Cell, ...]:
    def part(ns: int) -> Cell:
        return Cell(share(ns / window_ns), ns / window_ns)

    return (
        _name(role),
        Cell(f"{role.processes:,}", role.processes),
        part(role.work_ns),
        part(role.mean_work_ns),
        part(role.tail_ns) if role.processes > 1 else Cell(UNKNOWN),
        part(role.waits_ns),
        Cell(f"{role.bubbles:,}", role.bubbles),
        Cell(duration(role.longest_bubble_ns), role.longest_bubble_ns) if role.bubbles else Cell(UNKNOWN),
        part(role.communicates_ns),
        Cell(f"{role.steps:,}", role.steps) if role.steps else Cell(UNKNOWN),
        Cell(duration(role.step_ns), role.step_ns) if role.step_ns is not None else Cell(UNKNOWN),
    )


def _steps(found: Roles) -> Iterator[str]:
    """A step, role by role."""
    for role in found.roles:
        if role.step_name is not None and role.steps:
            counted = plural(role.steps, "step")
            yield f"A step of {_name(role)}: {clean(role.step_name, 120)} ({counted} ended in this time)."
        else:
            yield f"A step of {_name(role)}: none is marked."


def _name(role: Role) -> str:
    return clean(role.role, _LONGEST)


def _share(ns: int, found: Roles) -> str:
    return share(ns / found.window_ns)
