"""``whystall watch --page``: the state of a job that runs, served to this machine's user."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.cli.conftest import Cli
from tests.cli.test_watch import EVEN, SLOWER, run_of

RUN = "import sys; from whystall.cli import main; sys.exit(main())"


def fetched(address: str, below: str = "") -> tuple[str | None, str]:
    """The header that has a page asked for again, and the page."""
    place = urlsplit(address)
    connection = HTTPConnection(place.netloc, timeout=30)
    connection.request("GET", place.path + below)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    assert answer.status == 200
    return answer.getheader("Refresh"), text.replace("\u00a0", " ")


@pytest.fixture
def running(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A watch of a job that runs; ended with the test, which would wait for it else."""
    folder = run_of(tmp_path, *EVEN, *SLOWER, trace=True)
    words = [sys.executable, "-c", RUN, "watch", str(folder), "--every", "1", "--page", "--no-browser"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watch:
        try:
            yield watch
        finally:
            watch.kill()


def test_the_page_follows_the_job_and_stays_after_its_end(running: subprocess.Popen[str], tmp_path: Path) -> None:
    assert running.stdout
    assert running.stderr
    address = next(line.strip() for line in running.stdout if line.startswith("http://127.0.0.1:"))
    refresh, page = fetched(address)
    assert refresh == "1"
    assert "step 230, 60.0 ms each</h1>" in page
    assert "so far: " in page
    assert "<h1>" in fetched(address, "report")[1]

    run_of(tmp_path, *EVEN, *SLOWER, exit_code=0)
    assert any(line == "whystall: the page stays until Ctrl+C\n" for line in running.stderr)
    refresh, page = fetched(address)
    assert refresh is None
    assert "ended at step 230" in page
    assert "slower: steps take 1.50 times as long as at first" in page
    running.send_signal(signal.SIGINT)
    assert running.wait(timeout=30) == 0
    assert running.stderr.read().splitlines()[-1] == "whystall: the server has ended"


@pytest.mark.parametrize("words", [["--once"], ["--port", "70000"]])
def test_what_cannot_be_served_is_a_usage_error(cli: Cli, tmp_path: Path, words: list[str]) -> None:
    outcome = cli("watch", str(run_of(tmp_path, *EVEN)), "--page", *words)
    assert outcome.code == 2
    assert words[0] in outcome.err
