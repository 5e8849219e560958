"""A redacted report tells no name of the job's, and all of its numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.report.conftest import SAMPLES

import whystall
from whystall.diagnosis.finding import CodeLocation
from whystall.report.redaction import redacted
from whystall.report.registry import FORMATS, render
from whystall.report.schema import Report, decode, encode
from whystall.testing import trace

TRACES = Path(__file__).parents[3] / "shared" / "traces"
# Words that nobody uses for anything in a profiler.
SECRETS = (
    "okapi_step",
    "OkapiNet",
    "/srv/okapi/train.py",
    "okapi-host-7",
    "my::okapi::kernel<Okapi>",
    "Ókapi",
    "2okapi",
    "okapi.0",
)
CLOSED = {
    "schema", "kind", "class", "phase", "role", "severity", "bound", "origin", "of", "statistic", "measured_by", "per",
    "dimension", "signals", "whystall",
}  # fmt: skip


def with_secrets(report: Report) -> Report:
    """Each text with a secret after it, whatever field it stands in."""
    counter = iter(range(10**9))

    def added(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return value if key in CLOSED else {name: added(one, name) for name, one in value.items()}
        if isinstance(value, list):
            return [added(one, key) for one in value]
        if not isinstance(value, str) or key in CLOSED:
            return value
        return value + " " + SECRETS[next(counter) % len(SECRETS)]

    return msgspec.convert(added(json.loads(encode(report))), Report)


@pytest.mark.parametrize("name", ["gpu", "diagnosed", "cpu", "two-ranks", "hostile"])
def test_no_secret_is_in_any_format(name: str) -> None:
    report = with_secrets(SAMPLES[name]())
    assert "kapi" in encode(report).decode()
    shared = redacted(report)
    for format_ in FORMATS:
        assert "kapi" not in render(shared, format_).lower(), format_


def numbers(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [one for each in value.values() for one in numbers(each)]
    if isinstance(value, list):
        return [one for each in value for one in numbers(each)]
    return [] if isinstance(value, str) else [value]


@pytest.mark.parametrize("name", ["resnet50-workers0-v100", "bert-small-h100", "dlrm-8rank-a100"])
def test_what_whystall_says_and_every_number_stays(name: str) -> None:
    report = whystall.analyze(TRACES / f"{name}.json.gz")
    shared = redacted(report)
    assert shared.verdict == report.verdict
    assert numbers(json.loads(encode(shared))) == numbers(json.loads(encode(report)))
    assert [(one.id, one.title, one.remedy) for one in shared.findings] == [
        (one.id, one.title, one.remedy) for one in report.findings
    ]
    assert decode(encode(shared)) == shared


def test_kernels_of_public_libraries_and_operators_of_torch_keep_their_names() -> None:
    report = SAMPLES["gpu"]()
    shared = redacted(report)
    assert [one.name for one in shared.operators] == [one.name for one in report.operators]
    assert [one.name for one in shared.kernels] == [one.name for one in report.kernels]


def test_a_name_is_replaced_by_the_same_each_time_and_code_is_left_out() -> None:
    report = SAMPLES["diagnosed"]()
    code = [
        CodeLocation(file="okapi/train.py", line=3, symbol="okapi_loss(batch, 0.7)"),
        CodeLocation(file="okapi/data.py", line=4, symbol="okapi_fetch"),
    ]
    finding = msgspec.structs.replace(report.findings[0], code=code, title="okapi_fetch takes long")
    (found,) = redacted(msgspec.structs.replace(report, findings=[finding])).findings
    first, second = found.code
    folder, _, file = first.file.partition("/")
    assert (file, first.line, first.symbol) == ("train.py", 3, "")
    assert second.file == f"{folder}/data.py"
    assert found.title == f"{second.symbol} takes long"
    assert second.symbol != folder


def test_a_recording_with_names_everywhere() -> None:
    """The whole way: frames, annotations, custom kernels and operators, modules."""
    built = trace(deviceProperties=[{"id": 0, "name": "NVIDIA H100 80GB HBM3"}])
    for number in range(4):
        at = number * 1_000_000
        built.step(number, at=at, lasts=900_000)
        built.annotation("okapi phase", at=at + 1_000, lasts=700_000)
        built.python("/srv/okapi/train.py(27): okapi_forward", at=at + 2_000, lasts=600_000)
        built.python("nn.Module: OkapiNet_0", at=at + 3_000, lasts=500_000)
        built.operator("okapi_ops::mix", at=at + 4_000, lasts=400_000)
        built.launch(
            "void okapi::mix<float>(float*)", at=at + 5_000, call_lasts=5_000, runs_at=at + 20_000, lasts=300_000
        )
        built.launch("okapi_norm_kernel", at=at + 12_000, call_lasts=5_000, runs_at=at + 330_000, lasts=300_000)
    report = whystall.analyze(built.load())
    assert "okapi" in encode(report).decode()
    for format_ in FORMATS:
        assert "okapi" not in render(redacted(report), format_).lower()
