"""One call that probes a loader: stages, a few numbers of workers, and a prediction for all others."""

from __future__ import annotations

import datetime as dt
import os
import statistics
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from whystall.probe.data import predict
from whystall.probe.data.drain import Drained, costs_of, drain, send_cpu_s
from whystall.probe.data.results import DataProbe, Device, Settings, Stages, Storage, Workers
from whystall.probe.data.source import USUAL_PREFETCH, Source, check_gives_batches, load_source
from whystall.probe.data.stages import Batch
from whystall.probe.data.storage import data_files, opened_files, probe_storage
from whystall.probe.data.transfer import bytes_of, probe_transfer

_ROUNDS: Final = 3
_MOST_ROUNDS: Final = 9
_ALIKE: Final = 1.1
"""The middle half of the rounds lies no further apart, or there are more of them."""
_FEWEST_PREDICTED: Final = 4
_START_MATTERS: Final = 0.01


def probe_data(
    target: str,
    *,
    batch: int | None = None,
    step_s: float | None = None,
    most_workers: int | None = None,
    seconds: float = 2.0,
    today: dt.date | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> DataProbe:
    """Measures the loader ``target`` for about ``seconds`` with no worker, one, and one for each core.

    Up to three times as long where rounds differ. All else is predicted. Raises ``UsageError`` or ``InputError`` for a
    target that is no loader.
    """
    paths: set[str] = set()
    with opened_files(paths):
        source = load_source(target, batch=batch)
    check_gives_batches(source, target)
    cores = len(os.sched_getaffinity(0))
    most = max(_FEWEST_PREDICTED, 2 * cores) if most_workers is None else most_workers
    counts = [0, *(one for one in _measured(cores) if one <= most)]
    with opened_files(paths):
        inline, *runs = _drained(source, counts, seconds, progress)
    storage, no_storage = _storage(source, paths, progress)
    single = runs[0] if runs and runs[0].made else None
    model = _model(source, cores, inline, single, runs)
    one_batch = next(iter(source.with_workers(0)))
    device = probe_transfer(one_batch, seconds=min(seconds, 0.2))
    return _told(
        target, source, model, [inline, *runs], single, storage, no_storage, device,
        step_s=step_s, most=most, n_bytes=bytes_of(one_batch), today=today,
    )  # fmt: skip


def _measured(cores: int) -> list[int]:
    """The numbers of workers to run: 1, one for each core, and the root of that."""
    return sorted({1, round(cores**0.5), cores})


def _drained(source: Source, counts: Sequence[int], seconds: float, progress: Callable[[str], None]) -> list[Drained]:
    """A run with each number of workers: the median of several rounds, between which other work comes and goes.

    Rounds that differ by more than a tenth are followed by more of them.
    """
    again = source.start_method == "fork"  # others import the user's code again in each worker
    fewest, most = (_ROUNDS, _MOST_ROUNDS) if again else (1, 1)
    found: list[list[Drained]] = [[] for _ in counts]
    for number in range(most):
        unsure = [
            place for place, own in enumerate(found) if number < fewest or not alike([one.batch_s for one in own])
        ]
        for place in unsure:
            workers = counts[place]
            progress(f"{workers} worker{'s' * (workers != 1)}")
            found[place].append(drain(source, workers, seconds=seconds / fewest))
    return [sorted(own, key=lambda one: one.batch_s)[len(own) // 2] for own in found]


def alike(times: Sequence[float]) -> bool:
    """Whether the middle half of some times lies within a tenth; false for fewer than three.

    >>> alike([1.0, 1.02, 1.04]), alike([1.0, 1.02, 1.4]), alike([1.0, 1.01, 1.02, 1.03, 1.04, 1.03, 1.6])
    (True, False, True)
    """
    if len(times) < _ROUNDS:
        return False
    low, _, high = statistics.quantiles(times, n=4)
    return high <= _ALIKE * low


def _storage(source: Source, paths: set[str], progress: Callable[[str], None]) -> tuple[Storage | None, str | None]:
    files = data_files(paths)
    if files:
        progress("without the page cache")
    batches = iter(source.with_workers(0))
    return probe_storage(lambda: next(batches, None), files)


def _model(
    source: Source, cores: int, inline: Drained, single: Drained | None, runs: Sequence[Drained]
) -> predict.Model:
    made = single.made if single is not None else inline.made
    receive = runs[0].receive_cpu_s if runs else 0.0
    return predict.Model(
        samples_per_batch=source.samples_per_batch,
        cores=cores,
        prefetch=source.loader.prefetch_factor or USUAL_PREFETCH,
        inline_s=inline.batch_s,
        costs=costs_of(made, receive_cpu_s=receive, in_worker=single is not None),
        measured_s={one.workers: one.batch_s for one in runs},
    )


def _told(
    target: str,
    source: Source,
    model: predict.Model,
    runs: Sequence[Drained],
    single: Drained | None,
    storage: Storage | None,
    no_storage: str | None,
    device: Device | None,
    *,
    step_s: float | None,
    most: int,
    n_bytes: int,
    today: dt.date | None,
) -> DataProbe:
    workers = predict.proposed_workers(model, most, step_s)
    now = _as_set(source, model, step_s)
    proposed = _proposed(source, model, workers, runs, device, step_s)
    gain = predict.gain_of(now, proposed, step_s)
    found = predict.bounds(model, workers, device)
    return DataProbe(
        target=target,
        samples_per_batch=source.samples_per_batch,
        bytes_per_batch=n_bytes,
        batches_per_epoch=source.batches_per_epoch,
        cores=model.cores,
        start_method=source.start_method,
        torch=str(torch.__version__),
        measured_on=(today or dt.datetime.now(dt.UTC).date()).isoformat(),
        stages=[_stages(run) for run in (runs[0], single) if run is not None],
        storage=storage,
        storage_unknown_because=no_storage,
        device=device,
        workers=_rows(model, runs, storage, most, step_s),
        bounds=found,
        binds=predict.binding(found),
        step_ns=None if step_s is None else round(step_s * 1e9),
        now=now,
        proposed=proposed,
        gain=gain,
        nothing_to_gain=_is_nothing(now, gain, step_s),
        notes=_notes(source, single, step_s),
    )


def _is_nothing(now: Settings, gain: float, step_s: float | None) -> bool:
    """Whether the wait costs less than a hundredth, or no other setting supplies a hundredth more."""
    if step_s is not None and now.wait_ns is not None:
        return now.wait_ns < predict.NOTHING * (step_s * 1e9 + now.wait_ns) or gain < 1 + predict.NOTHING
    return gain < 1 + predict.NOTHING


def _as_set(source: Source, model: predict.Model, step_s: float | None) -> Settings:
    given = source.loader
    return predict.settings(
        model,
        given.num_workers,
        prefetch=given.prefetch_factor,
        persistent=bool(given.persistent_workers),
        pin=bool(given.pin_memory),
        step_s=step_s,
    )


def _proposed(
    source: Source,
    model: predict.Model,
    workers: int,
    runs: Sequence[Drained],
    device: Device | None,
    step_s: float | None,
) -> Settings:
    prefetch = predict.proposed_prefetch(model, workers, step_s)
    batches = source.batches_per_epoch
    start_s = max((run.first_s for run in runs if run.workers), default=0.0)
    epoch_s = None if batches is None else batches * model.batch_s(workers, prefetch=prefetch, step_s=step_s or 0.0)
    persistent = workers > 0 and (epoch_s is None or start_s > _START_MATTERS * epoch_s)
    pin = None if device is None else device.copy_pinned_ns < device.copy_pageable_ns
    return predict.settings(model, workers, prefetch=prefetch, persistent=persistent, pin=pin, step_s=step_s)


def _stages(run: Drained) -> Stages:
    def mean(value: Callable[[Batch], float]) -> int:
        return round(statistics.fmean(map(value, run.made)) * 1e9) if run.made else 0

    whole = sorted(one.fetch_cpu_s + one.fetch_wait_s + one.collate_cpu_s + one.collate_wait_s for one in run.made)
    slow = whole[min(round(0.99 * len(whole)), len(whole) - 1)] / max(statistics.median(whole), 1e-12) if whole else 1.0
    return Stages(
        place="worker" if run.workers else "process",
        fetch_cpu_ns=mean(lambda one: one.fetch_cpu_s),
        fetch_wait_ns=mean(lambda one: one.fetch_wait_s),
        collate_cpu_ns=mean(lambda one: one.collate_cpu_s),
        collate_wait_ns=mean(lambda one: one.collate_wait_s),
        send_cpu_ns=round(send_cpu_s(run.made) * 1e9) if run.workers else None,
        receive_cpu_ns=round(run.receive_cpu_s * 1e9) if run.workers else None,
        slowest_over_median=slow,
    )


def _rows(
    model: predict.Model, runs: Sequence[Drained], storage: Storage | None, most: int, step_s: float | None
) -> list[Workers]:
    known = {run.workers: run for run in runs}
    extra_s = None if storage is None else (storage.uncached_ns - storage.cached_ns) / 1e9
    rows = []
    for workers in range(most + 1):
        run = known.get(workers)
        rows.append(
            Workers(
                workers=workers,
                samples_per_s=model.samples_per_s(workers),
                measured_samples_per_s=None if run is None else model.samples_per_batch / run.batch_s,
                uncached_samples_per_s=None if extra_s is None else model.samples_per_s(workers, extra_wait_s=extra_s),
                wait_ns=None if step_s is None else round(model.wait_s(workers, step_s) * 1e9),
                start_ns=None if run is None or not workers else round(run.first_s * 1e9),
            )
        )
    return rows


def _notes(source: Source, single: Drained | None, step_s: float | None) -> list[Any]:
    notes = []
    if single is None:
        notes.append(
            f"workers are started by {source.start_method}, so that nothing is known of what happens inside them: "
            "what a batch costs there is taken from this process"
        )
    if step_s is not None:
        notes.append("a step is taken to keep one core busy; one that computes on more leaves less to the workers")
    return notes
