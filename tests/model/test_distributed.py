"""Wrappers of distributed training, in a group of one process: what this rank does is counted, once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from whystall import FlopCounter

pytestmark = pytest.mark.usefixtures("way")

FORWARD = 2 * 8 * (64 * 128 + 128 * 32)
BACKWARD = FORWARD + 2 * 8 * 128 * 32


@pytest.fixture(autouse=True)
def _group(tmp_path: Path) -> Iterator[None]:
    if not distributed.is_available() or not distributed.is_gloo_available():
        pytest.skip("this torch has no gloo")
    store = distributed.FileStore(str(tmp_path / "store"), 1)
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, 128, bias=False), nn.ReLU(), nn.Linear(128, 32, bias=False))


@pytest.mark.parametrize("wrapper", ["ddp", "fsdp2"])
def test_wrapped_models(wrapper: str) -> None:
    model = network()
    if wrapper == "ddp":
        model = DistributedDataParallel(model)
    else:
        mesh = init_device_mesh("cpu", (1,))
        fully_shard(model[0], mesh=mesh)
        fully_shard(model, mesh=mesh)

    with FlopCounter(model) as counter:
        model(torch.randn(8, 64)).sum().backward()

    profile = counter.profile
    assert counter.failure is None
    assert (profile.forward.model_flops, profile.backward.model_flops) == (FORWARD, BACKWARD)
    assert profile.weight_gradient_flops == FORWARD
    assert profile.parameters == 64 * 128 + 128 * 32
    assert profile.uncovered == ()


def test_sharded_tensors_count_as_their_local_parts() -> None:
    mesh = init_device_mesh("cpu", (1,))
    weight = distribute_tensor(torch.randn(64, 32), mesh, [Shard(1)])
    data = distribute_tensor(torch.randn(8, 64), mesh, [Replicate()])

    with FlopCounter() as counter:
        for _ in range(2):
            data @ weight

    assert counter.failure is None
    assert counter.profile.forward.model_flops == 2 * 2 * 8 * 64 * 32


def test_nested_tensors_count_their_own_lengths() -> None:
    ragged = torch.nested.nested_tensor([torch.randn(3, 64), torch.randn(5, 64)], layout=torch.jagged)
    model = nn.Linear(64, 32, bias=False)

    with FlopCounter(model) as counter:
        model(ragged)

    assert counter.profile.forward.model_flops == 2 * 8 * 64 * 32
