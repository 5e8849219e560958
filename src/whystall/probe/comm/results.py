"""The results of a sweep of collectives: its schema, and reading an earlier one back."""

from __future__ import annotations

from pathlib import Path
from statistics import median, quantiles
from typing import Annotated, Final, Literal

import msgspec

from whystall.disk.reading import content
from whystall.errors import InputError
from whystall.hardware.calibration import Calibration, Link
from whystall.json_text import parse_json
from whystall.vocabulary.collectives import bandwidth

SCHEMA: Final = "whystall.comm/1"
COLLECTIVES: Final = (
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "all_to_all_v", "broadcast", "reduce", "gather",
    "scatter", "send_recv",
)  # fmt: skip
_LARGEST_FILE: Final = 64 << 20

Backend = Literal["gloo", "nccl"]
Collective = Literal[
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "all_to_all_v", "broadcast", "reduce", "gather",
    "scatter", "send_recv",
]  # fmt: skip
ROOTED: Final = ("broadcast", "reduce", "gather", "scatter")
"""From or to one rank: the first of a group."""
REDUCING: Final = ("all_reduce", "reduce_scatter", "reduce")
Network = Literal["loopback", "job"]
Nanoseconds = Annotated[int, msgspec.Meta(ge=1, le=1 << 60)]
Rate = Annotated[float, msgspec.Meta(ge=0, lt=1e30)]


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One collective of one size. ``bytes`` is S by the table of conventions, of all ranks where the convention has it.

    ``ranks`` are those of a group. ``times_ns`` has shape (processes of all groups, iterations). An iteration takes as
    long as its slowest process; ``time_ns`` is the median iteration, ``low_ns`` and ``high_ns`` bound four fifths of
    them, ``process_ns`` is the median of each process.
    """

    collective: Collective
    bytes: Annotated[int, msgspec.Meta(ge=1, le=1 << 50)]
    ranks: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]
    time_ns: Nanoseconds
    best_ns: Nanoseconds
    low_ns: Nanoseconds
    high_ns: Nanoseconds
    process_ns: list[Nanoseconds]
    algorithm_bytes_per_s: Rate
    bus_bytes_per_s: Rate
    times_ns: list[list[Nanoseconds]]


class Residual(msgspec.Struct, frozen=True, kw_only=True):
    """The excess of the fit over the measured time, as a share, at one size."""

    bytes: int
    share: float


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """The time of a collective as latency plus size over bandwidth (alpha-beta), or why there is no such fit.

    ``r2`` is of relative errors, which the fit minimises. ``bus_bytes_per_s`` is the fitted bandwidth on the bus.
    """

    collective: Collective
    latency_ns: float | None
    bytes_per_s: float | None
    bus_bytes_per_s: float | None
    r2: float | None
    residuals: list[Residual]
    unknown_because: str | None = None


class NotMeasured(msgspec.Struct, frozen=True, kw_only=True):
    """A collective that the backend does not have, or a size that did not fit."""

    collective: Collective
    because: str


class CommProbe(msgspec.Struct, frozen=True, kw_only=True):
    """A whole sweep. ``network`` is its network: this machine alone, or that of torchrun's job."""

    schema: Literal["whystall.comm/1"] = SCHEMA
    backend: Backend
    ranks: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]
    device: str
    kind: Literal["cpu", "gpu"]
    machine: str
    network: Network
    split: str = ""
    """The division of ranks into groups that measure at the same time; rates are per group."""
    torch: str
    measured_on: Annotated[str, msgspec.Meta(pattern=r"^\d{4}-\d\d-\d\d$")]
    results: list[Measured]
    fits: list[Fit]
    skipped: list[NotMeasured] = []


def measured(collective: Collective, n_bytes: int, times_ns: list[list[int]], ranks: int | None = None) -> Measured:
    """The row of one collective from the times of each process, of shape (processes, iterations).

    ``ranks`` are those of a group, where the processes are several groups.

    >>> measured("all_reduce", 1000, [[10, 30, 20], [10, 40, 10]]).time_ns
    20
    """
    slowest = [max(each) for each in zip(*times_ns, strict=True)]
    low, *_, high = quantiles(slowest, n=10, method="inclusive") if len(slowest) > 1 else slowest * 2
    time_ns = round(median(slowest))
    rates = bandwidth(collective, n_bytes, time_ns, ranks or len(times_ns))
    return Measured(
        collective=collective,
        bytes=n_bytes,
        ranks=ranks or len(times_ns),
        time_ns=time_ns,
        best_ns=min(slowest),
        low_ns=round(low),
        high_ns=round(high),
        process_ns=[round(median(own)) for own in times_ns],
        algorithm_bytes_per_s=rates.algorithm_bytes_per_s,
        bus_bytes_per_s=rates.bus_bytes_per_s or 0.0,
        times_ns=times_ns,
    )


def read_comm_probe(path: Path) -> CommProbe:
    """A sweep that ``whystall probe comm --json`` wrote. Raises ``InputError`` where the file is none."""
    try:
        return parse_json(content(path, _LARGEST_FILE), type=CommProbe)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
    except ValueError:
        raise InputError(f"{path} is no result of `whystall probe comm --json` (schema {SCHEMA})") from None


def calibration_of(found: CommProbe) -> Calibration | None:
    """The part of a sweep for later reports: the rates of GPUs of one machine; ``None`` for any other sweep.

    For groups that measure at the same time, and ranks on several machines, a rate is no device's own.
    """
    if found.kind != "gpu" or found.network != "loopback" or found.split:
        return None
    largest = {row.collective: row for row in sorted(found.results, key=lambda row: row.bytes)}
    return Calibration(
        machine=found.machine,
        device=found.device,
        kind="gpu",
        measured_on=found.measured_on,
        torch=found.torch,
        links=[
            Link(
                collective=row.collective,
                ranks=row.ranks,
                bytes=row.bytes,
                best_ns=row.best_ns,
                bus_bytes_per_s=row.bus_bytes_per_s,
            )
            for row in largest.values()
            if row.bus_bytes_per_s > 0
        ],
    )
