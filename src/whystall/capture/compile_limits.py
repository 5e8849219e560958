"""Functions that torch's compiler gave up on: it logs that once, and runs them uncompiled from then on."""

from __future__ import annotations

import logging
import re
from typing import Final

from whystall.capture.faults import is_the_jobs
from whystall.capture.stacks import shown_file, text_of
from whystall.run_folder.observations import MOST_LIMITS, CompileLimit

# torch/_dynamo/convert_frame.py: "torch._dynamo hit config.%s (%s)", the limit, its value, the function, the reason.
_LOGGER: Final = "torch._dynamo.convert_frame"
_HIT: Final = re.compile(r"^torch\._dynamo hit config\.")
_FUNCTION: Final = re.compile(r"^'(?P<name>[^']+)' \((?P<file>.*):(?P<line>\d+)\)$")
_LONGEST: Final = 200


class CompileLimits(logging.Handler):
    """Listens to the compiler's log; ``found`` are the functions that were given up."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[CompileLimit] = []

    def install(self) -> None:
        """Begins to listen."""
        logging.getLogger(_LOGGER).addHandler(self)

    def remove(self) -> None:
        """Listens no more."""
        logging.getLogger(_LOGGER).removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Notes a limit that was hit; ignores any other message, and never fails."""
        try:
            found = _limit(record) if _HIT.match(str(record.msg)) else None
        except Exception as error:
            if is_the_jobs(error):
                raise
            return
        if found is not None and found not in self.found and len(self.found) < MOST_LIMITS:
            self.found.append(found)


def _limit(record: logging.LogRecord) -> CompileLimit | None:
    given = record.args if isinstance(record.args, tuple) else ()
    told = [match for one in given if (match := _FUNCTION.match(str(one)))]
    if not told:
        return None
    at = [str(one) for one in given].index(told[0].string)
    reason = str(given[at + 1]) if at + 1 < len(given) else ""
    count = next((one for one in given if type(one) is int), 0)
    file, line = told[0]["file"], int(told[0]["line"])
    return CompileLimit(
        function=told[0]["name"][:_LONGEST],
        file=shown_file(file)[:_LONGEST],
        line=line,
        text=text_of(file, line)[:_LONGEST],
        versions=count,
        reason=reason[:_LONGEST],
    )
