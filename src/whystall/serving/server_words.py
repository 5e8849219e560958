"""Findings in the words of the server that ran: rules name vLLM's flags, and SGLang has others for the same."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Final

import msgspec

from whystall.serving.cause import Evidence, Finding, Flag, flags
from whystall.serving.predictions import Prediction
from whystall.serving.records import SGLANG

__all__ = ["Words", "words_of"]

_FLAG: Final = re.compile(r"--[a-z][a-z0-9-]+")


class _Other(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The flag of another server with the meaning of one of vLLM's."""

    flag: str
    does: str
    costs: str
    source: str


@cache
def _sglang() -> dict[str, _Other]:
    text = files("whystall.serving").joinpath("sglang_flags.toml").read_text("utf-8")
    return msgspec.convert(tomllib.loads(text), dict[str, _Other])


class Words:
    """The flags of one server. ``of`` a text replaces vLLM's; one without a counterpart stays and is called vLLM's.

    Flags of other programs stay as they are: those of the load's client, and the server's own.
    """

    def __init__(self, others: dict[str, _Other] | None) -> None:
        self._others = others

    def of(self, text: str) -> str:
        """A text with this server's flags."""
        return text if self._others is None else _FLAG.sub(lambda found: self._flag(found[0]), text)

    def _flag(self, name: str) -> str:
        other = (self._others or {}).get(name)
        if other is not None:
            return other.flag
        return f"vLLM's {name}" if name in flags() else name

    def finding(self, found: Finding) -> Finding:
        """A finding with this server's flags."""
        if self._others is None:
            return found
        cause = found.cause
        return replace(
            found,
            cause=msgspec.structs.replace(
                cause,
                title=self.of(cause.title),
                meaning=self.of(cause.meaning),
                measured=self.of(cause.measured),
                remedy=self.of(cause.remedy),
                flags=tuple(self._others[name].flag for name in cause.flags if name in self._others),
            ),
            headline=self.of(found.headline),
            remedy=self.of(found.remedy),
            evidence=tuple(_evidence(one, self.of) for one in found.evidence),
            prediction=_prediction(found.prediction, self.of),
        )

    def flags(self) -> dict[str, Flag]:
        """The effect of each flag, by its name on this server."""
        if self._others is None:
            return flags()
        return {one.flag: Flag(does=one.does, costs=one.costs, source=one.source) for one in self._others.values()}


def words_of(server: str | None) -> Words:
    """The words of a server; vLLM's where none is named."""
    return Words(_sglang() if server == SGLANG else None)


def _evidence(one: Evidence, of: Callable[[str], str]) -> Evidence:
    return replace(one, what=of(one.what))


def _prediction(one: Prediction | None, of: Callable[[str], str]) -> Prediction | None:
    return None if one is None else replace(one, change=of(one.change))
