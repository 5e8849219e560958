"""When to record: the schedule as a pure state machine over the steps."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Final

from whystall.capture.config import Schedule
from whystall.run_folder.description import LEAST_ACTIVE, MOST_ACTIVE, MOST_OF_ROUNDS

# A job runs steadily when this many steps in a row took about their median.
STEADY_STEPS: Final = 4
STEADY_WITHIN: Final = 0.25
# Differences that the scheduler of a busy machine makes are no warm-up.
JITTER_NS: Final = 5_000_000
# Two long steps that agree this well are enough, and patience ends sooner: a short run has no others.
LONG_STEP_NS: Final = 1_000_000_000
STEADY_LONG_STEPS: Final = 2
STEADY_LONG_WITHIN: Final = 0.1
PATIENCE_LONG_STEPS: Final = 6
# A job whose steps never agree (variable lengths) counts as steady after this many.
PATIENCE_STEPS: Final = 12
_REMEMBERED_STEPS: Final = 64
# A slowdown lasts this many steps in a row, averaged in groups: an evaluation or a checkpoint is none.
_LATEST_STEPS: Final = 16
_IN_A_ROW: Final = 4
_USUAL_EVERY: Final = 8
# Further steps are recorded for this time, or for longer until the mean of that many would be known this well: three
# equal steps show no spread. More would make files long to write, while the job is paused.
_LASTS_NS: Final = 500_000_000
_LASTS_UNSURE_NS: Final = 2_000_000_000
_MEAN_WITHIN: Final = 0.03
# If the profiler lengthens steps by this share, and by this time together, only the steps needed are recorded. An event
# takes a microsecond when it is recorded, and torch takes twenty for it when the window ends.
_MOST_LONGER_NS: Final = 150_000_000
_MUCH_LONGER: Final = 0.3
# A step this many times as long begins a round (experience is gathered, and learned from in several steps), if the next
# such step comes within this many. Whole rounds are recorded, and the three steps that analyses leave out.
_LONG: Final = 4.0
_MOST_IN_ROUND: Final = 16
_LEFT_OUT: Final = 3


class Action(Enum):
    """Action on the profiler before the next step."""

    NOTHING = "nothing"
    START = "start"
    MARK = "mark"
    STOP = "stop"


class SteadyState:
    """Whether warm-up and compilation are over, from step times alone."""

    def __init__(self) -> None:
        self._recent: deque[int] = deque(maxlen=_REMEMBERED_STEPS)
        self._seen = 0
        self._usual_ns: float | None = None
        self.steady = False

    def add(self, duration_ns: int) -> None:
        """Takes note of a step's time. The first step is never counted: it pays for lazy starts."""
        self._seen += 1
        if self._seen == 1:
            return
        self._recent.append(duration_ns)
        # Sorting them all takes microseconds, in each step.
        if len(self._recent) <= _LATEST_STEPS or self._seen % _USUAL_EVERY == 0:
            self._usual_ns = None
        if not self.steady:
            patience = PATIENCE_LONG_STEPS if min(self._recent) >= LONG_STEP_NS else PATIENCE_STEPS
            self.steady = self._agrees() or self._agree_and_are_long() or self._seen > patience

    def _agrees(self) -> bool:
        return self._last_agree(STEADY_STEPS, STEADY_WITHIN)

    def _agree_and_are_long(self) -> bool:
        latest = self._recent[-1]
        return latest >= LONG_STEP_NS and self._last_agree(STEADY_LONG_STEPS, STEADY_LONG_WITHIN)

    def _last_agree(self, count: int, within: float) -> bool:
        if len(self._recent) < count:
            return False
        last = list(self._recent)[-count:]
        middle = statistics.median(last)
        return all(abs(duration - middle) <= max(within * middle, JITTER_NS) for duration in last)

    def enough(self) -> float:
        """How many steps like those remembered give a mean within `_MEAN_WITHIN` (one standard error)."""
        if len(self._recent) < STEADY_STEPS:
            return 0.0
        return (statistics.stdev(self._recent) / statistics.mean(self._recent) / _MEAN_WITHIN) ** 2

    def usual_ns(self) -> float:
        """The median of the steps remembered, or until a few steps ago; 0 without any."""
        if self._usual_ns is None:
            self._usual_ns = statistics.median(self._recent) if self._recent else 0.0
        return self._usual_ns

    def is_slow(self, duration_ns: int, ratio: float) -> bool:
        """Whether a step took ``ratio`` times the median of those remembered."""
        return self.steady and bool(self._recent) and duration_ns > ratio * self.usual_ns()

    @property
    def until_compared(self) -> int:
        """How many steps are to come until the latest are compared with those before."""
        return _LATEST_STEPS - self._seen % _LATEST_STEPS

    def has_slowed(self, ratio: float) -> bool:
        """Whether the latest steps take ``ratio`` times those before them; checked once in `_LATEST_STEPS` steps."""
        if not self.steady or self._seen % _LATEST_STEPS or len(self._recent) < _REMEMBERED_STEPS:
            return False
        remembered = list(self._recent)
        # an event in every second or third step slows a job, too
        sums = [sum(remembered[at : at + _IN_A_ROW]) for at in range(0, len(remembered), _IN_A_ROW)]
        before, latest = sums[: -_LATEST_STEPS // _IN_A_ROW], sums[-_LATEST_STEPS // _IN_A_ROW :]
        return statistics.median(latest) > ratio * statistics.median(before)


class RoundsOfSteps:
    """How many steps there are from one long step to the next."""

    def __init__(self) -> None:
        self.steps: int | None = None
        self._since: int | None = None

    def add(self, *, long: bool) -> None:
        """Takes note of a step."""
        since = self._since + 1 if self._since is not None else None
        if long:
            self.steps, since = since, 0
        elif since is not None and since > _MOST_IN_ROUND:
            self.steps = since = None
        self._since = since

    def unfinished(self, recorded: int) -> bool:
        """Whether a round is not over, or fewer steps are recorded than whole rounds have."""
        if self._since is None or recorded >= MOST_OF_ROUNDS:
            return False
        if self.steps is None:
            return True
        return recorded < self.steps + _LEFT_OUT or (recorded - _LEFT_OUT) % self.steps > 0


class Windows:
    """The state machine: `step_ended` after every step returns the action before the next."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.steady = SteadyState()
        self.rounds = RoundsOfSteps()
        self.windows_begun = 0
        self.alone = True
        """Whether this is the only rank: several record equally many steps."""
        self.agreed: Callable[[int, int, bool], bool] | None = None
        """Whether a window begins after a step (both counted from 0) for which this rank is ready or not."""
        self.may_begin: Callable[[], bool] = lambda: True
        """Called before a window begins. If it returns false, the window begins after a later step."""
        self._steps = 0
        self._waiting = schedule.wait
        self._in_window: int | None = None
        self._window_began_ns = self._recorded_ns = 0
        self._wanted = False
        # Steps that are processed together, which costs less per step.
        self._unheard: list[int] = []
        self._unheard_of = 0

    @property
    def recording(self) -> bool:
        """Whether the profiler runs."""
        return self._in_window is not None

    @property
    def over(self) -> bool:
        """Whether all scheduled windows have been recorded, one at least."""
        return not self.recording and self.windows_begun >= max(self.schedule.repeat, 1)

    def request(self) -> None:
        """Requests a window as soon as one can begin, regardless of the schedule."""
        self._wanted = True

    def abandon(self) -> None:
        """The profiler was taken away: the window is over."""
        self._in_window = None

    def no_more(self) -> None:
        """Begins no further scheduled window."""
        self.schedule = Schedule(wait=0, warmup=self.schedule.warmup, active=self.schedule.active, repeat=0)

    def step_ended(self, duration_ns: int, now_ns: int) -> Action:
        """The action at the end of a step, ``duration_ns`` after the one before."""
        self._steps += 1
        if len(self._unheard) < self._unheard_of and not self._wanted:
            self._unheard.append(duration_ns)
            return Action.NOTHING
        for earlier in self._unheard:
            self._is_long(earlier)
            self.steady.add(earlier)
        self._unheard.clear()
        action = self._heard(duration_ns, now_ns)
        # Only a slowdown can begin another window, and that is checked once in a number of steps.
        rests = self.windows_begun >= self.schedule.repeat and not self.recording and self.schedule.on_slow is None
        self._unheard_of = self.steady.until_compared - 1 if rests and self.steady.steady else 0
        return action

    def _is_long(self, duration_ns: int) -> bool:
        """Whether a step is long enough to begin a round, which it is counted in."""
        usual_ns = self.steady.usual_ns()
        long = self.steady.is_slow(duration_ns, _LONG) and duration_ns - usual_ns > JITTER_NS
        self.rounds.add(long=long)
        return long

    def _heard(self, duration_ns: int, now_ns: int) -> Action:
        long = self._is_long(duration_ns)
        if self.recording:
            return self._within_window(duration_ns if not long else 0, now_ns)
        slow = self.schedule.on_slow is not None and self.steady.is_slow(duration_ns, self.schedule.on_slow)
        self.steady.add(duration_ns)
        if slow or self._wanted or self._has_slowed(now_ns):
            return self._begin(now_ns) if self.may_begin() else Action.NOTHING
        if self.windows_begun >= self.schedule.repeat:
            return Action.NOTHING
        self._waiting -= self.steady.steady
        ready = self._waiting < 0 and self.may_begin()
        if self.agreed is not None:
            ready = self.agreed(self.windows_begun, self._steps, ready)
        return self._begin(now_ns) if ready else Action.NOTHING

    def _has_slowed(self, now_ns: int) -> bool:
        ratio = self.schedule.on_slowdown
        rested = not self.windows_begun or now_ns - self._window_began_ns >= self.schedule.rest_s * 1e9
        return ratio is not None and rested and self.steady.has_slowed(ratio)

    def _begin(self, now_ns: int) -> Action:
        self._wanted = False
        self.windows_begun += 1
        self._waiting = self.schedule.wait
        self._in_window = self._recorded_ns = 0
        self._window_began_ns = now_ns
        return Action.START

    def _within_window(self, duration_ns: int, now_ns: int) -> Action:
        self._in_window = (self._in_window or 0) + 1
        if self._in_window > self.schedule.warmup:
            self._recorded_ns += duration_ns
        lasted_ns = now_ns - self._window_began_ns
        if lasted_ns <= self.schedule.longest_s * 1e9 and self._goes_on(lasted_ns):
            return Action.MARK
        self._in_window = None
        return Action.STOP

    def _goes_on(self, lasted_ns: int) -> bool:
        recorded = (self._in_window or 0) - self.schedule.warmup
        if self.schedule.active is not None or not self.alone:
            return recorded < (self.schedule.active or LEAST_ACTIVE)
        if recorded >= LEAST_ACTIVE and lasted_ns < _LASTS_UNSURE_NS and self.rounds.unfinished(recorded):
            return True
        if not LEAST_ACTIVE <= recorded < MOST_ACTIVE:
            return recorded < LEAST_ACTIVE
        usual_ns = recorded * self.steady.usual_ns()
        if self._recorded_ns - usual_ns > max(_MOST_LONGER_NS, _MUCH_LONGER * usual_ns):
            return False
        return lasted_ns < (_LASTS_UNSURE_NS if recorded < self.steady.enough() else _LASTS_NS)
