"""Writes XSpaces, the profiles of XLA, by the field numbers of xplane.proto: jobs that a test knows."""

from __future__ import annotations

from typing import Any

from tests.trace.readers.wire import Value, message

US = 1_000_000
"""Picoseconds."""
BEGAN = 1_771_595_639_214_724_894
TOKEN = "hf_PLANTEDdeadbeef"  # noqa: S105 - the one that must not be found
KERNEL = "regs:32 static_shared:16 dynamic_shared:48 grid:264,1,1 block:256,1,1 occ_pct:50"
COPY = "kind_src:pinned kind_dst:device size:4096 dest:0 async:1"
Stats = dict[str, Any]


class Plane:
    """A plane under construction: names get their numbers as they are used."""

    def __init__(self, name: str, **said: Value) -> None:
        self.name = name
        self._events: dict[str, int] = {}
        self._shown: dict[str, str] = {}
        self._stats: dict[str, int] = {}
        self._lines: list[bytes] = []
        self._said = [self._stat(key, value) for key, value in said.items()]

    def line(self, name: str, *events: bytes, number: int = 1, at_ns: int = 0) -> Plane:
        self._lines.append(message((1, number), (2, name), (3, at_ns), *((4, one) for one in events)))
        return self

    def event(self, name: str, at: int, lasts: int, shown: str | None = None, **stats: Value) -> bytes:
        """An event: picoseconds after its line's beginning."""
        number = self._events.setdefault(name, len(self._events) + 1)
        if shown is not None:
            self._shown[name] = shown
        told = [(4, self._stat(key, value)) for key, value in stats.items()]
        return message((1, number), (2, at), (3, lasts or None), *told)

    def counted(self, name: str, times: int) -> bytes:
        return message((1, self._events.setdefault(name, len(self._events) + 1)), (5, times), (3, 7))

    def _number(self, name: str) -> int:
        return self._stats.setdefault(name, len(self._stats) + 1)

    def _stat(self, name: str, value: Value) -> bytes:
        if isinstance(value, str) and name.endswith("_details"):  # texts that repeat are kept once
            return message((1, self._number(name)), (7, self._number(value)))
        kind = {int: 4, float: 2, str: 5, bytes: 6}[type(value)]
        return message((1, self._number(name)), (kind, value))

    def encoded(self) -> bytes:
        events = [
            message((1, number), (2, message((1, number), (2, name), (4, self._shown.get(name)))))
            for name, number in self._events.items()
        ]
        stats = [message((1, number), (2, message((1, number), (2, name)))) for name, number in self._stats.items()]
        parts = [*((3, one) for one in self._lines), *((4, one) for one in events), *((5, one) for one in stats)]
        return message((1, 1), (2, self.name), *parts, *((6, one) for one in self._said))


def space(*planes: Plane, host: str = "", warning: str = "") -> bytes:
    return message(*((1, plane.encoded()) for plane in planes), (3, warning or None), (4, host or None))


def gpu(number: int = 0) -> Plane:
    """A GPU with four launched kernels and a copy."""
    plane = Plane(
        f"/device:GPU:{number}", device_vendor="Nvidia", core_count=132, memory_size=1 << 36, compute_cap_major=9,
        compute_cap_minor=0,
    )  # fmt: skip
    kernels = [
        plane.event("loop_add_fusion", 100 * US * step, 40 * US, correlation_id=step + 1, kernel_details=KERNEL)
        for step in range(4)
    ]
    copy = plane.event("MemcpyH2D", 50 * US, 5 * US, correlation_id=9, memcpy_details=COPY)
    return plane.line("Stream #17(Kernel)", *kernels, number=17, at_ns=1000).line(
        "Stream #18(MemcpyH2D)", copy, number=18, at_ns=1000
    )


def host(*, steps: bool = True) -> Plane:
    """A host that launches them: calls on one thread, the job's marks and frames on another."""
    plane = Plane("/host:CPU")
    calls = [
        plane.event("cuLaunchKernel", (100 * step - 10) * US, 3 * US, correlation_id=step + 1) for step in range(4)
    ]
    calls.append(plane.event("cuMemcpyHtoDAsync", 40 * US, 2 * US, correlation_id=9))
    marks = [plane.event("train", (100 * step - 20) * US, 90 * US, step_num=step) for step in range(4)] if steps else []
    frames = [plane.event("$train.py:7 main", -30 * US, 500 * US), plane.event("PjitFunction(f)", -20 * US, 5 * US)]
    frames.append(plane.event("ThreadpoolListener::StartRegion", 3 * US, 0))
    return plane.line("Host Threads/583", *calls, number=583, at_ns=1000).line(
        "python", *marks, *frames, number=7, at_ns=1000
    )


def environment() -> Plane:
    return Plane("Task Environment", profile_start_time=BEGAN, profile_stop_time=BEGAN + 10**9)


def job(*, steps: bool = True) -> bytes:
    return space(gpu(), host(steps=steps), environment())


def tpu(number: int = 0) -> bytes:
    """A TPU's three steps: a loop that holds two operations, a collective, one that runs beside them."""
    plane = Plane(f"/device:TPU:{number}", device_type_string="TPU v5 lite")
    operations, programs, steps = [], [], []
    for step in range(3):
        at = 1000 * US * step
        operations += [
            plane.event("%while.2 = (s32[]) while(...)", at, 600 * US, shown="while.2"),
            plane.event("%fusion.3 = f32[8]{0} fusion(...)", at, 200 * US),
            plane.event("%convolution.4 = f32[8]{0} convolution(...)", at + 300 * US, 300 * US, shown="convolution.4"),
            plane.event("%all-reduce.5 = f32[8]{0} all-reduce(...)", at + 700 * US, 100 * US, shown="all-reduce.5"),
        ]
        programs.append(plane.event("jit_train_step(123)", at, 800 * US))
        steps.append(plane.event(str(step), at, 900 * US))
    beside = [plane.event("copy-start.9", 650 * US, 100 * US), plane.event("copy-start.8", 660 * US, 20 * US)]
    plane.line("Steps", *steps, number=1).line("XLA Modules", *programs, number=2)
    return space(plane.line("XLA Ops", *operations, number=3).line("Async XLA Ops", *beside, number=4))


def secretive() -> bytes:
    """A job whose file holds a token wherever it is not an event's name."""
    plane = Plane("/device:GPU:0", device_vendor="Nvidia", environment=TOKEN, command_line=TOKEN, user=TOKEN.encode())
    told: Stats = {"hlo_proto": TOKEN.encode(), "tf_op": TOKEN, "long_name": TOKEN, "args": f"--token={TOKEN}"}
    events = [plane.event("gemm", 10 * US * step, 5 * US, **told) for step in range(4)]
    programs = Plane("/host:metadata").line(TOKEN, number=5)
    other = Plane(f"/device:CUSTOM:{TOKEN}").line(TOKEN, gpu().event(TOKEN, 0, US), number=6)
    task = Plane("Task Environment", profile_start_time=BEGAN, hostname=TOKEN, environ=f"HF_TOKEN={TOKEN}")
    return space(
        programs, plane.line("Stream #1(Kernel)", *events), host(), other, task, host=TOKEN, warning=f"lost {TOKEN}"
    )
