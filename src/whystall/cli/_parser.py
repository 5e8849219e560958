"""The argument parser: common options, one sub-parser per verb, defaults from the configuration."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from typing import TYPE_CHECKING

from whystall.cli import settings
from whystall.cli.registry import COMMANDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from whystall.cli.command import Command

EPILOG = """\
exit codes: 0 done, 1 a threshold was crossed, 2 usage, 3 input unreadable

Begin with `whystall run SCRIPT`; without a job at hand, `whystall demo`."""


def parse(arguments: Sequence[str]) -> tuple[Command, Namespace]:
    """The verb and its options; options that were not given come from the configuration.

    Exits as argparse does: 0 after ``--help`` and ``--version``, 2 on arguments that make no sense.
    """
    parser, verbs = _build()
    arguments = _knobs_joined(arguments)
    if not arguments:
        parser.print_help()
        parser.exit()
    _check_verb(parser, arguments[0])
    given = parser.parse_args(arguments)
    parsers = {command.name: verbs[command.name] for command in COMMANDS}
    defaults = settings.defaults_for(given.verb, parsers, config=given.config)
    if defaults:
        verbs[given.verb].set_defaults(**defaults)
        given = parser.parse_args(arguments)
    command = next(command for command in COMMANDS if command.name == given.verb)
    return command, given


def _knobs_joined(arguments: Sequence[str]) -> list[str]:
    """``--knob --batch=8,16`` as one word: argparse takes no value that begins with a dash."""
    words = list(arguments)
    for place, word in enumerate(words[:-1]):
        if word == "--":
            break
        if word == "--knob" and words[0] == "tune" and words[place + 1].startswith("-"):
            return [*words[:place], f"{word}={words[place + 1]}", *words[place + 2 :]]
    return words


def _check_verb(parser: ArgumentParser, word: str) -> None:
    """Ends as argparse does for a word that is no verb, with what may have been meant."""
    import difflib

    names = [command.name for command in COMMANDS]
    if word.startswith("-") or word in names:
        return
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    if word.endswith(".py"):
        hint = f"to watch a script: whystall run {word}"
    elif word.endswith((".json", ".json.gz", "/")):
        hint = f"to read a recording: whystall analyze {word}"
    else:
        hint = f"did you mean {near[0]}?" if near else "`whystall --help` lists all"
    parser.error(f"no verb is called {word!r}: {hint}")


def _build() -> tuple[ArgumentParser, dict[str, ArgumentParser]]:
    parser = ArgumentParser(
        prog="whystall",
        description="Tells why a deep-learning job is slow, from PyTorch traces.",
        epilog=EPILOG,
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"whystall {_version()}")
    subparsers = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    verbs = {}
    for command in COMMANDS:
        verb = subparsers.add_parser(
            command.name, help=command.help, description=_sentence(command.help), allow_abbrev=False
        )
        command.add_arguments(verb)
        _add_common(verb)
        verbs[command.name] = verb
    return parser, verbs


def _add_common(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("common options")
    group.add_argument("-q", "--quiet", action="store_true", help="no progress, notes or hints on stderr")
    group.add_argument("-v", "--verbose", action="store_true", help="the whole report, and more on stderr")
    group.add_argument("--config", metavar="FILE", help="read defaults from FILE instead of ./pyproject.toml")


def _sentence(help_line: str) -> str:
    return help_line[:1].upper() + help_line[1:] + "."


def _version() -> str:
    from whystall import __version__

    return __version__
