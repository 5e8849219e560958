"""What is read, what is refused, and that nothing in a pickle runs."""

from __future__ import annotations

import os
import pickle
import pickletools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from whystall.errors import InputError
from whystall.fleet import find_hangs, plain_pickle, read_dumps
from whystall.fleet.dump_files import rank_of
from whystall.fleet.recorder_dumps import read_dump
from whystall.report.hang_text import render_hangs

from .recorder import Job, as_json

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3) | st.tuples(inner)
    ),
    max_leaves=12,
)
DUMP = Job(2).call("all_reduce").call("all_gather", ranks=(0,), state="started").body(0)
FORMS = {"pickle": pickle.dumps(DUMP, protocol=2), "newer pickle": pickle.dumps(DUMP), "json": as_json(DUMP)}


class Malicious:
    def __init__(self, ran: Path) -> None:
        self.ran = ran

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.ran),)


class Plain:
    pass


@given(PLAIN, st.sampled_from([2, 3, 4, 5]))
def test_plain_values_come_back(value: object, protocol: int) -> None:
    assert plain_pickle.loads(pickle.dumps(value, protocol=protocol)) == value


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_pickle_that_would_run_something_is_refused(tmp_path: Path, protocol: int) -> None:
    ran = tmp_path / "ran"
    file = tmp_path / "trace_rank_0"
    file.write_bytes(pickle.dumps(DUMP | {"entries": [Malicious(ran)]}, protocol=protocol))

    with pytest.raises(InputError, match="it was not run"):
        read_dumps([file])

    assert not ran.exists()


def test_every_other_instruction_is_refused_before_anything_is_built() -> None:
    allowed = set(b"()]}taesu\x85\x86\x87N\x88\x89\x94KhqMJG\x95jrX\x8c\x8a.")
    for opcode in pickletools.opcodes:
        if (code := ord(opcode.code)) not in allowed and opcode.name != "PROTO":
            with pytest.raises(InputError, match="pickle"):
                plain_pickle.loads(b"\x80\x02}" + bytes([code]) + b"\x00" * 16 + b".")


def test_classes_by_a_registered_number_are_refused() -> None:
    import copyreg

    copyreg.add_extension(__name__, "Plain", 240)
    try:
        data = pickle.dumps(Plain, protocol=2)
        pickle.loads(data)  # noqa: S301 - leaves the class in pickle's cache, past which a lookup would not come
        with pytest.raises(InputError, match="registered class"):
            plain_pickle.loads(data)
    finally:
        copyreg.remove_extension(__name__, "Plain", 240)


def test_a_memo_larger_than_any_dump_fills_is_refused() -> None:
    with pytest.raises(InputError, match="pickle"):
        plain_pickle.loads(b"\x80\x02}r\xff\xff\xff\x7f.")


@pytest.mark.parametrize("form", FORMS)
def test_all_forms_say_the_same(form: str) -> None:
    entries = read_dump(FORMS[form]).entries

    assert [(one.operation, one.sequence, one.state) for one in entries] == [
        ("all_reduce", 1, "completed"),
        ("all_gather", 2, "started"),
    ]
    assert entries[0].created_ns is not None
    assert (entries[0].place is None) == (form == "json")


def test_json_without_entries_is_an_empty_dump() -> None:
    assert read_dump(as_json(Job(2).body(0))).entries == ()


def test_operations_are_split_at_the_last_colon() -> None:
    entry = read_dump(FORMS["json"].replace(b"nccl:all_reduce", b"nccl:sub:all_reduce")).entries[0]

    assert (entry.library, entry.operation) == ("nccl:sub", "all_reduce")


def damaged(data: bytes) -> st.SearchStrategy[bytes]:
    cut = st.integers(0, len(data)).map(lambda end: data[:end])
    flips = st.lists(st.tuples(st.integers(0, len(data) - 1), st.integers(0, 255)), min_size=1, max_size=8)
    return cut | flips.map(lambda places: flipped(data, places))


def flipped(data: bytes, places: list[tuple[int, int]]) -> bytes:
    changed = bytearray(data)
    for place, value in places:
        changed[place] = value
    return bytes(changed)


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damage_gives_a_sentence_or_an_answer(tmp_path: Path, form: str, data: st.DataObject) -> None:
    (tmp_path / "trace_rank_0").write_bytes(data.draw(damaged(FORMS[form])))
    (tmp_path / "trace_rank_1").write_bytes(FORMS["json"])

    assert render_hangs(find_hangs(*read_dumps([tmp_path])))


@given(
    body=PLAIN.map(lambda value: {"version": value, "entries": [value, {"record_id": 1, "frames": value}]}), key=PLAIN
)
def test_values_of_wrong_types_are_left_out(body: dict[str, Any], key: object) -> None:
    entry = dict.fromkeys(DUMP["entries"][0], key) | {"record_id": 1, "collective_seq_id": 1, "profiling_name": "a:b"}
    body["entries"].append(entry)
    body["pg_config"] = {"0": {"ranks": key}}

    assert len(read_dump(pickle.dumps(body)).entries) <= 1


def test_files_that_are_no_dump_are_left_out_with_a_reason(tmp_path: Path) -> None:
    folder = Job(2).call("all_reduce").write(tmp_path)
    (folder / "notes_9.txt").write_text("nothing of that kind")
    (folder / "other_8.json").write_text('{"a": 1}')
    (folder / "norank").write_bytes(FORMS["pickle"])
    (folder / "again_rank_1.json").write_bytes(FORMS["json"])

    dumps, told = read_dumps([folder])

    assert [one.rank for one in dumps] == [0, 1]
    assert [sentence.partition(" ")[0] for sentence in told[:3]] == ["norank", "notes_9.txt", "other_8.json"]
    assert "another file is of the same rank: again_rank_1.json" in told[3]


def test_a_folder_without_dumps_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no flight recorder dump"):
        read_dumps([tmp_path])
    with pytest.raises(InputError, match="no such file"):
        read_dumps([tmp_path / "nowhere"])


@pytest.mark.parametrize(
    ("name", "rank"),
    [("nccl_trace_rank_12", 12), ("rank3", 3), ("node7_rank_2_of_job", 2), ("dump_0004", 4), ("x", None)],
)
def test_the_rank_is_in_the_name(name: str, rank: int | None) -> None:
    assert rank_of(name) == rank
