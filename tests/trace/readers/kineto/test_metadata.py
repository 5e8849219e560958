"""Metadata: what is allowed through, and that nothing else ever gets anywhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import whystall
from whystall.testing import trace
from whystall.trace.cache import TraceCache
from whystall.trace.metadata import DeviceProperties, Metadata, ProcessGroup
from whystall.trace.model import TABLES
from whystall.trace.readers.kineto.metadata import parse_metadata
from whystall.trace.readers.registry import READERS

SECRETS = {
    "env": {"AWS_SECRET_ACCESS_KEY": "s3cr3t-env", "USER": "s3cr3t-user"},
    "environ": "HF_TOKEN=s3cr3t-token",
    "command_line": "python train.py --password s3cr3t-password",
    "argv": ["s3cr3t-argument"],
    "hostname": "s3cr3t-host",
    "username": "s3cr3t-name",
    "traceName": "/home/s3cr3t-home/trace.json",
    "PT_PROFILER_JOB_NAME": "s3cr3t-job",
    "trace_id": "s3cr3t-id",
    "nested": {"deep": [{"token": "s3cr3t-deep"}]},
}


def built() -> Any:
    allowed = {
        "deviceProperties": [{"id": 0, "name": "Device", "s3cr3t": "s3cr3t-property"}],
        "distributedInfo": {"rank": 0, "world_size": 1, "backend": "nccl", "master_addr": "s3cr3t-address"},
    }
    return (
        trace(**allowed, **SECRETS)
        .step(1, at=0, lasts=5_000)
        .operator("aten::mm", at=10, lasts=100)
        .launch("gemm", at=20, runs_at=500, lasts=100)
    )


def test_secrets_reach_no_table() -> None:
    loaded = built().load()
    for table in TABLES:
        assert "s3cr3t" not in getattr(loaded, table).write_json(), table
    assert "s3cr3t" not in repr(loaded.metadata) + repr(loaded.source) + loaded._repr_html_()


def test_secrets_reach_no_cache(tmp_path: Path) -> None:
    path = built().write(tmp_path / "trace.json")
    cache = TraceCache(tmp_path / "cache", least_raw_bytes=0)
    assert (
        cache.write(
            cache.key(path, next(reader for reader in READERS if reader.name == "kineto")),
            whystall.load(path, cache=False),
        )
        is None
    )
    files = [file for file in (tmp_path / "cache").rglob("*") if file.is_file()]
    assert files
    assert not any(b"s3cr3t" in file.read_bytes() for file in files)


@pytest.mark.parametrize("form", ["json", "html", "markdown", "terminal"])
def test_secrets_reach_no_report(tmp_path: Path, form: str) -> None:
    report = whystall.analyze(built().write(tmp_path / "trace.json"), cache=False)
    assert "s3cr3t" not in whystall.render(report, form)


def parsed(**values: Any) -> Metadata:
    return parse_metadata([(key, json.dumps(value).encode()) for key, value in values.items()])


def test_devices() -> None:
    listed = [
        {"id": 0, "name": "NVIDIA H100", "totalGlobalMem": 8, "computeMajor": 9, "computeMinor": 0, "numSms": 132},
        {"id": 1, "name": ""},
        {"name": "no id"},
        "no object",
        {"id": "2", "name": 5, "totalGlobalMem": "big", "computeMajor": 9},
    ]
    assert parsed(deviceProperties=listed).devices == (
        DeviceProperties(0, "NVIDIA H100", 8, (9, 0), 132),
        DeviceProperties(1, None, None, None, None),
        DeviceProperties(2, None, None, None, None),
    )


def test_the_name_of_a_device_that_is_not_listed() -> None:
    alike = parsed(deviceProperties=[{"id": 0, "name": "A"}, {"id": 1, "name": "A"}])
    mixed = parsed(deviceProperties=[{"id": 0, "name": "A"}, {"id": 1, "name": "B"}])
    assert (alike.device_name(1), alike.device_name(9)) == ("A", "A")
    assert (mixed.device_name(1), mixed.device_name(9)) == ("B", None)
    assert parsed().device_name(0) is None


def test_ranks_and_groups() -> None:
    groups = [{"pg_name": "0", "pg_desc": "default", "pg_size": 2, "ranks": [0, 1, None]}, {"pg_desc": "x"}, 3]
    metadata = parsed(distributedInfo={"rank": 3, "world_size": 8, "backend": "nccl", "pg_config": groups})
    assert (metadata.rank, metadata.world_size, metadata.backend) == (3, 8, "nccl")
    assert metadata.groups == (ProcessGroup("0", "default", 2, (0, 1)),)


@pytest.mark.parametrize("number", [-1, 1 << 21, 9_223_372_036_854_775_807, "18446744073709551615"])
def test_a_count_of_ranks_that_no_job_has_is_damage(number: int | str) -> None:
    group = {"pg_name": "0", "pg_size": number, "ranks": [0, number]}
    metadata = parsed(distributedInfo={"rank": number, "world_size": number, "pg_config": [group]})
    assert (metadata.rank, metadata.world_size) == (None, None)
    assert (metadata.groups[0].size, metadata.groups[0].ranks) == (None, (0,))


@pytest.mark.parametrize("value", [None, 5, "x", [], [[]], {}, {"rank": True}, {"rank": 2**63}, {"pg_config": {}}])
def test_metadata_of_the_wrong_shape_is_left_out(value: Any) -> None:
    metadata = parsed(distributedInfo=value, deviceProperties=value, baseTimeNanoseconds=value, with_stack=value)
    assert metadata.rank is None
    assert metadata.devices == ()


def test_numbers_that_json_does_not_know() -> None:
    raw = b'[{"id": 0, "name": "A", "bandwidth": inf, "clock": -nan, "power": N/A, "totalGlobalMem": NaN}]'
    assert parse_metadata([("deviceProperties", raw)]).devices == (DeviceProperties(0, "A", None, None, None),)


@pytest.mark.parametrize("raw", [b"", b"[" * 100_000, b'{"a": ', b"\xff", b"1" * 10_000, b'"\\ud800"', b"nan"])
def test_metadata_that_does_not_parse_is_left_out(raw: bytes) -> None:
    keys = ("deviceProperties", "distributedInfo", "baseTimeNanoseconds", "with_stack", "cupti_version")
    metadata = parse_metadata([(key, raw) for key in keys])
    assert metadata.devices == ()
    assert metadata.base_time_ns is None


def test_half_characters_and_endless_names_do_not_reach_the_report(tmp_path: Path) -> None:
    names = ["A\ud800B", "x" * 100_000]
    for name in names:
        built_trace = trace(
            deviceProperties=[{"id": 0, "name": name}],
            distributedInfo={"rank": 0, "backend": name, "pg_config": [{"pg_name": name}]},
            pytorch_version=name,
        ).launch("k", at=0, runs_at=100, lasts=10)
        report = whystall.analyze(built_trace.load())
        assert report.devices[0].name in ("A?B", "x" * 1000)
        for form in ("json", "html", "markdown", "terminal"):
            assert len(whystall.render(report, form).encode("utf-8")) < 1_000_000


def test_a_file_name_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "a\udcff.json"
    built().write(path)
    assert whystall.load(path).name == "a?.json"
    whystall.render(whystall.analyze(path), "json").encode("utf-8")
