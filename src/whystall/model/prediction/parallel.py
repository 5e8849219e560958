"""Several ranks: each one's memory under data parallelism and sharding."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.testing._internal.distributed.fake_pg import FakeStore  # registers a backend without communication

from whystall.model.prediction.blocks import Blocks
from whystall.model.prediction.request import Request
from whystall.model.prediction.tracker import Tracker
from whystall.model.target import DTYPES


def mesh_of(request: Request, device: str) -> Any:
    """The ranks of a request whose model is really sharded, the first of them this process; else ``None``."""
    if request.strategy != "fsdp2":
        return None
    if distributed.is_initialized():
        distributed.destroy_process_group()
    distributed.init_process_group("fake", rank=0, world_size=request.ranks, store=FakeStore())
    shard = request.fsdp.shard
    if shard is None:
        return init_device_mesh(device, (request.ranks,))
    return init_device_mesh(device, (request.ranks // shard, shard), mesh_dim_names=("replicate", "shard"))


def largest_unit_bytes(model: nn.Module, blocks: Blocks | None, n_bytes: Callable[[nn.Parameter], int]) -> int:
    """The bytes of the parameters that are gathered together: of one block, or of all outside of blocks."""
    rest = sum(map(n_bytes, model.parameters()))
    if blocks is None:
        return rest
    each = [sum(map(n_bytes, block.parameters())) for block in blocks.modules.children()]
    return max(rest - sum(each), *each)


def distribute(request: Request, model: nn.Module, blocks: Blocks | None, mesh: Any) -> None:
    """Reduces ``model`` to one rank's part: with FSDP2 each block, then the rest, is a unit."""
    if request.strategy != "fsdp2":
        return
    asked = request.fsdp
    policy = MixedPrecisionPolicy(
        param_dtype=None if asked.param is None else DTYPES[asked.param],
        reduce_dtype=None if asked.reduce is None else DTYPES[asked.reduce],
    )
    if blocks is not None and asked.wrap == "blocks":
        for block in blocks.modules.children():
            fully_shard(block, mesh=mesh, reshard_after_forward=asked.reshard, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    model._get_fsdp_state()._lazy_init()  # noqa: SLF001 - else the first step decides which blocks are the root's


def buffers(request: Request, model: nn.Module) -> list[tuple[nn.Parameter, int]]:
    """Parameters with the sizes of buffers for communication that a rank holds from the beginning on.

    DistributedDataParallel copies gradients into buckets of the same total size.
    """
    if request.strategy != "ddp":
        return []
    return [(one, one.numel() * one.element_size()) for one in model.parameters() if one.requires_grad]


@contextmanager
def following(tracker: Tracker) -> Iterator[None]:
    """Follows storages that FSDP2 empties and fills again, and not DTensor's planning.

    Both happen by no operator of the step: the first by a method of the storage, the second on fake tensors of the size
    that all ranks have together.
    """
    resize = torch.UntypedStorage.resize_
    plan = ShardingPropagator._propagate_tensor_meta_non_cached  # noqa: SLF001 - where DTensor runs what it plans

    def resized(storage: Any, *size: Any) -> Any:
        result = resize(storage, *size)
        tracker.resized(storage)
        return result

    def planned(*args: Any, **kwargs: Any) -> Any:
        with tracker.silent():
            return plan(*args, **kwargs)

    torch.UntypedStorage.resize_ = resized
    ShardingPropagator._propagate_tensor_meta_non_cached = planned  # noqa: SLF001 - likewise
    try:
        yield
    finally:
        torch.UntypedStorage.resize_ = resize
        ShardingPropagator._propagate_tensor_meta_non_cached = plan  # noqa: SLF001 - likewise
