"""When the parts of a whole job began, and where the main thread of a rank was outside of steps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

MOST_PLACES: Final = 60
MODEL: Final = "model"
"""The work of a place at which the model runs, or learns."""


class JobPlace(msgspec.Struct, frozen=True):
    """A line of the user's at which the main thread was found, the innermost function, and the time there."""

    file: str
    line: int
    function: str
    text: str
    leaf: str
    """``module:name``; of an import the innermost module that is imported."""
    ns: int
    """The time between looks: code that holds Python's lock is looked at less often, and counts as long as it took."""
    work: str = ""
    """Its kind (`whystall.vocabulary.job_work`), or `MODEL`; empty: the job's own code."""
    role: str = ""
    """The occasional work that it belongs to (`whystall.vocabulary.episodes`), if any."""

    @property
    def kind(self) -> str:
        """Its kind in a ledger: the role where the work is the model's, or the job's own."""
        return self.work if self.work not in ("", MODEL) else self.role or self.work


def by_kind(places: Iterable[JobPlace]) -> dict[str, int]:
    """The time of each kind of work at these places."""
    found: dict[str, int] = {}
    for place in places:
        found[place.kind] = found.get(place.kind, 0) + place.ns
    return found


class JobTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Instants of a rank's process, as Unix nanoseconds; ``None`` where one did not come, or is unknown."""

    rank: int | None = None
    """The number that its launcher gave it, in a journal."""
    process_unix_ns: int | None = None
    """The process began, by the kernel's clock (in steps of 10 ms)."""
    capture_unix_ns: int | None = None
    """The interpreter was ready: our first line ran."""
    torch_unix_ns: int | None = None
    """The import of torch began."""
    imported_unix_ns: int | None = None
    """It ended."""
    first_batch_unix_ns: int | None = None
    """A loader handed out the first batch, or the outermost module was first called."""
    first_step_unix_ns: int | None = None
    """The first step ended."""
    last_step_unix_ns: int | None = None
    """The last step ended."""
    ended_unix_ns: int | None = None
    """The interpreter began to end."""
    before: dict[str, int] = {}
    """The time of each kind of work between the import of torch and the end of the first step, by looks."""
    within: dict[str, int] = {}
    """The same between the end of the first step and that of the last one, without the model's and the job's own."""
    used: list[str] | None = None
    """Packages on the main thread's stack in steps, and those of modules and data sets; ``None``: too few looks."""
    before_steps: list[JobPlace] = []
    """Where the main thread was between the import of torch and the end of the first step."""
    within_steps: list[JobPlace] = []
    """Where it was between steps, and in occasional work within them."""
    after_steps: list[JobPlace] = []
    """Where it was after the end of the last step."""
