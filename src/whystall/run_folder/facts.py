"""A rank's entries in ``run.json``, checked before anything is concluded from them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from whystall.run_folder.description import PYTHON_TOOLS, PythonTool, SettingAt, listed, ranks_of, read_document, table
from whystall.run_folder.job_times import MOST_PLACES, JobTimes
from whystall.run_folder.observations import MadeAt, Observations, observed

_MOST_CORES: Final = 4_096
_MOST_SETTINGS: Final = 256
_MOST_KINDS: Final = 200
_LONGEST_WORD: Final = 1_000
_LONGEST_FACT: Final = 120
_LATEST_NS: Final = 1 << 62


class RankFacts(msgspec.Struct, frozen=True):
    """One rank's part of ``run.json``, as far as analyses use it; a missing or invalid field is ``None``."""

    cores_allowed: int | None
    """The cores in its affinity mask, and no more than its control group's CPU quota allows."""
    cpu_quota: int | None
    """The control group's CPU quota in cores, rounded up; ``None``: no limit."""
    torch_threads: int | None
    profiled_over_unprofiled: float | None
    loaders: tuple[dict[str, int | bool | None], ...]
    observed: Observations = Observations()
    rank: int = 0
    trainer: Literal["transformers"] | None = None
    python_tools: tuple[PythonTool, ...] = ()
    cpu: str | None = None
    cores: int | None = None
    cores_own: frozenset[int] = frozenset()
    """The numbers of the cores that it might use; empty where they are not known."""
    ranks_here: int | None = None
    """The ranks on its machine, from its launcher."""
    python: str | None = None
    torch: str | None = None
    steps: int | None = None
    paused_ns: int = 0
    """How long recording held the job up."""
    job: JobTimes | None = None
    pid: int | None = None
    ended: bool = True
    """Whether it had ended when it described itself; else it was killed, or still runs."""

    @property
    def samples_per_step(self) -> int | None:
        """The samples that loaders handed out for a step; ``None`` where the number is uncertain.

        The loader with the most batches counts: the others serve an occasional validation.
        """
        taken = [loader for loader in self.loaders if loader.get("taken")]
        busiest = max(taken, key=lambda loader: loader["taken"] or 0, default={})
        size, batches = busiest.get("batch_size"), busiest.get("taken")
        if not size or not batches or not self.steps:
            return None
        # A batch or two are handed out before the first step ends and after the last one did.
        per_step = round(batches / self.steps)
        return per_step * size if per_step and abs(batches - per_step * self.steps) <= 2 * per_step else None


def read_run_file(path: Path) -> list[RankFacts]:
    """The ranks of a run folder's ``run.json``; empty where there is none that can be read."""
    return [_rank(rank) for rank in ranks_of(path)]


def read_settings(path: Path) -> dict[str, tuple[MadeAt, ...]]:
    """The lines at which a run's program gives each setting; empty where they are unknown."""
    found: dict[str, tuple[MadeAt, ...]] = {}
    for written in listed(read_document(path).get("settings"))[:_MOST_SETTINGS]:
        with suppress(msgspec.ValidationError):
            one = msgspec.convert(written, SettingAt)
            if len(one.name) <= _LONGEST_FACT:
                found[one.name] = (*found.get(one.name, ()), one.at)
    return found


def _rank(rank: dict[str, Any]) -> RankFacts:
    facts, overhead = table(rank.get("facts")), table(rank.get("overhead"))
    ratio = overhead.get("profiled_over_unprofiled")
    return RankFacts(
        cores_allowed=_least(_integer(facts.get("cores_allowed")), _quota(facts.get("cgroup_cpu_max"))),
        cpu_quota=_quota(facts.get("cgroup_cpu_max")),
        torch_threads=_integer(facts.get("torch_threads")),
        profiled_over_unprofiled=float(ratio) if isinstance(ratio, int | float) else None,
        loaders=tuple(
            {
                "workers": _integer(loader.get("workers")),
                "batch_size": _integer(loader.get("batch_size")),
                "prefetch_factor": _integer(loader.get("prefetch_factor")),
                "epochs": _integer(loader.get("epochs")),
                "batches": _integer(loader.get("batches")),
                "taken": _integer(loader.get("taken")),
                "persistent_workers": bool(loader.get("persistent_workers")),
                "pin_memory": bool(loader.get("pin_memory")),
            }
            for loader in listed(rank.get("loaders"))
            if isinstance(loader, dict)
        ),
        observed=observed(rank),
        rank=_integer(rank.get("rank")) or 0,
        trainer="transformers" if facts.get("trainer") == "transformers" else None,
        python_tools=tuple(tool for tool in PYTHON_TOOLS if tool in listed(facts.get("python_tools"))),
        cpu=_word(facts.get("cpu")),
        cores=_integer(facts.get("cores")),
        cores_own=_numbers(facts.get("cores_own")),
        ranks_here=_count(facts.get("ranks_here")),
        python=_word(rank.get("python")),
        torch=_word(rank.get("torch")),
        steps=_integer(rank.get("steps")),
        paused_ns=_duration(overhead.get("paused_ns")),
        job=_job(rank.get("job")),
        pid=_integer(rank.get("pid")),
        ended=rank.get("ended") is not False,
    )


def _numbers(value: object) -> frozenset[int]:
    return frozenset(found for one in listed(value)[:_MOST_CORES] if (found := _integer(one)) is not None)


def _count(value: object) -> int | None:
    """A number of an environment variable."""
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 7 else None


def _job(value: object) -> JobTimes | None:
    """The instants of a rank's process; ``None`` where they are invalid."""
    try:
        found = msgspec.convert(value, JobTimes)
    except msgspec.ValidationError:
        return None
    places = (*found.before_steps, *found.within_steps, *found.after_steps)
    words = (word for one in places for word in (one.file, one.function, one.text, one.leaf, one.work, one.role))
    instants = [at for at in msgspec.structs.astuple(found) if isinstance(at, int)]
    by_kind = {**found.before, **found.within}
    used = found.used or []
    plain = all(len(word) <= _LONGEST_WORD for word in (*words, *by_kind, *used)) and len(places) <= 3 * MOST_PLACES
    times = (*instants, *found.before.values(), *found.within.values(), *(one.ns for one in places))
    plain &= all(0 <= number < _LATEST_NS for number in times) and max(len(by_kind), len(used)) <= _MOST_KINDS
    return found if plain and all(one.line >= 0 for one in places) else None


def _word(value: object) -> str | None:
    return value[:_LONGEST_FACT] if isinstance(value, str) and value else None


def _quota(line: object) -> int | None:
    """The cores that a ``cpu.max`` allows: its quota over its period, both in microseconds; ``max`` is no limit.

    >>> _quota("400000 100000"), _quota("150000 100000"), _quota("max 100000")
    (4, 2, None)
    """
    words = line.split() if isinstance(line, str) else []
    if len(words) != 2 or not all(word.isascii() and word.isdigit() and len(word) < 12 for word in words):
        return None
    return max(-(-int(words[0]) // max(int(words[1]), 1)), 1)


def _least(*counts: int | None) -> int | None:
    return min((count for count in counts if count is not None), default=None)


def _duration(value: object) -> int:
    """Nanoseconds, which may be more than a number of 32 bits holds; 0 where they are invalid."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _LATEST_NS else 0


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31 else None
