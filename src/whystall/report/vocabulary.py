"""The words, colours and marks that every format shares, in one table each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Part:
    """How one part of the ledger is called, drawn and explained.

    ``colour`` carries ``ink`` as text at a contrast of at least 4.5. ``glyph`` draws it where there is no
    colour, ``pattern`` where colour is not enough.
    """

    key: str
    label: str
    colour: str
    ink: str
    glyph: str
    pattern: str | None
    explanation: str
    explanation_cpu: str | None = None

    def explained(self, kind: str) -> str:
        """Meaning of the part on a device of this kind."""
        return self.explanation_cpu if kind == "cpu" and self.explanation_cpu else self.explanation


PARTS: tuple[Part, ...] = (
    Part("compute", "Compute", "#2563c9", "#ffffff", "#", None,
         "At least one compute kernel runs.", "The training thread is inside an operator."),
    Part("communication", "Communication", "#7c4dc4", "#ffffff", "=", None,
         "A collective runs and no compute hides it.", "The training thread is inside a collective."),
    Part("memory", "Memory", "#0f766e", "#ffffff", "+", None,
         "Only copies or memory sets run.", "Only copies or memory sets run."),
    Part("idle_input", "Idle: input", "#f2b705", "#1b1b1b", "i", "forward",
         "Nothing runs: the host waits for the next batch.",
         "The training thread waits for the next batch."),
    Part("idle_sync", "Idle: sync", "#c2410c", "#ffffff", "s", "backward",
         "Nothing runs: the host blocked on the device.",
         "The training thread blocks in a synchronisation."),
    Part("idle_python", "Idle: Python", "#c2255c", "#ffffff", "p", "dots",
         "Nothing runs: the launching thread is between operators.",
         "The training thread is in Python, outside operators."),
    Part("idle_dispatch", "Idle: dispatch", "#f08c3a", "#1b1b1b", "d", "vertical",
         "Nothing runs: operators prepare the next launch.",
         "The training thread is in the dispatch of operators."),
    Part("idle_launch", "Idle: launch", "#a3591f", "#ffffff", "l", "horizontal",
         "Nothing runs: the host is inside runtime calls.", "The training thread is inside runtime calls."),
    Part("idle_allocator", "Idle: allocator", "#6b7a1f", "#ffffff", "a", "grid",
         "Nothing runs: memory is allocated or freed.",
         "The training thread allocates or frees memory."),
    Part("idle_gc", "Idle: garbage collection", "#3f7d3a", "#ffffff", "g", "weave",
         "Nothing runs: Python collects garbage.", "Python collects garbage."),
    Part("idle_dependency", "Idle: dependency", "#55657a", "#ffffff", "w", "forward",
         "Queued work waits for a stream, an event or a rank.",
         "The training thread waits for another thread or rank."),
    Part("idle_gap", "Idle: gaps", "#93a3b8", "#1b1b1b", "-", "vertical",
         "Between queued kernels: short gaps, and those of a graph.", "Short gaps between operators."),
    Part("idle_unknown", "Idle: unknown", "#b4bdc8", "#1b1b1b", "?", "cross",
         "The capture lacks the signal that would show it.",
         "The capture lacks the signal that would show it."),
)  # fmt: skip

PART: Mapping[str, Part] = MappingProxyType({part.key: part for part in PARTS})

CLASS_COLOURS: Mapping[str, str] = MappingProxyType(
    {
        "compute": PART["compute"].colour,
        "communication": PART["communication"].colour,
        "memory": PART["memory"].colour,
        "operator": "#4a6fa5",
        "runtime": PART["idle_launch"].colour,
        "sync": PART["idle_sync"].colour,
        "python": PART["idle_python"].colour,
        "annotation": "#55a06a",
        "input": PART["idle_input"].colour,
    }
)
OTHER_COLOUR = "#8a94a3"


def class_colour(name: str) -> str:
    """The colour of a timeline's event class, grey for unforeseen ones."""
    return CLASS_COLOURS.get(name.lower(), CLASS_COLOURS.get(name.lower().rstrip("s"), OTHER_COLOUR))


SEVERITIES: Mapping[str, str] = MappingProxyType(
    {"critical": "Critical", "major": "Major", "minor": "Minor", "info": "For information"}
)

UNKNOWN_FAMILY = "not recognised"
