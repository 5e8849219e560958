"""The facts about a cause in any run: the entry beside its rule, as data."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Literal

import msgspec

from whystall.diagnosis.finding import Remedy

Statistic = Literal["mean", "median"]
"""The statistic that judges a run: the mean of its steps, which is throughput, or their median."""


class Threshold(msgspec.Struct, frozen=True, kw_only=True):
    """A number that a rule decides by, with its unit and its source."""

    value: float
    is_: str = msgspec.field(name="is")
    source: str


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """A cause's entry: its meaning, its measurement, its remedy, and its proof."""

    id: str
    title: str
    meaning: str
    measured: str
    remedy: str
    proof: str
    patch: str | None = None
    risk: str | None = None
    unseen: str | None = None
    """Why no rule looks for it yet; ``None`` where one does."""
    episodic: bool = False
    """It happens in some steps alone."""
    thresholds: dict[str, Threshold] = {}
    remedies: dict[str, Remedy] = {}
    """The remedies of its kinds, where these differ; ``remedy`` is for all."""
    settings: dict[str, list[str]] = {}
    """Settings that cause it, by kind of remedy, or under ``any`` for all others; the strongest indication first.

    Written as `whystall.run_folder.settings` reads them.
    """

    @property
    def statistic(self) -> Statistic:
        """The statistic that shows its absence: a median step does not show occasional costs."""
        return "mean" if self.episodic else "median"

    def deciding(self, remedy: Remedy | None) -> list[str]:
        """The settings that a remedy changes; ``None``: the cause's own."""
        text = remedy.text if remedy is not None else None  # a trainer's own words may stand in the patch
        kind = next((kind for kind, one in self.remedies.items() if one.text == text), "any")
        return self.settings.get(kind, self.settings.get("any", []))

    def threshold(self, name: str) -> float:
        """The value of a threshold. Raises `KeyError` if the entry has no such threshold."""
        return self.thresholds[name].value


def cause_beside(module: str) -> Cause:
    """The entry beside a rule's module, which is named after it: ``…rules.host.launch_bound`` is ``host.launch-bound``.

    Rules of other packages may use it too: the last two parts of a module's name make the id.

    >>> cause_beside("whystall.diagnosis.rules.host.launch_bound").id
    'host.launch-bound'
    """
    package, _, name = module.rpartition(".")
    family = package.rpartition(".")[2]
    data = tomllib.loads((_folder(package) / f"{name}.toml").read_text("utf-8"))
    # A remedy without a patch or a risk leaves it out: TOML has no null.
    data["remedies"] = {kind: {"patch": None, "risk": None, **one} for kind, one in data.get("remedies", {}).items()}
    return msgspec.convert({"id": f"{family}.{name}".replace("_", "-"), **data}, Cause)


@cache
def _folder(package: str) -> Traversable:
    """Where a package's files are: found once for all causes of a family."""
    return files(package)
