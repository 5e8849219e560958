"""Any compiler log gives an account that adds up, or is refused with a sentence."""

from __future__ import annotations

from pathlib import Path
from random import Random

import msgspec
from tests.compilation.builder import training
from tests.fuzz.mutations import damaged
from tests.fuzz.seeds import CASES, seeds

from whystall.compilation.read import read_account
from whystall.compilation.results import Account
from whystall.errors import InputError
from whystall.report.compile_text import compile_document
from whystall.report.document import as_text


def shuffled(text: bytes, random: Random) -> bytes:
    """The log with some of its lines lost, repeated or moved."""
    lines = text.splitlines(keepends=True)
    for _ in range(random.choice((1, 3, 10))):
        at, to = random.randrange(len(lines)), random.randrange(len(lines))
        lines[at : at + random.choice((0, 1, 5))] = lines[to : to + random.choice((0, 1, 5))]
        lines = lines or [b"\n"]
    return b"".join(lines)


def check(account: Account) -> None:
    for process in account.processes:
        outer = [one for one in process.compiles if not one.nested]
        assert sum(one.total_ns for one in outer) == process.total_ns == process.phases.total_ns
        assert all(one.phases.total_ns == one.total_ns >= one.restarts_ns >= 0 for one in process.compiles)
        assert all(0 <= one.saves_ns <= process.total_ns for one in process.findings)
        assert all(one.times > 0 for one in process.breaks)
        assert all(one.times > 0 for one in process.recompiles)
        assert sum(one.total_ns for one in process.recompiles) <= process.total_ns
    msgspec.json.encode(msgspec.to_builtins(account))
    text = as_text(compile_document(account), 100)
    assert all(character.isprintable() or character == "\n" for character in text)


def test_damaged_logs_are_read_or_refused(tmp_path: Path) -> None:
    original, path, read = training().text().encode(), tmp_path / "case.log", 0
    refused: list[str] = []
    for seed in seeds(CASES):
        random = Random(seed)  # noqa: S311 - reproducible on purpose
        content = shuffled(original, random) if random.random() < 0.4 else damaged(seed, [original])
        path.write_bytes(content)
        try:
            account = read_account([path])
        except InputError as error:
            refused.append(str(error))
            continue
        read += 1
        try:
            check(account)
        except Exception as error:
            raise AssertionError(f"case {seed}") from error
    assert read > CASES // 3
    assert not [sentence for sentence in refused if "\n" in sentence]
