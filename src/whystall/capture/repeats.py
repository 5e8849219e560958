"""Repeated work of a job: calls with the same inputs and the same results as before.

A few steps are examined once the windows are over, on the CPU alone: elsewhere reading a tensor would wait for the
device. Calls of modules come first, then single operators. The first steps of an examination time calls, the others
read the inputs of long ones. Only sums of bytes are kept of the job's data. The recording shows autograd's repeated
calls in its backward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from whystall.capture.config import Looks
from whystall.capture.contents import Contents
from whystall.capture.repeated_modules import RepeatedModules
from whystall.capture.repeated_operators import RepeatedOperators
from whystall.capture.torch_hooks import has_compiled
from whystall.run_folder.observations import AttendedScores, RepeatedWork

_WAITS: Final = 12
_WAITS_NS: Final = 3_000_000_000
"""Steps and time that pass first: a short job leaves all to the samples of the whole run."""
_WAITS_FURTHER: Final = 24
"""Steps that pass before operators are examined: a job that is over by then keeps its samples."""
_FEWEST_FURTHER: Final = 6
_FURTHER_NS: Final = 1_500_000_000
"""Or this time with fewer steps, where these are long."""
_TIMED: Final = 3
"""Steps in which calls are timed; the shortest counts: in others the job was perhaps kept off its core."""
_READ_FURTHER: Final = 6
_LEAST_READ: Final = 4
"""The first of these has no predecessor."""
_MOST_READ: Final = 17
_ENOUGH_NS: Final = 1_000_000_000
MODULES: Final = "modules"
OPERATORS: Final = "operators"
"""Names of the looks."""
_MORE: Final = 1.2
"""Operators are reported where their share is this many times that of modules, which mostly consist of them."""


class RepeatsSeen:
    """Examines calls in a few steps. ``looking`` is true while it does, ``over`` once it is done."""

    def __init__(self, torch: Any, on_stepping_thread: Callable[[], bool], looks: Looks = "all") -> None:
        self.looking, self.over = False, looks == "none"
        self.found: RepeatedWork | None = None
        self.unread: RepeatedWork | None = None
        """Results that nothing read."""
        self.masked: RepeatedWork | None = None
        """Work on rows that a mask threw away."""
        self.partly: RepeatedWork | None = None
        """Work beside the part of it that was read."""
        self.alike: RepeatedWork | None = None
        """Work on rows equal to earlier ones within the same call."""
        self.attended: list[AttendedScores] = []
        """Attention scores some of which a mask hides."""
        self.contents = Contents(torch)
        self._torch = torch
        modules = RepeatedModules(torch, on_stepping_thread)
        self._looks: list[RepeatedModules | RepeatedOperators] = [modules]
        if looks == "all":
            self._looks.append(RepeatedOperators(torch, on_stepping_thread, self.contents, lambda: modules.in_rounds))
        self._step = self._timed = self._passed = self._passed_ns = 0
        self._ended = False

    def step_ended(self, duration_ns: int, *, in_call: bool = False) -> None:
        """Begins after some steps, and continues with each; ``in_call``: the call that begins one has begun."""
        if self._ended:
            self.close()
            return
        if not self.looking:
            self._passed += 1
            self._passed_ns += duration_ns
            if self._has_waited():
                self._begin()
            return
        look = self._looks[0]
        tally = look.tally
        duration_ns -= tally.ours_ns
        something = True
        if self._step == 0:
            self._timed += 1
            look.timed(duration_ns)
            if self._timed < _TIMED:
                look.step_ended(in_call=in_call)
                return
            something = look.choose()
        else:  # repetitions in the first one were within the step alone
            look.step_read(duration_ns, counts=self._step > 1)
        look.step_ended(in_call=in_call)
        self._step += 1
        most = _READ_FURTHER if self.name == OPERATORS else _MOST_READ
        if not something or self._step > (_LEAST_READ if tally.measured_ns >= _ENOUGH_NS else most):
            self._end()

    @property
    def name(self) -> str:
        """The kind of call that is looked at now."""
        return OPERATORS if isinstance(self._looks[0], RepeatedOperators) else MODULES

    def before_backward(self) -> None:
        """Ends where gradients would have other bits for the look."""
        look = self._looks[0]
        if isinstance(look, RepeatedOperators) and look.changes_gradients:
            self.close()

    def told(self) -> dict[str, Any]:
        """The results, by the names in a rank's description."""
        contents = self.contents
        seen = {"repeated": self.found, "unread": self.unread, "masked": self.masked, "partly": self.partly}
        counted = {"sparse": contents.sparse(), "labels": contents.labels(), "attended": self.attended}
        return {**seen, **counted, "alike": self.alike}

    def close(self) -> None:
        """Removes the hooks in any case; one that cannot be removed now is tried again when a step ends."""
        self.looking, self._ended = False, True
        for later in self._looks[1:]:
            later.close()
        self._looks = [look for look in self._looks[:1] if not look.close()]
        self.over = not self._looks

    def _has_waited(self) -> bool:
        """Whether enough steps have passed since the windows, or since the look before."""
        if self.name == MODULES:
            return self._passed > _WAITS and self._passed_ns > _WAITS_NS
        steps, long_ns = self._passed, self._passed_ns
        return (steps > _WAITS_FURTHER and long_ns > _WAITS_NS) or (steps > _FEWEST_FURTHER and long_ns > _FURTHER_NS)

    def _begin(self) -> None:
        """Not where torch's compiler has worked, which would compile again for hooks and modes."""
        self._step = self._timed = 0
        profiled = self._torch.autograd.profiler._is_profiler_enabled  # noqa: SLF001 - it would record operators twice
        if has_compiled() or profiled or self._torch.cuda.is_initialized() or not self._looks[0].begin():
            self.close()
            return
        for later in self._looks[1:]:
            later.prepare()
        self.looking = True

    def _end(self) -> None:
        look = self._looks[0]
        found = look.told()
        if found is not None and (self.found is None or _share(found) > _MORE * _share(self.found)):
            self.found = found
        if isinstance(look, RepeatedOperators):
            unread = look.unread
            self.unread, self.masked, self.partly = unread.told(), unread.told_masked(), unread.told_partly()
            self.attended = look.attended.told()
        else:
            self.alike = look.told_alike()
        if len(self._looks) == 1:
            self.close()
        else:
            self._looks.pop(0).close()
            self.looking, self._passed = False, 0


def _share(found: RepeatedWork) -> float:
    return max(found.again_ns, found.kind_ns) / found.measured_ns
