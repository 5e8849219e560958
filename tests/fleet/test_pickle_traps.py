"""Pickles of a few hundred bytes that ask for more time or memory than any machine has."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

import whystall
from whystall._native import pickle_trap
from whystall.cli import main
from whystall.errors import InputError
from whystall.fleet import plain_pickle
from whystall.memory.read import read_snapshot

_BEGIN = b"\x80\x02}"
_ENTRIES = b"X\x07\x00\x00\x00entries"


def key_of_nested_tuples(depth: int = 45) -> bytes:
    """A dict whose key is a tuple of twice the tuple before, ``depth`` times: its hash takes 2 to the power of that."""
    made = b"K\x01\x85q\x00" + b"".join(b"h%c\x86q%c" % (one, one + 1) for one in range(depth))
    return _BEGIN + made + b"K\x01s."


def lists_that_hold_each_other(depth: int = 45) -> bytes:
    """Entries that are a few pairs, which anything that goes through them meets 2 to the power of ``depth`` times."""
    made = b"]q\x00" + b"".join(b"h%c\x86q%c" % (one, one + 1) for one in range(depth))
    return _BEGIN + _ENTRIES + made + b"s."


TRAPS = {
    "a key of nested tuples": (key_of_nested_tuples(), "a key is"),
    "the same set with others": (_BEGIN + b"(" + key_of_nested_tuples()[3:-2] + b"u.", "a key is"),
    "lists that hold each other": (lists_that_hold_each_other(), "hold each other too many times"),
    "a list that holds itself": (_BEGIN + _ENTRIES + b"]q\x00h\x00as.", "holds itself"),
    "lists in lists": (_BEGIN + _ENTRIES + b"]" * 100_000 + b"a" * 99_999 + b"s.", "too deep"),
    "a key in a dict that is dropped": (_BEGIN + key_of_nested_tuples()[2:-1] + b"}.", "a key is"),
    "a list as a key": (_BEGIN + b"]K\x01s.", "a key is"),
}


@pytest.mark.parametrize("name", TRAPS)
def test_a_trap_is_known_before_a_value_is_made(name: str) -> None:
    data, why = TRAPS[name]
    with pytest.raises(InputError, match=why):
        plain_pickle.loads(data)


@pytest.mark.parametrize("verb", ["hang", "analyze", "memory"])
@pytest.mark.parametrize("name", TRAPS)
def test_no_verb_falls_into_it(
    name: str, verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.json").write_text('{"schema": "whystall.run/1", "exit_code": 1}')
    (run / "rank0.trace.json.gz").write_bytes(whystall.demo_recording().read_bytes())
    for kind in ("flight", "memory"):
        (run / f"rank0.{kind}.pickle").write_bytes(TRAPS[name][0])

    code = main([verb, str(run)])

    assert code == (0 if verb == "analyze" else 3)
    assert "internal error" not in capsys.readouterr().err


def test_a_snapshot_is_read_the_same_way(tmp_path: Path) -> None:
    path = tmp_path / "rank0.memory.pickle"
    segments = b"X\x08\x00\x00\x00segments"
    path.write_bytes(lists_that_hold_each_other().replace(_ENTRIES, segments))
    assert read_snapshot(path).devices == ()


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_values_that_are_shared_are_no_trap(protocol: int) -> None:
    shared = ["group", ("name", "what for")]
    value = {"entries": [shared] * 5000, 3: None, None: 1.5, 2**62: (), True: {"a": {"b": [shared, shared]}}}
    data = pickle.dumps(value, protocol)
    assert pickle_trap(data) is None
    assert plain_pickle.loads(data) == value
