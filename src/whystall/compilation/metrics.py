"""The fields of torch's CompilationMetrics under their names of torch 2.4 to 2.15, and the phases that they imply."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from whystall.compilation.results import Phases

__all__ = ["Times", "phases_of", "text", "times_of", "whole"]

_LONGEST_NS: Final = 1 << 53  # 104 days
_LATEST_NS: Final = 1 << 62
_US: Final = 1_000
_S: Final = 1_000_000_000
# Fields in the order of trust, with their unit in nanoseconds. `dynamo_cumulative_…` is all there is in early builds of
# 2.6.
_TOTAL: Final = (
    ("duration_us", _US),
    ("entire_frame_compile_time_s", _S),
    ("dynamo_cumulative_compile_time_us", _US),
    ("backward_cumulative_compile_time_us", _US),
    ("inductor_compile_time_s", _S),
    ("inductor_cumulative_compile_time_us", _US),
)
_BACKEND: Final = (("backend_compile_time_s", _S), ("aot_autograd_cumulative_compile_time_us", _US))
_INDUCTOR: Final = (("inductor_cumulative_compile_time_us", _US), ("inductor_compile_time_s", _S))
_CODE: Final = (("inductor_code_gen_cumulative_compile_time_us", _US), ("code_gen_time_s", _S))
_KERNELS: Final = (("triton_compile_time_us", _US),)
_RESTARTS: Final = (("dynamo_compile_time_before_restart_us", _US), ("dynamo_time_before_restart_s", _S))
_START: Final = (("start_time_us", _US), ("start_time", _S))
_AUTOTUNE: Final = ("compile_time_autotune_time_us", "runtime_triton_autotune_time_us")


@dataclass(frozen=True, slots=True)
class Times:
    """The times of a record of metrics; ``None`` where it has none. Those of phases include the phases inside."""

    start_ns: int | None
    total_ns: int | None
    backend_ns: int | None
    inductor_ns: int | None
    code_ns: int | None
    kernels_ns: int | None
    restarts_ns: int
    autotune_ns: int


def times_of(metrics: dict[str, Any]) -> Times:
    """The times of a record of metrics."""
    return Times(
        start_ns=_first(metrics, _START, _LATEST_NS),
        total_ns=_first(metrics, _TOTAL),
        backend_ns=_first(metrics, _BACKEND),
        inductor_ns=_first(metrics, _INDUCTOR),
        code_ns=_first(metrics, _CODE),
        kernels_ns=_first(metrics, _KERNELS),
        restarts_ns=_first(metrics, _RESTARTS) or 0,
        autotune_ns=sum(_first(metrics, ((name, _US),)) or 0 for name in _AUTOTUNE),
    )


def phases_of(times: Times, total_ns: int, kernels_ns: int, *, backward: bool) -> Phases:
    """The phases without those inside them; they add up to ``total_ns``.

    Each of the recorded times includes the next one. A phase without a time is as long as the phases inside it.
    ``kernels_ns`` is the wait for compilers that events show, with the precompiled headers that the metrics leave out.
    """
    most = total_ns
    holding: list[int | None] = []
    for recorded in (total_ns if backward else times.backend_ns, times.inductor_ns, times.code_ns):
        most = most if recorded is None else min(most, recorded)
        holding.append(None if recorded is None else most)
    kernels = inner = min(max(times.kernels_ns or 0, kernels_ns), most)
    parts = []
    for held in reversed(holding):
        outer = inner if held is None else held
        parts.append(outer - inner)
        inner = outer
    code, inductor, aot = parts
    return Phases(total_ns - inner, aot, inductor, code, kernels)


def whole(value: object) -> int | None:
    """A whole number that is not negative."""
    return value if type(value) is int and 0 <= value < _LATEST_NS else None


def text(value: object) -> str:
    """A text, or an empty one."""
    return value if isinstance(value, str) else ""


def _first(metrics: dict[str, Any], fields: tuple[tuple[str, int], ...], most: int = _LONGEST_NS) -> int | None:
    for name, unit in fields:
        value = metrics.get(name)
        if isinstance(value, int | float) and 0 <= value * unit < most:
            return round(value * unit)
    return None
