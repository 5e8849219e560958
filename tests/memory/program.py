"""Programs that allocate, recorded as torch records them: what a snapshot of them holds is known by construction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.memory.naive_allocator import Naive, Piece

from whystall.memory.allocator import Allocation, Completion, Free
from whystall.memory.allocator_settings import AllocatorSettings

TORCH = "/venv/lib/python3.11/site-packages/torch"
MIB = 1 << 20
Frames = Sequence[tuple[str, str, int]]

_TRAIN = ("main", "/home/me/job/train.py", 30)
_CALL = ("_call_impl", f"{TORCH}/nn/modules/module.py", 1790)
NO_FRAMES: Frames = ()


def forward(line: int, file: str = "model.py") -> Frames:
    """A layer's call, from a line of the model."""
    linear = ("forward", f"{TORCH}/nn/modules/linear.py", 134)
    return (linear, _CALL, ("forward", f"/home/me/job/{file}", line), _CALL, _TRAIN)


PARAMETERS: Frames = (
    ("__init__", f"{TORCH}/nn/modules/linear.py", 109),
    ("__init__", "/home/me/job/model.py", 12),
    _TRAIN,
)
STATE: Frames = (("_init_group", f"{TORCH}/optim/adamw.py", 90), ("step", f"{TORCH}/optim/adamw.py", 220), _TRAIN)
FOREACH: Frames = (
    ("_multi_tensor_adamw", f"{TORCH}/optim/adamw.py", 600),
    ("step", f"{TORCH}/optim/adamw.py", 220),
    _TRAIN,
)
ALL_GATHER: Frames = (
    ("foreach_all_gather", f"{TORCH}/distributed/fsdp/_fully_shard/_fsdp_collectives.py", 330),
    _CALL,
    _TRAIN,
)


