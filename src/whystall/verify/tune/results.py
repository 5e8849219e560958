"""The trials and the result of a search over settings: its schema."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from whystall.analysis.paired import Interval

SCHEMA: Final = "whystall.tune/1"

Value = int | str | bool
Settings = dict[str, Value]
"""Changes to the command as given: a name of a setting and its value. Empty: no change."""

Losses = Literal["agree", "agree on average", "differ", "not compared"]
Verdict = Literal["faster", "slower", "inside the noise", "failed", "losses differ"]


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of a run: parts of its steps as shares, and how its loaders and optimizers were made.

    ``input_ns`` is a step's wait for its batch, ``fault_share`` the largest share of page faults in it. ``bf16`` is
    whether the model's device has instructions for it, ``autocast`` and ``compiled`` are the code's own settings,
    ``wrapped`` is how DistributedDataParallel was made, ``affinity`` whether threads are bound and which cores are
    near, ``zero`` the settings of a DeepSpeed configuration.
    """

    shares: dict[str, float]
    input_ns: int = 0
    worker_cpu_share: float | None = None
    fault_share: float = 0.0
    loaders: list[dict[str, Any]] = []
    optimizers: list[dict[str, Any]] = []
    models: list[dict[str, Any]] = []
    wrapped: list[dict[str, Any]] = []
    affinity: dict[str, Any] | None = None
    zero: dict[str, Any] | None = None
    autocast: bool = False
    compiled: bool = False
    bf16: bool = False
    threads: int | None = None
    cores: int = 1
    devices: int = 0
    epochs: int = 1


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One run: seconds of its mean steady step and its losses, or why there is no time.

    ``losses`` are those that it printed, ``step_losses`` the starting values of each step's backward passes,
    ``memory_kib`` is the largest resident memory of a rank, ``other_cores`` the cores that other programs kept busy.
    """

    step_s: float | None
    losses: list[float] = []
    step_losses: list[float | str | None] = []
    failed_because: str | None = None
    seen: Seen | None = None
    memory_kib: int | None = None
    other_cores: float | None = None


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A run that was made, in the form kept for a continuation."""

    settings: Settings
    outcome: Outcome


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One setting tried against the best so far: seconds of the steps of both, in pairs, and the verdict.

    ``speedup`` is relative to the work done if the setting changes a step's work (``work``: the factor). ``losses``
    shows whether the job computes the same: by step, or on average where it draws other random numbers.
    """

    name: str
    value: Value
    before_s: list[float]
    after_s: list[float]
    speedup: float | None
    interval: Interval | None
    verdict: Verdict
    because: str | None = None
    work: float = 1.0
    losses: Losses = "not compared"


class LeftOut(msgspec.Struct, frozen=True, kw_only=True):
    """A setting that was not tried, and why."""

    name: str
    because: str


class Tuning(msgspec.Struct, frozen=True, kw_only=True):
    """A whole search. ``confirmed`` is the winner against the command as given, in pairs of their own.

    Without a winner ``settings`` is empty. ``noise`` is the ratio between runs of the same settings.
    """

    schema: Literal["whystall.tune/1"] = SCHEMA
    trials: list[Trial]
    left_out: list[LeftOut]
    settings: Settings
    confirmed: Trial | None
    noise: float
    runs: int
    step_s: float
    ended_because: str
    seen: Seen | None
