"""What torch's compiler gives up is heard in its log: the function, its line, why; other messages are none of it."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from whystall.capture.compile_limits import CompileLimits
from whystall.run_folder.observations import MOST_LIMITS

LOG: Final = logging.getLogger("torch._dynamo.convert_frame")
# As torch 2.13 has it in torch/_dynamo/convert_frame.py.
HIT: Final = "torch._dynamo hit config.%s (%s)\n   function: %s\n   last reason: %s\nsee %s"


@pytest.fixture
def heard() -> Iterator[CompileLimits]:
    limits = CompileLimits()
    limits.install()
    yield limits
    limits.remove()


def test_a_function_is_heard_once_with_its_line_and_reason(heard: CompileLimits) -> None:
    for _ in range(2):
        LOG.warning(HIT, "recompile_limit", 8, f"'job' ({__file__}:1)", "0/7: tensor 'x' size mismatch", "address")
    (limit,) = heard.found
    assert (limit.function, limit.line, limit.versions) == ("job", 1, 8)
    assert limit.reason == "0/7: tensor 'x' size mismatch"
    assert "heard in its log" in limit.text


@pytest.mark.parametrize(
    "message",
    [("recompiling %s", "f"), (HIT, "limit"), ("torch._dynamo hit config.x",), (HIT, "a", "b", "c", "d", "e"), (7,)],
)
def test_no_other_message_says_anything_or_fails(heard: CompileLimits, message: tuple[object, ...]) -> None:
    record = logging.LogRecord(LOG.name, logging.WARNING, "", 0, message[0], message[1:], None)
    heard.emit(record)
    assert heard.found == []


def test_a_job_that_gives_up_again_and_again_is_no_long_list(heard: CompileLimits) -> None:
    for number in range(100):
        LOG.warning(HIT, "recompile_limit", 8, f"'job{number}' (job.py:{number})", "", "address")
    assert len(heard.found) == MOST_LIMITS


def test_torch_itself_says_so(tmp_path: Path) -> None:
    """In a process of its own: where the compiler has worked, others are not looked at."""
    pytest.importorskip("torch")
    job = tmp_path / "job.py"
    job.write_text(JOB)
    done = subprocess.run([sys.executable, str(job)], capture_output=True, text=True, check=True, timeout=300)
    function, file, versions, reason = done.stdout.strip().split("|")
    assert (function, versions) == ("doubled", "8")
    assert file.endswith("job.py")
    assert "size" in reason


JOB: Final = """
import torch
from whystall.capture.compile_limits import CompileLimits

limits = CompileLimits()
limits.install()

def doubled(given):
    return given * 2

compiled = torch.compile(doubled, backend="eager", dynamic=False)
for size in range(2, 12):
    compiled(torch.ones(size))
(limit,) = limits.found
print(limit.function, limit.file, limit.versions, limit.reason.replace(chr(10), " "), sep="|")
"""
