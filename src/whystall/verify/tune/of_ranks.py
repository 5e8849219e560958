"""Which settings of ranks that share gradients are worth a trial."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from whystall.verify.tune.candidate import Candidate, gain, is_worth_it
from whystall.verify.tune.of_model import computing
from whystall.verify.tune.results import Seen, Settings

# Largest share of backward passes that gradients take in exposed transfers.
_OF_BUCKETS: Final = 0.3
# Largest share of the step without its input: ZeRO's third stage sends half more than the others (arXiv 1910.02054,
# 7.2), and an optimizer on the CPU makes the device wait for it.
_OF_SHARING: Final = 0.3
_OF_OFFLOADING: Final = 0.5
_MB: Final = 1 << 20  # as DistributedDataParallel counts them
_TIMES: Final = 4
_FIRST_BUCKET: Final = _MB  # torch.distributed._DEFAULT_FIRST_BUCKET_BYTES: sent by itself, regardless of the others


def rank_candidates(seen: Seen, settings: Settings) -> Iterator[Candidate]:
    """Settings of the division among ranks, and of the size of messages."""
    yield from _zero(seen, settings)
    yield from _buckets(seen, settings)


def _zero(seen: Seen, settings: Settings) -> Iterator[Candidate]:
    """Stages that share less, and so send less; no offloading. A setting that does not fit any more gets a row."""
    reasons, told, rest = why_no_zero(seen), seen.zero or {}, 1 - seen.shares.get("input", 0.0)
    if reasons["offload"] is None and "offload" not in settings:
        yield Candidate("offload", "none", gain(_OF_OFFLOADING * rest))
    if reasons["zero_stage"] is None:
        now = int(settings.get("zero_stage", told["stage"]))
        for rank, stage in enumerate(range(now - 1, -1, -1)):
            yield Candidate("zero_stage", stage, gain(_OF_SHARING * rest) * 0.99**rank)


def why_no_zero(seen: Seen) -> Mapping[str, str | None]:
    """Why settings of ZeRO are not tried; ``None`` where they are."""
    if seen.zero is None:
        return dict.fromkeys(("zero_stage", "offload"), "the command names no configuration of DeepSpeed's")
    alone = int((seen.affinity or {}).get("ranks") or 1) == 1
    stage = "there is one rank" if alone else None if seen.zero["stage"] else "no stage shares less than 0"
    return {"zero_stage": stage, "offload": None if seen.zero["offload"] else "nothing is offloaded"}


def _buckets(seen: Seen, settings: Settings) -> Iterator[Candidate]:
    """Larger buckets, which are fewer, and smaller ones, which are sent sooner."""
    if why_no_buckets(seen) is not None:
        return
    made = _made(seen)
    given = int(made["bucket_cap_mb"])
    now, most = int(settings.get("bucket_cap_mb", given)), gain(_OF_BUCKETS * _backward(seen))
    held = int(made["bytes"])
    larger = [now * _TIMES] if held > now * _MB else []
    smaller = [now // _TIMES] if now >= _TIMES and held > now // _TIMES * _MB else []
    order = [*larger, *smaller] if held > 2 * now * _MB else [*smaller, *larger]
    for rank, value in enumerate(one for one in order if one != given):
        yield Candidate("bucket_cap_mb", value, most * 0.99**rank)


def why_no_buckets(seen: Seen) -> str | None:
    """Why the size of buckets is not tried; ``None`` where it is."""
    if not seen.wrapped:
        return "no DistributedDataParallel was made"
    made = _made(seen)
    if int(made["ranks"]) == 1:
        return "there is one rank"
    if int(made["bytes"]) <= _FIRST_BUCKET:
        return "all gradients fit the first bucket"
    part = _backward(seen)
    return None if is_worth_it(_OF_BUCKETS * part) else f"backward passes take {part:.1%} of the steps"


def _made(seen: Seen) -> Mapping[str, Any]:
    return max(seen.wrapped, key=lambda one: int(one["bytes"]))


def _backward(seen: Seen) -> float:
    """The share of backward passes, with their waits; all compute where they are not timed."""
    return seen.shares.get("backward") or computing(seen)
