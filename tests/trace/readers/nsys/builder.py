"""Writes databases in the form of Nsight Systems' exports, with the columns that the sample of schema 3.25 has."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any, Self

_EVENT = "start INTEGER NOT NULL, end INTEGER NOT NULL"
_PLACE = "deviceId INTEGER, contextId INTEGER, greenContextId INTEGER, streamId INTEGER, correlationId INTEGER"
_SIZES = ", ".join(f"{of}{axis} INTEGER" for of in ("grid", "block") for axis in "XYZ")
SCHEMA = {
    "CUPTI_ACTIVITY_KIND_KERNEL": f"{_EVENT}, {_PLACE}, globalPid INTEGER, demangledName INTEGER, shortName INTEGER, "
    f"registersPerThread INTEGER, {_SIZES}, staticSharedMemory INTEGER, dynamicSharedMemory INTEGER, "
    "graphNodeId INTEGER, graphId INTEGER",
    "CUPTI_ACTIVITY_KIND_MEMCPY": f"{_EVENT}, {_PLACE}, globalPid INTEGER, bytes INTEGER, copyKind INTEGER, "
    "srcKind INTEGER, dstKind INTEGER",
    "CUPTI_ACTIVITY_KIND_MEMSET": f"{_EVENT}, {_PLACE}, globalPid INTEGER, value INTEGER, bytes INTEGER, "
    "memKind INTEGER",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": f"{_EVENT}, {_PLACE}, globalPid INTEGER, graphId INTEGER, graphExecId INTEGER",
    "CUPTI_ACTIVITY_KIND_RUNTIME": f"{_EVENT}, eventClass INTEGER, globalTid INTEGER, correlationId INTEGER, "
    "nameId INTEGER, returnValue INTEGER",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": f"{_EVENT}, {_PLACE}, globalPid INTEGER, deprecatedSyncType INTEGER, "
    "syncType INTEGER, eventId INTEGER, eventSyncId INTEGER",
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT": f"timestamp INTEGER, {_PLACE}, globalPid INTEGER, eventId INTEGER, "
    "eventSyncId INTEGER",
    "CUPTI_ACTIVITY_KIND_OVERHEAD": f"{_EVENT}, eventClass INTEGER, globalTid INTEGER, correlationId INTEGER, "
    "nameId INTEGER, overheadType INTEGER",
    "NVTX_EVENTS": "start INTEGER NOT NULL, end INTEGER, eventType INTEGER, text TEXT, globalTid INTEGER, "
    "endGlobalTid INTEGER, textId INTEGER, domainId INTEGER, binaryData TEXT",
    "NVTX_PAYLOAD_SCHEMA_ENTRIES": "domainId INTEGER NOT NULL, schemaId INTEGER NOT NULL, idx INTEGER NOT NULL, "
    "flags INTEGER, type INTEGER, name TEXT, description TEXT, arrayOrUnionDetail INTEGER, offset INTEGER",
    "ThreadNames": "nameId INTEGER, priority INTEGER, globalTid INTEGER",
    "StringIds": "id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL",
    "PROCESSES": "globalPid INTEGER, pid INTEGER, name TEXT",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs INTEGER, utcTime TEXT, localTime TEXT, systemClockNs INTEGER",
    "ANALYSIS_DETAILS": "globalVid INTEGER, duration INTEGER, startTime INTEGER, stopTime INTEGER",
    "TARGET_INFO_GPU": "id INTEGER, name TEXT, totalMemory INTEGER, smCount INTEGER, computeMajor INTEGER, "
    "computeMinor INTEGER",
    "TARGET_INFO_CUDA_DEVICE": "gpuId INTEGER, cudaId INTEGER, pid INTEGER, uuid TEXT, numMultiprocessors INTEGER",
    "GPU_METRICS": "timestamp INTEGER, typeId INTEGER, metricId INTEGER, value INTEGER",
    "TARGET_INFO_GPU_METRICS": "typeId INTEGER, sourceId INTEGER, typeName TEXT, metricId INTEGER, metricName TEXT",
    "META_DATA_CAPTURE": "name TEXT, value TEXT",
    "TARGET_INFO_SYSTEM_ENV": "name TEXT, value TEXT",
}
HARDWARE = 1 << 48


def global_pid(pid: int) -> int:
    return HARDWARE | pid << 24


def global_tid(pid: int, tid: int) -> int:
    return global_pid(pid) | tid


class Export:
    """An export that reads like a sentence: ``Export().launch("gemm", at=10, runs_at=30, lasts=50)``."""

    def __init__(self) -> None:
        self.rows: dict[str, list[dict[str, Any]]] = {}
        self._texts: dict[str, int] = {}
        self._last = 0

    def add(self, table: str, **values: Any) -> Self:
        self.rows.setdefault(table, []).append(values)
        return self

    def text(self, value: str) -> int:
        if value not in self._texts:
            self._texts[value] = 100 + len(self._texts)
            self.add("StringIds", id=self._texts[value], value=value)
        return self._texts[value]

    def call(
        self, name: str, *, at: int, lasts: int, pid: int = 10, tid: int = 11, correlation: int | None = None
    ) -> Self:
        return self.add(
            "CUPTI_ACTIVITY_KIND_RUNTIME", start=at, end=at + lasts, eventClass=0, globalTid=global_tid(pid, tid),
            correlationId=self._number(correlation), nameId=self.text(name), returnValue=0,
        )  # fmt: skip

    def kernel(
        self, name: str, *, at: int, lasts: int, correlation: int, pid: int = 10, device: int = 0, stream: int = 7,
        **more: Any,
    ) -> Self:  # fmt: skip
        sizes = dict(
            zip((f"{of}{axis}" for of in ("grid", "block") for axis in "XYZ"), (4, 2, 1, 64, 2, 1), strict=True)
        )
        return self.add(
            "CUPTI_ACTIVITY_KIND_KERNEL", start=at, end=at + lasts, **place(pid, device, stream, correlation),
            demangledName=self.text(name), shortName=self.text(name), registersPerThread=32, **sizes,
            staticSharedMemory=100, dynamicSharedMemory=28, **more,
        )  # fmt: skip

    def launch(
        self, name: str, *, at: int, runs_at: int, lasts: int, pid: int = 10, tid: int = 11, device: int = 0,
        stream: int = 7, correlation: int | None = None,
    ) -> Self:  # fmt: skip
        number = self._number(correlation)
        self.call("cudaLaunchKernel_v7000", at=at, lasts=5, pid=pid, tid=tid, correlation=number)
        return self.kernel(
            name, at=runs_at, lasts=lasts, correlation=number, pid=pid, device=device, stream=stream
        )  # fmt: skip

    def copy(self, kind: int, source: int, target: int, *, at: int, lasts: int, size: int, correlation: int) -> Self:
        return self.add(
            "CUPTI_ACTIVITY_KIND_MEMCPY", start=at, end=at + lasts, **place(10, 0, 7, correlation), bytes=size,
            copyKind=kind, srcKind=source, dstKind=target,
        )  # fmt: skip

    def metrics(self, gpu: int, *names: str, source: int = 5) -> Self:
        """Names of GPU metrics, numbered from 0 on: the low byte of the type is the GPU's number."""
        for number, name in enumerate(names):
            self.add(
                "TARGET_INFO_GPU_METRICS", typeId=source << 8 | gpu, sourceId=source, typeName=f"GPU {gpu}",
                metricId=number, metricName=name,
            )  # fmt: skip
        return self

    def sample(self, gpu: int, metric: int, value: Any, *, at: Any, source: int = 5) -> Self:
        return self.add("GPU_METRICS", timestamp=at, typeId=source << 8 | gpu, metricId=metric, value=value)

    def range(
        self, text: str | None, *, at: int, lasts: int | None, pid: int = 10, tid: int = 11, kind: int = 59,
        domain: int = 0, **more: Any,
    ) -> Self:  # fmt: skip
        end = None if lasts is None else at + lasts
        return self.add(
            "NVTX_EVENTS", start=at, end=end, eventType=kind, text=text, globalTid=global_tid(pid, tid),
            domainId=domain, **more,
        )  # fmt: skip

    def write(self, path: Path, *, reverse: bool = False, without: tuple[str, ...] = ()) -> Path:
        """The file; tables without rows are not made, as in exports, nor are the columns ``without``."""
        path.unlink(missing_ok=True)
        with sqlite3.connect(path) as connection:
            for table, rows in self.rows.items():
                columns = [entry for entry in SCHEMA[table].split(", ") if entry.split()[0] not in without]
                connection.execute(f"CREATE TABLE {table} ({', '.join(columns)})")
                for row in reversed(rows) if reverse else rows:
                    kept = {name: value for name, value in row.items() if name not in without}
                    marks = ", ".join("?" * len(kept))
                    connection.execute(f"INSERT INTO {table} ({', '.join(kept)}) VALUES ({marks})", list(kept.values()))
        connection.close()
        return path

    def _number(self, correlation: int | None) -> int:
        self._last = self._last + 1 if correlation is None else correlation
        return self._last


