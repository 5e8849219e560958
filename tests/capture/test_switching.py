"""The interval after which Python gives its lock up: shortened for looks, and given back."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from whystall.capture.stacks import StackSampler
from whystall.capture.switching import SHORT_S, Switching
from whystall.run_folder.samples import BEFORE


@pytest.fixture(autouse=True)
def _usual() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.005)
    yield
    sys.setswitchinterval(before)


def test_it_is_shortened_and_given_back() -> None:
    one = Switching()
    before = sys.getswitchinterval
    one.shorten()
    one.shorten()
    assert one.in_force_s() == pytest.approx(SHORT_S)
    assert sys.getswitchinterval() == pytest.approx(0.005)  # what the program is told
    assert sys.getswitchinterval is before
    one.give_back()
    assert one.in_force_s() == sys.getswitchinterval() == pytest.approx(0.005)
    one.give_back()
    assert one.in_force_s() == pytest.approx(0.005)


@pytest.mark.parametrize("chosen", [0.02, 0.0001, SHORT_S])
def test_what_the_program_chooses_stays(chosen: float) -> None:
    one = Switching()
    one.shorten()
    sys.setswitchinterval(chosen)
    one.shorten()
    assert sys.getswitchinterval() == pytest.approx(chosen)
    one.give_back()
    assert one.in_force_s() == sys.getswitchinterval() == pytest.approx(chosen)
    with pytest.raises(ValueError, match="positive"):
        sys.setswitchinterval(0.0)


def test_a_program_that_chooses_our_interval_first_keeps_it() -> None:
    one = Switching()
    sys.setswitchinterval(SHORT_S)
    one.shorten()
    one.give_back()
    assert sys.getswitchinterval() == pytest.approx(SHORT_S)


def test_a_program_that_switches_faster_is_left_alone() -> None:
    sys.setswitchinterval(0.0002)
    one = Switching()
    one.shorten()
    one.give_back()
    assert sys.getswitchinterval() == pytest.approx(0.0002)


def busy(seconds: float) -> int:
    """Python alone, which calls nothing that gives the lock up."""
    turns, end = 0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        turns += 1
    return turns


def step() -> None:
    busy(0.003)
    time.sleep(0.0005)  # the line behind it, which gives the lock up


@pytest.mark.alone
def test_short_python_is_found_where_it_is_and_not_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine tenths of the time goes by in a function whose stretches are shorter than the usual interval."""
    written: list[dict[str, Any]] = []
    guard: Any = SimpleNamespace(guard=lambda _what, call: call)
    session: Any = SimpleNamespace(
        part_of_step=lambda _at: "other",
        stepping_thread=threading.get_ident(),
        steps=5,
        recording=False,
        faults=guard,
        write_line=written.append,
        keep_journal=lambda: None,
        loader_is_new=False,
    )
    monkeypatch.setattr("whystall.capture.stacks._EVERY_S", 0.01)
    sampler = StackSampler(session)
    sampler.start()
    end = time.monotonic() + 3.0
    while time.monotonic() < end:
        step()
        session.steps += 1
    sampler.stop()
    looks: Counter[str] = Counter()
    for line in written:
        for _part, _file, _line, function, _text, leaf, count in line["stacks"]:
            looks[BEFORE if leaf == BEFORE else function] += count
    # Where others take the cores the pause is most of the time; of Python nearly all is found where it is.
    assert looks["busy"] + looks[BEFORE] > 20
    assert looks["busy"] > 2 * looks[BEFORE]
    assert sys.getswitchinterval() == pytest.approx(0.005)


def test_a_forked_child_has_the_usual_interval() -> None:
    code = """
import os, sys
from whystall.capture.switching import Switching
one = Switching()
one.shorten()
os.register_at_fork(after_in_child=one.give_back)
pid = os.fork()
if pid == 0:
    print(one.in_force_s(), flush=True)
    os._exit(0)
os.waitpid(pid, 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert float(done.stdout) == pytest.approx(0.005)
