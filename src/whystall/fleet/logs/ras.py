"""Answers of NCCL's RAS: each rank's number of launched collectives, and ranks without an answer. JSON and text.

The text is for people and changes between releases; it names only the few that stand apart. Two answers some seconds
apart show which ranks move: a difference of a few is normal while a job runs (NCCL
docs/userguide/source/troubleshooting/ras.rst).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from whystall.errors import InputError
from whystall.fleet.logs.results import Behind, CommLog, Missing
from whystall.fleet.logs.values import listed, mapping, whole
from whystall.trace.metadata import MOST_RANKS
from whystall.vocabulary.collectives import kind_named

__all__ = ["Answer", "answer_of_json", "answers_of_text", "is_json", "is_text", "result"]

ANY: Final = "collective"  # the count of NCCL before 2.26: all kinds together
_HEAD: Final = re.compile(r"^[ \t]*Job summary[ \t]*$|^[ \t]*Communicators\.\.\. ", re.MULTILINE)
_COMMUNICATOR: Final = re.compile(r"^\s*#\d{1,9}-\d{1,9} \(([0-9a-f]{1,32})\)")
_COUNTS: Final = re.compile(r"different (\w{1,30}) operation counts")
_GROUP: Final = re.compile(r"^\s*(\d{1,7}) ranks? ha(?:ve|s) launched up to operation (\d{1,18})")
_GROUP_NONE: Final = re.compile(r"^\s*(\d{1,7}) ranks? ha(?:ve|s) not launched any")
_ALONE: Final = re.compile(r"^\s*Rank (\d{1,7}) has (?:launched up to operation (\d{1,18})|not launched any)")
_MEMBER: Final = re.compile(r"^\s*Rank (\d{1,7}) -- ")
_MISSING: Final = re.compile(r"^\s*The missing ranks?: ([\d, ]{1,4000})")
_PROCESS: Final = re.compile(r"^\s*Process (\d{1,10}) on node ")
_DEAD: Final = re.compile(r"considered dead")


@dataclass(slots=True)
class Answer:
    """One answer: launches by communicator, kind and rank; the most launched by communicator and kind; who is missing.

    ``unnamed`` counts ranks that are behind and that the answer does not name.
    """

    counts: dict[tuple[str, str, int], int] = field(default_factory=dict)
    most: dict[tuple[str, str], int] = field(default_factory=dict)
    missing: list[tuple[str | None, int | None, bool, int | None]] = field(default_factory=list)
    communicators: set[str] = field(default_factory=set)
    unnamed: int = 0


def is_json(document: dict[str, Any]) -> bool:
    """Whether a document is an answer about communicators."""
    return isinstance(document.get("communicators"), list) and "communicators_count" in document


def is_text(text: str) -> bool:
    """Whether a text is an answer."""
    return _HEAD.search(text) is not None


def answer_of_json(document: dict[str, Any]) -> Answer:
    """The answer in a document. Hosts and processes of ranks that answered are not taken."""
    found = Answer()
    for one in map(mapping, listed(document["communicators"])):
        name = str(one.get("hash"))[:64] + str(one.get("secondary_hash"))[:64]
        found.communicators.add(name)
        for each in map(mapping, listed(one.get("ranks"))):
            rank = whole(each.get("rank"), MOST_RANKS)
            for kind, count in mapping(each.get("collective_counts")).items():
                known, launched = kind_named(kind), whole(count, 1 << 60)
                if rank is None or known is None or launched is None:
                    continue
                found.counts[name, known, rank] = launched
                found.most[name, known] = max(found.most.get((name, known), 0), launched)
        for each in map(mapping, listed(one.get("missing_ranks"))):
            rank, status = whole(each.get("rank"), MOST_RANKS), mapping(each.get("status"))
            process = whole(each.get("pid"), 1 << 32)
            found.missing.append((name, rank, status.get("considered_dead") is True, process))
    return found


def answers_of_text(text: str) -> list[Answer]:
    """The answers in a text, which may hold several: each begins with its summary of the job."""
    parts = re.split(r"(?m)^(?=[ \t]*Job summary[ \t]*$)", text)
    return [_answer(part) for part in parts if is_text(part)]


def _answer(text: str) -> Answer:
    found, name, kind, at, dead = Answer(), None, ANY, None, False
    for line in text.splitlines():
        if (head := _COMMUNICATOR.match(line)) is not None:
            name, kind, at, dead = head[1], ANY, None, False
            found.communicators.add(name)
        elif _DEAD.search(line):
            dead, name = True, None
        elif (counted := _COUNTS.search(line)) is not None:
            kind, at = kind_named(counted[1]) or ANY, None
        elif (gone := _MISSING.match(line)) is not None:
            ranks = [whole(one.strip(), MOST_RANKS) for one in gone[1].split(",")]
            found.missing += [(name, rank, dead, None) for rank in ranks if rank is not None]
        elif (process := _PROCESS.match(line)) is not None:
            found.missing.append((None, None, dead, whole(process[1], 1 << 32)))
        elif name is not None:
            at = _launches(found, name, kind, line, at)
    named = {(one, other, rank) for one, other, rank in found.counts if rank >= 0}
    _count_unnamed(found, named)
    return found


def _launches(found: Answer, name: str, kind: str, line: str, at: int | None) -> int | None:
    """Takes a line about launches in; the count of the group that the next lines name members of."""
    group, none, alone, member = (pattern.match(line) for pattern in (_GROUP, _GROUP_NONE, _ALONE, _MEMBER))
    if alone is not None:
        at = int(alone[2] or 0)
        found.counts[name, kind, int(alone[1])] = at
    elif group is not None or none is not None:
        at = int(group[2]) if group is not None else 0
        size = int((group or none)[1])  # type: ignore[index]  # one of them matched
        # A rank below zero stands for those of a group that are not named.
        found.counts[name, kind, -1 - at] = size
    elif member is not None and at is not None:
        found.counts[name, kind, int(member[1])] = at
        return at
    else:
        return at
    found.most[name, kind] = max(found.most.get((name, kind), 0), at)
    return at


def _count_unnamed(found: Answer, named: set[tuple[str, str, int]]) -> None:
    for name, kind, rank in [key for key in found.counts if key[2] < 0]:
        size, at = found.counts.pop((name, kind, rank)), -1 - rank
        if at < found.most.get((name, kind), 0):
            told = sum(found.counts[key] == at for key in named if key[:2] == (name, kind))
            found.unnamed += max(size - told, 0)


def result(answers: Sequence[Answer], files: int) -> CommLog:
    """The ranks that are behind or missing in the latest answer, and those that moved since the first."""
    if not answers:
        raise InputError("it looks like an answer of NCCL's RAS, and is cut off before the first communicator")
    latest, earlier = answers[-1], answers[0] if len(answers) > 1 else None
    numbers = {name: place for place, name in enumerate(sorted(latest.communicators))}
    behind = [
        Behind(
            communicator=numbers[name],
            collective=kind,
            rank=rank,
            launched=launched,
            most_launched=latest.most[name, kind],
            moved=_moved(earlier, (name, kind, rank), launched),
        )
        for (name, kind, rank), launched in sorted(latest.counts.items())
        if launched < latest.most.get((name, kind), 0)
    ]
    missing = [
        Missing(communicator=None if name is None else numbers.get(name), rank=rank, dead=dead, process=process)
        for name, rank, dead, process in latest.missing
    ]
    return CommLog(
        format="NCCL RAS", files=files, behind=tuple(behind), missing=tuple(missing), communicators=len(numbers),
        notes=tuple(_notes(latest, earlier, behind)),
    )  # fmt: skip


def _moved(earlier: Answer | None, key: tuple[str, str, int], launched: int) -> bool | None:
    before = None if earlier is None else earlier.counts.get(key)
    return None if before is None else launched > before


def _notes(latest: Answer, earlier: Answer | None, behind: Sequence[Behind]) -> Iterator[str]:
    if latest.unnamed:
        yield f"{latest.unnamed:,} ranks that are behind are not named: ask for VERBOSE STATUS, or for JSON"
    if behind and earlier is None:
        yield (
            "a difference of a few is normal while a job runs: ask again some seconds later and give both answers, "
            "the earlier first"
        )
    if behind and any(one.collective == ANY for one in behind):
        yield "the answer counts all kinds of collectives together, as NCCL before 2.26 does"
