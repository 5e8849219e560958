"""Which cores are near a device: by made-up devices, since this is asked of machines with more than one side."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from whystall.capture.affinity import affinity_seen, cores_of

BINDS = ("OMP_PROC_BIND", "GOMP_CPU_AFFINITY", "KMP_AFFINITY", "WORLD_SIZE")


@pytest.fixture(autouse=True)
def unbound(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in BINDS:
        monkeypatch.delenv(name, raising=False)


def torch_on(**place: int) -> Any:
    cuda = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        current_device=lambda: 0,
        get_device_properties=lambda _device: SimpleNamespace(**place),
    )
    return SimpleNamespace(cuda=cuda, distributed=SimpleNamespace(is_available=lambda: False))


@pytest.fixture
def devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: set(range(16)))
    (tmp_path / "0000:3b:00.0").mkdir()
    (tmp_path / "0000:3b:00.0" / "local_cpulist").write_text("0-3,8-11\n")
    return tmp_path


PLACE = {"pci_domain_id": 0, "pci_bus_id": 0x3B, "pci_device_id": 0}


def test_cores_on_the_side_of_the_device_are_near(devices: Path) -> None:
    assert affinity_seen(torch_on(**PLACE), devices) == {"bound": False, "ranks": 1, "near": "0-3,8-11"}


@pytest.mark.parametrize(
    ("place", "listed"),
    [
        (PLACE, "0-15"),  # all that the job may use
        (PLACE, "32-47"),  # none of them
        (PLACE, "what?"),
        (PLACE | {"pci_bus_id": 0x5E}, "0-3"),  # a device that Linux does not list
        ({}, "0-3"),  # of a torch that does not say where it is
    ],
)
def test_where_no_cores_are_nearer_than_others_none_are_told(devices: Path, place: Any, listed: str) -> None:
    (devices / "0000:3b:00.0" / "local_cpulist").write_text(listed)
    assert affinity_seen(torch_on(**place), devices)["near"] is None


@pytest.mark.parametrize("name", BINDS[:3])
def test_a_variable_that_binds_threads_is_seen(devices: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "true")
    assert affinity_seen(torch_on(**PLACE), devices)["bound"] is True


def test_a_list_of_another_form_is_an_error() -> None:
    with pytest.raises(ValueError, match="all"):
        cores_of("all")
