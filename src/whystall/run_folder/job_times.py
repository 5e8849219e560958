"""When the parts of a whole job began, and where the main thread of a rank was outside of steps."""

from __future__ import annotations

from typing import Final

import msgspec

MOST_PLACES: Final = 40
IMPORTING: Final = "importlib:import"
"""The innermost function of a place at which a module was being imported."""


class JobPlace(msgspec.Struct, frozen=True):
    """A line of the user's at which the main thread was found, the innermost function, and the time there."""

    file: str
    line: int
    function: str
    text: str
    leaf: str
    ns: int
    """The time between looks: code that holds Python's lock is looked at less often, and counts as long as it took."""


class JobTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Instants of a rank's process, as Unix nanoseconds; ``None`` where one did not come, or is unknown."""

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
    imports_ns: int = 0
    """Time in imports between the import of torch and the first batch, by looks at the main thread."""
    before_steps: list[JobPlace] = []
    """Where the main thread was between the import of torch and the first batch."""
    after_steps: list[JobPlace] = []
    """Where it was after the end of the last step."""
