"""The shipped JSON Schema is current, and every report obeys it."""

from __future__ import annotations

import json
import os
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import jsonschema
import msgspec
import pytest

from whystall.report import FORMATS, decode, encode, format_of, json_schema, render

if TYPE_CHECKING:
    from whystall.report.schema import Report

SHIPPED = "report.schema.json"


def test_the_shipped_schema_is_up_to_date() -> None:
    current = json.dumps(json_schema(), indent=1, sort_keys=True) + "\n"
    shipped = resources.files("whystall.report").joinpath(SHIPPED)
    if os.environ.get("WHYSTALL_UPDATE_GOLDEN"):
        Path(str(shipped)).write_text(current, encoding="utf-8")
    assert shipped.read_text(encoding="utf-8") == current


def test_every_sample_obeys_the_shipped_schema(sample: Report) -> None:
    schema = json.loads(resources.files("whystall.report").joinpath(SHIPPED).read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(json.loads(encode(sample)))


def test_json_is_read_back_as_the_same_report(sample: Report) -> None:
    assert decode(encode(sample)) == sample
    assert encode(decode(encode(sample))) == encode(sample)


def test_json_that_is_no_report_is_refused_with_its_path() -> None:
    with pytest.raises(msgspec.ValidationError, match="verdict"):
        decode(b'{"whystall": "0.1.0"}')


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_renders_every_sample_the_same_twice(sample: Report, name: str) -> None:
    assert render(sample, name) == render(decode(encode(sample)), name)


def test_an_unknown_format_names_the_known_ones(samples: dict[str, Report]) -> None:
    with pytest.raises(ValueError, match="terminal, json, markdown, html"):
        render(samples["empty"], "pdf")


def test_a_file_name_asks_for_a_format() -> None:
    assert [format_of(name) for name in ("a.HTML", "b.json", "c.md", "d.txt", "e")] == [
        "html",
        "json",
        "markdown",
        "terminal",
        None,
    ]
