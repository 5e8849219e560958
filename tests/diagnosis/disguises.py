"""Other ways to write down one and the same recording: what a diagnosis says must not depend on them.

A recording is taken apart (one parsed file for each rank), what does not matter is changed, and it is written again.
Times stay decimal text, so that no digit is lost.
"""

from __future__ import annotations

import gzip
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import msgspec

Document = dict[str, Any]
Event = dict[str, Any]
_DECODER: Final = msgspec.json.Decoder(dict[str, Any], float_hook=Decimal)
_ENCODER: Final = msgspec.json.Encoder(decimal_format="number")
_STRANGER: Final = 990_001  # a process and thread that no recording has


@dataclass(frozen=True, slots=True)
class File:
    """One recorded file: its name, what it holds, and how it is written."""

    name: str
    document: Document
    indent: int | None = None
    zipped: bool = False

    def write(self, folder: Path) -> Path:
        """Writes it into a folder and returns its path."""
        data = _ENCODER.encode(self.document)
        if self.indent is not None:
            data = msgspec.json.format(data, indent=self.indent)
        path = folder / (self.name + (".gz" if self.zipped else ""))
        path.write_bytes(gzip.compress(data, 1, mtime=0) if self.zipped else data)
        return path


Recording = list[File]
Disguise = Callable[[Recording], Recording]


def read(paths: Sequence[Path]) -> Recording:
    """The files of a job."""
    return [_file(path) for path in paths]


def _file(path: Path) -> File:
    data = path.read_bytes()
    text = gzip.decompress(data) if path.name.endswith(".gz") else data
    return File(path.name.removesuffix(".gz"), _DECODER.decode(text))


def written(recording: Recording, folder: Path) -> list[Path]:
    """The paths of a recording's files, written into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    return [file.write(folder) for file in recording]


def _with_events(file: File, events: list[Event]) -> File:
    return replace(file, document={**file.document, "traceEvents": events})


def _each(recording: Recording, change: Callable[[Event], Event]) -> Recording:
    return [_with_events(file, [change(event) for event in file.document["traceEvents"]]) for file in recording]


# --- how it is written ------------------------------------------------------------------------------------------------


def compact(recording: Recording) -> Recording:
    """No blank, no line break, not packed."""
    return recording


def packed(recording: Recording) -> Recording:
    """Compact, as gzip."""
    return [replace(file, zipped=True) for file in recording]


def indented(recording: Recording) -> Recording:
    """A line for every value, those of lists included."""
    return [replace(file, indent=4) for file in recording]


def keys_reversed(recording: Recording) -> Recording:
    """Every object's keys the other way round, the file's own as well."""
    return [replace(file, document=_backwards(file.document)) for file in recording]


def _backwards(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _backwards(value[key]) for key in reversed(value)}
    return [_backwards(one) for one in value] if isinstance(value, list) else value


def shuffled(recording: Recording) -> Recording:
    """The events in another order."""
    return [_with_events(file, _mixed(file.document["traceEvents"])) for file in recording]


def _mixed(events: list[Event]) -> list[Event]:
    return random.Random(12).sample(events, len(events))  # noqa: S311 - no secret


# --- when -------------------------------------------------------------------------------------------------------------

_FORTY_DAYS_US: Final = 3_456_789_012_345


def forty_days_later(recording: Recording) -> Recording:
    """All times shifted."""
    return _each(recording, lambda event: {**event, "ts": event["ts"] + _FORTY_DAYS_US} if "ts" in event else event)


def twice_as_slow(recording: Recording) -> Recording:
    """All times and durations doubled."""
    return _scaled(recording, 2, 1)


def twice_as_fast(recording: Recording) -> Recording:
    """All times and durations halved, to the nanosecond."""
    return _scaled(recording, 1, 2)


def _scaled(recording: Recording, times: int, over: int) -> Recording:
    origin = min(_ns(_span(file)[0]) for file in recording)

    def moved(at_ns: int) -> int:
        return origin + (at_ns - origin) * times // over

    def event(one: Event) -> Event:
        if "ts" not in one:
            return one
        begin = _ns(one["ts"])
        changed = {**one, "ts": Decimal(moved(begin)).scaleb(-3)}
        if "dur" in one:  # begin and end are moved alike, so that what lies inside stays inside
            changed["dur"] = Decimal(moved(begin + _ns(one["dur"])) - moved(begin)).scaleb(-3)
        return changed

    return _each(recording, event)


def _ns(microseconds: Decimal | int) -> int:
    return int(Decimal(microseconds).scaleb(3))


def _span(file: File) -> tuple[Decimal, Decimal]:
    """Begin and end of what was recorded, in microseconds."""
    timed = [event for event in file.document["traceEvents"] if event.get("ph") == "X" and event.get("cat") != "Trace"]
    begin = min(Decimal(event["ts"]) for event in timed)
    return begin, max(Decimal(event["ts"]) + Decimal(event.get("dur", 0)) for event in timed)


# --- what else is in the file -----------------------------------------------------------------------------------------


def beside_a_stranger(recording: Recording) -> Recording:
    """With what a process that has nothing to do with the job was doing, under names that would matter in it."""
    return [_with_events(file, [*_stranger(file), *file.document["traceEvents"]]) for file in recording]


def _stranger(file: File) -> Iterator[Event]:
    begin, end = _span(file)
    sixth = ((end - begin) / 6).quantize(Decimal("0.001"))
    threads = {"python_function": _STRANGER, "user_annotation": _STRANGER + 1}
    for name, argument in (("process_name", {"name": "python3"}), ("process_labels", {"labels": "CPU"})):
        yield {"ph": "M", "name": name, "pid": _STRANGER, "tid": 0, "ts": begin, "args": argument}
    for category, name, at, lasts in (
        ("python_function", "prepare.py(10): main", begin - 100, end - begin + 200),
        ("python_function", "gc.py(1): collect", begin + sixth, sixth),
        ("python_function", "torch/utils/data/dataloader.py(700): __next__", begin + 2 * sixth, sixth),
        ("user_annotation", "save_checkpoint", begin + 3 * sixth, sixth),
        ("user_annotation", "evaluate", begin + 4 * sixth, sixth),
    ):
        place = {"pid": _STRANGER, "tid": threads[category]}
        yield {"ph": "X", "cat": category, "name": name, **place, "ts": at, "dur": lasts, "args": {}}


def beside_a_monitor(recording: Recording) -> Recording:
    """With the frames of one more thread of the job's process, which only waits, as progress bars have one."""
    return [_with_events(file, [*_monitor(file), *file.document["traceEvents"]]) for file in recording]


