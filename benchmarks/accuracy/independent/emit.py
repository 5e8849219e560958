# ruff: noqa: C901, PLR0912, PLR0915, PERF401 - one pass over the events
"""Writes what a simulated rank did as a trace of Kineto."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from .engine import Rank
from .program import BACK, MAIN

OLD = {
    "cpu_op": "Operator",
    "user_annotation": "Operator",
    "kernel": "Kernel",
    "gpu_memcpy": "Memcpy",
    "gpu_memset": "Memset",
    "cuda_runtime": "Runtime",
}


_BUFFER = 220
"""Events that the profiler drops at once."""


def together(files: list[Path], path: Path) -> Path:
    """One file with the events of all, and the head of the first."""
    traces = [json.loads(gzip.decompress(file.read_bytes())) for file in files]
    events = [event for trace in traces for event in trace["traceEvents"]]
    with gzip.open(path, "wt", compresslevel=1) as file:
        json.dump({**traces[0], "traceEvents": events}, file)
    return path


def _drop(rank: Rank, lost: str) -> None:
    """Leave out what the profiler lost: every third buffer of the device's events or of calls, or graphs' kernels."""
    if lost == "device":
        rank.ops = [op for number, op in enumerate(rank.ops) if number // _BUFFER % 3 != 1]
    elif lost == "calls":
        calls = [event for event in rank.events if event[0] == "cuda_runtime"]
        gone = {id(event) for number, event in enumerate(calls) if number // _BUFFER % 2}
        rank.events = [event for event in rank.events if id(event) not in gone]
    elif lost == "graphs":
        graphs = {event[5]["correlation"] for event in rank.events if "GraphLaunch" in event[1]}
        rank.ops = [op for op in rank.ops if op.corr not in graphs]


def write(rank: Rank, path: Path, offset: float, lost: str = "") -> None:
    """One file of one rank; `offset` is the error of its clock in microseconds."""
    prog = rank.prog
    _drop(rank, lost)
    pid, device, old = 20000 + 111 * prog.rank, prog.rank, prog.old
    tids = {MAIN: pid, BACK: pid + 57}
    base = (1.7e15 if old else 5.2e12) + offset

    def ts(us: float) -> float | int:
        return int(base + us) if old else round(base + us, 3)

    events: list[dict[str, Any]] = []
    forward: dict[int, dict[str, Any]] = {}
    rank.events.sort(key=lambda e: (e[3], -e[4]))
    for i, (cat, name, tid, start, dur, args, ext) in enumerate(rank.events):
        event = {
            "ph": "X",
            "cat": OLD[cat] if old and cat in OLD else cat,
            "name": name,
            "pid": pid,
            "tid": tids[tid],
            "ts": ts(start),
            "dur": int(dur) if old else round(dur, 3),
        }
        if cat == "python_function":
            event["args"] = {"Python parent id": None, "Python id": i, "Ev Idx": i}
        elif cat == "cuda_runtime":
            event["args"] = {"External id": ext, ("cid" if prog.device.rocm else "cbid"): 211, **args}
        elif cat in ("cpu_op", "user_annotation"):
            event["args"] = {"External id": ext, "Record function id": 0, **args, "Ev Idx": i}
            seq = args.get("Sequence number")
            if seq is not None and not old:
                if tid == MAIN:
                    forward[seq] = event
                elif name.startswith("autograd::engine") and seq in forward:
                    first = forward[seq]
                    link = {"id": seq, "pid": pid, "cat": "fwdbwd", "name": "fwdbwd"}
                    events.append({"ph": "s", **link, "tid": first["tid"], "ts": first["ts"]})
                    events.append({"ph": "f", **link, "tid": event["tid"], "ts": event["ts"], "bp": "e"})
        events.append(event)
        if cat == "cuda_runtime" and any(w in name for w in ("Launch", "Memcpy", "Memset")):
            events.append(
                {
                    "ph": "s",
                    "id": args["correlation"],
                    "pid": pid,
                    "tid": tids[tid],
                    "ts": ts(start),
                    "cat": "async" if old else "ac2g",
                    "name": "ac2g",
                }
            )
    for op in rank.ops:
        lasts: float | int = round(op.end - op.start, 3)
        lane: Any = f"stream {op.stream}" if old else op.stream
        args = {"External id": op.ext, "device": device, "stream": op.stream, "correlation": op.corr, **op.args}
        if op.cat == "gpu_memcpy":
            args["memory bandwidth (GB/s)"] = args["bytes"] / (op.end - op.start) / 1e3
        events.append(
            {
                "ph": "X",
                "cat": OLD[op.cat] if old else op.cat,
                "name": op.name,
                "pid": device,
                "tid": lane,
                "ts": ts(op.start),
                "dur": int(lasts) if old else lasts,
                "args": args,
            }
        )
        events.append(
            {
                "ph": "f",
                "id": op.corr,
                "pid": device,
                "tid": lane,
                "ts": ts(op.start),
                "cat": "async" if old else "ac2g",
                "name": "ac2g",
                "bp": "e",
            }
        )
    begin = ts(-500)
    for where, label in ((pid, "CPU"), (device, f"GPU {device}")):
        for what, args in (("process_name", {"name": "python3"}), ("process_labels", {"labels": label})):
            events.append({"name": what, "ph": "M", "ts": begin, "pid": where, "tid": 0, "args": args})
    for tid, name in ((pid, "thread %d (python3)"), (pid + 57, "thread %d (pt_autograd_0)")):
        events.append(
            {"name": "thread_name", "ph": "M", "ts": begin, "pid": pid, "tid": tid, "args": {"name": name % tid}}
        )
    for stream in rank.queues:
        events.append(
            {
                "name": "thread_name",
                "ph": "M",
                "ts": begin,
                "pid": device,
                "tid": stream,
                "args": {"name": f"stream {stream} "},
            }
        )
    span = max([rank.t, *[op.end for op in rank.ops]]) + 600
    events.append(
        {
            "ph": "X",
            "cat": "Trace",
            "ts": begin,
            "dur": round(span),
            "pid": "Spans",
            "tid": "PyTorch Profiler",
            "name": "PyTorch Profiler (0)",
            "args": {"Op count": 0},
        }
    )
    props = {
        "name": prog.device.name,
        "totalGlobalMem": prog.device.memory,
        "computeMajor": prog.device.capability[0],
        "computeMinor": prog.device.capability[1],
        "maxThreadsPerBlock": 1024,
        "maxThreadsPerMultiprocessor": 2048,
        "warpSize": 64 if prog.device.rocm else 32,
        "numSms": prog.device.sms,
    }
    trace: dict[str, Any] = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": i, **props} for i in range(max(prog.world, 1))],
    }
    if prog.world > 1 and not old:
        trace["distributedInfo"] = {
            "backend": "nccl",
            "rank": prog.rank,
            "world_size": prog.world,
            "pg_count": 1,
            "pg_config": [
                {
                    "pg_name": "0",
                    "pg_desc": "default_pg",
                    "backend_config": "cuda:nccl",
                    "pg_size": prog.world,
                    "ranks": list(range(prog.world)),
                }
            ],
            "nccl_version": "2.21.5",
        }
    trace |= {"traceEvents": events, "traceName": path.name, "displayTimeUnit": "ms"}
    if not old:
        trace["baseTimeNanoseconds"] = 1759795200000000000
    with gzip.open(path, "wt", compresslevel=1) as file:
        json.dump(trace, file)
