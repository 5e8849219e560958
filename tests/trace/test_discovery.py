"""Which files a path, a folder or a pattern stands for."""

from __future__ import annotations

from pathlib import Path

import pytest

from whystall.errors import InputError
from whystall.trace.discovery import find_manifests, find_traces, folders_among, looks_like_trace
from whystall.trace.readers.registry import READERS

TRACES = ("a.json", "b.json.gz", "c.pt.trace", "d.pt.trace.json", "e.gz", "f.trace")
OTHERS = (
    "report.json",
    "run.json",
    "experiments.json",
    "old.run.json",
    ".hidden.json",
    "rank0.samples.jsonl",
    "notes.txt",
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "inner").mkdir()
    for name in (*TRACES, *OTHERS, "inner/g.json"):
        (tmp_path / name).write_text("{}")
    return tmp_path


def test_a_folder_stands_for_its_traces_and_not_for_what_whystall_writes(folder: Path) -> None:
    assert [path.relative_to(folder).as_posix() for path in find_traces(folder)] == [*TRACES, "inner/g.json"]
    assert not any(looks_like_trace(folder / name) for name in OTHERS)


def test_of_a_profile_of_xla_the_copies_for_viewers_are_left(tmp_path: Path) -> None:
    run, other = tmp_path / "plugins" / "profile" / "run", tmp_path / "other"
    for folder in (run, other):
        folder.mkdir(parents=True)
    profiles = [run / "host1.xplane.pb", run / "host2.xplane.pb"]
    copies = [run / "host1.trace.json.gz", run / "host2.trace.json.gz", run / "perfetto_trace.json.gz"]
    traces = [other / "host1.trace.json.gz", run / "rank0.trace.json.gz"]
    for path in (*profiles, *copies, *traces):
        path.write_bytes(b"")
    assert find_traces(tmp_path) == sorted([*profiles, *traces])


def test_a_file_that_is_named_is_taken_whatever_it_is_called(folder: Path) -> None:
    assert find_traces(folder / "notes.txt") == [folder / "notes.txt"]
    assert find_traces(folder / "absent.json") == [folder / "absent.json"]  # opening it says what is wrong


def test_a_pattern_stands_for_files_by_name(folder: Path) -> None:
    assert find_traces(f"{folder}/[ab].*") == [folder / "a.json", folder / "b.json.gz"]
    assert find_traces(f"{folder}/**/g.json") == [folder / "inner" / "g.json"]
    with pytest.raises(InputError, match="no file matches"):
        find_traces(f"{folder}/*.sqlite")


def test_a_folder_without_traces_says_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        find_traces(tmp_path)
    begins, _, endings = str(caught.value).partition(" (looked for ")
    assert begins == f"{tmp_path}: no traces in this folder"
    named = endings.removesuffix(")").split(", ")
    assert sorted(named) == sorted({f"*{suffix}" for reader in READERS for suffix in reader.suffixes})


@pytest.mark.parametrize("path", ["x" * 5_000, "nul\0", "loop"])
def test_a_path_that_cannot_be_one_is_an_input_error(path: str, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(InputError, match="cannot be read"):
        find_traces(tmp_path / path)


def test_the_folders_among_what_was_given(folder: Path) -> None:
    assert folders_among([folder, str(folder / "inner"), folder / "a.json", object(), "x" * 5_000]) == [
        folder,
        folder / "inner",
    ]


def test_a_list_of_ranks_is_found_where_it_is_named_and_is_no_trace(folder: Path) -> None:
    for place in (folder, folder / "inner"):
        (place / "ranks.json").write_text("{}")
    assert find_manifests(folder) == find_manifests(f"{folder}/r*.json") == [folder / "ranks.json"]
    assert find_manifests(f"{folder}/**/*.json") == [folder / "inner" / "ranks.json", folder / "ranks.json"]
    assert find_manifests(folder / "a.json") == find_manifests(f"{folder}/a*.json") == find_manifests("x" * 5_000) == []
    assert "ranks.json" not in {path.name for path in (*find_traces(folder), *find_traces(f"{folder}/*.json"))}
