"""The end of a file of samples, beside a reading of the whole."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.trace.test_following import HEAD, row

from whystall.run_folder.samples import DISTURBED
from whystall.trace.following import Followed
from whystall.trace.latest_steps import LatestSteps, latest_steps


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    return tmp_path / "rank0.samples.jsonl"


def test_the_end_of_a_long_file_is_enough(samples: Path) -> None:
    samples.write_bytes(HEAD + b"".join(row(step, 1_000 if step < 15_000 else 2_000) for step in range(20_000)))
    assert samples.stat().st_size > 20 * (32 << 10)
    followed = Followed(samples)
    followed.look()

    assert latest_steps(samples) == LatestSteps(followed.steps - 1, 2_000_000)


def test_the_line_that_is_being_written_waits(samples: Path) -> None:
    samples.write_bytes(HEAD + row(1, 5_000) + row(2, 9_000)[:-3])

    assert latest_steps(samples) == LatestSteps(1, 5_000_000)


def test_windows_are_no_pace(samples: Path) -> None:
    samples.write_bytes(HEAD + row(1, 5_000) + row(2, 90_000, flags=DISTURBED))
    assert latest_steps(samples) == LatestSteps(2, 5_000_000)
    samples.write_bytes(HEAD + row(2, 90_000, flags=DISTURBED))
    assert latest_steps(samples) == LatestSteps(2, None)


@pytest.mark.parametrize(
    "content", [None, b"", HEAD, b"[1]\n[2]\n", b'{"schema": "other", "columns": ["step"]}\n[1]\n']
)
def test_without_a_step_there_is_nothing(samples: Path, content: bytes | None) -> None:
    if content is not None:
        samples.write_bytes(content)
    assert latest_steps(samples) is None
