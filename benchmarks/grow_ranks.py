"""Grows the ranks of a job from one rank's real trace: clocks apart, kernels that vary, and one rank that is late.

    python benchmarks/grow_ranks.py ../shared/traces/ddp-2rank-a100.json.gz ranks/ --ranks 64 --megabytes 20

Every rank has the original's events; which of its collectives match is known, and that the late rank comes last to all.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from pathlib import Path

from grow import read
from isal import igzip

_VARIANTS = 4
_CLOCKS_APART_NS = 2_000_000
_LATE_SHARE = 0.7
_JITTER_US = 3.0
_PAUSE_US = 2_000
_MARK = "@collective@"
_STEP = "ProfilerStep#"
_IDS = frozenset({"External id", "correlation", "Ev Idx", "Sequence number", "Record function id"})

Event = dict[str, object]


def grow_ranks(source: Path, folder: Path, ranks: int, megabytes: float, late: int, *, packed: bool = True) -> int:
    """Writes a trace for each rank; returns the size of one's JSON in bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    whole = json.loads(read(source))
    events = _repeated(whole["traceEvents"], megabytes)
    variants = [_variant(events, _dice(seed)) for seed in range(_VARIANTS)]
    written = 0
    for rank in range(ranks):
        dice = _dice(1000 + rank)
        head = whole | {"baseTimeNanoseconds": whole.get("baseTimeNanoseconds", 0) + dice.randrange(_CLOCKS_APART_NS)}
        head["distributedInfo"] = _group(whole.get("distributedInfo", {}), rank, ranks)
        parts, collectives = variants[rank % _VARIANTS]
        body = [parts[0]]
        for event, part in zip(collectives, parts[1:], strict=True):
            body += [json.dumps(_arriving(event, dice, is_late=rank == late)), part]
        text = json.dumps(head | {"traceEvents": _MARK}).replace(f'"{_MARK}"', "".join(body)).encode()
        text = text.replace(b'"[0, 1]"', b'"%s"' % json.dumps(list(range(ranks))).encode()[:200])
        written = len(text)
        name = f"rank{rank}.trace.json" + (".gz" if packed else "")
        (folder / name).write_bytes(igzip.compress(text, compresslevel=1) if packed else text)
    return written


def _dice(seed: int) -> random.Random:
    return random.Random(seed)  # noqa: S311 - the same traces every time


def _repeated(events: list[Event], megabytes: float) -> list[Event]:
    """The events again and again, later and with other ids and steps; of the last time only the beginning."""
    begin = min(float(str(event["ts"])) for event in events if event.get("ph") == "X")
    timed = [event for event in events if float(str(event.get("ts", 0))) >= begin]
    later = max(float(str(event["ts"])) + float(str(event.get("dur", 0))) for event in timed) - begin + _PAUSE_US
    ids = 1 + max(int(str(value)) for event in events for value in _ids(event).values())
    steps = 1 + max(int(str(event["name"])[len(_STEP) :]) for event in events if str(event["name"]).startswith(_STEP))
    times = max(megabytes * 1e6 / len(json.dumps(events)), 1)
    out = list(events)
    for number in range(1, math.ceil(times)):
        until = begin + later * min(times - number, 1)
        chosen = [event for event in timed if float(str(event["ts"])) < until]
        out += [_shifted(event, number * later, number * ids, number * steps) for event in chosen]
    return out


def _ids(event: Event) -> Event:
    arguments = event.get("args")
    return {key: value for key, value in arguments.items() if key in _IDS} if isinstance(arguments, dict) else {}


def _shifted(event: Event, later: float, more: int, further: int) -> Event:
    out = dict(event)
    if "ts" in event:
        out["ts"] = round(float(str(event["ts"])) + later, 3)
    if str(event.get("name")).startswith(_STEP):
        out["name"] = f"{_STEP}{int(str(event['name'])[len(_STEP) :]) + further}"
    if isinstance(event.get("id"), int):
        out["id"] = int(str(event["id"])) + more
    shifted = {key: int(str(value)) + more for key, value in _ids(event).items()}
    return out | {"args": {**event["args"], **shifted}} if shifted and isinstance(event["args"], dict) else out


def _variant(events: list[Event], dice: random.Random) -> tuple[list[str], list[Event]]:
    """The events as text with a gap for each collective on a device, and those collectives."""
    collectives: list[Event] = []
    texts = []
    for event in events:
        if event.get("cat") == "kernel" and "nccl" in str(event.get("name")):
            collectives.append(event)
            texts.append(_MARK)
        elif event.get("cat") == "kernel":
            lasting = float(str(event["dur"]))
            texts.append(json.dumps(event | {"dur": round(lasting * dice.uniform(0.97, 1.0), 3)}))
        else:
            texts.append(json.dumps(event))
    parts = f"[{', '.join(texts)}]".split(_MARK)
    return parts, collectives


def _arriving(event: Event, dice: random.Random, *, is_late: bool) -> Event:
    """A collective that the rank joins at its own moment; all end together."""
    start, lasting = float(str(event["ts"])), float(str(event["dur"]))
    wait = lasting * _LATE_SHARE if is_late else min(dice.uniform(0, _JITTER_US), lasting / 2)
    return event | {"ts": round(start + wait, 3), "dur": round(lasting - wait, 3)}


def _group(info: Event, rank: int, ranks: int) -> Event:
    return info | {"rank": rank, "world_size": ranks, "pg_config": []}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--megabytes", type=float, default=20)
    parser.add_argument("--late", type=int, default=5)
    options = parser.parse_args()
    grow_ranks(options.source, options.folder, options.ranks, options.megabytes, options.late)


if __name__ == "__main__":
    main()
