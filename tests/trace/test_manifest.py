"""``ranks.json`` tells of which rank a recording is, and whatever else it may hold is a sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.trace.test_ranks import files, recording, written

import whystall
from whystall.cli import main
from whystall.errors import InputError
from whystall.trace import manifest as module
from whystall.trace.manifest import SCHEMA, Document, Stated, as_stated, manifest_of


def listed(folder: Path, **ranks: int) -> Path:
    """A list of ranks by the names of files without their ending."""
    recordings = [{"file": f"{name}.json", "rank": rank} for name, rank in ranks.items()]
    (folder / "ranks.json").write_text(json.dumps({"schema": SCHEMA, "recordings": recordings, "world_size": 8}))
    return folder


def document(*recordings: dict[str, Any], folder: str = "/here", **more: Any) -> Document:
    content = {"schema": SCHEMA, "recordings": list(recordings), **more}
    return Document("ranks.json", folder, json.dumps(content).encode())


def test_a_recording_that_states_no_rank_has_the_one_of_the_list(tmp_path: Path) -> None:
    written(tmp_path, a=recording(), b=recording(at=100_000), c=recording(at=200_000, rank=3))
    report = whystall.analyze(listed(tmp_path, a=5, b=2), cache=False)
    assert files(report) == [("b.json", 2), ("c.json", 3), ("a.json", 5)]
    assert report.source.world_size == 8
    assert report.source.warnings == []


def test_a_recording_that_states_another_rank_has_the_one_of_the_list_and_that_is_said(tmp_path: Path) -> None:
    written(tmp_path, a=recording(rank=0), rank0=recording(at=100_000), b=recording(at=200_000, rank=2))
    report = whystall.analyze(listed(tmp_path, a=1, rank0=3, b=2), cache=False)
    assert files(report) == [("a.json", 1), ("b.json", 2), ("rank0.json", 3)]
    sentence = "its rank is the one that ranks.json gives it, not the one that it or its name states"
    assert report.source.warnings == [f"a.json: {sentence}", f"rank0.json: {sentence}"]


def test_a_recording_that_is_listed_and_not_there_is_named(tmp_path: Path) -> None:
    written(tmp_path, a=recording())
    report = whystall.analyze(listed(tmp_path, a=1, gone=2, lost=3), cache=False)
    assert files(report) == [("a.json", 1)]
    assert report.source.warnings == [
        "ranks.json names 2 files that are not among the recordings here: gone.json, lost.json"
    ]


def test_a_rank_that_is_listed_twice_at_one_time_is_said(tmp_path: Path) -> None:
    written(tmp_path, a=recording(), b=recording(at=100_000))
    report = whystall.analyze(listed(tmp_path, a=1, b=1), cache=False)
    assert files(report) == [("b.json", 0), ("a.json", 1)]
    (warning,) = report.source.warnings
    assert "b.json is said to be rank 1, as another file of that time is" in warning


def test_it_counts_where_its_folder_a_pattern_or_itself_is_named(tmp_path: Path) -> None:
    folder = listed(written(tmp_path, r1=recording(), r2=recording(at=100_000)), r1=6, r2=7)
    several: list[Any] = [folder, f"{folder}/r*.json", [folder / "r1.json", folder / "r2.json", folder / "ranks.json"]]
    for sources in several:
        report = whystall.analyze(sources, cache=False)
        assert files(report) == [("r1.json", 6), ("r2.json", 7)]
        assert report.source.warnings == []
    assert files(whystall.analyze([folder / "r1.json", folder / "r2.json"], cache=False)) == [
        ("r1.json", 0), ("r2.json", 1)
    ]  # fmt: skip


def test_recordings_may_lie_in_folders_below(tmp_path: Path) -> None:
    for number in range(2):
        (tmp_path / f"node{number}").mkdir()
        written(tmp_path / f"node{number}", trace=recording(at=100_000 * number))
    listed(tmp_path, **{"node0/trace": 4, "./node1/trace": 3})
    report = whystall.analyze(tmp_path, cache=False)
    assert [file.rank for file in report.source.files] == [3, 4]
    assert report.source.warnings == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no list of ranks"),
        ("{", "no list of ranks"),
        ("[]", "Expected `object`, got `array`"),
        ("[" * 100_000, "no list of ranks"),
        ('{"traceEvents": []}', "unknown field `traceEvents`"),
        ('{"schema": "whystall.ranks/2", "recordings": []}', "Invalid enum value"),
        ('{"schema": "\\u001b[31m", "recordings": []}', "Invalid enum value"),
        ('{"schema": "whystall.ranks/1"}', "missing required field `recordings`"),
        (
            '{"schema": "whystall.ranks/1", "recordings": [{"file": "a.json", "rank": "0"}]}',
            "Expected `int`, got `str`",
        ),
        ('{"schema": "whystall.ranks/1", "recordings": [{"file": "a.json", "rank": -1}]}', ">= 0"),
        ('{"schema": "whystall.ranks/1", "recordings": [{"file": "a.json", "rank": 1e99}]}', "no list of ranks"),
        (
            '{"schema": "whystall.ranks/1", "world_size": 2, "recordings": [{"file": "a.json", "rank": 2}]}',
            "a.json is rank 2 of 2",
        ),
        (
            (
                '{"schema": "whystall.ranks/1", "recordings": [{"file": "a.json", "rank": 0}, '
                '{"file": "./a.json", "rank": 1}]}'
            ),
            "two things are said of ./a.json",
        ),
        ('{"schema": "whystall.ranks/1", "recordings": [{"file": "\\ud800", "rank": 0}]}', "no list of ranks"),
    ],
)
def test_what_is_no_list_of_ranks_ends_with_a_sentence(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path, a=recording())
    (tmp_path / "ranks.json").write_text(text)
    assert main(["analyze", str(tmp_path), "--no-cache", "-q"]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert "ranks.json" in line
    assert said in line
    assert line.isprintable()


@pytest.mark.parametrize("file", ["../a.json", "/a.json", "inner/../../a.json", ".", "a\0.json"])
def test_no_file_outside_its_folder_is_named(file: str) -> None:
    with pytest.raises(InputError, match="does not lie below its folder"):
        manifest_of([document({"file": file, "rank": 0})])


def test_a_list_that_is_too_large_is_not_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 60)
    with pytest.raises(InputError, match="more than 60 bytes"):
        manifest_of([document({"file": "a.json", "rank": 0})])
    with pytest.raises(InputError, match="holds more than what is read"):
        whystall.analyze(listed(written(tmp_path, a=recording()), a=0), cache=False)


def test_hosts_are_numbered_by_their_lowest_ranks() -> None:
    found = manifest_of(
        [
            document({"file": "a", "rank": 3, "host": "x"}, {"file": "b", "rank": 0, "host": "y"}, folder="/one"),
            document({"file": "a", "rank": 1, "host": "x"}, {"file": "b", "rank": 2}, folder="/two", world_size=4),
        ]
    )
    assert found.stated == {
        "/one/a": Stated(3, None, 1), "/one/b": Stated(0, None, 0), "/two/a": Stated(1, 4, 1), "/two/b": Stated(2, 4)
    }  # fmt: skip


def test_of_several_processes_in_one_file_it_cannot_tell() -> None:
    traces = [recording().load(), recording(at=5_000).load()]
    failures: list[str] = []
    assert as_stated(traces, Stated(3), failures) == traces
    assert "of which rank each is, ranks.json cannot say" in failures[0]
    assert as_stated(traces[:1], Stated(3), failures)[0].rank == 3
    assert traces[0].rank is None


names = st.one_of(st.text(max_size=12), st.sampled_from(["a.json", "..", "/", "x/../y", "./b", "\0"]))
numbers = st.one_of(st.integers(-2, 1 << 40), st.floats(), st.booleans(), st.none(), st.text(max_size=3))
entries = st.fixed_dictionaries({"file": names, "rank": numbers}, optional={"host": names, "more": numbers})
contents = st.fixed_dictionaries(
    {"schema": st.sampled_from([SCHEMA, "x"]), "recordings": st.lists(st.one_of(entries, numbers), max_size=6)},
    optional={"world_size": numbers},
)


@given(st.one_of(st.binary(max_size=200), contents.map(lambda content: json.dumps(content).encode())), st.data())
def test_whatever_it_holds_is_a_list_or_a_sentence(content: bytes, data: st.DataObject) -> None:
    cut = data.draw(st.one_of(st.just(len(content)), st.integers(0, len(content))))
    try:
        found = manifest_of([Document("ranks.json", "/here", content[:cut])])
    except InputError as error:
        assert str(error).startswith("ranks.json: ")  # noqa: PT017 - most contents are lists
        return
    whole = json.loads(content[:cut])
    assert sorted(one.rank for one in found.stated.values()) == sorted(
        {str(Path("/here", one["file"])): one["rank"] for one in whole["recordings"]}.values()
    )
    assert all(place.startswith("/here/") and ".." not in place.split("/") for place in found.stated)
