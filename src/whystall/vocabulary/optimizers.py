"""The abilities of torch's optimizers, by the names of their classes: which of them have a fused form."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files

import msgspec


class Optimizer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An optimizer: its forms, and the share of the loop's time on a CPU that the fused one leaves."""

    source: str
    fused: bool = False
    foreach: bool = False
    left_on_cpu: tuple[float, float, float] | None = None
    """At least, usually, at most."""

    @property
    def option(self) -> str:
        """The option that makes it update all parameters at once."""
        return "fused=True" if self.fused else "foreach=True"


@cache
def optimizers() -> dict[str, Optimizer]:
    """The table, by class name."""
    text = (files("whystall.vocabulary") / "optimizers.toml").read_text("utf-8")
    return msgspec.convert(tomllib.loads(text), dict[str, Optimizer])


def optimizer_named(name: str) -> str | None:
    """The class as torch spells it, of a name in any case; ``None`` where torch has no form of it for all at once.

    >>> optimizer_named("adamw"), optimizer_named("LBFGS")
    ('AdamW', None)
    """
    return next((known for known in optimizers() if known.lower() == name.lower()), None)
