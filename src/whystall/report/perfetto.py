"""A trace as Chrome trace events, for the Perfetto UI and other timeline viewers.

Holds device events, the runtime calls that launched them (with arrows), operators, annotations, Python frames and the
values of the devices' counters, and nothing of the original's metadata. Times are exact: microseconds with three
decimals from the trace's first event, whose own time is ``baseTimeNanoseconds``.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import IO, TYPE_CHECKING, Final, cast

import polars as pl
from isal import igzip

from whystall.analysis.rank_clocks import RankClock

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from whystall.trace.model import Trace

OWN: Final = "whystall"
"""The process that rows of whystall's own stand in."""
BATCH: Final = 50_000  # events per write: some MB of text at a time
HOST_TABLES: Final = {
    "annotations": "user_annotation",
    "operators": "cpu_op",
    "python_functions": "python_function",
    "runtime_calls": "cuda_runtime",
}
DEVICE_CATEGORIES: Final = {"kernel": "kernel", "memcpy": "gpu_memcpy", "memset": "gpu_memset", "accelerator": "kernel"}
ARGUMENTS: Final = {  # column: the name that Kineto gives it
    "device": "device",
    "stream": "stream",
    "correlation": "correlation",
    "external_id": "External id",
    "bytes": "bytes",
    "sequence": "Sequence number",
}


@dataclass(frozen=True, slots=True)
class Track:
    """A row of whystall's own above the recorded ones; ``slices`` are its ts_ns, duration_ns and name (text)."""

    label: str
    slices: pl.DataFrame


def write_chrome_trace(trace: Trace, stream: IO[bytes], *, compress: bool = False, above: Sequence[Track] = ()) -> None:
    """Writes ``trace`` to ``stream`` as JSON, gzipped if ``compress``; the same trace gives the same bytes."""
    _write([("", trace)], stream, compress=compress, above=above)


def write_chrome_traces(
    ranks: Mapping[int, Trace], clocks: Mapping[int, RankClock], stream: IO[bytes], *, compress: bool = False
) -> None:
    """Writes several ranks' traces one below the other on the first one's clock, each track with its rank's number.

    Times and durations are rewritten, by the drift of a clock too.
    """
    moved = [(f"rank {rank} ", _on_clock(trace, clocks.get(rank, RankClock()))) for rank, trace in ranks.items()]
    _write(moved, stream, compress=compress)


def _on_clock(trace: Trace, clock: RankClock) -> Trace:
    changed = {}
    for name in ("device_events", *HOST_TABLES):
        table = getattr(trace, name)
        start = table["ts_ns"].to_numpy()
        begin, end = clock.shared(start), clock.shared(start + table["duration_ns"].to_numpy())
        changed[name] = table.with_columns(ts_ns=pl.Series(begin), duration_ns=pl.Series(end - begin))
    samples = trace.counters
    changed["counters"] = samples.with_columns(ts_ns=pl.Series(clock.shared(samples["ts_ns"].to_numpy())))
    return replace(trace, **changed)


def _write(
    traces: Sequence[tuple[str, Trace]], stream: IO[bytes], *, compress: bool, above: Sequence[Track] = ()
) -> None:
    with compressed(stream, compress=compress) as out:
        for chunk in _chunks(traces, above):
            out.write(chunk)


@contextmanager
def compressed(stream: IO[bytes], *, compress: bool) -> Iterator[IO[bytes]]:
    """The stream, which compresses its input if ``compress``."""
    if not compress:
        yield stream
        return
    with igzip.IGzipFile(filename="", mode="wb", fileobj=stream, mtime=0) as out:  # type: ignore[no-untyped-call]
        yield cast("IO[bytes]", out)


def _chunks(traces: Sequence[tuple[str, Trace]], above: Sequence[Track]) -> Iterator[bytes]:
    firsts = [first_ns(trace, above) for _, trace in traces]
    origin = min((first for first in firsts if first is not None), default=0)
    yield f'{{"displayTimeUnit":"ns","baseTimeNanoseconds":{origin},"traceEvents":['.encode()
    separator = b"\n"
    for lines in _all_lines(traces, above, origin):
        if lines:
            yield separator + ",\n".join(lines).encode("utf-8", "replace")
            separator = b",\n"
    yield b"\n]}\n"


def _all_lines(traces: Sequence[tuple[str, Trace]], above: Sequence[Track], origin: int) -> Iterator[list[str]]:
    places = _Places()
    if above:
        yield from _lines_above(above, origin)
        places = _Places(pid=places.pid + 1, tid=places.tid + 1 + len(above))
    for prefix, trace in traces:
        tracks = _tracks(trace, prefix, places)
        yield from _lines(trace, tracks, origin)
        places = tracks.next


