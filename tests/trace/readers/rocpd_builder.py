"""Writes rocpd databases by the schema of rocprofiler-sdk."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

RUN = "_01997b2c_0000_7000_8000_0123456789ab"
TOKEN = "hf_PLANTEDdeadbeef"  # noqa: S105 - the one that must not be found
SIZES = ", ".join(f"{of}_size_{axis} integer" for of in ("workgroup", "grid") for axis in "xyz")
PLACE = "id integer primary key, nid integer, pid integer, tid integer"
SCHEMA = {
    "kernel_dispatch": f"{PLACE}, agent_id integer, kernel_id integer, queue_id integer, stream_id integer, "
    f"start bigint, end bigint, group_segment_size integer, {SIZES}, event_id integer",
    "region": f"{PLACE}, start bigint, end bigint, name_id integer, event_id integer",
    "memory_copy": f"{PLACE}, start bigint, end bigint, name_id integer, dst_agent_id integer, src_agent_id integer, "
    "size integer, stream_id integer, event_id integer",
    "event": "id integer primary key, category_id integer, stack_id integer, correlation_id integer, extdata text",
    "string": "id integer primary key, string text",
    "info_agent": "id integer primary key, type text, type_index integer, product_name text",
    "info_kernel_symbol": "id integer primary key, kernel_name text, display_name text",
    "info_process": "id integer primary key, pid integer, command text, environment text",
}
TEXTS = {
    1: "KERNEL_DISPATCH", 2: "HIP_RUNTIME_API_EXT", 3: "MARKER_CORE_RANGE_API", 4: "MEMORY_COPY", 5: "RCCL_API",
    11: "hipLaunchKernel", 12: "roctxThreadRangeA", 13: "MEMORY_COPY_HOST_TO_DEVICE", 14: "ncclAllReduce",
}  # fmt: skip


def write(path: Path, rows: dict[str, list[dict[str, Any]]], run: str = RUN) -> Path:
    connection = sqlite3.connect(path)
    for table, columns in SCHEMA.items():
        connection.execute(f"create table rocpd_{table}{run} ({columns})")
        connection.execute(f"create view rocpd_{table} as select * from rocpd_{table}{run}")
        for row in rows.get(table, []):
            marks = ", ".join("?" * len(row))
            connection.execute(
                f"insert into rocpd_{table}{run} ({', '.join(row)}) values ({marks})", list(row.values())
            )
    connection.commit()
    connection.close()
    return path


def job(pid: int = 77) -> dict[str, list[dict[str, Any]]]:
    own = {"nid": 1, "pid": pid, "tid": 78}
    sizes = {"workgroup_size_x": 256, "workgroup_size_y": 1, "workgroup_size_z": 1} | {
        "grid_size_x": 1000, "grid_size_y": 2, "grid_size_z": 1,
    }  # fmt: skip
    rows: dict[str, list[dict[str, Any]]] = {table: [] for table in SCHEMA}
    for step in range(4):
        at, first = 10**12 + 1_000_000 * step, 10 * step
        for place, (category, stack, more) in enumerate(
            ((3, 0, f'{{"message": "iter {step}"}}'), (2, first + 5, "{}"), (1, first + 5, "{}"), (4, first + 6, "{}"))
        ):
            rows["event"].append(
                {
                    "id": first + place + 1,
                    "category_id": category,
                    "stack_id": stack,
                    "correlation_id": 0,
                    "extdata": more,
                }
            )
        rows["region"].append(own | {"start": at, "end": at + 900_000, "name_id": 12, "event_id": first + 1})
        rows["region"].append(own | {"start": at + 10, "end": at + 20, "name_id": 11, "event_id": first + 2})
        rows["kernel_dispatch"].append(
            own | sizes | {
                "agent_id": 3, "kernel_id": 8, "queue_id": 5, "stream_id": 0, "start": at + 100, "end": at + 400_100,
                "group_segment_size": 64, "event_id": first + 3,
            }
        )  # fmt: skip
        rows["memory_copy"].append(
            own | {"start": at + 500_000, "end": at + 600_000, "name_id": 13, "dst_agent_id": 3, "src_agent_id": 0,
                   "size": 4096, "stream_id": 2, "event_id": first + 4}
        )  # fmt: skip
    rows["string"] = [{"id": number, "string": text} for number, text in TEXTS.items()]
    rows["info_agent"] = [
        {"id": 0, "type": "CPU", "type_index": 0, "product_name": "EPYC"},
        {"id": 3, "type": "GPU", "type_index": 1, "product_name": "AMD Instinct MI300X"},
    ]
    rows["info_kernel_symbol"] = [{"id": 8, "kernel_name": "gemm.kd", "display_name": "gemm"}]
    rows["info_process"] = [
        {"id": pid, "pid": pid, "command": f"train.py {TOKEN}", "environment": f'{{"T": "{TOKEN}"}}'}
    ]
    return rows
