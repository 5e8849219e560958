"""The compiled part is built beside the first count; a compiler that fails is told by `doctor` alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from whystall import FlopCounter
from whystall.cli import doctor
from whystall.model import native
from whystall.model.native import background

torch = pytest.importorskip("torch")


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A source that no compiler takes, in a folder of its own."""
    path = tmp_path / "lane.cpp"
    path.write_text("#error another torch\n")
    monkeypatch.setattr(native, "SOURCE", path)
    monkeypatch.delenv(background.OPT_OUT)
    return path


def test_a_compiler_that_fails_is_silent_but_for_doctor(
    source: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    begun = background.begin()
    assert begun is not None
    begun.join()
    assert capfd.readouterr() == ("", "")
    failed = background.failure()
    assert failed is not None
    assert "another torch" in failed
    assert sorted(path.suffix for path in source.parent.iterdir()) == [".cpp", ".failed"]
    assert doctor._counter().found == f"counts by Python alone: {failed}"

    background._begun.cache_clear()
    assert background.begin() is None  # not again for this torch and this source


def test_what_is_built_is_there_for_the_next_process(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[Path] = []
    monkeypatch.setattr(native, "build", lambda: built.append(native.SOURCE))
    background.build_for(str(source))
    assert built == [source]
    assert background.failure() is None
    assert list(source.parent.iterdir()) == [source]


def test_two_processes_do_not_build_at_once(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "build", lambda: pytest.fail("built beside another"))
    claim = native.built().with_suffix(".building")
    claim.touch()
    background.build_for(str(source))
    assert claim.exists()

    os.utime(claim, (0, 0))  # of a process that was killed
    monkeypatch.setattr(native, "build", lambda: None)
    background.build_for(str(source))
    assert not claim.exists()


def test_nothing_is_built_where_it_is_not_wanted_or_the_folder_is_another_s(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(background.OPT_OUT, "0")
    assert background.begin() is None
    monkeypatch.delenv(background.OPT_OUT)
    background._begun.cache_clear()
    owner = source.parent.stat().st_uid
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    assert background.begin() is None
    assert list(source.parent.iterdir()) == [source]


@pytest.mark.parametrize("there", [True, False])
def test_a_count_begins_it_where_the_part_is_missing(monkeypatch: pytest.MonkeyPatch, *, there: bool) -> None:
    begun: list[str] = []
    if there:
        if native.load() is None:
            pytest.skip("not built for this torch")
    else:
        monkeypatch.setattr(native, "load", lambda: None)
    monkeypatch.setattr(background, "begin", lambda: begun.append("begun"))
    with FlopCounter() as counter:
        torch.ones(2, 3) @ torch.ones(3, 4)
    assert counter.profile.forward.all_flops == 48
    assert begun == ([] if there else ["begun"])
