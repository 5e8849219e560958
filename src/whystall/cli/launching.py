"""The command that a verb runs, as ``run`` takes it: a script, ``-m`` a module, or ``--`` and any command."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from whystall.capture.launch import Launch


def add_command(parser: ArgumentParser) -> None:
    """Declares the command."""
    import argparse

    parser.add_argument(
        "-m", dest="module", nargs=argparse.REMAINDER, metavar="MODULE", help="run a module, as python -m does"
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="SCRIPT|-- COMMAND", help="what to run")


def launch_of_words(options: Namespace) -> Launch:
    """The requested launch."""
    from whystall.capture.launch import launch_of

    if options.module is not None:
        return launch_of(options.module, is_module=True)
    words = list(options.command)
    is_command = bool(words) and words[0] == "--"
    return launch_of(words[1:] if is_command else words, is_command=is_command)
