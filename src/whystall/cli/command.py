"""The interface of a verb."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from whystall.cli.console import Console


class Command(Protocol):
    """One verb of the command line. Importing its module must stay cheap: heavy imports live in ``run``."""

    @property
    def name(self) -> str:
        """The verb as it is typed."""

    @property
    def help(self) -> str:
        """One line for ``whystall --help``."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declares the verb's arguments."""

    def run(self, options: Namespace, console: Console) -> int:
        """The exit code, after the work is done. Raises ``WhystallError`` with a sentence for the user."""
