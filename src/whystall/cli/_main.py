"""The way from an argument list to an exit code: 0 done, 1 threshold crossed, 2 usage, 3 input unreadable."""

from __future__ import annotations

import os
import sys

from whystall.cli._top import answer

TYPE_CHECKING = False  # importing typing takes half as long as starting Python
if TYPE_CHECKING:
    from collections.abc import Sequence

    from whystall.cli.console import Console

INTERNAL_ERROR = 70  # EX_SOFTWARE of sysexits.h: a bug of ours must not read as a threshold crossed
INTERRUPTED = 130  # 128 + SIGINT, as shells report it
_LONGEST_NAME = 200
CLOSED_PIPE = 141  # 128 + SIGPIPE, as shells report it


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code of ``whystall ARGUMENTS...``; ``None`` takes them from the process.

    That process ends by the signal that ended the job that it launched.
    """
    code = _answered(arguments)
    if code >= 0:
        return code
    from whystall.cli.ending import SIGNALLED, die_of

    return SIGNALLED - code if arguments is not None else die_of(-code)


def _answered(arguments: Sequence[str] | None) -> int:
    _open_what_is_closed()
    words = sys.argv[1:] if arguments is None else list(arguments)
    try:
        said = answer(words)
        if said is None:
            code = _run(words)
        else:
            sys.stdout.write(said)
            code = 0
        sys.stdout.flush()  # here, where a closed pipe is still an exception that can be caught
    except BrokenPipeError:
        _discard_stdout()
        return CLOSED_PIPE
    except KeyboardInterrupt:
        from whystall.cli.console import Console

        Console().error("interrupted")
        return INTERRUPTED
    return code


def _open_what_is_closed() -> None:
    """A process that was started with a closed stream has ``None`` in its place: its output is lost."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123 - to the end of the process
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123


def _run(arguments: list[str]) -> int:
    # Imported here, as the verb is: the help needs none of it.
    from whystall.cli._parser import parse
    from whystall.cli.console import Console

    console = Console()
    try:
        command, options = parse(arguments)
        console.configure(quiet=options.quiet, verbose=options.verbose)
        return command.run(options, console)
    except SystemExit as end:  # argparse, after --help of a verb or a usage error
        return end.code if isinstance(end.code, int) else 0
    except BrokenPipeError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is ends in one sentence
        return _told(error, console)


def _told(error: Exception, console: Console) -> int:
    """The exit code, after a sentence on the error."""
    from whystall.errors import InputError, UsageError, WhystallError

    if isinstance(error, WhystallError):
        console.error(str(error))
        return error.exit_code
    if isinstance(error, MemoryError):
        console.error("there is not enough memory: free some, name fewer files, or record fewer steps at a time")
        return InputError.exit_code
    if isinstance(error, FileNotFoundError) and _is_gone():
        console.error("the current folder no longer exists: cd to one that does")
        return UsageError.exit_code
    if isinstance(error, PermissionError) and error.filename is not None:
        console.error(f"{str(error.filename)[:_LONGEST_NAME]}: permission denied")
        return InputError.exit_code
    return _internal_error(error, console)


def _is_gone() -> bool:
    """Whether the working folder was deleted."""
    from pathlib import Path

    try:
        Path.cwd()
    except FileNotFoundError:
        return True
    return False


def _internal_error(error: Exception, console: Console) -> int:
    if console.verbose:
        import traceback

        traceback.print_exception(error, file=sys.stderr)
    console.error(
        f"internal error, {type(error).__name__}: {error}\n"
        "This is a bug in whystall: run again with -v for the traceback, and please report it."
    )
    return INTERNAL_ERROR


def _discard_stdout() -> None:
    """Points stdout at nothing, so that the interpreter's last flush does not raise again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
