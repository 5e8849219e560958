"""A handler of the job's signals may be called while code of ours runs: what it raises is the job's."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import whystall
from whystall._native import HeardCalls, Pauses
from whystall.capture.descriptors import OwnFile
from whystall.capture.faults import Faults, is_the_jobs, suppress


class Handler:
    """Handlers in all shapes that ``signal`` takes."""

    def __call__(self, *_: object) -> None:
        raise TimeoutError

    def method(self, *_: object) -> None:
        raise TimeoutError


def function(*_: object) -> None:
    raise TimeoutError


@contextlib.contextmanager
def handled_by(handler: Callable[..., object]) -> Iterator[None]:
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


def interrupted() -> None:
    """What is ours, in which the job's signal comes."""
    signal.raise_signal(signal.SIGUSR1)


HANDLERS = [function, Handler(), Handler().method, functools.partial(function, 1)]


@pytest.mark.parametrize("handler", HANDLERS)
def test_what_a_handler_raises_goes_through_all_that_keeps_our_failures(handler: Callable[..., object]) -> None:
    faults = Faults()
    with handled_by(handler):
        with pytest.raises(TimeoutError):
            faults.guard("a part", interrupted)()
        with pytest.raises(TimeoutError), suppress(OSError):
            interrupted()
        watched = Handler()
        heard = HeardCalls(watched, lambda *_: interrupted(), lambda: None)
        with pytest.raises(TimeoutError):
            watched()
        heard.remove()
    assert not faults.reasons


def test_a_failure_of_ours_is_kept() -> None:
    faults = Faults()
    with handled_by(function):
        faults.guard("a part", lambda: Path("/nowhere").stat())()
        with suppress(OSError):
            Path("/nowhere").stat()
    assert list(faults.reasons) == ["a part"]


class LimitError(Exception):
    """Of the job's own."""


class Unread:
    """An object of the job's that cannot be read."""

    @property
    def value(self) -> int:
        raise LimitError


@pytest.mark.parametrize("kind", [LimitError, TimeoutError, RuntimeError])
def test_what_another_thread_has_raised_amid_our_code_is_the_jobs(kind: type[Exception], tmp_path: Path) -> None:
    """As recipes for time limits do it; ``read`` stands for a part of ours that takes long."""
    faults, ours = Faults(), tmp_path / "ours.py"
    ours.write_text("def read(until):\n    while not until():\n        pass\n")
    code: dict[str, Callable[[Callable[[], object]], None]] = {}
    exec(compile(ours.read_text(), str(Path(whystall.__file__).parent / "ours.py"), "exec"), code)  # noqa: S102
    thread, sent = threading.get_ident(), threading.Event()

    def late() -> None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(kind))
        sent.set()

    threading.Timer(0.05, late).start()
    with pytest.raises(kind):
        faults.guard("a part", code["read"])(functools.partial(time.sleep, 0.001))
    assert sent.wait(10)
    assert not faults.reasons


def test_what_the_jobs_tracer_raises_amid_our_code_is_the_jobs() -> None:
    faults = Faults()

    def tracer(frame: FrameType, _event: str, _given: object) -> Callable[..., Any] | None:
        if frame.f_code.co_name == "sentence":
            raise LimitError
        return tracer

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        with pytest.raises(LimitError):
            faults.guard("a part", faults.sentence)()
    finally:
        sys.settrace(before)
    assert not faults.reasons


def test_what_an_object_of_the_jobs_raises_as_we_read_it_is_no_matter_of_the_jobs() -> None:
    faults = Faults()
    faults.guard("a part", lambda: Unread().value)()
    assert list(faults.reasons) == ["a part"]


def test_it_is_asked_of_the_main_thread_alone() -> None:
    found = []
    with handled_by(function):
        try:
            interrupted()
        except TimeoutError as error:
            caught = error
        assert is_the_jobs(caught)
        thread = threading.Thread(target=lambda: found.append(is_the_jobs(caught)))
        thread.start()
        thread.join()
    assert found == [False]


def test_no_python_runs_when_the_collector_calls() -> None:
    pauses = Pauses()
    pauses("stop", {})
    pauses("start", {})
    pauses("stop", {})
    assert pauses.take_us() >= 0
    assert pauses.take_us() == 0


def test_a_number_that_the_job_closed_and_took_is_left_alone(tmp_path: Path) -> None:
    ours = OwnFile(str(tmp_path / "ours"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    number = ours.number
    os.close(number)
    theirs = os.open(tmp_path / "theirs", os.O_WRONLY | os.O_CREAT)
    os.dup2(theirs, number)
    assert not ours.is_ours
    os.write(ours.number, b"ours")
    ours.close()
    os.write(number, b"theirs")
    os.close(number)
    os.close(theirs)
    assert ((tmp_path / "ours").read_bytes(), (tmp_path / "theirs").read_bytes()) == (b"ours", b"theirs")


def test_a_file_that_is_gone_is_not_made_again(tmp_path: Path) -> None:
    path = tmp_path / "ours"
    ours = OwnFile(str(path), os.O_WRONLY | os.O_CREAT)
    os.close(ours.number)
    (tmp_path / "another").write_bytes(b"another")
    (tmp_path / "another").replace(path)
    with pytest.raises(FileNotFoundError):
        os.write(ours.number, b"ours")
    assert path.read_bytes() == b"another"
