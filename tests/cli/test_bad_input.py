"""Bad input ends in one plain sentence and the right exit code, and good files beside it are still analysed."""

from __future__ import annotations

import errno
import gzip
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import whystall

if TYPE_CHECKING:
    from .conftest import Cli, Outcome

RECORDING = whystall.demo_recording()


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "traces" / "rank0.json.gz"
    path.parent.mkdir()
    path.write_bytes(RECORDING.read_bytes())
    return path


def assert_one_sentence(outcome: Outcome, *, names: str) -> None:
    assert outcome.code == 3
    assert outcome.out == ""
    (line,) = outcome.err.splitlines()
    assert line.startswith("whystall: ")
    assert names in line


@pytest.mark.parametrize("verb", [("analyze",), ("report",), ("export", "--format", "json")])
def test_a_missing_file(verb: tuple[str, ...], cli: Cli) -> None:
    assert_one_sentence(cli(*verb, "nowhere.json"), names="nowhere.json")


@pytest.mark.parametrize("format_", ["csv", "perfetto"])
def test_a_missing_file_to_export(format_: str, cli: Cli) -> None:
    assert_one_sentence(cli("export", "nowhere.json", "--format", format_, "-o", "out"), names="nowhere.json")


def test_a_glob_that_matches_nothing(cli: Cli) -> None:
    assert_one_sentence(cli("analyze", "nowhere/*.json"), names="nowhere/*.json")


def test_a_folder_without_traces(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "notes.txt").write_text("no trace")

    assert_one_sentence(cli("analyze", "empty"), names="empty")


@pytest.mark.parametrize(
    "content",
    [b"", b"not json at all", b'{"name": "no trace", "version": [1, 2, 3]}', b"\x00" * 4096, b"null"],
)
def test_a_file_that_is_no_trace(content: bytes, cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "odd.json").write_bytes(content)

    assert_one_sentence(cli("analyze", "odd.json"), names="odd.json")


def test_a_gzip_that_holds_garbage(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "odd.json.gz").write_bytes(gzip.compress(b"x")[:10] + b"\xff" * 100)

    assert_one_sentence(cli("analyze", "odd.json.gz"), names="odd.json.gz")


def test_a_file_without_permission(cli: Cli, recording: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may read every file")
    recording.chmod(0)

    assert_one_sentence(cli("analyze", recording), names=recording.name)


def test_what_may_not_be_looked_at_is_no_bug(cli: Cli, recording: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = Path.is_file

    def forbidden(path: Path) -> bool:
        if path.name == recording.name:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return usual(path)

    monkeypatch.setattr(Path, "is_file", forbidden)
    assert_one_sentence(cli("analyze", recording.parent), names=recording.name)


def test_a_bad_file_among_good_ones(cli: Cli, recording: Path) -> None:
    (recording.parent / "rank1.json").write_text("{broken")

    outcome = cli("analyze", recording.parent, "--json", "-q")

    assert outcome.code == 0
    report = json.loads(outcome.out)
    assert [file["path"] for file in report["source"]["files"]] == ["rank0.json.gz"]
    assert any("rank1.json" in warning for warning in report["source"]["warnings"])


def test_a_truncated_file_gives_what_precedes_the_damage(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "cut.json.gz").write_bytes(RECORDING.read_bytes()[:100_000])

    outcome = cli("analyze", "cut.json.gz", "--json", "-q")

    assert outcome.code == 0
    (file,) = json.loads(outcome.out)["source"]["files"]
    assert file["truncated"]
    assert file["events"] > 1000


def test_a_cache_that_cannot_be_written_is_no_obstacle(
    cli: Cli, recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("WHYSTALL_CACHE_DIR", str(tmp_path / "file"))

    assert cli("analyze", recording, "-q").code == 0


def test_a_kernel_class_file_that_is_wrong(cli: Cli, recording: Path, tmp_path: Path) -> None:
    (tmp_path / "kernels.toml").write_text("[[rule]]\nclass = 'fast'\nfamily = 'x'\npattern = 'y'\n")

    outcome = cli("analyze", recording, "--kernel-classes", "kernels.toml")

    assert outcome.code == 3
    assert "class must be one of compute, communication, memory, not 'fast'" in outcome.err


def test_a_kernel_class_file_that_is_missing(cli: Cli, recording: Path) -> None:
    assert_one_sentence(cli("analyze", recording, "--kernel-classes", "none.toml"), names="none.toml")
