"""The arguments of a verb: its own, the common options, defaults from the configuration."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from whystall.cli import settings
from whystall.cli._top import USAGE
from whystall.cli.registry import VERBS, Verb

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

    from whystall.cli.command import Command


def parse(arguments: Sequence[str]) -> tuple[Command, Namespace]:
    """The verb and its options; options that were not given come from the configuration.

    Exits as argparse does: 0 after ``VERB --help``, 2 on arguments that make no sense.
    """
    name, *rest = _knobs_joined(arguments)
    verb = _verb(name)
    command = verb.load()
    parser = _parser(command)
    given = parser.parse_args(rest)
    defaults = settings.defaults_for(verb.name, _all_parsers, config=given.config)
    if defaults:
        parser.set_defaults(**defaults)
        given = parser.parse_args(rest)
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


def _verb(word: str) -> Verb:
    found = next((verb for verb in VERBS if verb.name == word), None)
    if found is None:
        _refuse(word)
    return found


def _refuse(word: str) -> NoReturn:
    """Ends as argparse does for an unknown verb, with a suggestion."""
    top = ArgumentParser(prog="whystall", usage=USAGE.removeprefix("usage: "))
    if word.startswith("-"):
        top.error(f"{word} comes after a verb: `whystall --help` lists all")
    import difflib

    near = difflib.get_close_matches(word, [verb.name for verb in VERBS], n=1, cutoff=0.5)
    if word.endswith(".py"):
        hint = f"to watch a script: whystall run {word}"
    elif word.endswith((".json", ".json.gz", "/")):
        hint = f"to read a recording: whystall analyze {word}"
    else:
        hint = f"did you mean {near[0]}?" if near else "`whystall --help` lists all"
    top.error(f"no verb is called {word!r}: {hint}")


def _parser(command: Command) -> ArgumentParser:
    parser = ArgumentParser(prog=f"whystall {command.name}", description=_sentence(command.help), allow_abbrev=False)
    command.add_arguments(parser)
    _add_common(parser)
    return parser


def _all_parsers() -> dict[str, ArgumentParser]:
    """Each verb's parser by its name: a file of settings may name any option of any verb."""
    return {verb.name: _parser(verb.load()) for verb in VERBS}


def _add_common(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("common options")
    group.add_argument("-q", "--quiet", action="store_true", help="no progress, notes or hints on stderr")
    group.add_argument("-v", "--verbose", action="store_true", help="the whole report, and more on stderr")
    group.add_argument("--config", metavar="FILE", help="read defaults from FILE instead of ./pyproject.toml")


def _sentence(help_line: str) -> str:
    return help_line[:1].upper() + help_line[1:] + "."
