"""Whether two recordings are comparable: the same machine, number of ranks, and size of batches.

It reports differences and missing facts, and infers nothing from times.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Protocol

from whystall.analysis.results import Device
from whystall.analysis.run_results import Environment
from whystall.analysis.work_results import GivenRows

_NOTHING: Final = Environment()


class Sourced(Protocol):
    """How many ranks the job of a recording had."""

    @property
    def world_size(self) -> int | None:
        """``None`` is not known."""


class Placed(Protocol):
    """The facts of a report about the job's machine and the work of a step."""

    @property
    def devices(self) -> Sequence[Device]:
        """Devices by rank."""

    @property
    def source(self) -> Sourced:
        """The job's source."""

    @property
    def environment(self) -> Environment | None:
        """The machine and the versions."""

    @property
    def samples_per_step(self) -> int | None:
        """Samples that a loader handed out."""

    @property
    def given(self) -> Sequence[GivenRows]:
        """Rows that products received."""


@dataclass(frozen=True, slots=True)
class Comparability:
    """The differences between two recordings (``reasons`` against comparing times), and the facts unknown for both.

    ``notes`` are differences that may be under test: versions, cores. ``same_work`` is true if ranks and batches are
    not known to differ, so that amounts are comparable, too.
    """

    reasons: list[str]
    unknown: list[str]
    notes: list[str]
    same_work: bool

    @property
    def warnings(self) -> list[str]:
        """Sentences to show beside the reasons."""
        unknown = f"not known of both, and taken to be the same: {', '.join(self.unknown)}"
        return [*self.notes, *([unknown] if self.unknown else [])]


def comparability(base: Placed, candidate: Placed) -> Comparability:
    """Whether times of the two compare."""
    ranks, machines = list(_ranks(base, candidate)), list(_machines(base, candidate))
    batches, batches_known = _batches(base, candidate)
    environments = _environments(base, candidate)
    unknown = [] if all(one.cpu for one in environments) else ["the CPU"]
    unknown += [] if batches_known else ["the size of batches"]
    return Comparability(
        reasons=[*ranks, *machines, *batches],
        unknown=unknown,
        notes=list(_notes(*environments)),
        same_work=not ranks and not batches,
    )


def ranks_of(report: Placed) -> int:
    """How many ranks were recorded."""
    return max(len({device.rank for device in report.devices}), 1)


def _environments(base: Placed, candidate: Placed) -> tuple[Environment, Environment]:
    return base.environment or _NOTHING, candidate.environment or _NOTHING


def _ranks(base: Placed, candidate: Placed) -> Iterator[str]:
    recorded = [ranks_of(one) for one in (base, candidate)]
    sizes = [one.source.world_size for one in (base, candidate)]
    if recorded[0] != recorded[1]:
        yield f"the base has {recorded[0]} ranks, the candidate {recorded[1]}"
    elif None not in sizes and sizes[0] != sizes[1]:
        yield f"the world size of the base's job is {sizes[0]}, of the candidate's {sizes[1]}"


def _machines(base: Placed, candidate: Placed) -> Iterator[str]:
    names = [sorted({device.name or "" for device in report.devices}) for report in (base, candidate)]
    if names[0] != names[1]:
        first, second = (", ".join(filter(None, one)) or "none" for one in names)
        yield f"the devices differ: {first} and {second}"
    one, other = _environments(base, candidate)
    if one.cpu and other.cpu and one.cpu != other.cpu:
        yield f"the CPUs differ: {one.cpu} and {other.cpu}"
    elif one.cores and other.cores and one.cores != other.cores:
        yield f"the base's machine has {one.cores} cores, the candidate's {other.cores}"


def _batches(base: Placed, candidate: Placed) -> tuple[list[str], bool]:
    """The differences between batches, and whether anything is known about them.

    A loader's number counts before shapes: a change may give every layer less to do for the same samples.
    """
    samples = base.samples_per_step, candidate.samples_per_step
    if samples[0] and samples[1]:
        if samples[0] == samples[1]:
            return [], True
        return [
            f"batches differ in size: a step of the base has {samples[0]} samples, of the candidate {samples[1]}"
        ], True
    before, after = _products(base), _products(candidate)
    both = [(key, before[key], after[key]) for key in before if key in after]
    if not both:
        return [], False
    # Micro-batches that are added up in a step may be cut otherwise; layers may be called less often for a batch.
    ratios = {(Fraction(two.rows, one.rows), two.rows * two.calls == one.rows * one.calls) for _, one, two in both}
    if ratios == {(Fraction(1), True)}:
        return [], True
    ((ratio, as_much),) = ratios if len(ratios) == 1 else {(Fraction(1), True)}
    if ratio == 1 or as_much:
        return [], False
    (operator, weights), one, two = both[0]
    shape = "x".join(map(str, weights))
    said = f"{operator} with weights of {shape} is given {one.rows} rows in the base, {two.rows} in the candidate"
    return [f"batches differ in size: {said}"], True


def _products(report: Placed) -> dict[tuple[str, tuple[int, ...]], GivenRows]:
    return {(row.operator, tuple(row.weights)): row for row in report.given}


def _notes(base: Environment, candidate: Environment) -> Iterator[str]:
    words = (("python", "Python"), ("torch", "torch"))
    for name, word in words:
        one, other = getattr(base, name), getattr(candidate, name)
        if one and other and one != other:
            yield f"the base ran with {word} {one}, the candidate with {other}"
    if base.cores_allowed and candidate.cores_allowed and base.cores_allowed != candidate.cores_allowed:
        yield f"the base might use {base.cores_allowed} cores, the candidate {candidate.cores_allowed}"
