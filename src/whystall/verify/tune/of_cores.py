"""Which settings of the processor are worth a trial: how many threads, and on which cores they stay."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from whystall.verify.tune.candidate import Candidate, gain
from whystall.verify.tune.results import Seen, Settings

UNKNOWN: Final = 0.10  # of a step, at the most, for effects that no part of it shows
CORES: Final = "cores"
"""Each of OpenMP's threads stays on a core of its own; another value of ``affinity`` is a list of cores."""


def core_candidates(seen: Seen, settings: Settings) -> Iterator[Candidate]:
    """Numbers of threads, and threads that stay where they are."""
    yield from _threads(seen, settings)
    if "affinity" not in settings and why_no_affinity(seen, settings) is None:
        near = _told(seen).get("near")
        yield Candidate("affinity", str(near or CORES), gain(UNKNOWN * (1 - seen.shares.get("input", 0.0))))


def _threads(seen: Seen, settings: Settings) -> Iterator[Candidate]:
    now = int(settings.get("threads", seen.threads or 0))
    if seen.devices or not now:
        return
    computes = 1 - seen.shares.get("input", 0.0)
    if now < seen.cores:
        yield Candidate("threads", seen.cores, 1 / (1 - computes * (1 - now / seen.cores)))
    if now > seen.cores:
        yield Candidate("threads", seen.cores, max(gain(0.5 * computes), 1.0))
    if now > 1 and seen.cores > 1:
        yield Candidate("threads", max(min(now, seen.cores) // 2, 1), gain(UNKNOWN * computes))


def why_no_affinity(seen: Seen, settings: Settings) -> str | None:
    """Why no other affinity is tried; ``None`` where one is."""
    told, threads = _told(seen), int(settings.get("threads", seen.threads or 0))
    workers = settings.get("num_workers", max((one.get("num_workers") or 0 for one in seen.loaders), default=0))
    in_both = (
        (not told, "nothing is known of how the process is bound"),
        (told.get("bound"), "a variable binds threads already"),
        (
            int(told.get("ranks") or 1) > 1,
            "there are several ranks: one command would bind all of them to the same cores",
        ),
    )
    on_device = ((not told.get("near"), "all cores are as near to the device"),)
    on_cpu = (
        (threads <= 1, "it computes on one thread"),
        (threads > seen.cores, "there are more threads than cores"),
        (workers, "a loader's workers would all stay on the core of the thread that starts them"),
    )
    reasons = (*in_both, *(on_device if seen.devices else on_cpu))
    return next((because for applies, because in reasons if applies), None)


def _told(seen: Seen) -> Mapping[str, Any]:
    return seen.affinity or {}
