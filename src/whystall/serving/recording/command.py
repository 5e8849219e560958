"""The command of a vLLM server: where it is in the words, the flags it has, and its port."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePath
from typing import Final

__all__ = ["DEFAULT_PORT", "ServerCommand", "server_command"]

DEFAULT_PORT: Final = 8000
"""The port of ``vllm serve`` without ``--port`` (`entrypoints/launchers/cli_args.py`, 0.32)."""
_MODULES: Final = ("vllm.entrypoints.openai.api_server", "vllm.entrypoints.cli.main")
_PYTHON: Final = re.compile(r"python\d*(\.\d+)?")


@dataclass(frozen=True, slots=True)
class ServerCommand:
    """A command that starts vLLM's server. ``program`` is its ``vllm``, or the Python that runs vLLM's module."""

    program: str
    is_python: bool
    arguments: tuple[str, ...]

    def has(self, flag: str) -> bool:
        """Whether the user gave a flag, negated or not, in either spelling (``--a-b``, ``--a_b``)."""
        negated = f"--no-{flag.removeprefix('--')}"
        return any(_name(word) in {flag, negated} for word in self.arguments)

    def value(self, flag: str) -> str | None:
        """The last value of a flag; ``None`` where it is not given."""
        found = None
        for word, following in zip(self.arguments, (*self.arguments[1:], ""), strict=True):
            if _name(word) == flag:
                found = word.partition("=")[2] if "=" in word else following
        return found

    @property
    def port(self) -> int | None:
        """The port on which it will listen; ``None`` where the words do not say, or where it listens on no port."""
        if self.has("--uds") or self.has("--headless"):
            return None
        text = self.value("--port")
        if text is None:
            return None if self.has("--config") else DEFAULT_PORT
        return int(text) if text.isascii() and text.isdigit() and 0 < int(text) < 1 << 16 else None


def server_command(words: Sequence[str]) -> ServerCommand | None:
    """The server that a command starts, also behind ``env``, ``numactl`` and others; ``None`` for another command.

    >>> server_command(["vllm", "serve", "m", "--port", "81"]).port
    81
    >>> server_command(["bash", "-c", "vllm serve m"]) is None
    True
    """
    for place, (word, following) in enumerate(pairwise(words)):
        rest = tuple(words[place + 2 :])
        if PurePath(word).name == "vllm" and following == "serve":
            return ServerCommand(word, is_python=False, arguments=rest)
        if word == "-m" and following in _MODULES:
            python = next((one for one in reversed(words[:place]) if _PYTHON.fullmatch(PurePath(one).name)), None)
            serves = following == _MODULES[0] or rest[:1] == ("serve",)
            if python is not None and serves:
                return ServerCommand(python, is_python=True, arguments=rest)
    return None


def _name(word: str) -> str:
    """The name of a flag as vLLM's parser reads it: underscores are dashes."""
    return word.partition("=")[0].replace("_", "-") if word.startswith("--") else ""
