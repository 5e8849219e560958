"""Answers of ``whystall`` without a verb: its help and its version.

Without argparse, whose import takes nearly as long as Python's start.
"""

from __future__ import annotations

import os

from whystall.cli.registry import VERBS

TYPE_CHECKING = False  # importing typing takes half as long as starting Python
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

USAGE = "usage: whystall [-h] [--version] VERB ..."
_HEAD = f"""\
{USAGE}

Explains why a deep-learning job is slow, from PyTorch traces.

positional arguments:
  VERB
"""
_TAIL = """
options:
  -h, --help  show this help message and exit
  --version   show program's version number and exit

exit codes: 0 done, 1 a threshold was crossed, 2 usage, 3 input unreadable

Begin with `whystall run SCRIPT`; without a job at hand, `whystall demo`.
"""
_LEAST_WIDTH = 40
_PLAIN_WIDTH = 80  # where the width of a line is unknown


def answer(arguments: Sequence[str]) -> str | None:
    """The help or the version where ``arguments`` ask for them, before any verb; ``None`` where they name a verb."""
    if not arguments or arguments[0] in {"-h", "--help"}:
        return help_text(_width() - 2)  # a margin, as argparse leaves it
    if arguments[0] == "--version":
        from whystall._version import __version__

        return f"whystall {__version__}\n"
    return None


def help_text(width: int) -> str:
    """All verbs with their help, in lines of at most ``width`` columns where the words allow it."""
    longest = max(len(verb.name) for verb in VERBS)
    begin = " " * 4
    lines = [
        f"{begin}{(verb.name if first else ''):{longest}}  {line}"
        for verb in VERBS
        for first, line in _wrapped(verb.help, width - longest - len(begin) - 2)
    ]
    return _HEAD + "\n".join(lines) + "\n" + _TAIL


def _wrapped(text: str, width: int) -> Iterator[tuple[bool, str]]:
    """``text`` in lines, each with whether it is the first."""
    line, first = "", True
    for word in text.split():
        if line and len(line) + 1 + len(word) > width:
            yield first, line
            line, first = word, False
        else:
            line = f"{line} {word}" if line else word
    yield first, line


def _width() -> int:
    """The columns of the terminal, from ``COLUMNS`` or the terminal."""
    given = os.environ.get("COLUMNS", "")
    if given.isdecimal() and int(given):
        return max(_LEAST_WIDTH, int(given))
    try:
        columns = os.get_terminal_size(1).columns
    except (OSError, ValueError):
        columns = 0
    return max(_LEAST_WIDTH, columns or _PLAIN_WIDTH)
