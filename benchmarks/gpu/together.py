"""Several ranks over NCCL on one device: each says that it is a host of its own, and they speak over loopback.

NCCL refuses two ranks on one device of one host. So told, they share the device in slices of time: who waits for whom
shows truly, bandwidths and the times of kernels that wait do not. Not yet tried.
"""

from __future__ import annotations

import os


def one_device() -> None:
    """To be called before the process group is made."""
    os.environ["NCCL_HOSTID"] = f"host{os.environ['RANK']}"
    for name, value in {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1", "NCCL_P2P_DISABLE": "1",
                        "NCCL_SHM_DISABLE": "1", "NCCL_CUMEM_HOST_ENABLE": "0"}.items():  # fmt: skip
        os.environ.setdefault(name, value)
