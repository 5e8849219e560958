"""The result of probing a loader: its schema."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

SCHEMA: Final = "whystall.data/1"

Resource = Literal["CPU cores", "storage", "IPC", "pinning", "copy"]


class Stages(msgspec.Struct, frozen=True, kw_only=True):
    """Nanoseconds of a batch, by stage.

    ``place`` is its place: in a worker, or in the process that receives the batches. The processor's time of fetching
    (with decoding) and collating is separate from the waits. ``send_cpu_ns`` is a worker's part of IPC, ``None``
    without one; ``receive_cpu_ns`` the receiver's.
    """

    place: Literal["worker", "process"]
    fetch_cpu_ns: int
    fetch_wait_ns: int
    collate_cpu_ns: int
    collate_wait_ns: int
    send_cpu_ns: int | None
    receive_cpu_ns: int | None
    slowest_over_median: float
    """How much longer the slowest of a hundred batches takes than the median one."""


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """Nanoseconds of pinning a batch and of copying it to the device, from pinned and from other memory."""

    name: str
    pin_ns: int
    copy_pinned_ns: int
    copy_pageable_ns: int


class Storage(msgspec.Struct, frozen=True, kw_only=True):
    """Nanoseconds of fetching a batch whose files are in the page cache and whose are not, and how many there are."""

    files: int
    file_bytes: int
    cached_ns: int
    uncached_ns: int


class Workers(msgspec.Struct, frozen=True, kw_only=True):
    """Samples per second with ``workers`` workers: predicted, and measured where they were run.

    ``wait_ns`` is how long a step waits for its batch (with ``--step``). ``start_ns`` is the time to the first batch.
    """

    workers: int
    samples_per_s: float
    measured_samples_per_s: float | None
    uncached_samples_per_s: float | None
    wait_ns: int | None
    start_ns: int | None


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """The most samples per second that a resource allows, with the proposed number of workers; why there is none."""

    resource: Resource
    samples_per_s: float | None
    unknown_because: str | None = None


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """A loader's current or proposed settings, with their supply."""

    num_workers: int
    prefetch_factor: int | None
    persistent_workers: bool
    pin_memory: bool | None
    samples_per_s: float
    wait_ns: int | None


class DataProbe(msgspec.Struct, frozen=True, kw_only=True):
    """The result for a loader. ``gain`` is the proposal's supply over that of its current settings."""

    schema: Literal["whystall.data/1"] = SCHEMA
    target: str
    samples_per_batch: int
    bytes_per_batch: int
    batches_per_epoch: int | None
    cores: int
    start_method: str
    torch: str
    measured_on: str
    stages: list[Stages]
    storage: Storage | None
    storage_unknown_because: str | None
    device: Device | None
    workers: list[Workers]
    bounds: list[Bound]
    binds: Resource | None
    step_ns: int | None
    now: Settings
    proposed: Settings
    gain: float
    nothing_to_gain: bool
    notes: list[str]
