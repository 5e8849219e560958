"""Collectives as ProcessGroupNCCL starts them: a stream of their own, events towards compute and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from benchmarks.accuracy.simulator import kernels
from benchmarks.accuracy.simulator.device import Meeting
from benchmarks.accuracy.simulator.engine import Returning, Signal
from benchmarks.accuracy.simulator.host import COMPUTE_STREAM, Thread

COMMUNICATION_STREAM = 20
Event: TypeAlias = tuple[Signal, int, int]
"""A recorded CUDA event: what fires, the correlation of the call, the stream."""


class Meetings:
    """The collectives of a group, made when the first rank asks, shared by all, in the order of each rank's calls."""

    def __init__(self, members: int, transfer_ns: Callable[[str, int, int], int]) -> None:
        self.members = members
        self._transfer_ns = transfer_ns
        self._made: dict[tuple[str, int], Meeting] = {}
        self._asked: dict[tuple[str, int], int] = {}

    def next(self, group: str, rank: int, collective: str, bytes_moved: int, members: int | None = None) -> Meeting:
        """The rank's next meeting in a group."""
        number = self._asked[group, rank] = self._asked.get((group, rank), -1) + 1
        members = members or self.members
        key = (group, number)
        if key not in self._made:
            self._made[key] = Meeting(members, self._transfer_ns(collective, bytes_moved, members))
        return self._made[key]


def metadata(collective: str, elements: int, dtype: str, ranks: list[int], *, group: str = "0") -> dict[str, Any]:
    """What the profiler records of a collective."""
    return {
        "Collective name": collective,
        "In msg nelems": elements,
        "Out msg nelems": elements,
        "Group size": len(ranks),
        "dtype": kernels.COMMUNICATION_DTYPE[dtype],
        "In split size": "[]",
        "Out split size": "[]",
        "Process Group Name": group,
        "Process Group Description": "default_pg" if group == "0" else f"group_{group}",
        "Process Group Ranks": str(ranks),
    }


def collective(
    thread: Thread,
    name: str,
    elements: int,
    dtype: str,
    meeting: Meeting,
    ranks: list[int],
    *,
    stream: int = COMMUNICATION_STREAM,
    group: str = "0",
    after_compute: bool = True,
) -> Returning[Event]:
    """Start a collective as ProcessGroupNCCL does; returns the event that marks its end."""
    said = metadata(name, elements, dtype, ranks, group=group)
    with thread.span(
        "cpu_op", f"c10d::{name}_", **{"Input Dims": [[elements]], "Input type": [kernels.host_type(dtype)]}
    ):
        yield from thread.work(6_000, "c10d")
        with thread.span(
            "cpu_op",
            "record_param_comms",
            **said,
            Rank=thread.rank.rank,
            **{"Global rank start": 0, "Global rank stride": 1},
        ):
            yield from thread.work(3_000, "record")
            if after_compute:
                event = yield from thread.record_event(COMPUTE_STREAM)
                yield from thread.wait_event(stream, event)
            with thread.span("user_annotation", f"nccl:{name}"):
                yield from thread.work(4_000, "nccl")
                yield from thread.launch(
                    kernels.communication(name, dtype), stream=stream, meeting=meeting, arguments=said
                )
            return (yield from thread.record_event(stream))
