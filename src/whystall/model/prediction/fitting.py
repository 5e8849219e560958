"""Whether a step fits a device, with memory outside of tensors shown separately."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from whystall.errors import UsageError
from whystall.hardware import Accelerator, alike, find
from whystall.model.prediction.request import Request
from whystall.model.prediction.results import Fit, Outside

MIB: Final = 2**20
GIB: Final = 2**30
_USABLE: Final = 0.99  # of a nominal size in GB a driver shows 99 % as GiB: H100 80GB 79.2, A100 40GB 39.4
_CONTEXT_BYTES: Final = 512 * MIB
_WORKSPACE_BYTES: Final = {(9, 0): 32 * MIB, (10, 0): 32 * MIB}
_OTHER_WORKSPACE_BYTES: Final = 8519680  # :4096:2:16:8 (CUDABlas, getChosenWorkspaceSize)
_WORKSPACES: Final = 2  # one for the thread of the forward pass and one for that of the backward pass
_COMMUNICATOR_BYTES: Final = 512 * MIB


def device_named(name: str) -> Accelerator | None:
    """The accelerator called ``name``; ``None`` for a CPU. Raises ``UsageError`` where the table knows no such."""
    if name == "cpu":
        return None
    row = find(name)
    if row is None:
        if rows := alike(name):
            raise UsageError(f"the table of accelerators knows no {name!r}; of that name it has {', '.join(rows)}")
        raise UsageError(
            f"the table of accelerators knows no {name!r}: write a name as drivers do, such as 'NVIDIA H100 80GB HBM3'"
        )
    return row


def capacity_bytes(row: Accelerator, name: str) -> int | None:
    """The usable memory of a device; with several sizes on the market the one in ``name``, else the least."""
    if not row.memory_gb:
        return None
    sizes = [size for size in row.memory_gb if re.search(rf"\b{size:g} ?G", name)]
    return int((sizes or sorted(row.memory_gb))[0] * GIB * _USABLE)


def fit(
    request: Request, row: Accelerator | None, peak_bytes: int, *, holds: Callable[[int], bool] | None = None
) -> Fit | None:
    """How a peak compares with the device, or with a lower limit; ``None`` where neither has a known size.

    ``holds`` returns whether a number of bytes is enough for whole segments: then the tensors alone do not decide.
    """
    capacity = None if row is None else capacity_bytes(row, request.device)
    outside = () if row is None else outside_of(request, row)
    room = None if capacity is None else capacity - sum(one.n_bytes for one in outside)
    limit = request.limit_bytes
    limited = limit is not None and (room is None or limit < room)
    if limited:
        capacity = room = limit
        outside = ()
    if capacity is None or room is None:
        return None
    spare = room - peak_bytes
    fragmented = holds is not None and not limited and spare >= 0 and not holds(room)
    return Fit(
        device="a CPU" if row is None else row.name,
        capacity_bytes=capacity,
        limited=limited,
        outside=outside,
        spare_bytes=spare,
        fits=spare >= 0 and not fragmented,
        fragmented=fragmented,
    )


def outside_of(request: Request, row: Accelerator) -> tuple[Outside, ...]:
    """Memory of a process on the device besides its tensors; none of it was measured by whystall."""
    workspace = _WORKSPACE_BYTES.get(row.capability or (0, 0), _OTHER_WORKSPACE_BYTES)
    found = [
        Outside(what="context and kernels", n_bytes=_CONTEXT_BYTES, source="what drivers commonly show"),
        Outside(
            what="workspaces of cuBLAS", n_bytes=_WORKSPACES * workspace, source="PyTorch's default, for two threads"
        ),
    ]
    if request.devices > 1:
        found.append(Outside(what="buffers of NCCL", n_bytes=_COMMUNICATOR_BYTES, source="one communicator"))
    return tuple(found)
