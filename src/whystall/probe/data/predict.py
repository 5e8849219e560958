"""Predicts the supply of any number of workers, its bound, and good settings, from measurements: arithmetic."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from whystall.probe.data.results import Bound, Device, Resource, Settings
from whystall.probe.data.simulate import Costs, seconds_per_batch

# Fewer workers are better than more that bring so little.
_WORTH: Final = 0.02
_HARDLY: Final = 0.02  # of a batch: a smaller wait beside the processor's work means nothing
NOTHING: Final = 0.01
_PREFETCH: Final = (2, 4, 8)


@dataclass(frozen=True, slots=True)
class Model:
    """A measured loader.

    ``inline_s`` is a batch without workers. ``costs`` are those in a worker, and ``measured_s`` the seconds per batch
    by number of workers, to which the simulation is scaled; the factor between two numbers is interpolated.
    """

    samples_per_batch: int
    cores: int
    prefetch: int
    inline_s: float
    costs: Costs
    measured_s: Mapping[int, float]

    def batch_s(
        self, workers: int, *, prefetch: int | None = None, step_s: float = 0.0, extra_wait_s: float = 0
    ) -> float:
        """Seconds between two batches with a step of ``step_s``; each batch waits ``extra_wait_s`` more."""
        if workers == 0:
            return self.inline_s + step_s + extra_wait_s
        worked = Costs(self.costs.cpu_s, [one + extra_wait_s for one in self.costs.wait_s], self.costs.receive_cpu_s)
        worked = worked.slower(self._stretch(workers))
        with_step = Costs(worked.cpu_s, worked.wait_s, worked.receive_cpu_s, step_s)
        return seconds_per_batch(with_step, workers, cores=self.cores, prefetch=prefetch or self.prefetch)

    def samples_per_s(self, workers: int, *, prefetch: int | None = None, extra_wait_s: float = 0.0) -> float:
        """The supply of ``workers`` workers."""
        return self.samples_per_batch / self.batch_s(workers, prefetch=prefetch, extra_wait_s=extra_wait_s)

    def wait_s(self, workers: int, step_s: float, *, prefetch: int | None = None) -> float:
        """The wait of a step of ``step_s`` for its batch."""
        return max(self.batch_s(workers, prefetch=prefetch, step_s=step_s) - step_s, 0.0)

    def _stretch(self, workers: int) -> float:
        """The factor of the simulation: measured over simulated, interpolated between two by logarithms."""
        known = sorted(self.measured_s)
        if not known:
            return 1.0
        low = max((one for one in known if one <= workers), default=known[0])
        high = min((one for one in known if one >= workers), default=known[-1])
        first, second = math.log(self._off(low)), math.log(self._off(high))
        part = 0.0 if low == high else (workers - low) / (high - low)
        return math.exp(first + part * (second - first))

    def _off(self, workers: int) -> float:
        simulated = seconds_per_batch(self.costs, workers, cores=self.cores, prefetch=self.prefetch)
        return self.measured_s[workers] / simulated if simulated > 0 else 1.0


def proposed_workers(model: Model, most: int, step_s: float | None) -> int:
    """The fewest workers with which no step waits; else the fewest with about the highest supply."""
    if step_s is not None:
        waits = [model.wait_s(workers, step_s) for workers in range(most + 1)]
        enough = max(NOTHING * step_s, min(waits) + _WORTH * (step_s + min(waits)))
        return next(workers for workers, wait in enumerate(waits) if wait <= enough)
    rates = [model.samples_per_s(workers) for workers in range(most + 1)]
    return next(workers for workers, one in enumerate(rates) if one >= (1 - _WORTH) * max(rates))


def proposed_prefetch(model: Model, workers: int, step_s: float | None) -> int | None:
    """The smallest of a few prefetch factors with about the highest supply; ``None`` without workers."""
    if not workers:
        return None
    times = {one: model.batch_s(workers, prefetch=one, step_s=step_s or 0.0) for one in _PREFETCH}
    return next(one for one, time_s in times.items() if time_s <= min(times.values()) * (1 + _WORTH))


def settings(
    model: Model,
    workers: int,
    *,
    prefetch: int | None,
    persistent: bool,
    pin: bool | None,
    step_s: float | None,
) -> Settings:
    """The settings with ``workers`` workers, and their supply."""
    wait = None if step_s is None else round(model.wait_s(workers, step_s, prefetch=prefetch) * 1e9)
    return Settings(
        num_workers=workers,
        prefetch_factor=prefetch if workers else None,
        persistent_workers=persistent,
        pin_memory=pin,
        samples_per_s=model.samples_per_s(workers, prefetch=prefetch),
        wait_ns=wait,
    )


def gain_of(now: Settings, proposed: Settings, step_s: float | None) -> float:
    """How many times as fast steps (with a step's time), or samples, come with the proposal."""
    if step_s is None or now.wait_ns is None or proposed.wait_ns is None:
        return proposed.samples_per_s / now.samples_per_s
    return (step_s * 1e9 + now.wait_ns) / (step_s * 1e9 + proposed.wait_ns)


def bounds(model: Model, workers: int, device: Device | None) -> list[Bound]:
    """The limit of each resource, with ``workers`` workers."""
    samples, costs = model.samples_per_batch, model.costs
    cpu_s, wait_s = statistics.fmean(costs.cpu_s), statistics.fmean(costs.wait_s)
    wait_s = wait_s if wait_s > _HARDLY * cpu_s else 0.0
    stretch = model._stretch(workers) if workers else 1.0  # noqa: SLF001 - of this module
    if workers:
        cores = min(model.cores, workers + 1)
        found = [_bound("CPU cores", samples * cores, (cpu_s + costs.receive_cpu_s) * stretch)]
        found.append(_bound("storage", samples * workers, wait_s * stretch, "hardly anything was waited for"))
        found.append(_bound("IPC", samples, costs.receive_cpu_s * stretch))
    else:
        inline_wait = min(wait_s, model.inline_s)
        found = [_bound("CPU cores", samples, model.inline_s - inline_wait)]
        found.append(_bound("storage", samples, inline_wait, "hardly anything was waited for"))
        found.append(Bound(resource="IPC", samples_per_s=None, unknown_because="there is none without workers"))
    for resource, ns in (("pinning", device and device.pin_ns), ("copy", device and device.copy_pinned_ns)):
        name: Resource = "pinning" if resource == "pinning" else "copy"
        found.append(_bound(name, samples, (ns or 0) / 1e9, "there is no GPU here"))
    return found


def _bound(resource: Resource, samples: float, seconds: float, without: str = "it takes no time") -> Bound:
    if seconds <= 1e-9:
        return Bound(resource=resource, samples_per_s=None, unknown_because=without)
    return Bound(resource=resource, samples_per_s=samples / seconds)


def binding(found: Sequence[Bound]) -> Resource | None:
    """The resource that allows least."""
    known = [(one.samples_per_s, one.resource) for one in found if one.samples_per_s is not None]
    return min(known)[1] if known else None
