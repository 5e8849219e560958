"""The price of a whole job: the GPU-hours that it held, and what they cost, part by part.

A device is paid for from the job's begin to its end, whether it computes or not.
"""

from __future__ import annotations

import re
from typing import Final

from whystall.analysis.results import Result
from whystall.analysis.whole_job import JobPartName, JobPhase, WholeJob
from whystall.errors import UsageError

_NS_PER_HOUR: Final = 3_600_000_000_000
_CENTS: Final = 100
_MOST_RATE: Final = 1e6
_RATE: Final = re.compile(r"\s*(?P<amount>\d+(\.\d+)?)\s*(?P<currency>[A-Za-z]{3})?\s*")


class Rate(Result):
    """The price of one device for an hour."""

    per_gpu_hour: float
    currency: str = "USD"


class PricedPart(Result):
    """A part of the job with its GPU-hours; ``cents`` is ``None`` without a rate."""

    part: JobPartName
    phase: JobPhase
    gpu_hours: float
    cents: int | None = None


class Price(Result):
    """The bill of a job: its devices times its length times the rate; the parts' cents add up to it exactly."""

    devices: int
    gpu_hours: float
    parts: list[PricedPart]
    rate: Rate | None = None
    cents: int | None = None


def parse_rate(text: str) -> Rate:
    """The rate that a user writes: an amount, and perhaps a currency of three letters.

    >>> parse_rate("2.80"), parse_rate("2.5 eur")
    (Rate(per_gpu_hour=2.8, currency='USD'), Rate(per_gpu_hour=2.5, currency='EUR'))

    Raises `UsageError` for anything else.
    """
    found = _RATE.fullmatch(text)
    if found is None or float(found["amount"]) > _MOST_RATE:
        raise UsageError(
            f"--gpu-hour {text!r} is no rate: write the price of one device for an hour, as 2.80 or 2.80EUR"
        )
    return Rate(per_gpu_hour=float(found["amount"]), currency=(found["currency"] or "USD").upper())


def price_of(job: WholeJob, devices: int, rate: Rate | None) -> Price:
    """The bill of a job that held ``devices``; cents are shared out by the largest remainder."""
    hours = job.wall_ns * devices / _NS_PER_HOUR
    cents = None if rate is None else round(hours * rate.per_gpu_hour * _CENTS)
    shares = None if cents is None else _shared(cents, [part.ns for part in job.parts])
    parts = [
        PricedPart(
            part=part.part,
            phase=part.phase,
            gpu_hours=part.ns * devices / _NS_PER_HOUR,
            cents=None if shares is None else shares[number],
        )
        for number, part in enumerate(job.parts)
    ]
    return Price(devices=devices, gpu_hours=hours, parts=parts, rate=rate, cents=cents)


def _shared(whole: int, weights: list[int]) -> list[int]:
    """Whole numbers in the ratio of weights that add up to ``whole``.

    >>> _shared(100, [1, 1, 1]), _shared(5, [0, 0])
    ([34, 33, 33], [0, 0])
    """
    total = sum(weights)
    if not total:
        return [0] * len(weights)
    shares = [whole * weight // total for weight in weights]
    left = sorted(range(len(weights)), key=lambda one: (-(whole * weights[one] % total), one))
    for one in left[: whole - sum(shares)]:
        shares[one] += 1
    return shares