def place(pid: int, device: int, stream: int, correlation: int | None) -> dict[str, int | None]:
    return {
        "deviceId": device, "contextId": device + 1, "streamId": stream, "correlationId": correlation,
        "globalPid": global_pid(pid),
    }  # fmt: skip


def training(pid: int = 10, device: int = 0, export: Export | None = None) -> Export:
    """Five steps of a job on one device: an operator that launches a kernel, a copy, a wait."""
    export = export or Export()
    for step in range(5):
        at, number = 1_000_000 * (step + 1), 10 * step + 1
        (
            export.range(f"iter {step}", at=at, lasts=900_000, pid=pid)
            .range(f"aten::mm, seq = {step}, sizes = [[2, 3], [3, 4]]", at=at + 10, lasts=80_000, pid=pid)
            .launch("gemm", at=at + 20, runs_at=at + 100_000, lasts=300_000, pid=pid, device=device, correlation=number)
            .range(f"MmBackward0, seq = {step}, op_id = 9{step}", at=at + 90_000, lasts=50_000, pid=pid, tid=12)
            .launch(
                "gemm_bwd", at=at + 100_000, runs_at=at + 400_000, lasts=300_000, pid=pid, tid=12, device=device,
                correlation=number + 1,
            )
            .call("cudaDeviceSynchronize_v3020", at=at + 500_000, lasts=200_000, pid=pid, correlation=number + 2)
            .add(
                "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", start=at + 500_100, end=at + 699_000, syncType=4,
                eventId=(1 << 32) - 1, **place(pid, device, (1 << 32) - 1, number + 2),
            )
        )  # fmt: skip
    return export
