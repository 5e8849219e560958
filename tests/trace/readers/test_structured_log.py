from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest
from tests.compilation.builder import Log

from whystall.errors import InputError
from whystall.trace.readers.structured_log import LogRecord, StructuredLog, is_structured_log


def read(
    path: Path, *, payloads: bool = True, skipped: frozenset[str] = frozenset()
) -> tuple[list[LogRecord], StructuredLog]:
    log = StructuredLog(path, skipped, lambda _: payloads)
    return list(log.records()), log


def test_a_record_has_its_kind_its_ids_and_its_payload(tmp_path: Path) -> None:
    path = Log(pid=25813, rank=3).artifact("recompile_reasons", "one\n\ttwo\n", of="4/5", attempt=1).write(tmp_path)

    [found], log = read(path)

    assert (found.kind, found.name, found.rank, found.pid) == ("artifact", "recompile_reasons", 3, 25813)
    assert (found.frame_id, found.frame_compile_id, found.attempt) == (4, 5, 1)
    assert found.payload == b"one\n\ttwo\n"
    assert (log.n_records, log.damaged, log.foreign, log.payload_bytes) == (1, 0, 0, 7)


def test_payloads_that_nobody_wants_are_counted_alone(tmp_path: Path) -> None:
    path = Log().record("graph_dump", {}, payload="secret code").artifact("x", "y").write(tmp_path)

    found, log = read(path, payloads=False, skipped=frozenset({"graph_dump"}))

    assert [(one.kind, one.payload) for one in found] == [("artifact", b"")]
    assert log.payload_bytes == len("secret code") + len("y")


def test_damage_is_counted_and_passed_over(tmp_path: Path) -> None:
    header = "V1129 10:00:00.000000 7 torch/x.py:7] "
    lines = [
        f'{header}{{"compilation_metrics": {{"a": 1}}',  # no end
        f"{header}[1]",
        f'{header}{{"rank": 0}}',  # no kind
        "Traceback (most recent call last):",
        "",
        "\tpayload of nothing",
        f'{header}{{"dynamo_start": {{}}, "frame_id": -1, "frame_compile_id": "0"}}',
    ]
    path = tmp_path / "x.log"
    path.write_bytes("\r\n".join(lines).encode() + b"\n\xff\xfe\n")

    found, log = read(path)

    assert [(one.kind, one.frame_id, one.frame_compile_id) for one in found] == [("dynamo_start", None, None)]
    assert (log.damaged, log.foreign) == (2, 3)  # a header before a list is no record


def test_lines_of_ranks_may_alternate(tmp_path: Path) -> None:
    one = Log(pid=5, prefix="[rank0]:").artifact("a", "x0\n\ty0")
    other = Log(pid=5, prefix="[rank12]:").artifact("b", "x1\ny1")
    path = tmp_path / "stderr.log"
    path.write_text("\n".join(line for pair in zip(one.lines, other.lines, strict=True) for line in pair))

    found, _ = read(path)

    assert [(record.name, record.rank, record.payload) for record in found] == [
        ("a", 0, b"x0\n\ty0"),
        ("b", 12, b"x1\ny1"),
    ]


def test_what_is_a_log(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("I1129 10:00:00.000000 7 torch/x.py:7] compiling\nnoise\n")
    assert not is_structured_log(path)
    path.write_text("noise\n" + Log().record("str", ["a", 0]).text())
    assert is_structured_log(path)
    path.write_text("")
    with pytest.raises(InputError, match="is empty"):
        is_structured_log(path)


def test_memory_does_not_grow_with_payloads_or_lines(tmp_path: Path) -> None:
    path = tmp_path / "large.log"
    code = "x" * 3_998 + "\n\t"
    with path.open("w") as file:
        for _ in range(6):
            file.write(Log().record("inductor_output_code", {}, payload="").text().rstrip("\n"))
            for _ in range(16):
                file.write(code * 400)  # 25 MB a payload
            file.write("\n")
        file.write("y" * (40 << 20) + "\n")  # a line without an end in sight
        file.write(Log().ends().text())

    tracemalloc.start()
    try:
        log = StructuredLog(path, wants_payload=lambda _: True)
        kinds = [one.kind for one in log.records()]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert kinds.count("compilation_metrics") == 1
    assert log.payload_bytes > 140 << 20
    assert peak < 80 << 20 < path.stat().st_size // 2  # one payload and one line, cut, with a copy of each
