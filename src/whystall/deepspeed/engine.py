"""The facts of a DeepSpeed engine about the job; without one, a job of a single process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """Sizes of the job and its measured latencies in seconds, ``None`` where the engine does not measure."""

    world_size: int | None = None
    data_parallel: int = 1
    model_parallel: int = 1
    micro_batch: int | None = None
    expert_tensor_parallel: int = 1
    has_experts: bool = False
    forward_s: float | None = None
    backward_s: float | None = None
    step_s: float | None = None

    @property
    def samples(self) -> int:
        """The samples that one pass of the job reads: those of its data-parallel ranks."""
        return (self.micro_batch or 0) * self.data_parallel

    def sizes(self) -> list[tuple[str, object]]:
        """The lines of the summary that an engine adds."""
        if self.world_size is None:
            return []
        rows: list[tuple[str, object]] = [
            ("world size: ", self.world_size),
            ("data parallel size: ", self.data_parallel),
            ("model parallel size: ", self.model_parallel),
            ("batch size per GPU: ", self.micro_batch),
        ]
        if self.has_experts:
            rows.append(("expert tensor parallelism enabled: ", self.expert_tensor_parallel > 1))
        return rows


def facts_of(engine: Any, *, expert_tensor_parallel: bool) -> EngineFacts:
    """The facts of a ``deepspeed.DeepSpeedEngine``, or of no engine."""
    if engine is None:
        return EngineFacts()
    experts = bool(getattr(engine, "has_moe_layers", False))
    data_parallel = engine.dp_world_size
    if data_parallel is None:  # sequence parallelism folds it into the group of sequences
        data_parallel = engine.seq_dp_world_size
    timed = bool(engine.wall_clock_breakdown())
    return EngineFacts(
        world_size=engine.world_size,
        data_parallel=data_parallel,
        model_parallel=engine.mp_world_size,
        micro_batch=engine.train_micro_batch_size_per_gpu(),
        expert_tensor_parallel=engine.mp_world_size if experts and expert_tensor_parallel else 1,
        has_experts=experts,
        forward_s=_elapsed_s(engine, "fwd") if timed else None,
        backward_s=_elapsed_s(engine, "bwd") if timed else None,
        step_s=_elapsed_s(engine, "step") if timed else None,
    )


def _elapsed_s(engine: Any, timer: str) -> float:
    """The value of one of the engine's global timers (deepspeed/utils/timer.py), in seconds."""
    return float(engine.timers(timer).elapsed(False)) / 1000
