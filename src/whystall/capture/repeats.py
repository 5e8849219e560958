"""What a job computes again: calls of modules that are given what they were given before, and give the same back.

A few steps are looked at once a window is over, on the CPU alone: elsewhere reading a tensor would wait for the device.
In the first of them calls are timed, in the others inputs and outputs of those that take long are read. Nothing of the
job's is kept but sums of bytes. What autograd calls again in its backward pass is told by the recording.
"""

from __future__ import annotations

import sys
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from whystall.capture.stacks import is_library, shown_file, text_of
from whystall.capture.torch_hooks import has_compiled
from whystall.run_folder.description import RepeatedModule, RepeatedWork

_WAITS: Final = 12
"""So many steps pass first, that even a short job leaves enough for the samples of the whole run."""
_LEAST_READ: Final = 4
"""Of these the first has nothing before it."""
_MOST_READ: Final = 17
_ENOUGH_NS: Final = 1_000_000_000
_LONG: Final = 0.03
_MOST_MODULES: Final = 64
_MOST_TENSORS: Final = 32
_MOST_BYTES: Final = 64 << 20
_DEEPEST: Final = 4
_MOST_FRAMES: Final = 60
_MOST_TOLD: Final = 3

Place = tuple[str, str, int, str]
"""A module's class, and where it is called: file, line, function."""
Sum = tuple[object, ...]


@dataclass(slots=True)
class _Call:
    module: int
    began_ns: int
    ours_ns: int
    again: Counter[Place] = field(default_factory=Counter)
    times: int = 0
    """How often something was computed again in it."""


