"""The outcome of one simulated step, and the extrapolation from two depths of a model to a deeper one; no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from whystall.model.prediction.conventions import TransformerSizes
from whystall.model.prediction.events import Record
from whystall.model.prediction.peaks import Section, SectionPeak

PHASES = ("forward", "backward", "optimizer")


@dataclass(frozen=True, slots=True)
class Work:
    """Operations and bytes of a phase, and its least time on a device, where the peaks are known.

    ``times_ns`` are those on the further devices of the request.
    """

    flops: int = 0
    n_bytes: int = 0
    time_ns: int = 0
    times_ns: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Kept:
    """The activations inside all calls of the modules of one name, kept for the backward pass, and their FLOPs.

    A module's inputs and outputs are not part of ``n_bytes``; ``operators`` made the rest, largest first.
    """

    kind: str
    calls: int
    n_bytes: int
    flops: int
    operators: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Simulated:
    """One simulated step: peaks by section, work by phase, and counts and assumptions on the way.

    ``blocks`` is the place of the repeated blocks and the number that were run; ``None`` where there are none.
    ``boundary_bytes`` is the size of the first one's input, ``tensor_parallel_bytes`` the least bytes that a rank sends
    to those that share its products. ``sizes`` are those of a language model. ``modules`` have a star for the number of
    one of alike ones.
    """

    sections: Mapping[Section, SectionPeak]
    work: Mapping[str, Work]
    parameters: int
    trainable: int
    parameter_bytes: int
    gradient_bytes: int
    state_bytes: int
    largest_unit_bytes: int
    blocks: tuple[str, int] | None
    assumed: Sequence[str]
    uncovered: Sequence[str]
    record: Record
    boundary_bytes: int = 0
    tensor_parallel_bytes: int = 0
    sizes: TransformerSizes | None = None
    depths: tuple[int, ...] = ()
    depth_error: float | None = None
    modules: Mapping[str, Kept] = field(default_factory=dict)

    @property
    def peak_bytes(self) -> int:
        """The most that is allocated at any moment."""
        return max((peak.n_bytes for peak in self.sections.values()), default=0)

    def phase_peaks(self) -> dict[str, SectionPeak]:
        """The fullest moment of each phase."""
        return {
            phase: max(found, key=lambda one: one.n_bytes)
            for phase in PHASES
            if (found := [peak for (name, _), peak in self.sections.items() if name == phase])
        }


def deeper(shallow: Simulated, deep: Simulated, count: int) -> Simulated:
    """The step of a model with ``count`` blocks: each part of each section is extrapolated from the two depths.

    Peaks are taken after that, since another section, or phase, may be the fullest in a deep model than in a shallow
    one. The first and the last block are extrapolated: the peaks of the others lie between theirs.
    """
    if shallow.blocks is None or deep.blocks is None:
        raise ValueError("a model without repeated blocks has no other depth")
    path, high = deep.blocks
    low = shallow.blocks[1]

    def at(before: int, after: int) -> int:
        return after + (after - before) * (count - high) // (high - low)

    ends = [_by_end(one.sections, depth) for one, depth in ((shallow, low), (deep, high))]
    sections = {section: _between(ends[0][section], ends[1][section], at) for section in ends[1] if section in ends[0]}
    work = {
        phase: Work(
            at(shallow.work[phase].flops, after.flops),
            at(shallow.work[phase].n_bytes, after.n_bytes),
            at(shallow.work[phase].time_ns, after.time_ns),
            tuple(at(*pair) for pair in zip(shallow.work[phase].times_ns, after.times_ns, strict=True)),
        )
        for phase, after in deep.work.items()
    }
    return Simulated(
        sections=sections,
        work=work,
        parameters=at(shallow.parameters, deep.parameters),
        trainable=at(shallow.trainable, deep.trainable),
        parameter_bytes=at(shallow.parameter_bytes, deep.parameter_bytes),
        gradient_bytes=at(shallow.gradient_bytes, deep.gradient_bytes),
        state_bytes=at(shallow.state_bytes, deep.state_bytes),
        largest_unit_bytes=deep.largest_unit_bytes,
        boundary_bytes=deep.boundary_bytes,
        sizes=deep.sizes,
        tensor_parallel_bytes=at(shallow.tensor_parallel_bytes, deep.tensor_parallel_bytes),
        blocks=(path, count),
        assumed=deep.assumed,
        uncovered=deep.uncovered,
        record=Record(()),
        modules=_modules(shallow, deep, at),
    )


def _modules(shallow: Simulated, deep: Simulated, at: Callable[[int, int], int]) -> dict[str, Kept]:
    found = {}
    for name, after in deep.modules.items():
        before = shallow.modules.get(name)
        if before is not None:
            found[name] = Kept(
                kind=after.kind,
                calls=at(before.calls, after.calls),
                n_bytes=at(before.n_bytes, after.n_bytes),
                flops=at(before.flops, after.flops),
                operators={key: at(before.operators.get(key, 0), held) for key, held in after.operators.items()},
            )
    return found


def _by_end(sections: Mapping[Section, SectionPeak], depth: int) -> dict[Section, SectionPeak]:
    """The sections by names that hold at any depth; the blocks between the first and the last have none."""
    ends = {"0": "first", str(depth - 1): "last"}
    return {
        (phase, ends.get(section, section)): peak
        for (phase, section), peak in sections.items()
        if section in ends or not section.isdigit()
    }


def _between(before: SectionPeak, after: SectionPeak, at: Callable[[int, int], int]) -> SectionPeak:
    keys = before.holdings.keys() | after.holdings.keys()
    held = {key: max(at(before.holdings.get(key, 0), after.holdings.get(key, 0)), 0) for key in keys}
    return SectionPeak(sum(held.values()), held)
