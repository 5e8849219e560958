"""One candidate of each cause: on all ranks where it is at work, from all ways to know it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from msgspec import structs

from whystall.diagnosis.candidate import Candidate, Replayed, Sampled, Standing, Valued, Weighed
from whystall.diagnosis.case import Case
from whystall.diagnosis.finding import Evidence

_NUMBER: Final = re.compile(r"\d[\d.,]*")


def on_all_ranks(case: Case, candidates: Sequence[Valued]) -> list[Valued]:
    """One candidate for each cause and each way to find it, on all ranks where it is at work.

    Ranks wait for each other: a delay of several of them in each step is one loss. Each rank has its own numbers in its
    detail, so numbers do not separate ways.
    """
    groups: dict[tuple[str, str, type[Valued]], list[Valued]] = {}
    out: list[Valued] = []
    for one in candidates:
        if len(one.ranks) == 1 and (isinstance(one, Sampled) or len(case.ranks) > 1):
            groups.setdefault((one.cause, _NUMBER.sub("#", one.detail), type(one)), []).append(one)
        else:
            out.append(one)
    for group in groups.values():
        if len({one.ranks for one in group}) > 1 or (len(case.runs) > 1 and isinstance(group[0], Sampled)):
            worst = max(group, key=lambda one: (one.attributed_ns, [-rank for rank in one.ranks]))
            out.append(worst.united(case, group))
        else:
            out += group
    return out


def not_overruled(candidates: Sequence[Candidate]) -> list[Candidate]:
    """The candidates without those from a recording with too little evidence; samples of the whole run stay."""
    silent = {rank for one in candidates if one.overrules for rank in one.ranks}
    return [one for one in candidates if one.overrules or not (_is_replayed(one) and silent.intersection(one.ranks))]


def _is_replayed(one: Candidate) -> bool:
    return isinstance(one, Replayed) or (isinstance(one, Sampled) and one.step_ns is None)


def once(candidates: Sequence[Standing]) -> list[Standing]:
    """The first of each cause and rank: one from a trace comes before one from samples."""
    first = {(one.cause, *one.ranks): one for one in reversed(candidates)}
    return [one for one in candidates if first[one.cause, *one.ranks] is one]


def merged(weighed: Sequence[Weighed]) -> list[Weighed]:
    """One of each cause and rank: measurements over the whole run go before replays of a part.

    The evidence of both is kept; that of recorded steps is marked.
    """
    out: list[Weighed] = []
    for one in weighed:
        at = next((at for at, other in enumerate(out) if _same(one.candidate, other.candidate)), None)
        if at is None:
            out.append(one)
        else:
            out[at] = _joined(one, out[at])
    return out


def _joined(one: Weighed, other: Weighed) -> Weighed:
    # Samples precede a replay of the same; else the one that explains more comes first.
    alike = one.candidate.detail == other.candidate.detail or not (one.candidate.detail and other.candidate.detail)
    first, second = sorted(
        (one, other), key=lambda each: (alike and isinstance(each.candidate, Replayed), -each.expected)
    )
    kept, added = first.candidate, second.candidate
    candidate = replace(
        kept,
        evidence=(*kept.evidence, *_of_recording(kept, added)),
        code=kept.code if kept.code.lines else added.code,
        removal=kept.removal or added.removal,
        if_hidden=kept.if_hidden or added.if_hidden,
        ranks=tuple(sorted({*kept.ranks, *added.ranks})),
    )
    return replace(first, candidate=candidate)


def _of_recording(kept: Valued, added: Valued) -> list[Evidence]:
    """The evidence of ``added``, marked as that of recorded steps where ``kept`` is of the whole run."""
    if not isinstance(kept, Sampled) or isinstance(added, Sampled):
        return list(added.evidence)
    return [structs.replace(one, what=f"in recorded steps: {one.what}") for one in added.evidence]


def _same(one: Valued, other: Valued) -> bool:
    """Whether both are the same: the same cause on the same ranks, or on some of those that the other way finds."""
    if (one.cause, one.nameless) != (other.cause, other.nameless):
        return False
    ranks, others = set(one.ranks), set(other.ranks)
    if type(one) is type(other):
        return ranks == others
    return ranks <= others or others <= ranks
