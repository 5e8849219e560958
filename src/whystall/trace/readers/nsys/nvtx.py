"""NVTX ranges: operators where PyTorch emitted them, else annotations; marks and ranges across threads apart.

``torch.autograd.profiler.emit_nvtx`` (and ``nsys profile --pytorch=autograd-nvtx``) writes each operator as
``aten::mm, seq = 5, op_id = 12, sizes = [[2, 3], [3, 4]], input_op_ids = [[11,0]]``, each part but the first where
it is known (torch/csrc/profiler/util.cpp, getNvtxStr).
"""

from __future__ import annotations

from typing import Final

import polars as pl

from whystall.trace.readers.nsys.export import RANGES, Export, named, thread_number

_MARK, _PUSHED, _STARTED = 34, 59, 60
_SKIPPED: Final = (33, 75)  # names of categories and domains, which are no events
_TRAILER: Final = r"(?s), (?:stashed seq|seq|op_id|sizes|input_op_ids) ?= .*$"
# PyTorch's range for a user's record_function looks like an operator without a sequence number. An operator has a
# namespace (FSDP's marks look as if they had), is a node of autograd, or is one of the two that are called without.
_OPERATOR: Final = (
    r"^(?:\w+::[\w.:]+|autograd::engine::evaluate_function: .+|[A-Z]\w*Backward\d*|.*AccumulateGrad|detach_?)$"
)
_NO_OPERATOR: Final = r"^(?:FSDP::|ProfilerStep|Optimizer\.|enumerate\(DataLoader\)|nn\.Module)"
_BACKWARD: Final = r"^(?:autograd::engine::evaluate_function: .*|[A-Z]\w*Backward\d*)$"
# In domains of libraries (NCCL's) nothing comes from PyTorch.
_DEFAULT_DOMAIN: Final = 0


def read_ranges(export: Export) -> dict[str, pl.DataFrame]:
    """By table (operators, annotations, other_events) the ranges of all processes, with process and globalTid."""
    integers = ("start", "end", "eventType", "globalTid", "endGlobalTid", "textId", "domainId")
    columns: dict[str, type[int | str]] = {**dict.fromkeys(integers, int), "text": str}
    rows = export.source.read(RANGES, columns, needed=("start", "eventType", "globalTid"))
    rows = rows.filter(~pl.col("eventType").is_in(_SKIPPED).fill_null(value=False))
    unknown = ~pl.col("eventType").is_in((_MARK, _PUSHED, _STARTED)).fill_null(value=False)
    export.set_aside("NVTX events of a kind that is not known", len(rows.filter(unknown)))
    rows = rows.filter(~unknown)
    mark = pl.col("eventType") == _MARK
    open_ranges = rows.filter(~mark & pl.col("end").is_null())
    export.set_aside("NVTX ranges that had not ended when the recording did", len(open_ranges))
    rows = rows.filter(mark | pl.col("end").is_not_null()).with_columns(
        pl.when(mark).then("start").otherwise("end").alias("end")
    )
    rows = export.sound(rows.rename({"start": "ts_ns"}), "globalTid")
    texts = named(rows["textId"], export.names(rows.filter(pl.col("text").is_null())["textId"]))
    return _sorted_out(rows.with_columns(pl.coalesce(pl.col("text"), texts).alias("text")))


def _sorted_out(rows: pl.DataFrame) -> dict[str, pl.DataFrame]:
    rows = rows.with_columns(
        pl.col("text").str.replace(_TRAILER, "").alias("name"),
        pl.col("text").str.extract(r", seq ?= (\d{1,18})(?:,|$)").cast(pl.Int64).alias("sequence"),
        pl.col("text").str.extract(r", sizes ?= (\[[\d\[\], -]*\])(?:, input_op_ids|$)").alias("input_dims"),
    )
    elsewhere = (
        pl.col("endGlobalTid").is_not_null()
        & ~pl.col("endGlobalTid").is_in([0])
        & (pl.col("endGlobalTid") != pl.col("globalTid"))
    )
    apart = (pl.col("eventType") == _MARK) | ((pl.col("eventType") == _STARTED) & elsewhere)
    emitted = (pl.col("eventType") == _PUSHED) & (pl.col("domainId").fill_null(_DEFAULT_DOMAIN) == _DEFAULT_DOMAIN)
    operator = (
        emitted
        & ~pl.col("name").str.contains(_NO_OPERATOR)
        & (pl.col("name").str.contains(_OPERATOR) | pl.col("sequence").is_not_null())
    )
    shared = ["process", "ts_ns", "duration_ns", "globalTid"]
    kinds = rows.with_columns(apart.alias("apart"), operator.alias("operator"))
    operators = kinds.filter(~pl.col("apart") & pl.col("operator"))
    annotations = kinds.filter(~pl.col("apart") & ~pl.col("operator"))
    return {
        "operators": _with_forward(operators).select(*shared, "name", "sequence", "input_dims", "forward_thread"),
        "annotations": annotations.select(*shared, pl.when(emitted).then("name").otherwise("text").alias("name")),
        "other_events": kinds.filter("apart").select(*shared, name="text").with_columns(category=pl.lit("nvtx")),
    }


def _with_forward(operators: pl.DataFrame) -> pl.DataFrame:
    """With each backward operator the number of the thread that ran the operator of its sequence number."""
    backward = pl.col("name").str.contains(_BACKWARD)
    sequenced = operators.filter(~backward & pl.col("sequence").is_not_null()).sort("ts_ns")
    threads = sequenced.unique(["process", "sequence"], keep="first", maintain_order=True).select(
        "process", "sequence", forward_thread=thread_number(pl.col("globalTid"))
    )
    found = operators.join(threads, on=["process", "sequence"], how="left", maintain_order="left")
    return found.with_columns(pl.when(backward).then("forward_thread").alias("forward_thread"))
