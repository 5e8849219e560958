"""A server for this machine alone, and there only for clients with its token; it answers all others nothing.

For a host name other than a loopback one (which is how a foreign page would reach it), a page of another origin, or a
missing token, it answers 403 and not a word more. It allows no origin to read its answers.
"""

from __future__ import annotations

import hmac
import re
import secrets
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final
from urllib.parse import unquote, urlsplit

from whystall.errors import UsageError
from whystall.view.site import Answer, Answering

ADDRESS: Final = "127.0.0.1"
_TOKEN_BYTES: Final = 24
_PATIENCE_S: Final = 60
_OWN_NAMES: Final = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:[0-9]{1,5})?")
# The origins that a browser reports: this server's own pages, or a user who follows a link or types the address.
_OWN_SITES: Final = frozenset({"same-origin", "none"})
_ALWAYS: Final = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class LoopbackServer(ThreadingHTTPServer):
    """Serves a site at ``address`` until it is stopped; port 0 takes a free one."""

    daemon_threads = True

    def __init__(self, site: Answering, *, port: int = 0) -> None:
        try:
            super().__init__((ADDRESS, port), _Handler)
        except (OSError, OverflowError) as error:
            raise UsageError(f"cannot listen on port {port} ({error}): name another with --port, or none") from error
        self.site = site
        self.token = secrets.token_urlsafe(_TOKEN_BYTES)

    @property
    def address(self) -> str:
        """The page's address, token included."""
        return f"http://{ADDRESS}:{self.server_port}/{self.token}/"

    def handle_error(self, request: object, client_address: object) -> None:
        """Says nothing: a browser that goes away in the middle of an answer is no error."""


class _Handler(BaseHTTPRequestHandler):
    server: LoopbackServer
    timeout = _PATIENCE_S

    def do_GET(self) -> None:
        """Answers with a body."""
        self._send(self._answer())

    def do_HEAD(self) -> None:
        """Answers without."""
        self._send(self._answer())

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002
        """Answers a request that is no GET or HEAD, or no HTTP, with a status alone."""
        status = HTTPStatus.METHOD_NOT_ALLOWED if code == HTTPStatus.NOT_IMPLEMENTED else HTTPStatus(code)
        self._send(Answer(status, headers={"Allow": "GET, HEAD", "Connection": "close"}))

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Says nothing: addresses hold the token."""

    def _answer(self) -> Answer:
        token, _, rest = urlsplit(self.path).path.removeprefix("/").partition("/")
        known = hmac.compare_digest(token.encode("utf-8", "replace"), self.server.token.encode())
        if not (known and self._asked_from_here()):
            return Answer(HTTPStatus.FORBIDDEN)
        return self.server.site.answer(unquote(rest), f"http://{self.headers['Host']}/{self.server.token}/")

    def _asked_from_here(self) -> bool:
        host = self.headers.get("Host", "")
        origin = self.headers.get("Origin")
        followed = self.headers.get("Sec-Fetch-Mode") == "navigate" and self.headers.get("Sec-Fetch-Dest") == "document"
        return (
            _OWN_NAMES.fullmatch(host) is not None
            and origin in {None, f"http://{host}"}
            and (followed or self.headers.get("Sec-Fetch-Site", "none") in _OWN_SITES)
        )

    def _send(self, answer: Answer) -> None:
        self.send_response_only(answer.status)  # without the name of a server
        told = {
            "Content-Type": answer.kind,
            "Content-Length": str(len(answer.body)),
            "Content-Security-Policy": answer.policy,
        }
        for name, value in (told | _ALWAYS | answer.headers).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)
