"""The settings worth a trial, from the facts of a run: pure, so that it can be read and tested."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from whystall.verify.tune.candidate import LEAST_GAIN, Candidate, gain, is_worth_it
from whystall.verify.tune.of_cores import UNKNOWN, core_candidates, why_no_affinity
from whystall.verify.tune.of_model import model_candidates, why_no_model
from whystall.verify.tune.of_ranks import rank_candidates, why_no_buckets, why_no_zero
from whystall.verify.tune.results import LeftOut, Seen, Settings

_MOST_WORKERS_PER_CORE: Final = 4
_HEADROOM: Final = 1.5
_BUSY_WORKER: Final = 0.5


@dataclass(frozen=True, slots=True)
class Knob:
    """An argument of the command with the values it may take; of a batch the work grows with the value."""

    option: str
    values: tuple[str, ...]
    current: str | None

    @property
    def scales_work(self) -> bool:
        """Whether a step's work is proportional to the value."""
        return "batch" in self.option.lower() and all(_positive(value) for value in (*self.values, self.current or "1"))


def _positive(text: str) -> bool:
    try:
        return float(text) > 0
    except ValueError:
        return False


def candidates(seen: Seen, settings: Settings, knob: Knob | None) -> list[Candidate]:
    """All that is worth trying, the most promising first; ``seen`` is of a run with ``settings``."""
    found = [*_loader(seen, settings), *_optimizer(seen, settings), *core_candidates(seen, settings)]
    found += [*_device(seen, settings), *_allocator(seen, settings), *model_candidates(seen, settings)]
    found += [*rank_candidates(seen, settings), *_knob(knob, settings)]
    return sorted((one for one in found if one.most >= 1 + LEAST_GAIN), key=lambda one: -one.most)


def left_out(seen: Seen, settings: Settings, tried: Sequence[str]) -> list[LeftOut]:
    """The settings that were not tried, each with the reason."""
    reasons: dict[str, str | None] = {
        "num_workers": _why_no_loader(seen),
        "optimizer": _why_no_optimizer(seen),
        "threads": "it computes on a GPU" if seen.devices else None,
        "matmul_precision": None if seen.devices else "there is no GPU: only products on one are meant",
        "allocator": _why_no_allocator(seen),
        **why_no_model(seen),
        "bucket_cap_mb": why_no_buckets(seen),
        "affinity": why_no_affinity(seen, settings),
        **why_no_zero(seen),
    }
    if seen.threads == 1 == seen.cores:
        reasons["threads"] = "there is one core"
    done = {*tried, *settings}
    return [LeftOut(name=name, because=why) for name, why in reasons.items() if why is not None and name not in done]


def _why_no_loader(seen: Seen) -> str | None:
    if not seen.loaders:
        return "no DataLoader was made"
    if all(one.get("iterable") for one in seen.loaders):
        return "the data set is iterable: each worker may hand out all of it"
    part = seen.shares.get("input", 0.0)
    return f"nothing waits for it: {part:.1%} of the steps" if not is_worth_it(part) else None


def _why_no_optimizer(seen: Seen) -> str | None:
    if not seen.optimizers:
        return "no optimizer of torch's was made"
    part = seen.shares.get("optimizer", 0.0)
    if not seen.devices and not is_worth_it(part):
        return f"the optimizer takes {part:.1%} of the steps"
    return None if any(_kinds(seen)) else "it is fused already"


def _why_no_allocator(seen: Seen) -> str | None:
    if seen.devices or is_worth_it(seen.fault_share):
        return None
    return f"page faults take some {seen.fault_share:.1%} of the steps"


def _loader(seen: Seen, settings: Settings) -> Iterator[Candidate]:
    if _why_no_loader(seen) is not None:
        return
    made = next(one for one in seen.loaders if not one.get("iterable"))
    most = gain(seen.shares.get("input", 0.0))
    workers = int(settings.get("num_workers", made.get("num_workers") or 0))
    for rank, value in enumerate(_workers(seen, workers)):
        yield Candidate("num_workers", value, most * 0.99**rank)
    if workers:
        prefetch = int(settings.get("prefetch_factor", made.get("prefetch_factor") or 2))
        if prefetch < 8:
            yield Candidate("prefetch_factor", 2 * prefetch, most * 0.9)
        if not settings.get("persistent_workers", made.get("persistent_workers")) and seen.epochs > 1:
            yield Candidate("persistent_workers", True, most * 0.995)
    if seen.devices and not settings.get("pin_memory", made.get("pin_memory")):
        yield Candidate("pin_memory", True, most * 0.95)


def _workers(seen: Seen, workers: int) -> list[int]:
    """Numbers of workers to try, the likeliest first."""
    most = max(_MOST_WORKERS_PER_CORE * seen.cores, 4)
    if workers == 0:
        # The number that makes a batch in the time of the rest of a step, which later trials may shorten.
        part = min(seen.shares.get("input", 0.0), 0.99)
        guess = min(max(math.ceil(_HEADROOM * part / (1 - part)), 2), most)
        order = [guess, min(2 * guess, most), 1]
    elif (seen.worker_cpu_share or 0.0) >= _BUSY_WORKER or seen.worker_cpu_share is None:
        order = [min(2 * workers, most), seen.cores, 0]
    else:  # they hardly compute: they wait, for storage or for their batches to be taken
        order = [0, min(2 * workers, most), 1]
    return [one for one in dict.fromkeys(order) if one != workers]


def _kinds(seen: Seen) -> list[str]:
    """Options that the optimizers support and do not use."""
    kinds = []
    for name in ("fused", "foreach"):
        able = [one for one in seen.optimizers if name in one.get("can", ())]
        if able and not any(one.get("fused") or one.get(name) for one in able):
            kinds.append(name)
    return kinds


def _optimizer(seen: Seen, settings: Settings) -> Iterator[Candidate]:
    if "optimizer" in settings:
        return
    most = gain(max(seen.shares.get("optimizer", 0.0), UNKNOWN if seen.devices else 0.0))
    for rank, kind in enumerate(_kinds(seen)):
        yield Candidate("optimizer", kind, most * 0.95**rank)


def _device(seen: Seen, settings: Settings) -> Iterator[Candidate]:
    if seen.devices:
        if "matmul_precision" not in settings:
            yield Candidate("matmul_precision", "high", gain(UNKNOWN))
        if "allocator" not in settings:
            yield Candidate("allocator", "expandable_segments", gain(UNKNOWN / 2))


def _allocator(seen: Seen, settings: Settings) -> Iterator[Candidate]:
    if not seen.devices and "allocator" not in settings:
        yield Candidate("allocator", "keep_memory", gain(seen.fault_share))


def _knob(knob: Knob | None, settings: Settings) -> Iterator[Candidate]:
    if knob is None:
        return
    now = str(settings.get(knob.option, knob.current or ""))
    for rank, value in enumerate(knob.values):
        if value != now:
            work = float(value) / float(now) if knob.scales_work and _positive(now) else 1.0
            yield Candidate(knob.option, value, 1e3 * 0.99**rank, work)