def _monitor(file: File) -> Iterator[Event]:
    begin, end = _span(file)
    working = ("cpu_op", "Operator", "cuda_runtime", "Runtime", "user_annotation")
    process = next((event["pid"] for event in file.document["traceEvents"] if event.get("cat") in working), 1)
    place = {"pid": process, "tid": _STRANGER}
    yield {"ph": "M", "name": "thread_name", **place, "ts": begin, "args": {"name": "thread (python3)"}}
    for name, inset in (
        ("threading.py(1000): _bootstrap", 0),
        ("tqdm/_monitor.py(69): run", 1),
        ("threading.py(589): wait", 2),
        ("<built-in method acquire of _thread.lock object at 0x7f0000000000>", 3),
    ):
        yield {
            "ph": "X", "cat": "python_function", "name": name, **place,
            "ts": begin + inset, "dur": end - begin - 2 * inset, "args": {},
        }  # fmt: skip


# --- who recorded it --------------------------------------------------------------------------------------------------


def files_reversed(recording: Recording) -> Recording:
    """The files named in the other order."""
    return recording[::-1]


def renumbered(recording: Recording) -> Recording:
    """The ranks counted from the other end."""
    last = last_rank(recording)
    return sorted((_renumbered(file, last) for file in recording), key=lambda file: file.name)


def last_rank(recording: Recording) -> int:
    """The highest rank of the job."""
    told = [file.document.get("distributedInfo") or {} for file in recording]
    return max(max(info.get("world_size") or 1, (info.get("rank") or 0) + 1) for info in told) - 1


