"""Builds structured logs that read like a story: a function is traced, breaks, compiles, fails a guard."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

SECOND = 1_000_000
"""Microseconds, the unit of torch's metrics."""


class Log:
    """The records of one process, in the order in which they are added."""

    def __init__(self, pid: int = 100, prefix: str = "", rank: int | None = None) -> None:
        self.pid = pid
        self.prefix = prefix
        self.rank = rank
        self.lines: list[str] = []
        self.files: list[str] = []

    def record(
        self, kind: str, value: object, *, of: str | None = "0/0", attempt: int = 0, payload: str | None = None
    ) -> Log:
        """Adds a record; ``of`` is the id of its compile."""
        body: dict[str, Any] = {kind: value}
        if self.rank is not None:
            body["rank"] = self.rank
        if of is not None:
            frame, _, version = of.partition("/")
            body |= {"frame_id": int(frame), "frame_compile_id": int(version), "attempt": attempt}
        if payload is not None:
            body["has_payload"] = hashlib.md5(payload.encode(), usedforsecurity=False).hexdigest()
        header = f"V1129 10:00:00.000000 {self.pid} torch/_dynamo/utils.py:7] "
        self.lines.append(f"{self.prefix}{header}{json.dumps(body)}")
        self.lines += [f"{self.prefix}\t{line}" for line in (payload or "").split("\n") if payload is not None]
        return self

    def artifact(self, name: str, payload: object, *, of: str | None = "0/0", attempt: int = 0) -> Log:
        """Adds an artifact; a payload that is no text becomes JSON."""
        text = payload if isinstance(payload, str) else json.dumps(payload)
        return self.record("artifact", {"name": name, "encoding": "string"}, of=of, attempt=attempt, payload=text)

    def starts(self, *stack: tuple[str, int, str], of: str = "0/0", attempt: int = 0) -> Log:
        """A compile begins; the stack has file, line and function of each frame."""
        frames = []
        for file, line, name in stack:
            if file not in self.files:
                self.files.append(file)
                self.record("str", [file, len(self.files) - 1], of=None)
            frames.append({"filename": self.files.index(file), "line": line, "name": name, "loc": "secret = code()"})
        return self.record("dynamo_start", {"stack": frames}, of=of, attempt=attempt)

    def event(self, name: str, begin: float, end: float, *, of: str | None = "0/0") -> Log:
        """A phase from one time to another, in seconds."""
        for phase, at in (("B", begin), ("E", end)):
            body = json.dumps({"name": name, "ts": at * SECOND, "ph": phase, "cat": "dynamo_timed", "pid": 0})
            self.record("chromium_event", {}, of=of, payload=body)
        return self

    def ends(
        self,
        function: str = "forward",
        line: int = 10,
        *,
        of: str = "0/0",
        attempt: int = 0,
        file: str = "/home/someone/train.py",
        start: float = 1000.0,
        total: float = 1.0,
        **more: Any,
    ) -> Log:
        """A compile ends with its metrics; times are seconds, ``more`` are fields of torch's."""
        metrics: dict[str, Any] = {
            "co_name": function,
            "co_filename": file,
            "co_firstlineno": line,
            "start_time_us": round(start * SECOND),
            "duration_us": round(total * SECOND),
            "is_forward": True,
        }
        return self.record("compilation_metrics", metrics | more, of=of, attempt=attempt)

    def ends_backward(self, *, of: str = "0/0", start: float = 1000.0, total: float = 1.0, **more: Any) -> Log:
        """A backward graph has been compiled when it first ran."""
        metrics = {"start_time_us": round(start * SECOND), "duration_us": round(total * SECOND), "is_forward": False}
        return self.record("bwd_compilation_metrics", metrics | more, of=of)

    def breaks(self, line: int, reason: str = "Unsupported Tensor.item() call", *, of: str = "0/0") -> Log:
        """A graph break."""
        said = (
            f"Graph break in user code at /home/someone/train.py:{line}\nGraph Break Reason: {reason}\n\n"
            'User code traceback:\n  File "/home/someone/train.py", line 3, in forward\n    secret = code()\n'
        )
        return self.artifact("dynamo_graph_break_reason", said, of=of)

    def text(self) -> str:
        """The log as torch writes it."""
        return "".join(f"{line}\n" for line in self.lines)

    def write(self, folder: Path, name: str = "dedicated_log_torch_trace_x.log") -> Path:
        """Writes the log; its path."""
        path = folder / name
        path.write_text(self.text(), encoding="utf-8")
        return path


def training() -> Log:
    """A job with everything that the account shows: a break, a backward graph, recompiles, the limit, a failure."""
    log = Log(rank=0)
    main = ("/home/someone/train.py", 40, "main")
    log.artifact("torch_version", {"pytorch_version": "2.13.0"}, of=None)
    log.starts(main, ("/home/someone/train.py", 10, "forward")).breaks(12)
    log.event("compile_file", 1001, 1003).event("async_compile.wait", 1003, 1004)
    log.artifact("fx_graph_cache_miss", {"key": "fa", "cache_state": "miss", "time_taken_ns": 4_000_000_000})
    log.artifact("aotautograd_cache_miss", {"key": "aa", "cache_state": "miss"})
    inner: dict[str, Any] = {"backend_compile_time_s": 6.0, "inductor_compile_time_s": 5.0, "code_gen_time_s": 4.5}
    log.ends(attempt=1, total=8, **inner, dynamo_compile_time_before_restart_us=SECOND // 2)
    resumed = "torch_dynamo_resume_in_forward_at_12"
    log.starts(main, of="1/0").ends(resumed, 12, of="1/0", start=1010, total=2, backend_compile_time_s=1.5)
    log.artifact("fx_graph_cache_miss", {"key": "fb", "cache_state": "miss"}, of="1/0")
    log.ends_backward(of="1/0", start=1020, total=3, inductor_compile_time_s=2.5)
    guard = '1/0: ___stack0 == 123.5      # if secret(x) > "token": return  # home/train.py:13 in forward'
    log.artifact("recompile_reasons", [guard], of="1/1")
    log.artifact("fx_graph_cache_hit", {"key": "fb", "cache_state": "hit", "time_saved_ns": 2_000_000_000}, of="1/1")
    log.ends(resumed, 12, of="1/1", start=1030, total=1, backend_compile_time_s=0.25)
    for version in (1, 2):
        text = f"0/{version - 1}: tensor 'x' size mismatch at index 0. expected {version}, actual {version + 1}"
        log.artifact("recompile_reasons", [text, "0/0: something older"], of=f"0/{version}")
        log.ends(of=f"0/{version}", start=1040 + 10 * version, total=4, backend_compile_time_s=3.0)
    said = "Dynamo recompile limit exceeded\n  Explanation: ..."
    log.ends(of="0/3", start=1070, total=0.001, fail_type="Unsupported", fail_reason=said)
    said = "backend='mine' raised:\nRuntimeError: secret"
    log.ends("loss", 30, of="2/0", start=1080, total=0.5, fail_type="BackendCompilerFailed", fail_reason=said)
    bypass = {"cache_state": "bypass", "cache_bypass_reason": "Unsupported call_function target flex_attention."}
    log.artifact("aotautograd_cache_bypass", bypass, of="3/0")
    return log.ends("attend", 50, of="3/0", start=1090, total=1.5, backend_compile_time_s=1.0)
