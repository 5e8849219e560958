"""Addresses of servers as users give them: a scheme, a host, a port and a path, without anything that may be secret."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import SplitResult, urlsplit

from whystall.errors import UsageError

__all__ = ["Address", "parse_address"]

_LONGEST_HOST: Final = 253  # of a name in DNS
_HOST: Final = re.compile(r"(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\.?")


class Address(NamedTuple):
    """A server's address. ``path`` is empty where the text has none."""

    scheme: str
    host: str
    port: int
    path: str


def parse_address(text: str, ports: Mapping[str, int], form: str) -> Address:
    """The address in a text; ``ports`` has the default port of each scheme, ``form`` shows how one looks.

    Raises `UsageError`. Its sentence repeats nothing of the text, which may hold a password.

    >>> parse_address("http://127.0.0.1/metrics", {"http": 80}, "http://HOST:PORT")
    Address(scheme='http', host='127.0.0.1', port=80, path='/metrics')
    """
    why = _fault(text, ports)
    if why is not None:
        raise UsageError(f"the address is not {form}: it has {why}")
    parts = urlsplit(text)
    return Address(parts.scheme, parts.hostname or "", parts.port or ports[parts.scheme], parts.path)


def _fault(text: str, ports: Mapping[str, int]) -> str | None:
    """The end of the sentence on an address that is none, or that would send a secret."""
    if not text.isascii() or not text.isprintable() or " " in text:
        return "a space, or a character that is no printable ASCII"
    try:
        parts = urlsplit(text)
    except ValueError:
        return "brackets around no host"
    faults = (
        (parts.scheme not in ports, "another scheme"),
        ("@" in parts.netloc, "a user or a password"),
        ("?" in text or "#" in text, "a query or a fragment"),
        (not _is_host(parts.hostname or ""), "no host, or one that no server can have"),
        (not _has_port(parts), "a port that is no number from 1 to 65535"),
    )
    return next((fault for holds, fault in faults if holds), None)


def _has_port(parts: SplitResult) -> bool:
    """Whether the port is one, or left out."""
    try:
        return parts.port != 0
    except ValueError:
        return False


def _is_host(host: str) -> bool:
    if ":" not in host:
        return len(host) <= _LONGEST_HOST and _HOST.fullmatch(host) is not None
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True
