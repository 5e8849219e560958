"""A trace's metadata: devices, ranks, process groups, and the profiler's settings."""

from __future__ import annotations

from typing import Final

import msgspec

MOST_RANKS: Final = 1 << 20
"""A higher number in a file is damage, and no count of ranks."""


class DeviceProperties(msgspec.Struct, frozen=True):
    """A device as the profiler printed it; ``None`` where it did not."""

    id: int
    name: str | None
    memory_bytes: int | None
    compute_capability: tuple[int, int] | None
    multiprocessors: int | None


class ProcessGroup(msgspec.Struct, frozen=True):
    """A communicator; ``ranks`` is empty where the trace does not list them."""

    name: str
    description: str | None
    size: int | None
    ranks: tuple[int, ...]


class Metadata(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata that analyses may use: an allow-list, since traces carry names and secrets as well."""

    framework: str | None = "pytorch"
    """The job's framework; ``None`` where the format does not state it."""
    devices: tuple[DeviceProperties, ...] = ()
    rank: int | None = None
    world_size: int | None = None
    backend: str | None = None
    host: int | None = None
    """The number of its host, from a manifest of ranks (`whystall.trace.manifest`); no recording has it."""
    groups: tuple[ProcessGroup, ...] = ()
    base_time_ns: int | None = None
    whole_steps: int | None = None
    """How many of the marked steps had ended when the recording did, where that was not between two of them."""
    settings: dict[str, bool] = {}
    versions: dict[str, str] = {}

    @property
    def may_be_pytorch(self) -> bool:
        """Whether the job may have run on PyTorch, so that advice in its terms is useful."""
        return self.framework in {"pytorch", None}

    def device_name(self, device: int) -> str | None:
        """The name of the device with this id, or of the only device listed."""
        named = [properties for properties in self.devices if properties.name]
        for properties in named:
            if properties.id == device:
                return properties.name
        same = {properties.name for properties in named}
        return same.pop() if len(same) == 1 else None

    def device_properties(self, device: int) -> DeviceProperties | None:
        """The listed properties of the device with this id; of any device where all are of one model."""
        own = next((properties for properties in self.devices if properties.id == device), None)
        if own is not None or not self.devices:
            return own
        first, *others = self.devices
        alike = all(
            (one.name, one.compute_capability, one.multiprocessors)
            == (first.name, first.compute_capability, first.multiprocessors)
            for one in others
        )
        return first if alike else None


def sound_text(text: str) -> str:
    """The text, with a question mark for every half character (a lone surrogate), which no output can hold."""
    return text.encode("utf-8", "replace").decode("utf-8")
