"""Pages that are replaced while they are served, to this machine's user and nobody else."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Thread

import pytest
from tests.view.test_server import asked

from whystall.view.live_site import LiveSite
from whystall.view.server import LoopbackServer


@pytest.fixture
def site() -> LiveSite:
    made = LiveSite(every_s=5.0)
    made.show("<h1>first</h1>", None, ended=False)
    return made


@pytest.fixture
def server(site: LiveSite) -> Iterator[LoopbackServer]:
    with LoopbackServer(site) as made:
        thread = Thread(target=made.serve_forever)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def test_it_asks_again_by_itself_until_the_job_has_ended(server: LoopbackServer, site: LiveSite) -> None:
    status, headers, body = asked(server, f"/{server.token}/")
    assert (status, headers["Refresh"], body) == (200, "5", b"<h1>first</h1>")
    assert headers["Cache-Control"] == "no-store"

    site.show("<h1>second</h1>", None, ended=False)
    assert asked(server, f"/{server.token}/")[2] == b"<h1>second</h1>"

    site.show("<h1>last</h1>", None, ended=True)
    status, headers, body = asked(server, f"/{server.token}/")
    assert (status, body) == (200, b"<h1>last</h1>")
    assert "Refresh" not in headers


def test_the_report_is_made_when_it_is_asked_for_and_stays_as_it_is_read(
    server: LoopbackServer, site: LiveSite
) -> None:
    made: list[str] = []

    def report() -> str:
        made.append("once")
        return "<h1>report</h1>"

    assert asked(server, f"/{server.token}/report")[0] == 404  # there is none yet
    site.show("<h1>second</h1>", report, ended=False)
    asked(server, f"/{server.token}/")
    assert made == []
    status, headers, body = asked(server, f"/{server.token}/report")
    assert (status, body, made) == (200, b"<h1>report</h1>", ["once"])
    assert "Refresh" not in headers


@pytest.mark.parametrize("path", ["x", "report/", "../report", "run.json"])
def test_nothing_else_is_there(server: LoopbackServer, path: str) -> None:
    assert asked(server, f"/{server.token}/{path}")[::2] == (404, b"")


def test_before_the_first_look_there_is_nothing() -> None:
    assert LiveSite(every_s=0.2).answer("", "http://127.0.0.1/").status == 404


@pytest.mark.parametrize("path", ["", "report"])
@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "no-cors", "Sec_Fetch_Dest": "script"},
        {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "iframe"},
    ],
)
def test_a_foreign_page_gets_nothing_even_with_the_token(
    server: LoopbackServer, site: LiveSite, path: str, headers: dict[str, str]
) -> None:
    site.show("<h1>page</h1>", lambda: "<h1>report</h1>", ended=False)
    status, told, body = asked(server, f"/{server.token}/{path}", **headers)
    assert (status, body) == (403, b"")
    assert "Refresh" not in told


@pytest.mark.parametrize("path", ["/", "/report", "/{token}x/", "/x/{token}/report"])
def test_without_the_token_nothing_is_said(server: LoopbackServer, path: str) -> None:
    assert asked(server, path.format(token=server.token))[::2] == (403, b"")
