"""``whystall skill``: prints instructions by which an agent makes a job faster, with proof."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from whystall.cli.console import Console


class Skill:
    """The verb ``skill``."""

    name = "skill"
    help = "print a skill for agents: how to find the cause, change the code and prove it"

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declares no arguments."""

    def run(self, _options: Namespace, console: Console) -> int:
        """Prints the skill as Markdown; 0."""
        from importlib.resources import files

        console.result((files("whystall.cli") / "skill.md").read_text("utf-8"))
        return 0
