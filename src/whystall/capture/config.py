"""The settings of a capture; they travel to the watched processes in one environment variable."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from whystall.json_text import parse_json

VARIABLE: Final = "WHYSTALL_CAPTURE"


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """When to record, in ``torch.profiler``'s words. Steps are counted once the job runs steadily.

    ``wait`` steps pass, ``warmup`` steps (at least one) run under the profiler unrecorded, ``active`` steps are
    recorded (``None``: `LEAST_ACTIVE`, and for a job of one rank up to `MOST_ACTIVE` where steps are short or differ,
    `MOST_OF_ROUNDS` where they come in rounds); ``repeat`` times. ``on_slow`` records again after a step that took this
    many times the median. ``longest_s`` ends a window early; ``most_bytes`` ends the recording of further windows.

    ``on_slowdown`` records again where the latest steps take this many times (in the median) the time of those before
    them, ``rest_s`` after the last window at the earliest. Beyond ``most_windows`` the oldest windows are deleted.
    """

    wait: int = 1
    warmup: int = 1
    active: int | None = None
    repeat: int = 1
    on_slow: float | None = None
    longest_s: float = 60.0
    most_bytes: int = 512 << 20
    on_slowdown: float | None = None
    rest_s: float = 0.0
    most_windows: int | None = None


ALWAYS: Final = Schedule(repeat=0, on_slowdown=1.25, rest_s=600.0, most_windows=4, most_bytes=1 << 62)
"""In production: no window but those on request, or after a slowdown."""
MOST_SAMPLE_BYTES: Final = 1 << 20
"""Most bytes of a rank's samples in production: the latest are kept."""


ExperimentName = Literal["nothing", "input", "gc", "logging", "threads"]


class ExperimentSetup(msgspec.Struct, frozen=True, kw_only=True):
    """The change of one run of ``run --experiments`` (``nothing``: the run to compare with), and its end.

    It ends after ``steps``, or after ``longest_s`` once there are a dozen.
    """

    name: ExperimentName
    steps: int = 40
    longest_s: float = 30.0


class TrialSetup(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one run of ``tune`` (by the names of `whystall.capture.tuned`), and its end, as above."""

    settings: dict[str, int | str | bool] = {}
    steps: int = 60
    longest_s: float = 30.0


Looks = Literal["none", "few", "all"]
"""The looks at a job's tensors: none, at padding and repeated calls of modules, or at each operator, too."""


class CaptureConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The output folder, and the signals to record beyond operators, kernels and launches.

    Without an optimizer's step after ``optimizer_within_s`` the forward passes of a module may be the steps. The latest
    ``most_sample_bytes`` of the samples are kept, ``None`` for all.
    """

    folder: str
    schedule: Schedule = Schedule()
    shapes: bool = True
    stacks: bool = False
    modules: bool = False
    memory: bool = False
    values: bool = False
    looks: Looks = "all"
    optimizer_within_s: float = 5.0
    most_sample_bytes: int | None = None
    experiment: ExperimentSetup | None = None
    trial: TrialSetup | None = None


def encode(config: CaptureConfig) -> str:
    """The configuration as the variable's value."""
    return msgspec.json.encode(config).decode()


def decode(value: str) -> CaptureConfig:
    """The configuration of a watched process. Raises ``NotJsonError`` when it is not one."""
    return parse_json(value, type=CaptureConfig)