def _lines_above(above: Sequence[Track], origin: int) -> Iterator[list[str]]:
    """The rows of whystall's own, in a process that stands first."""
    place = _Places()
    # A thread with its process's number would be taken for the main one.
    rows = list(enumerate(above, place.tid + 1))
    streams = pl.DataFrame(
        [(place.pid, tid, OWN, track.label) for tid, track in rows],
        schema={"pid": pl.Int64, "tid": pl.Int64, "process": pl.String, "label": pl.String},
        orient="row",
    )
    yield list(_labels([streams]))
    for tid, track in rows:
        slices = track.slices.with_columns(pid=pl.lit(place.pid), tid=pl.lit(tid), category=pl.lit(OWN))
        yield from _slices(slices, origin)


def _lines(trace: Trace, tracks: _Tracks, origin: int) -> Iterator[list[str]]:
    """Every event as JSON, in batches."""
    yield list(_labels([tracks.streams, tracks.threads]))
    device_events = _on_streams(trace.device_events, tracks).with_columns(
        category=pl.col("kind").cast(pl.String).replace_strict(DEVICE_CATEGORIES, default="kernel")
    )
    yield from _slices(device_events, origin)
    for table, category in HOST_TABLES.items():
        frame = _on_threads(getattr(trace, table), tracks).with_columns(category=pl.lit(category))
        yield from _slices(frame, origin)
    yield from _arrows(trace, tracks, origin)
    yield from _samples(trace, tracks, origin)


def first_ns(trace: Trace, above: Sequence[Track] = ()) -> int | None:
    """The start of the first event that is written, from which times count; ``None`` where there is none."""
    tables = [trace.device_events, *(getattr(trace, table) for table in HOST_TABLES), *(one.slices for one in above)]
    starts = [int(frame["ts_ns"].min()) for frame in tables if len(frame)]
    return min(starts, default=None)


# --- tracks: small numbers in place of process and thread ids, which viewers take for those of one machine ------------


@dataclass(frozen=True, slots=True)
class _Tracks:
    """Where events are drawn: ``pid`` and ``tid`` by device and stream, and by thread; ``label`` is shown beside."""

    streams: pl.DataFrame
    threads: pl.DataFrame
    first_arrow: int
    next: _Places


@dataclass(frozen=True, slots=True)
class _Places:
    """The lowest unused numbers."""

    pid: int = 1
    tid: int = 1
    arrow: int = 0


def _tracks(trace: Trace, prefix: str, places: _Places) -> _Tracks:
    streams = trace.device_events.select(_known("device"), _known("stream")).unique().sort("device", "stream")
    devices = streams["device"].unique().sort().to_list()
    streams = streams.with_row_index("tid", offset=places.tid).with_columns(
        pid=_rank_in("device", devices, offset=places.pid),
        process=pl.col("device").replace_strict(
            {device: prefix + _device_label(trace, device) for device in devices}, return_dtype=pl.String
        ),
        label=pl.format("stream {}", "stream"),
    )
    first_pid, first_tid = places.pid + len(devices), places.tid + len(streams)
    threads = _threads(trace, prefix, first_pid=first_pid, first_tid=first_tid)
    following = _Places(
        first_pid + threads["pid"].n_unique(), first_tid + len(threads), places.arrow + len(trace.device_events)
    )
    return _Tracks(streams, threads, places.arrow, following)


def _threads(trace: Trace, prefix: str, *, first_pid: int, first_tid: int) -> pl.DataFrame:
    used = pl.concat(getattr(trace, table).select(_known("thread")) for table in HOST_TABLES).unique()
    named = trace.threads.with_columns(
        pl.int_range(pl.len(), dtype=pl.Int64).alias("thread"), _text("pid"), _text("tid")
    )
    threads = named.join(used, on="thread").sort("thread")
    processes = threads["pid"].unique(maintain_order=True).to_list()
    return threads.select(
        "thread",
        pid=_rank_in("pid", processes, offset=first_pid),
        tid=pl.int_range(pl.len()) + first_tid,
        process=pl.format("{}host {}", pl.lit(prefix), "pid"),
        label=pl.col("name").fill_null(pl.format("thread {}", "tid")),
    )


def _device_label(trace: Trace, device: int) -> str:
    name = trace.metadata.device_name(device)
    return f"device {device}" if name is None else f"device {device}: {name}"


def _known(column: str) -> pl.Expr:
    return pl.col(column).cast(pl.Int64).fill_null(0)


def _text(column: str) -> pl.Expr:
    return pl.col(column).cast(pl.String).fill_null("?")


def _rank_in(column: str, values: Sequence[object], *, offset: int) -> pl.Expr:
    return pl.col(column).replace_strict({value: i + offset for i, value in enumerate(values)}, return_dtype=pl.Int64)


def _on_streams(device_events: pl.DataFrame, tracks: _Tracks) -> pl.DataFrame:
    places = tracks.streams.select("device", "stream", "pid", "tid")
    return device_events.with_columns(_known("device"), _known("stream")).join(
        places, on=["device", "stream"], how="left", maintain_order="left"
    )


def _on_threads(frame: pl.DataFrame, tracks: _Tracks) -> pl.DataFrame:
    places = tracks.threads.select("thread", "pid", "tid")
    return frame.with_columns(_known("thread")).join(places, on="thread", how="left", maintain_order="left")


