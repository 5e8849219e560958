"""Results of a run as TensorBoard's event file, written by TensorBoard's own package.

Neither the time of writing nor the machine's name is in the file or in its name: same run, same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import IO, Any, Final

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.histogram.summary_v2 import histogram_pb
from tensorboard.plugins.text.summary_v2 import text_pb
from tensorboard.summary.writer.record_writer import RecordWriter

from whystall.report.registry import Fill
from whystall.vocabulary.metrics import Told

FILE: Final = "events.out.tfevents.0.whystall"
"""TensorBoard knows its files by the word in the middle."""
_VERSION: Final = "brain.Event:2"


def event_files(told: Told) -> dict[str, Fill]:
    """Writer of the event file, by name."""
    return {FILE: partial(_write, told)}


def _write(told: Told, stream: IO[bytes]) -> None:
    writer = RecordWriter(stream)
    writer.write(Event(wall_time=told.began_unix_s, file_version=_VERSION).SerializeToString())
    for wall_time, step, summary in _summaries(told):
        writer.write(Event(wall_time=wall_time, step=step, summary=summary).SerializeToString())


def _summaries(told: Told) -> Iterator[tuple[float, int, Any]]:
    """Each with its time and its step; values of the whole run are at step 0."""
    began = told.began_unix_s
    yield began, 0, text_pb("whystall/verdict", told.verdict)
    yield began, 0, text_pb("whystall/report", told.markdown)
    for path, number in told.numbers.items():
        yield began, 0, _scalar(path, number)
    for times in told.times:
        yield began, 0, histogram_pb(times.histogram_path, times.seconds)
        for step, at, seconds in zip(times.steps, times.ended_unix_s, times.seconds, strict=True):
            yield at, step, _scalar(times.path, seconds)


def _scalar(tag: str, value: float) -> Any:
    """As torch writes it, which all readers of event files know."""
    return Summary(value=[Summary.Value(tag=tag, simple_value=value)])
