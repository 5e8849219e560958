"""Inputs of an analysis besides the recording.

Run facts, experiments, remedies, kernel classes, rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from whystall.analysis.kernel_classes import (
    KERNEL_CLASSES_GROUP,
    KernelClass,
    KernelClasses,
    parse_kernel_classes,
)
from whystall.analysis.run_results import Environment
from whystall.analysis.whole_job import WholeJob, whole_job
from whystall.diagnosis.catalogue import causes
from whystall.diagnosis.causes import Statistic
from whystall.diagnosis.experiment import Experiment
from whystall.diagnosis.rule import RULES_GROUP, Rule
from whystall.diagnosis.rules import RULES
from whystall.diagnosis.run_facts import RunFacts
from whystall.disk import reading
from whystall.errors import InputError
from whystall.fleet import find_hangs, read_dumps
from whystall.json_text import NotJsonError, parse_json
from whystall.plugins import brought
from whystall.report.hang_text import summarize
from whystall.run_folder.description import command_line, read_document
from whystall.run_folder.facts import RankFacts, read_run_file, read_settings
from whystall.run_folder.job_journal import read_journals, the_first
from whystall.run_folder.layout import EXPERIMENTS_JSON, RUN_JSON, rank_file, rank_files
from whystall.run_folder.samples import unix_ns
from whystall.trace.readers.execution_trace import ExecutionTrace, read_execution_trace
from whystall.verify.remedies import brought as brought_by
from whystall.verify.remedies import read as read_remedies
from whystall.verify.remedies import record_file

_LARGEST_EXPERIMENTS: Final = 1 << 20


def read_run_facts(folders: Sequence[Path], failures: list[str], *, remedies: bool) -> RunFacts:
    """The run folders' facts about their machine; those of the first of several ranks count.

    ``remedies`` adds the gains of remedies on this machine before.
    """
    worth = brought_by(read_remedies(record_file()), _statistic_of) if remedies else {}
    ranks = [rank for folder in folders for rank in read_run_file(folder / RUN_JSON)]
    experiments = tuple(one for folder in folders for one in _experiments(folder / EXPERIMENTS_JSON, failures))
    command = command_line(folders[0]) if len(folders) == 1 else None
    began = unix_ns(read_document(folders[0] / RUN_JSON).get("began_unix_ns")) or None if folders else None
    if not ranks:
        job = _whole_job(folders, began, [])
        return RunFacts(remedies=worth, experiments=experiments, command=command, began_unix_ns=began, job=job)
    here = sorted(ranks, key=lambda rank: rank.rank)[: ranks[0].ranks_here or None]
    shared = frozenset().union(*(rank.cores_own for rank in here))
    return RunFacts(
        cores=ranks[0].cores_allowed,
        threads=ranks[0].torch_threads,
        processes=len(ranks),
        cores_here=min(len(shared), ranks[0].cpu_quota or len(shared)) or ranks[0].cores_allowed,
        ranks_here=len(here),
        bound=bool(shared) and sum(len(rank.cores_own) for rank in here) == len(shared) and len(here) > 1,
        loaders=tuple(loader for rank in ranks for loader in rank.loaders),
        profiled_over_unprofiled=ranks[0].profiled_over_unprofiled,
        observed={rank.rank: rank.observed for rank in ranks},
        values=_values(folders, failures),
        trainer=ranks[0].trainer,
        python_tools=ranks[0].python_tools,
        settings=read_settings(folders[0] / RUN_JSON),
        environment=Environment(
            cpu=ranks[0].cpu,
            cores=ranks[0].cores,
            cores_allowed=ranks[0].cores_allowed,
            python=ranks[0].python,
            torch=ranks[0].torch,
        ),
        samples_per_step=ranks[0].samples_per_step,
        remedies=worth,
        experiments=experiments,
        command=command,
        began_unix_ns=began,
        job=_whole_job(folders, began, ranks),
    )


def _values(folders: Sequence[Path], failures: list[str]) -> dict[int, ExecutionTrace]:
    """Per rank which tensors the operators of three steps were given; what cannot be read is named in ``failures``."""
    found: dict[int, ExecutionTrace] = {}
    for path in (file for folder in folders for file in rank_files(folder, "values")):
        known = rank_file(path.name)
        if known is None or known.rank in found:
            continue
        try:
            found[known.rank] = read_execution_trace(path)
        except (InputError, OSError) as error:
            failures.append(f"{path.name} cannot be read: {error}")
    return found


def _whole_job(folders: Sequence[Path], began: int | None, ranks: Sequence[RankFacts]) -> WholeJob | None:
    """The ledger of the whole job of one run folder; else that of its first process."""
    if len(folders) != 1 or began is None:
        return None
    ended = unix_ns(read_document(folders[0] / RUN_JSON).get("ended_unix_ns")) or None
    kept = read_journals(folders[0]) if not ranks or not all(rank.ended for rank in ranks) else {}
    times = {rank.rank: rank.job for rank in ranks if rank.job is not None}
    times |= {rank.rank: kept[rank.pid] for rank in ranks if not rank.ended and rank.pid in kept}
    first = the_first(kept)
    if not ranks and first is not None:
        times = {0: first}
    return whole_job(began, ended, times, {rank.rank: rank.paused_ns for rank in ranks})


def stood_still(folder: Path, failures: list[str]) -> list[str]:
    """The rank that kept the others waiting, if ranks hung or one failed, from their flight recorders' content.

    If they were off and held nothing: how to switch them on the next time.
    """
    if not rank_files(folder, "flight"):
        return []
    try:
        found = find_hangs(*read_dumps([folder]))
    except InputError as error:
        failures.append(str(error))
        return []
    if found.hangs:
        return [f"{summarize(found)} (`whystall hang {folder}` tells more)"]
    return [summarize(found)] if found.blank == found.ranks else []


def _statistic_of(cause: str) -> Statistic:
    """The statistic that shows a cause; the median for one that is no longer known."""
    known = causes().get(cause)
    return known.statistic if known is not None else "median"


def _experiments(path: Path, failures: list[str]) -> list[Experiment]:
    """The outcomes of a run's experiments; none where it made none, and a warning where they cannot be read."""
    try:
        with reading.opened(path) as file:
            return parse_json(file.read(_LARGEST_EXPERIMENTS), type=list[Experiment])
    except FileNotFoundError:
        return []
    except (OSError, NotJsonError) as error:
        failures.append(f"the outcomes of experiments in {path.name} cannot be read: {error}")
        return []


def read_kernel_classes(path: str | Path | None, failures: list[str]) -> KernelClasses:
    """The kernel classes of the user's file, then those of installed packages. Raises `InputError` for the file's."""
    others, unusable = brought(KERNEL_CLASSES_GROUP, KernelClass, "kernel classes")
    failures += unusable
    if path is None:
        return tuple(others)
    try:
        return (*parse_kernel_classes(reading.text(Path(path))), *others)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the kernel classes {path} cannot be read: {error}") from None


def installed_rules(failures: list[str]) -> list[Rule]:
    """The rules of installed packages; what cannot be used is named in ``failures``."""
    rules, unusable = brought(RULES_GROUP, Rule, "rules")
    failures += unusable
    return rules


def known_rules() -> dict[str, Rule]:
    """All rules by the ids of their causes: those that ship with whystall, then those of installed packages."""
    return {rule.cause.id: rule for rule in [*RULES, *installed_rules([])]}