# --- events to text ---------------------------------------------------------------------------------------------------


def _labels(rows: Sequence[pl.DataFrame]) -> Iterator[str]:
    for frame in rows:
        for pid, process in frame.select("pid", "process").unique(maintain_order=True).iter_rows():
            yield _metadata("process_name", pid, 0, {"name": process})
            yield _metadata("process_sort_index", pid, 0, {"sort_index": pid})
        for pid, tid, label in frame.select("pid", "tid", "label").iter_rows():
            yield _metadata("thread_name", pid, tid, {"name": label})
            yield _metadata("thread_sort_index", pid, tid, {"sort_index": tid})


def _metadata(name: str, pid: int, tid: int, arguments: dict[str, object]) -> str:
    return json.dumps({"ph": "M", "name": name, "pid": pid, "tid": tid, "args": arguments}, separators=(",", ":"))


def _slices(frame: pl.DataFrame, origin: int) -> Iterator[list[str]]:
    for batch in frame.iter_slices(BATCH):
        line = pl.concat_str(
            pl.lit('{"ph":"X","cat":"'),
            "category",
            pl.lit('","name":'),
            _quoted(batch["name"]),
            *_place(),
            pl.lit(',"ts":'),
            _microseconds(pl.col("ts_ns") - origin),
            pl.lit(',"dur":'),
            _microseconds(pl.col("duration_ns")),
            pl.lit(',"args":{'),
            _arguments(batch),
            pl.lit("}}"),
        )
        yield batch.select(line.alias("line"))["line"].to_list()


def _arrows(trace: Trace, tracks: _Tracks, origin: int) -> Iterator[list[str]]:
    """From every runtime call to the device events that it launched; an arrow's id is the event's number."""
    numbered = _on_streams(trace.device_events, tracks).with_row_index("arrow", offset=tracks.first_arrow)
    ends = numbered.filter(pl.col("launch").is_not_null())
    calls = _on_threads(trace.runtime_calls, tracks)
    begins = calls.select("ts_ns", "pid", "tid")[ends["launch"]].with_columns(ends["arrow"])
    yield from _flow("s", begins, origin)
    yield from _flow("f", ends, origin)


def _flow(phase: str, frame: pl.DataFrame, origin: int) -> Iterator[list[str]]:
    for batch in frame.iter_slices(BATCH):
        line = pl.concat_str(
            pl.lit(f'{{"ph":"{phase}","bp":"e","cat":"ac2g","name":"ac2g","id":'),
            "arrow",
            *_place(),
            pl.lit(',"ts":'),
            _microseconds(pl.col("ts_ns") - origin),
            pl.lit("}"),
        )
        yield batch.select(line.alias("line"))["line"].to_list()


def _samples(trace: Trace, tracks: _Tracks, origin: int) -> Iterator[list[str]]:
    """Counters from the first event on, in their device's process; those of no device are left out."""
    places = tracks.streams.select("device", "pid").unique()
    drawn = trace.counters.filter(pl.col("ts_ns") >= origin).with_columns(pl.col("device").cast(pl.Int64))
    for batch in drawn.join(places, on="device", maintain_order="left").iter_slices(BATCH):
        line = pl.concat_str(
            pl.lit('{"ph":"C","name":'),
            _quoted(batch["name"]),
            pl.lit(',"pid":'),
            "pid",
            pl.lit(',"tid":0,"ts":'),
            _microseconds(pl.col("ts_ns") - origin),
            pl.lit(',"args":{"":'),  # a series with a name would be drawn under both
            "value",
            pl.lit("}}"),
        )
        yield batch.select(line.alias("line"))["line"].to_list()


def _place() -> tuple[pl.Expr, ...]:
    return pl.lit(',"pid":'), pl.col("pid"), pl.lit(',"tid":'), pl.col("tid")


def _quoted(names: pl.Series) -> pl.Expr:
    """The names as JSON strings; each distinct one is quoted once."""
    distinct = names.cast(pl.String).fill_null("").unique()
    quoted = {name: json.dumps(name) for name in distinct.to_list()}
    return pl.col(names.name).cast(pl.String).fill_null("").replace_strict(quoted, return_dtype=pl.String)


def _microseconds(nanoseconds: pl.Expr) -> pl.Expr:
    """Nanoseconds (not negative) as decimal microseconds, exactly."""
    whole, rest = nanoseconds // 1000, nanoseconds % 1000
    return pl.concat_str(whole, pl.lit("."), rest.cast(pl.String).str.zfill(3))


def _arguments(batch: pl.DataFrame) -> pl.Expr:
    """The arguments that viewers and readers use, where they are known."""
    present = [(column, key) for column, key in ARGUMENTS.items() if column in batch.columns]
    if not present:
        return pl.lit("")
    parts = [pl.concat_str(pl.lit(f'"{key}":'), column, pl.lit(",")).fill_null("") for column, key in present]
    return pl.concat_str(parts).str.strip_suffix(",")