class RepeatsSeen:
    """Looks at calls of modules in a few steps. ``looking`` says that it does, and ``over`` that it is done."""

    def __init__(self, torch: Any, on_stepping_thread: Callable[[], bool]) -> None:
        self.looking = self.over = False
        self.found: RepeatedWork | None = None
        self._torch = torch
        self._on_stepping_thread = on_stepping_thread
        self._handles: list[Any] = []
        self._open: list[_Call] = []
        self._step = self._passed = 0
        self._ours_ns = 0
        self._times: defaultdict[int, int] = defaultdict(int)
        self._outermost: set[int] = set()
        self._read: set[int] = set()
        self._seen: dict[Sum, Sum] = {}
        self._again: Counter[Place] = Counter()
        self._calls = self._fresh = 0
        self._steps: list[tuple[int, int]] = []
        """Of each step that counts what was computed again in it, and how long it was."""

    def step_ended(self, duration_ns: int) -> None:
        """Begins when some steps have ended, and goes on with each."""
        if not self.looking:
            self._passed += 1
            if self._passed > _WAITS:
                self._begin()
            return
        duration_ns -= self._ours_ns
        if self._step == 0:
            long = sorted((module for module, ns in self._times.items() if ns >= _LONG * duration_ns), key=self._of)
            self._read = {*self._outermost, *long[-_MOST_MODULES:]}
        elif self._step == 1:  # what it saw again was within the step alone
            self._again.clear()
            self._calls = self._fresh = 0
        else:
            again_ns = sum(self._again.values())
            self._steps.append((again_ns - sum(again for again, _ in self._steps), duration_ns))
        self._step += 1
        self._ours_ns = 0
        self._open.clear()
        measured_ns = sum(duration for _, duration in self._steps)
        if not self._read or self._step > (_LEAST_READ if measured_ns >= _ENOUGH_NS else _MOST_READ):
            self._end(measured_ns)

    def close(self) -> None:
        """Takes the hooks out, whatever was seen."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self.looking = False
        self.over = True
        self._seen.clear()

    def _of(self, module: int) -> int:
        return self._times[module]

    def _begin(self) -> None:
        """Hooks into all modules; not where torch's compiler has worked, which would compile again for it."""
        if has_compiled() or self._torch.cuda.is_initialized():
            self.over = True
            return
        from torch.nn.modules import module  # noqa: PLC0415 - the user has imported torch

        self._handles = [
            module.register_module_forward_pre_hook(self._called),
            module.register_module_forward_hook(self._returned, with_kwargs=True),
        ]
        self.looking = True

    def _end(self, measured_ns: int) -> None:
        self.close()
        again_ns = sum(self._again.values())
        # Where nothing new comes in (one batch again and again, to measure a model) repeating is what is wanted.
        if not again_ns or not self._fresh or measured_ns <= 0:
            return
        share = again_ns / measured_ns
        beside = sum((again - share * duration) ** 2 for again, duration in self._steps)
        ordered = sorted(self._again.items(), key=lambda item: (-item[1], item[0]))
        self.found = RepeatedWork(
            steps=len(self._steps),
            calls=self._calls,
            again_ns=again_ns,
            measured_ns=measured_ns,
            error=(beside * len(self._steps) / (len(self._steps) - 1)) ** 0.5 / measured_ns,
            modules=[
                RepeatedModule(name, shown_file(file), line, function, text_of(file, line), ns)
                for (name, file, line, function), ns in ordered[:_MOST_TOLD]
            ],
        )

    def _called(self, module: Any, _given: object) -> None:
        if self._step > 0 and id(module) not in self._read:
            return
        if self._on_stepping_thread() and not self._in_backward():
            self._open.append(_Call(id(module), time.perf_counter_ns(), self._ours_ns))

    def _ended(self, module: int) -> _Call | None:
        """The innermost open call of a module; those inside it ended by an exception."""
        if not self._on_stepping_thread() or self._in_backward() or all(call.module != module for call in self._open):
            return None
        while self._open[-1].module != module:
            self._open.pop()
        return self._open.pop()

    def _returned(self, module: Any, given: object, named: object, output: object) -> None:
        now = time.perf_counter_ns()
        call = self._ended(id(module))
        if call is None:
            return
        lasted = now - call.began_ns - (self._ours_ns - call.ours_ns)
        if self._step == 0:
            self._times[call.module] += lasted
            if not self._open:
                self._outermost.add(call.module)
            return
        taken, made = self._sum((given, named)), self._sum(output)
        key = (call.module, *taken) if taken else None
        before = self._seen.get(key) if key is not None else None
        if key is not None and made is not None:
            self._seen[key] = made
        if before is not None and before == made:
            call.again, call.times = Counter({self._place(module): lasted}), 1
        if before is None and not self._open:
            self._fresh += 1
        if self._open:
            self._open[-1].again += call.again
            self._open[-1].times += call.times
        else:
            self._again += call.again
            self._calls += call.times
        self._ours_ns += time.perf_counter_ns() - now

    def _sum(self, value: object) -> Sum | None:
        """Sums of all tensors in a value, and its plain numbers and words; ``None`` where it holds something else.

        What cannot be read was never the same.
        """
        out: list[object] = []
        return tuple(out) if self._add(value, out, _DEEPEST) and len(out) <= 8 * _MOST_TENSORS else None

    def _add(self, value: object, out: list[object], deep: int) -> bool:
        if value is None or isinstance(value, bool | int | float | str):
            out.append(value)
            return True
        if isinstance(value, self._torch.Tensor):
            return self._add_tensor(value, out)
        if deep == 0 or len(out) > 8 * _MOST_TENSORS:
            return False
        items: Iterable[object]
        if isinstance(value, Mapping):
            items = [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple):
            items = value
        else:
            return False
        out.append(type(value).__name__)
        return all(self._add(item, out, deep - 1) for item in items)

    def _add_tensor(self, tensor: Any, out: list[object]) -> bool:
        torch = self._torch
        plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided
        if not plain or tensor.device.type != "cpu" or tensor.is_quantized or tensor.is_complex():
            return False
        if tensor.numel() * tensor.element_size() > _MOST_BYTES or torch._C._len_torch_dispatch_stack():  # noqa: SLF001
            return False
        with torch.no_grad():
            values = tensor.detach().contiguous().view(-1).view(torch.uint8).numpy()
        out += [tuple(tensor.shape), str(tensor.dtype), zlib.crc32(values), zlib.adler32(values)]
        return True

    def _in_backward(self) -> bool:
        return self._torch._C._current_graph_task_id() != -1  # type: ignore[no-any-return] # noqa: SLF001

    def _place(self, module: Any) -> Place:
        """The user's line that calls a module, the innermost one."""
        frame = sys._getframe(2)  # noqa: SLF001 - the documented way to the caller
        found = frame
        for _ in range(_MOST_FRAMES):
            if not is_library(frame.f_code.co_filename) and not frame.f_globals.get("__name__", "").startswith(
                "whystall."
            ):
                found = frame
                break
            if frame.f_back is None:
                break
            frame = frame.f_back
        return type(module).__name__, found.f_code.co_filename, found.f_lineno, found.f_code.co_name