def _renumbered(file: File, last: int) -> File:
    def other(rank: Any) -> Any:
        return last - rank if isinstance(rank, int) and 0 <= rank <= last else rank

    def listed(ranks: Any) -> Any:
        if isinstance(ranks, list):
            return sorted(map(other, ranks))
        found = [int(part) for part in re.findall(r"\d+", ranks)]
        if "..." in ranks:  # the first and the last of many
            return re.sub(r"\d+", lambda match: str(other(int(match[0]))), ranks)
        return f"[{', '.join(map(str, sorted(map(other, found))))}]"

    def event(one: Event) -> Event:
        arguments = one.get("args") or {}
        changed = {key: listed(arguments[key]) for key in ("Process Group Ranks",) if arguments.get(key)}
        changed |= {key: other(arguments[key]) for key in ("Src Rank", "Dst Rank") if key in arguments}
        return {**one, "args": {**arguments, **changed}} if changed else one

    (moved,) = _each([file], event)
    info = dict(file.document.get("distributedInfo") or {})
    if "rank" in info:
        info["rank"] = other(info["rank"])
    if isinstance(info.get("pg_config"), list):
        info["pg_config"] = [{**group, "ranks": listed(group.get("ranks") or [])} for group in info["pg_config"]]
    name = re.sub(r"(?<=rank)\d+", lambda match: str(other(int(match[0]))), file.name)
    document = {**moved.document, **({"distributedInfo": info} if info else {})}
    return replace(moved, name=name, document=document)


# --- what it is called ------------------------------------------------------------------------------------------------

_PLAIN: Final = re.compile(r"^[A-Za-z_]\w*$")


def in_a_namespace(recording: Recording) -> Recording:
    """C++ kernels in one more namespace."""
    return _renamed(recording, lambda name: name if _PLAIN.match(name) else _inside(name, "site_build"))


def _inside(name: str, namespace: str) -> str:
    """``void at::f<…>(…)`` as ``void namespace::at::f<…>(…)``."""
    match = re.match(r"^((?:std::enable_if<.*?>::type|void|[\w:]+(?=\s+[\w:(]))\s+)?(?=[A-Za-z_(])", name)
    head = match[0] if match else ""
    return f"{head}{namespace}::{name[len(head) :]}"


def with_a_hash(recording: Recording) -> Recording:
    """Kernels with a hash at the end, as compilers and linkers add one."""
    return _renamed(recording, lambda name: f"{name}_0d1d2e" if _PLAIN.match(name) else f"{name} [clone .isra.7]")


def with_lambdas(recording: Recording) -> Recording:
    """C++ kernels with the type of a lambda among their template arguments."""
    return _renamed(recording, lambda name: name.replace("<", "<{lambda(int, float)#2}, ", 1) if "<" in name else name)


def _renamed(recording: Recording, rename: Callable[[str], str]) -> Recording:
    def event(one: Event) -> Event:
        return {**one, "name": rename(one["name"])} if one.get("cat") in ("kernel", "Kernel") else one

    return _each(recording, event)


# --- what it ran on ---------------------------------------------------------------------------------------------------

_B200: Final = {
    "name": "NVIDIA B200", "totalGlobalMem": 191_503_138_816, "computeMajor": 10, "computeMinor": 0, "numSms": 148,
    "warpSize": 32,
}  # fmt: skip
_H200: Final = {
    "name": "NVIDIA H200", "totalGlobalMem": 150_754_820_096, "computeMajor": 9, "computeMinor": 0, "numSms": 132,
    "warpSize": 32,
}  # fmt: skip


def on_another_device(recording: Recording) -> Recording:
    """With the name and properties of another accelerator."""
    return [_on(file, _H200 if _is_on(file, "B200") else _B200) for file in recording]


def _is_on(file: File, name: str) -> bool:
    return any(name in (device.get("name") or "") for device in file.document.get("deviceProperties") or [])


def on_an_unnamed_device(recording: Recording) -> Recording:
    """Without a word on what the devices are: nothing is known of their peaks."""
    return [replace(file, document={**file.document, "deviceProperties": []}) for file in recording]


def _on(file: File, device: dict[str, Any]) -> File:
    listed = file.document.get("deviceProperties") or []
    return replace(file, document={**file.document, "deviceProperties": [{**one, **device} for one in listed]})
