"""Builds small Kineto traces that read like a sentence. All times are nanoseconds from the trace's start."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any, Self

from whystall.trace.load import load_trace
from whystall.trace.model import Trace
from whystall.trace.readers.registry import READERS

MAIN_THREAD = 100
BACKWARD_THREAD = 200
EPOCH_NS = 1_700_000_000_000_000_000
_PROCESS = 100


def trace(**metadata: Any) -> TraceBuilder:
    """An empty trace; ``metadata`` becomes top-level keys of the file."""
    return TraceBuilder(metadata)


class TraceBuilder:
    """Collects events; every method returns the builder."""

    def __init__(self, metadata: dict[str, Any]) -> None:
        self.metadata = metadata
        self.events: list[dict[str, Any]] = []
        self._correlation = 0

    def event(
        self,
        category: str,
        name: str,
        *,
        at: int,
        lasts: int,
        thread: int | str = MAIN_THREAD,
        pid: int = _PROCESS,
        **arguments: Any,
    ) -> Self:
        """Any event with a duration."""
        self.events.append(
            {
                "ph": "X",
                "cat": category,
                "name": name,
                "pid": pid,
                "tid": thread,
                "ts": _microseconds(EPOCH_NS + at),
                "dur": _microseconds(lasts),
                "args": arguments,
            }
        )
        return self

    def operator(self, name: str, *, at: int, lasts: int, thread: int = MAIN_THREAD, **arguments: Any) -> Self:
        """An operator on a host thread."""
        return self.event("cpu_op", name, at=at, lasts=lasts, thread=thread, **arguments)

    def annotation(self, name: str, *, at: int, lasts: int, thread: int = MAIN_THREAD) -> Self:
        """A user annotation."""
        return self.event("user_annotation", name, at=at, lasts=lasts, thread=thread)

    def step(self, number: int, *, at: int, lasts: int) -> Self:
        """A ``ProfilerStep``."""
        return self.annotation(f"ProfilerStep#{number}", at=at, lasts=lasts)

    def python(self, name: str, *, at: int, lasts: int, thread: int = MAIN_THREAD, **arguments: Any) -> Self:
        """A Python function; ``nn.Module: Linear_0`` is a module's call."""
        return self.event("python_function", name, at=at, lasts=lasts, thread=thread, **arguments)

    def runtime(
        self, name: str, *, at: int, lasts: int, thread: int = MAIN_THREAD, correlation: int | None = None
    ) -> Self:
        """A runtime call."""
        if correlation is None:
            self._correlation += 1
            correlation = self._correlation
        return self.event("cuda_runtime", name, at=at, lasts=lasts, thread=thread, correlation=correlation)

    def kernel(
        self,
        name: str,
        *,
        at: int,
        lasts: int,
        stream: int = 7,
        device: int = 0,
        category: str = "kernel",
        **arguments: Any,
    ) -> Self:
        """A device event; without a ``correlation`` its launch is unknown."""
        return self.event(
            category, name, at=at, lasts=lasts, thread=stream, pid=device, device=device, stream=stream, **arguments
        )

    def launch(
        self,
        name: str,
        *,
        at: int,
        runs_at: int,
        lasts: int,
        call: str = "cudaLaunchKernel",
        call_lasts: int = 1_000,
        thread: int = MAIN_THREAD,
        stream: int = 7,
        device: int = 0,
        category: str = "kernel",
        **arguments: Any,
    ) -> Self:
        """A device event and the call that launched it."""
        self._correlation += 1
        correlation = self._correlation
        self.runtime(call, at=at, lasts=call_lasts, thread=thread, correlation=correlation)
        return self.kernel(
            name,
            at=runs_at,
            lasts=lasts,
            stream=stream,
            device=device,
            category=category,
            correlation=correlation,
            **arguments,
        )

    def arrow(self, number: int, *, at: int, into: int, streams: tuple[int, int], device: int = 0) -> Self:
        """An edge of a CUDA graph: from the end of an event on one stream to the beginning of one on another."""
        for phase, instant, stream in (("s", at, streams[0]), ("f", into, streams[1])):
            more = {"bp": "e"} if phase == "f" else {}
            self.events.append(
                {
                    "ph": phase, "id": number, "pid": device, "tid": stream, "ts": _microseconds(EPOCH_NS + instant),
                    "cat": "ac2g", "name": "ac2g", **more,
                }
            )  # fmt: skip
        return self

    def memory(
        self,
        *,
        at: int,
        size: int,
        allocated: int,
        reserved: int,
        device: int = 0,
        address: int = 4096,
        thread: int = MAIN_THREAD,
    ) -> Self:
        """An event of the CUDA allocator."""
        self.events.append(
            {
                "ph": "i",
                "cat": "cpu_instant_event",
                "s": "t",
                "name": "[memory]",
                "pid": _PROCESS,
                "tid": thread,
                "ts": _microseconds(EPOCH_NS + at),
                "args": {
                    "Device Type": 1,
                    "Device Id": device,
                    "Addr": address,
                    "Bytes": size,
                    "Total Allocated": allocated,
                    "Total Reserved": reserved,
                },
            }
        )
        return self

    def counter(self, name: str, value: float, *, at: int, device: int = 0) -> Self:
        """A device counter's value from ``at`` on, as torch writes it."""
        self.events.append(
            {
                "ph": "C",
                "name": name,
                "pid": f"GPU {device} Counters",
                "ts": _microseconds(EPOCH_NS + at),
                "args": {"": value},
            }
        )
        return self

    def json(self) -> str:
        """The trace as Kineto writes it: times are decimal microseconds with three places."""
        events = ",\n  ".join(_encoded(event) for event in self.events)
        head = "".join(f"  {json.dumps(key)}: {json.dumps(value)},\n" for key, value in self.metadata.items())
        return f'{{\n{head}  "schemaVersion": 1,\n  "traceEvents": [\n  {events}\n  ]\n}}\n'

    def write(self, path: Path) -> Path:
        """Writes the trace to a file and returns its path."""
        path.write_text(self.json(), "utf-8")
        return path

    def load(self) -> Trace:
        """The trace as `whystall.load` would give it."""
        with tempfile.TemporaryDirectory() as folder:
            return load_trace(self.write(Path(folder) / "built.json"), cache=False, readers=READERS)


class _Microseconds(str):
    """Decimal text that stands in the JSON without quotes, so that no digit is lost to floating point."""

    __slots__ = ()


def _microseconds(nanoseconds: int) -> _Microseconds:
    sign = "-" if nanoseconds < 0 else ""
    return _Microseconds(f"{sign}{abs(nanoseconds) // 1000}.{abs(nanoseconds) % 1000:03d}")


def _encoded(event: dict[str, Any]) -> str:
    parts = [
        f"{json.dumps(key)}: {value if isinstance(value, _Microseconds) else json.dumps(value)}"
        for key, value in event.items()
    ]
    return "{" + ", ".join(parts) + "}"
