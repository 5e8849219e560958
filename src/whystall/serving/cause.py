"""A cause of slow serving, with its thresholds and the flags that remedy it; and what a rule finds of it."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.resources import files
from typing import Final, Literal

import msgspec

from whystall.diagnosis.causes import Threshold
from whystall.serving.predictions import Prediction

__all__ = ["BLAMES", "Blame", "Cause", "Evidence", "Finding", "Flag", "Rule", "cause_beside", "flags"]


class Blame(StrEnum):
    """The side that is at fault."""

    CLIENT = "client"
    ARRIVALS = "arrivals"
    CONFIGURATION = "configuration"
    HOST = "host"
    DEVICE = "device"


BLAMES: Final = tuple(Blame)
"""The order of blame: a load generator that holds requests back makes all later parts look different."""


class Cause(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A cause's entry: ``flags`` are the server's flags of its remedy, as `flags` describes them."""

    id: str
    blame: Blame
    title: str
    meaning: str
    measured: str
    remedy: str
    flags: tuple[str, ...] = ()
    thresholds: dict[str, Threshold] = {}

    def threshold(self, name: str) -> float:
        """The value of a threshold."""
        return self.thresholds[name].value


class Flag(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A flag of the server: what it does, which metric it worsens, and where that version defines it."""

    does: str
    costs: str
    source: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """A number that speaks for a cause. Times are nanoseconds, shares 0 to 1."""

    what: str
    value: float
    unit: Literal["ns", "share", "count", "ratio", "tokens"]


@dataclass(frozen=True, slots=True)
class Finding:
    """A cause that a run shows. ``cost_ns`` is its time per request in the mean, ``share`` that of the whole time.

    ``headline`` is its sentence. It is ``certain`` where the sources show it, and else perhaps so.
    """

    cause: Cause
    headline: str
    cost_ns: int
    share: float
    evidence: tuple[Evidence, ...]
    remedy: str
    certain: bool = True
    prediction: Prediction | None = None

    @property
    def gain_ns(self) -> int:
        """The time that the median request saves by the replay, or else the finding's cost."""
        if self.prediction is None:
            return self.cost_ns
        median = self.prediction.metric("e2e", 50)
        return median.before_ns - median.after_ns


@dataclass(frozen=True, slots=True)
class Rule:
    """A cause and the function that finds it in a case."""

    cause: Cause
    find: Callable[..., Finding | None]


def cause_beside(module: str) -> Cause:
    """The entry beside a rule's module, whose last two names make the id."""
    package, _, name = module.rpartition(".")
    family = package.rpartition(".")[2]
    data = tomllib.loads(files(package).joinpath(f"{name}.toml").read_text("utf-8"))
    return msgspec.convert({"id": f"{family}.{name}".replace("_", "-"), **data}, Cause)


@cache
def flags() -> dict[str, Flag]:
    """The flags of vLLM 0.32 that remedies name."""
    text = files("whystall.serving").joinpath("vllm_flags.toml").read_text("utf-8")
    return msgspec.convert(tomllib.loads(text), dict[str, Flag])
