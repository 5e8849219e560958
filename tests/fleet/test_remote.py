"""Files at addresses: found, fetched in pieces, gone afterwards. Servers are on loopback."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.fleet.ranks import job

import whystall
from whystall.errors import InputError
from whystall.fleet import remote
from whystall.fleet.inputs import FEW_RANKS
from whystall.fleet.remote import fetched, find_remote, is_address, name_of, shown
from whystall.report.schema import Report
from whystall.trace.readers.registry import READERS

RANKS = FEW_RANKS + 2


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *said: object) -> None:
        """Says nothing."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return job(tmp_path_factory.mktemp("job") / "run", RANKS, late=7)


@pytest.fixture
def site(folder: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder.parent)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    server = pytest.importorskip("moto.server").ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(s3: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A bucket with the job's files, for this process and those that it starts."""
    boto3: Any = pytest.importorskip("boto3")
    known = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}
    for name, value in (known | {"AWS_ENDPOINT_URL": s3}).items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3")
    client.create_bucket(Bucket="traces")
    for path in folder.iterdir():
        client.upload_file(str(path), "traces", f"run/{path.name}")
    client.put_object(Bucket="traces", Key="run/notes.txt", Body=b"no trace")
    return "s3://traces"


def without_files(report: Report) -> tuple[object, ...]:
    return report.devices, report.findings, report.verdict, report.source.ranks, report.source.files


@pytest.mark.parametrize("what", ["run", "run/", "run/rank*.json"])
def test_a_bucket_gives_the_report_of_the_folder(
    bucket: str, what: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    report = whystall.analyze(f"{bucket}/{what}", cache=False, workers=2)
    assert without_files(report) == without_files(whystall.analyze(folder, cache=False, workers=2))
    assert report.source.ranks == list(range(RANKS))
    assert list((tmp_path / "scratch").iterdir()) == []


def test_one_file_in_a_bucket_is_analysed_like_any_other(bucket: str, folder: Path) -> None:
    report = whystall.analyze(f"{bucket}/run/rank3.json", cache=False)
    assert report.devices == whystall.analyze(folder / "rank3.json", cache=False).devices
    assert [file.path for file in report.source.files] == ["rank3.json"]


def test_addresses_and_paths_go_together(bucket: str, folder: Path) -> None:
    report = whystall.analyze([f"{bucket}/run/rank3.json", folder / "rank4.json"], cache=False)
    assert report.source.ranks == [3, 4]


def test_a_file_that_cannot_be_fetched_is_named_and_the_others_are_analysed(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = remote.fetched

    def fetch(address: str, folder: Path | None = None) -> Any:
        return whole(address.replace("rank4", "gone"), folder)

    monkeypatch.setattr("whystall.fleet.ranks.fetched", fetch)
    report = whystall.analyze([f"{bucket}/run/rank3.json", f"{bucket}/run/rank4.json"], cache=False)
    assert report.source.ranks == [3]
    assert any("gone.json: no such file" in text for text in report.source.warnings)


def test_what_a_bucket_does_not_hold_is_a_sentence(bucket: str) -> None:
    with pytest.raises(InputError, match=r"s3://traces/nothing/\*\.json: no traces there"):
        whystall.analyze(f"{bucket}/nothing/*.json", cache=False)
    with pytest.raises(InputError, match=r"s3://traces/nothing\.json: no such file"):
        whystall.analyze(f"{bucket}/nothing.json", cache=False)


@pytest.mark.parametrize("what", ["run/", "run/rank3.json"])
def test_a_site_gives_the_report_of_the_folder(site: str, what: str, folder: Path) -> None:
    report = whystall.analyze(f"{site}/{what}", cache=False, workers=2)
    assert report.devices == whystall.analyze(folder.parent / what, cache=False, workers=2).devices


def test_a_file_that_is_not_there_and_a_server_that_is_none_are_sentences(site: str) -> None:
    with pytest.raises(InputError, match=r"/gone\.json: no such file"):
        whystall.analyze(f"{site}/gone.json?token=word", cache=False)
    with pytest.raises(InputError, match=r"http://127\.0\.0\.1:9/a\.json: cannot be read") as raised:
        whystall.analyze("http://user:word@127.0.0.1:9/a.json?token=word", cache=False)
    assert "word" not in str(raised.value)


def test_a_copy_is_gone_when_it_was_read_and_has_the_files_name(site: str, tmp_path: Path) -> None:
    with fetched(f"{site}/run/rank0.json", tmp_path) as path:
        assert path.name == "rank0.json"
        assert path.is_relative_to(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_no_file_is_fetched_that_has_no_room(site: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_KEPT_FREE_BYTES", 1 << 60)
    with pytest.raises(InputError, match="no room for it"), fetched(f"{site}/run/rank0.json", tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_without_the_packages_a_sentence_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "fsspec.core", None)
    with pytest.raises(InputError, match=r"s3://traces/a\.json: addresses need .*pip install 'whystall\[cloud\]'"):
        whystall.analyze("s3://traces/a.json", cache=False)
    monkeypatch.undo()
    with pytest.raises(InputError, match="cannot be read"):
        find_remote("nonsense://traces/a.json", READERS)


def test_which_sources_are_addresses() -> None:
    assert [is_address(one) for one in ("s3://a/b", "gs://a", "HTTP://a", "file:///a", "a/b", Path("a"), "C:\\a")] == [
        True, True, True, False, False, False, False
    ]  # fmt: skip
    assert shown("https://u:p@host:1/a/b?x=1#y") == "https://host:1/a/b"
    assert name_of("s3://bucket/a/rank0.json.gz") == name_of("/x/rank0.json.gz") == "rank0.json.gz"
