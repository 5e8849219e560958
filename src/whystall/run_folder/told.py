"""Facts in a run's ``run.json`` for its report: how the job ended, the cost of recording, why there is none."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from whystall.run_folder.description import LEAST_ACTIVE, listed, ranks_of, read_document, table
from whystall.run_folder.layout import RUN_JSON

_MOST: Final = 8
_LONGEST: Final = 300
_SIGNALLED: Final = 128
_WORTH_TELLING_NS: Final = 100_000_000
# A job is steady at the earliest when its first step has ended, another has paid for late starts, and four agree; at
# the latest after some twelve (`capture/windows.py`).
_EARLIEST: Final = 6
# Two equal steps are enough if they take a second or more.
_EARLIEST_LONG: Final = 4
_LONG_STEP_NS: Final = 1_000_000_000
_LATEST: Final = 14


def told(folder: Path) -> list[str]:
    """Sentences for the report on a run folder, the most important first; none where there is nothing to report."""
    run = read_document(folder / RUN_JSON)
    ranks = ranks_of(folder / RUN_JSON)
    found = [*_end(run, ranks), *_short(run, ranks), *_pauses(ranks), *_notes(ranks)]
    return [sentence[:_LONGEST] for sentence in found]


def _end(run: dict[str, Any], ranks: list[dict[str, Any]]) -> Iterator[str]:
    """How a job ended that did not end well."""
    code = run.get("exit_code")
    if not isinstance(code, int) or code == 0:
        return
    steps = max((rank["steps"] for rank in ranks if isinstance(rank.get("steps"), int)), default=None)
    least = "" if _told_the_end(ranks) else "at least "
    after = "" if steps is None else f", after {least}{_counted(steps)}" if steps else ", before a step ended"
    why = _first_failure(ranks) or _signal(code)
    because = f" ({why})" if why else ""
    yield f"The job ended with exit code {code}{because}{after}: the report is of the run until then"


def _told_the_end(ranks: list[dict[str, Any]]) -> bool:
    """Whether all ranks wrote down their end: the count of steps of a killed one is that of its last description."""
    return all(isinstance(rank.get("ended_unix_ns"), int) for rank in ranks)


def _counted(steps: int) -> str:
    return f"{steps:,} step{'s' * (steps != 1)}"


def _first_failure(ranks: list[dict[str, Any]]) -> str | None:
    """The failure of the rank that failed first: the others lost it, and failed for that reason."""
    failed = [rank for rank in ranks if isinstance(rank.get("ended_by"), str)]
    if not failed:
        return None
    first = min(failed, key=lambda rank: rank["ended_unix_ns"] if isinstance(rank.get("ended_unix_ns"), int) else 0)
    return f"rank {first.get('rank')}: {first['ended_by']}" if len(ranks) > 1 else str(first["ended_by"])


def _signal(code: int) -> str | None:
    """The signal that an exit code stands for as shells report it."""
    try:
        return signal.Signals(code - _SIGNALLED).name if code > _SIGNALLED else None
    except ValueError:
        return None


def _short(run: dict[str, Any], ranks: list[dict[str, Any]]) -> Iterator[str]:
    """That a job ended before a window could be recorded, and how many steps it takes."""
    schedule = table(run.get("schedule"))
    steps = max((rank["steps"] for rank in ranks if isinstance(rank.get("steps"), int)), default=0)
    recorded = any(rank.get("traces") for rank in ranks)
    wanted = [schedule.get(name) for name in ("wait", "warmup", "repeat")]
    active = schedule.get("active", LEAST_ACTIVE)
    wanted.append(LEAST_ACTIVE if active is None else active)
    if (
        recorded
        or not steps
        or not _told_the_end(ranks)
        or not all(isinstance(one, int) for one in wanted)
        or not schedule["repeat"]
    ):
        return
    earliest = _EARLIEST_LONG if any(_steps_are_long(rank) for rank in ranks) else _EARLIEST
    needed = earliest + schedule["wait"] + schedule["warmup"] + wanted[-1]
    if steps <= _LATEST + schedule["wait"] + schedule["warmup"]:
        yield (
            f"Too short to be recorded: the job made {_counted(steps)}, and a window takes at least "
            f"{needed}, since it begins once steps are steady: let it make some {2 * needed} or more"
        )


def _steps_are_long(rank: dict[str, Any]) -> bool:
    watched, steps = table(rank.get("overhead")).get("watched_ns"), rank.get("steps")
    return isinstance(watched, int) and isinstance(steps, int) and watched >= _LONG_STEP_NS * max(steps, 1)


def _pauses(ranks: list[dict[str, Any]]) -> Iterator[str]:
    """For how long the job stood still while a trace was finished and written."""
    for rank in ranks:
        cost = table(rank.get("overhead"))
        paused, watched = cost.get("paused_ns"), cost.get("watched_ns")
        if isinstance(paused, int) and isinstance(watched, int) and paused > _WORTH_TELLING_NS and watched > 0:
            yield (
                f"Recording held rank {rank.get('rank')} up for {paused / 1e9:.1f} s in all, "
                f"{paused / watched:.1%} of the time it was watched, to open windows and write their traces; no step's "
                "time holds it"
            )


def _notes(ranks: list[dict[str, Any]]) -> Iterator[str]:
    """The ranks' notes, each once."""
    notes = [note for rank in ranks for note in listed(rank.get("notes")) if isinstance(note, str)]
    for note in list(dict.fromkeys(notes))[:_MOST]:
        yield note[:1].upper() + note[1:]
