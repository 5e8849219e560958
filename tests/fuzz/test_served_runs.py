"""Any files of a served run give a report that adds up, or are refused with a sentence."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from pathlib import Path
from random import Random

import msgspec
import pytest
from tests.fuzz.seeds import CASES, seeds
from tests.serving import sglang_server
from tests.serving.server import MS, Engine, steady

from whystall.errors import InputError
from whystall.report.document import as_text
from whystall.report.serving_text import serving_document
from whystall.serving.outcome import Outcome, explain_run

_NUMBER = re.compile(rb"-?\d[\d.]*")
_ODD = (
    b"0", b"-1", b"1e308", b"-1e308", b"NaN", b"Infinity", b"null", b"true", b"9999999999999999999999", b"0.0000001",
    b"1000000000", b'"text"', b"[]", b"{}", b'"\\u001b[2J"', b'"\\ud800"',
)  # fmt: skip
_FILES = ("a", "b", "c", "d", "e", "f")


def originals(folder: Path) -> dict[str, bytes]:
    engine = Engine(max_num_seqs=3, blocks=30, budget=128, caching=True).serve(steady(14, gap=20 * MS, output=6))
    engine.write(folder, spans=True)
    found = {name: (folder / name).read_bytes() for name in _FILES}
    return {name: gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body for name, body in found.items()}


def by_bytes(body: bytes, random: Random) -> bytes:
    out = bytearray(body)
    for _ in range(random.choice((1, 3, 20))):
        at = random.randrange(max(len(out), 1))
        match random.randrange(4):
            case 0:
                out[at : at + 1] = bytes([random.randrange(256)])
            case 1:
                del out[at : at + random.randrange(1, 300)]
            case 2:
                out[at:at] = out[at : at + random.randrange(1, 300)] * random.choice((1, 2, 9))
            case _:
                del out[at:]
    packed = gzip.compress(bytes(out), 1)
    return random.choice((bytes(out), packed, packed[: len(packed) // 2]))


def by_numbers(body: bytes, random: Random) -> bytes:
    share = random.choice((0.001, 0.01, 0.2))
    return _NUMBER.sub(lambda found: random.choice(_ODD) if random.random() < share else found[0], body)


def by_lines(body: bytes, random: Random) -> bytes:
    lines = [line for line in body.split(b"\n") if random.random() > 0.05]
    if random.random() < 0.3:
        random.shuffle(lines)
    return b"\n".join(lines)


def check(found: Outcome) -> None:
    for ledger in found.ledgers:
        assert sum(ledger.parts.values()) == ledger.total_ns
        assert min(ledger.parts.values(), default=0) >= 0
    if found.steps is not None and found.steps.window_ns is not None:
        assert found.steps.busy_ns == sum(one.total_ns for one in found.steps.kinds)
    body = msgspec.json.encode(msgspec.to_builtins(found))
    text = as_text(serving_document(found), 100)
    assert all(character.isprintable() or character == "\n" for character in text)
    assert "secret" not in text
    assert b"secret" not in body


@pytest.mark.parametrize("made", [by_bytes, by_numbers, by_lines])
def test_any_files_are_explained_or_refused(tmp_path: Path, made: Callable[[bytes, Random], bytes]) -> None:
    explain_all(originals(tmp_path / "whole"), tmp_path / "run", made)


@pytest.mark.parametrize("made", [by_bytes, by_numbers, by_lines])
def test_any_files_of_sglang_are_explained_or_refused(tmp_path: Path, made: Callable[[bytes, Random], bytes]) -> None:
    engine = Engine(max_num_seqs=3, blocks=30, budget=128).serve(steady(14, gap=20 * MS, output=6))
    folder = sglang_server.write(engine, tmp_path / "whole", client=True)
    explain_all({path.name: path.read_bytes() for path in sorted(folder.iterdir())}, tmp_path / "run", made)


def explain_all(values: dict[str, bytes], run: Path, made: Callable[[bytes, Random], bytes]) -> None:
    explained = 0
    run.mkdir()
    refused: list[str] = []
    for seed in seeds(CASES // 2):
        random = Random(seed)  # noqa: S311 - reproducible on purpose
        hit = random.sample(sorted(values), random.choice((1, 1, 2, len(values))))
        for name, body in values.items():
            (run / name).write_bytes(made(body, random) if name in hit else body)
        try:
            found = explain_run([run])
        except InputError as error:
            refused.append(str(error))
            continue
        explained += 1
        try:
            check(found)
        except Exception as error:
            raise AssertionError(f"case {seed}") from error
    assert explained > CASES // 4
    assert not [sentence for sentence in refused if "\n" in sentence]
