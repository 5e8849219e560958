"""The shipped JSON Schema is current, and every report obeys it."""

from __future__ import annotations

import json
import os
import random
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import numpy as np
import pytest

from whystall.errors import UsageError
from whystall.json_text import NotJsonError
from whystall.report.registry import FORMATS, Options, format_of, render
from whystall.report.schema import Report, decode, encode, json_schema

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


def test_a_number_of_numpy_that_a_rule_lets_through_is_written(sample: Report) -> None:
    changed = msgspec.structs.replace(sample, noise=np.float64(0.25))
    assert msgspec.json.decode(encode(changed), type=Report) == msgspec.structs.replace(sample, noise=0.25)
    with pytest.raises(NotImplementedError):
        encode(msgspec.structs.replace(sample, noise=object()))


def test_json_that_is_no_report_is_refused_with_its_path() -> None:
    with pytest.raises(NotJsonError, match="verdict"):
        decode(b'{"whystall": "0.1.0"}')


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_renders_every_sample_the_same_twice(sample: Report, name: str) -> None:
    assert render(sample, name) == render(decode(encode(sample)), name)


@pytest.mark.parametrize("seed", range(12))
def test_no_number_in_a_stored_report_breaks_a_renderer(samples: dict[str, Report], seed: int) -> None:
    draw = random.Random(seed)  # noqa: S311 - numbers for a test, no secret
    odd = (0, -1, 1, 2**62, -(2**62), 10**15)

    def spoil(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: spoil(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [spoil(item) for item in value]
        return draw.choice(odd) if type(value) is int and draw.random() < 0.4 else value

    spoiled = msgspec.convert(spoil(msgspec.to_builtins(samples["two-ranks"])), Report)
    for name in FORMATS:
        assert render(spoiled, name, Options(verbose=True))
    assert spoiled._repr_html_()


def test_an_unknown_format_names_the_known_ones(samples: dict[str, Report]) -> None:
    with pytest.raises(UsageError, match="terminal, json, markdown, html"):
        render(samples["empty"], "pdf")


def test_a_file_name_asks_for_a_format() -> None:
    assert [format_of(name) for name in ("a.HTML", "b.json", "c.md", "d.txt", "e")] == [
        "html",
        "json",
        "markdown",
        "terminal",
        None,
    ]
