"""From the list of allocations to who holds memory at the peak of each section of a step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from whystall.model.prediction.events import Place, Record

KINDS = (
    "parameters",
    "buffers",
    "inputs",
    "gradients",
    "optimizer state",
    "activations",
    "recomputed",
    "outputs",
    "communication",
    "temporaries",
)
"""Kinds of memory, in the order in which results list them."""

Section = tuple[str, str]  # phase and section
Holdings = Mapping[tuple[str, str], int]  # kind and module → bytes


@dataclass(frozen=True, slots=True)
class SectionPeak:
    """Memory at the fullest moment of one section; the parts add up to ``n_bytes``."""

    n_bytes: int
    holdings: Holdings


def peaks_of(
    record: Record, roles: Mapping[int, str], phases: tuple[str, ...], owners: Mapping[int, str] | None = None
) -> dict[Section, SectionPeak]:
    """The fullest moment of each section of ``phases``; ``roles`` names the kind of storages that are known.

    ``owners`` are to be named instead of the modules that made them.
    """
    owners = owners or {}
    kinds = {number: (kind, owners.get(number) or module) for number, (kind, module) in kinds_of(record, roles).items()}
    fullest: dict[Section, tuple[int, int]] = {}
    for place, (event, level) in enumerate(record.levels()):
        section = (event.place.phase, event.place.section)
        if event.place.phase in phases and level > fullest.get(section, (-1, 0))[0]:
            fullest[section] = (level, place)
    wanted: dict[int, list[Section]] = {}
    for section, (_, place) in fullest.items():
        wanted.setdefault(place, []).append(section)
    live: Counter[tuple[str, str]] = Counter()
    found: dict[Section, SectionPeak] = {}
    for place, event in enumerate(record.events):
        live[kinds[event.number]] += event.n_bytes
        for section in wanted.get(place, ()):
            held = {key: n_bytes for key, n_bytes in live.items() if n_bytes}
            found[section] = SectionPeak(fullest[section][0], held)
    return found


def kinds_of(record: Record, roles: Mapping[int, str]) -> dict[int, tuple[str, str]]:
    """The kind of every storage, and the module that it belongs to."""
    born: dict[int, Place] = {}
    died: dict[int, tuple[int, str]] = {}
    left: Counter[int] = Counter()
    step = 0
    steps: dict[int, int] = {}
    before = ""
    for event in record.events:
        if event.place.phase != before:
            step += event.place.phase == "forward"
            before = event.place.phase
        if event.number not in born:
            born[event.number] = event.place
            steps[event.number] = step
        left[event.number] += event.n_bytes
        if not left[event.number]:
            died[event.number] = (step, event.place.phase)
    return {
        number: (roles.get(number) or _kind(place, steps[number], died.get(number)), place.module)
        for number, place in born.items()
    }


def _kind(born: Place, step: int, died: tuple[int, str] | None) -> str:
    if born.phase == "forward":
        if died == (step, "forward"):
            return "temporaries"
        return "activations" if died == (step, "backward") else "outputs"
    if born.phase == "backward" and born.module:
        return "recomputed"
    return "temporaries"
