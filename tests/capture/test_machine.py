"""What is read of the machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from whystall.capture.machine import _cpu_model


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("processor\t: 0\nmodel name\t: AMD EPYC 7763\nprocessor\t: 1\n", "AMD EPYC 7763"),
        ("processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n", "CPU 0x41 0xd40"),
        ("processor\t: 0\nCPU part\t: 0xd40\n", None),
        ("", None),
    ],
)
def test_a_cpu_by_its_name_or_its_numbers(tmp_path: Path, text: str, name: str | None) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text(text)
    assert _cpu_model(str(file)) == name


def test_where_there_is_no_such_file_the_cpu_is_not_known(tmp_path: Path) -> None:
    assert _cpu_model(str(tmp_path / "none")) is None
