"""Addresses that users give: those that name a server, and those that are refused without a word of them."""

from __future__ import annotations

import pytest

from whystall.errors import UsageError
from whystall.live.address import Address, parse_address

PORTS = {"http": 80, "https": 443}
FORM = "http://HOST:PORT"


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("http://localhost", Address("http", "localhost", 80, "")),
        ("HTTPS://Model_server.internal:8443/a/b", Address("https", "model_server.internal", 8443, "/a/b")),
        ("http://[::1]:81/", Address("http", "::1", 81, "/")),
        ("http://10.0.0.7.", Address("http", "10.0.0.7.", 80, "")),
    ],
)
def test_an_address_has_its_parts(text: str, address: Address) -> None:
    assert parse_address(text, PORTS, FORM) == address


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("ftp://secret", "another scheme"),
        ("secret", "another scheme"),
        ("http://", "no host, or one that no server can have"),
        ("http://:80", "no host, or one that no server can have"),
        ("http://secret..a", "no host, or one that no server can have"),
        ("http://-secret", "no host, or one that no server can have"),
        ("http://" + "secret" * 11, "no host, or one that no server can have"),
        ("http://" + "secret." * 40 + "a", "no host, or one that no server can have"),
        ("http://secret*", "no host, or one that no server can have"),
        ("http://[::1", "brackets around no host"),
        ("http://[secret]", "brackets around no host"),
        ("http://user:secret@a", "a user or a password"),
        ("http://user:secret@a:99999", "a user or a password"),
        ("http://@a", "a user or a password"),
        ("http://a?token=secret", "a query or a fragment"),
        ("http://a?", "a query or a fragment"),
        ("http://a#secret", "a query or a fragment"),
        ("http://secret:0", "a port that is no number from 1 to 65535"),
        ("http://secret:65536", "a port that is no number from 1 to 65535"),
        ("http://secret:http", "a port that is no number from 1 to 65535"),
        ("http://a/secret b", "a space, or a character that is no printable ASCII"),
        ("http://a\n.secret", "a space, or a character that is no printable ASCII"),
        ("http://secret.ä", "a space, or a character that is no printable ASCII"),
    ],
)
def test_another_text_is_refused_and_not_repeated(text: str, why: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_address(text, PORTS, FORM)

    assert str(refused.value) == f"the address is not {FORM}: it has {why}"