@dataclass
class Program:
    """One device's allocator at work, and the record of it."""

    settings: AllocatorSettings = field(default_factory=AllocatorSettings)
    events: list[dict[str, Any]] = field(default_factory=list)
    annotations: list[dict[str, Any]] = field(default_factory=list)
    rows: list[tuple[int, int, int]] = field(default_factory=list)  # allocated, active, reserved after each event
    asked: list[Allocation | Free | Completion] = field(default_factory=list)
    time_us: int = 1_760_000_000_000_000

    def __post_init__(self) -> None:
        self.naive = Naive(self.settings)
        self.keys = 0
        self.sizes: dict[int, int] = {}
        self.frames: dict[int, Frames] = {}
        self.pieces: dict[int, Piece] = {}

    def alloc(self, size: int, frames: Frames = NO_FRAMES, **more: Any) -> int:
        """Allocates, and says under which key."""
        self.keys += 1
        key = self.keys
        before = self._segments()
        self.asked.append(Allocation(key, size))
        held = self.naive.row
        found = self.naive.allocate(Allocation(key, size))
        self._device(before, held)
        if not found:
            raise MemoryError
        piece = self.naive.owners[key]
        assert piece is not None
        self.sizes[key], self.frames[key], self.pieces[key] = size, frames, piece
        self._event("alloc", piece.at, size, frames, more)
        return key

    def free(self, key: int, frames: Frames | None = None, *, pending: bool = False) -> None:
        """Gives memory back: at once, or when other streams are done."""
        piece = self.naive.owners[key]
        assert piece is not None
        at = piece.at
        self.asked.append(Free(key, pending=pending))
        self.naive.free(Free(key, pending=pending))
        self._event("free_requested", at, self.sizes[key], self.frames[key] if frames is None else frames)
        if not pending:
            self._event("free_completed", at, self.sizes[key], self.frames[key] if frames is None else frames)

    def complete(self, key: int) -> None:
        """The other streams are done with what was freed."""
        at = self.pieces[key].at
        self.asked.append(Completion(key))
        self.naive.complete(Completion(key))
        self._event("free_completed", at, self.sizes[key], self.frames[key])

    def out_of_memory(self, size: int, free: int, frames: Frames) -> None:
        """An allocation that finds no room."""
        self._event("oom", free, size, frames)

    @contextmanager
    def marked(self, name: str) -> Iterator[None]:
        """A named span around what happens."""
        self._annotate(name, "START")
        yield
        self._annotate(name, "END")

    def _annotate(self, name: str, stage: str) -> None:
        self.time_us += 5
        self.annotations.append({"name": name, "stage": stage, "device": 0, "time_us": self.time_us})
        self.time_us += 5

    def _segments(self) -> dict[int, int]:
        """The mapped bytes of each segment, by where it begins."""
        return {
            segment.pieces[0].at: sum(piece.size for piece in segment.pieces if piece.state != "void")
            for segment in self.naive.segments
        }

    def _device(self, before: dict[int, int], held: tuple[int, int, int]) -> None:
        """What was given back to the device and asked of it, in that order."""
        after = self._segments()
        kinds = (
            ("segment_map", "segment_unmap") if self.settings.expandable_segments else ("segment_alloc", "segment_free")
        )
        for at in sorted(before.keys() | after.keys(), key=lambda at: after.get(at, 0) - before.get(at, 0)):
            more = after.get(at, 0) - before.get(at, 0)
            if more:
                held = (held[0], held[1], held[2] + more)
                self._event(kinds[0] if more > 0 else kinds[1], at, abs(more), NO_FRAMES, row=held)

    def _event(
        self,
        action: str,
        address: int,
        size: int,
        frames: Frames,
        more: dict[str, Any] | None = None,
        row: tuple[int, int, int] | None = None,
    ) -> None:
        self.time_us += 10
        place = "device_free" if action == "oom" else "addr"
        event = {"action": action, place: address, "size": size, "stream": 0, "time_us": self.time_us}
        event["frames"] = [{"name": name, "filename": file, "line": line} for name, file, line in frames]
        self.events.append(event | (more or {}))
        self.rows.append(self.naive.row if row is None else row)

    def segments(self) -> list[dict[str, Any]]:
        """What the allocator holds now, as a snapshot lists it."""
        owners = {id(piece): key for key, piece in self.naive.owners.items() if piece is not None}
        return [
            {
                "device": 0,
                "address": segment.pieces[0].at,
                "total_size": sum(piece.size for piece in segment.pieces if piece.state != "void"),
                "stream": segment.stream,
                "segment_type": "small" if segment.small else "large",
                "segment_pool_id": (0, 0),
                "is_expandable": segment.growing,
                "frames": [],
                "blocks": [self._block(piece, owners) for piece in segment.pieces if piece.state != "void"],
            }
            for segment in self.naive.segments
            if any(piece.state != "void" for piece in segment.pieces)
        ]

    def _block(self, piece: Piece, owners: dict[int, Any]) -> dict[str, Any]:
        state = {"used": "active_allocated", "waiting": "active_awaiting_free", "free": "inactive"}[piece.state]
        key = owners.get(id(piece))
        frames = self.frames.get(key, ()) if key is not None else ()
        told = [{"name": name, "filename": file, "line": line} for name, file, line in frames]
        asked = self.sizes[key] if key is not None else 0
        return {"address": piece.at, "size": piece.size, "requested_size": asked, "state": state, "frames": told}

    def snapshot(self, lost: int = 0) -> dict[str, Any]:
        """The snapshot of this moment, of whose events the ring has lost the first ones."""
        return {
            "segments": self.segments(),
            "device_traces": [self.events[lost:]],
            "external_annotations": self.annotations,
            "allocator_settings": {"expandable_segments": self.settings.expandable_segments},
        }


def training(steps: int = 3, *, leak: int = 0, settings: AllocatorSettings | None = None, batch: float = 1) -> Program:
    """Two parameters, forward and backward passes, and an optimizer that makes its state at its first step.

    4 MiB of parameters (2 each), as many gradients, 8 MiB of state; a forward pass leaves 2 x 12 MiB of activations and
    takes 1 MiB for a moment. The activations are ``batch`` times as large.
    """
    program = Program(settings or AllocatorSettings())
    for _ in range(2):
        program.alloc(2 * MIB, PARAMETERS)
    state: list[int] = []
    gradients: list[int] = []
    for step in range(steps):
        with program.marked(f"ProfilerStep#{step}"):
            for gradient in gradients:
                program.free(gradient, (("zero_grad", f"{TORCH}/optim/optimizer.py", 900), _TRAIN))
            activations = []
            for line in (40, 41):
                moment = program.alloc(MIB, forward(line))
                activations.append(program.alloc(int(12 * batch * MIB), forward(line)))
                program.free(moment)
            if leak:
                program.alloc(leak, (("remember", "/home/me/job/train.py", 77), _TRAIN))
            gradients = []
            for activation in reversed(activations):
                gradients.append(program.alloc(2 * MIB))
                program.free(activation, NO_FRAMES)
            if not state:
                state = [program.alloc(2 * MIB, STATE) for _ in range(4)]
            program.free(program.alloc(4 * MIB, FOREACH))
    return program
