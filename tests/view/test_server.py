"""Who is answered: this machine's user with the token, and nobody else."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator
from threading import Thread

import pytest
from tests.view.conftest import Fetching

from whystall.errors import UsageError
from whystall.view.evidence import cut_from
from whystall.view.server import LoopbackServer
from whystall.view.site import Site


@pytest.fixture(scope="module")
def server(job: Fetching) -> Iterator[LoopbackServer]:
    site = Site(job.report, "<h1>page</h1>", cut_from(job.report, lambda rank: job.trace), None)
    with LoopbackServer(site) as made:
        thread = Thread(target=made.serve_forever)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def asked(server: LoopbackServer, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    connection.putrequest(method, path, skip_host=True)
    named = {"Host": f"127.0.0.1:{server.server_port}"} | {
        name.replace("_", "-"): text for name, text in headers.items()
    }
    for name, text in named.items():
        connection.putheader(name, text)
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, dict(answer.getheaders()), body


def test_it_listens_on_loopback_alone(server: LoopbackServer) -> None:
    assert server.server_address[0] == "127.0.0.1"
    assert server.address == f"http://127.0.0.1:{server.server_port}/{server.token}/"
    assert len(server.token) >= 32


def test_the_token_opens_the_page(server: LoopbackServer) -> None:
    status, headers, body = asked(server, f"/{server.token}/")
    assert (status, body) == (200, b"<h1>page</h1>")
    assert headers["Cache-Control"] == "no-store"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert asked(server, f"/{server.token}/", "HEAD")[::2] == (200, b"")


def test_a_query_and_a_forwarded_port_are_fine(server: LoopbackServer) -> None:
    assert asked(server, f"/{server.token}/?testing=1", Host="localhost:9000")[0] == 200
    headers = asked(server, f"/{server.token}/timeline/step", Host="localhost:9000")[1]
    assert headers["Location"].startswith(f"http://localhost:9000/{server.token}/trace/")


@pytest.mark.parametrize(
    "path", ["/", "//", "/{token}x/", "/{start}/", "/x/{token}/", "/%2e%2e/", "/../{token}", "*", "/%C3%A9/"]
)
def test_without_the_token_nothing_is_said(server: LoopbackServer, path: str) -> None:
    path = path.format(token=server.token, start=server.token[:-1])
    status, headers, body = asked(server, path)
    assert (status, body) == (403, b"")
    assert "Server" not in headers


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "127.0.0.1.evil.example:80"},
        {"Host": "evil.example:127.0.0.1"},
        {"Host": ""},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:1"},
        {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "no-cors", "Sec_Fetch_Dest": "script"},
        {"Sec_Fetch_Site": "same-site", "Sec_Fetch_Mode": "cors", "Sec_Fetch_Dest": "empty"},
        {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "iframe"},
    ],
)
@pytest.mark.parametrize("path", ["", "timeline/step", "trace/step/step.json.gz"])
def test_a_foreign_page_gets_nothing_even_with_the_token(
    server: LoopbackServer, headers: dict[str, str], path: str
) -> None:
    status, told, body = asked(server, f"/{server.token}/{path}", **headers)
    assert (status, body) == (403, b"")
    assert not [name for name in told if name.lower().startswith("access-control")]
    assert "Location" not in told


def test_a_link_that_is_followed_from_elsewhere_opens_the_page(server: LoopbackServer) -> None:
    """In a notebook's terminal, for one."""
    followed = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"}
    assert asked(server, f"/{server.token}/", **followed)[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "CONNECT", "TRACE", "X"])
def test_it_only_reads(server: LoopbackServer, method: str) -> None:
    status, headers, body = asked(server, f"/{server.token}/", method)
    assert (status, headers["Allow"], body) == (405, "GET, HEAD", b"")


@pytest.mark.parametrize(
    "request_", [b"\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\r\n\r\n"]
)
def test_what_is_no_request_ends_without_a_word(server: LoopbackServer, request_: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=30) as connection:
        connection.sendall(request_)
        connection.shutdown(socket.SHUT_WR)
        said = b"".join(iter(lambda: connection.recv(4096), b""))
    assert b"page" not in said
    assert said.partition(b"\r\n\r\n")[2] == b""
    assert asked(server, f"/{server.token}/")[0] == 200


def test_a_port_that_is_taken_is_told(server: LoopbackServer) -> None:
    with pytest.raises(UsageError, match=f"cannot listen on port {server.server_port}"):
        LoopbackServer(server.site, port=server.server_port)
