"""Logs written from the documented formats, not from anything that whystall puts out; no real file was at hand.

nccl-tests: its source's description of the table and of JSON version 3; inspector: the README of NCCL's plug-in (v4.0);
RAS: ras.rst of NCCL's user guide; DeepSpeed: the formulas of deepspeed/utils/comms_logging.py. TOKEN stands
wherever such a log can hold a secret.
"""

from __future__ import annotations

import json
from typing import Any

TOKEN = "hf_PLANTEDtoken0123456789"  # noqa: S105 - planted

NCCL_TESTS_TEXT = f"""\
# Collective test starting: all_reduce_perf
# nccl-tests version 2.19.6 nccl-headers=23007 nccl-library=23007
# nThread 1 nGpus 1 minBytes 1048576 maxBytes 1073741824 step: 1024(factor) warmup iters: 1 iters: 20 agg iters: 1
# API_KEY={TOKEN} mpirun -x TOKEN={TOKEN}
# Using devices
#  Rank  0 Group  0 Pid   1887 on {TOKEN} device  0 [0000:8d:00] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid   1888 on {TOKEN} device  1 [0000:91:00] NVIDIA H100 80GB HBM3
#  Rank  2 Group  0 Pid   1889 on worker-1 device  2 [0000:95:00] NVIDIA H100 80GB HBM3
#  Rank  3 Group  0 Pid   1890 on worker-1 device  3 [0000:99:00] NVIDIA H100 80GB HBM3
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
     1048576        262144     float     sum      -1    27.76   37.78   56.66       0    27.49   38.15   57.22       0
  1073741824     268435456     float     sum      -1  10000.0  107.37  161.06     N/A   9999.0  107.38  161.07     N/A
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 109.00
#
"""


def nccl_tests_json(**changes: Any) -> str:
    """Four processes, the last of which takes half as long again; all_gather, 1 GiB in all, 10 ms."""
    per_iteration = {
        "skipped_iterations": 0, "min_us": 9000, "max_us": 11000, "avg_us": 10000, "times_us": [9000, 11000],
        "per_process_max_times_us": [[8000, 8000], [8000, 8000], [8000, 8000], [12000, 12000]],
    }  # fmt: skip
    body: dict[str, Any] = {
        "version": 3,
        "start_time": "2026-08-01 12:00:00",
        "args": ["/opt/nccl-tests/build/all_gather_perf", "-b", "1G", TOKEN],
        "env": [f"HF_TOKEN={TOKEN}", f"SLURM_JOB_ID={TOKEN}"],
        "nccl_version": TOKEN,
        "config": {
            "nthreads": 1,
            "blocking_collectives": "false",
            "devices": [
                {"rank": rank, "group": 0, "pid": 1, "hostname": TOKEN, "device": rank, "device_info": TOKEN}
                for rank in range(4)
            ],
        },
        "results": [
            {
                "size": 1 << 30, "count": 1 << 26, "type": "float", "redop": "none", "root": "-1",
                "out_of_place": {"time": 10000.0, "alg_bw": 107.374, "bus_bw": 80.531, "nwrong": "nan"},
                "in_place": {"time": 9000.0, "alg_bw": 119.3, "bus_bw": 89.5, "nwrong": 0},
                "out_of_place_per_iter": per_iteration, "actual_iterations": 2, "experiment_name": TOKEN,
            }
        ],
        "end_time": "2026-08-01 12:00:01",
    }  # fmt: skip
    return json.dumps(body | changes, indent=1)


def inspector_line(rank: int, number: int, time_us: float, coll: str = "AllReduce", ranks: int = 4) -> str:
    head = {"id": "0x7f8c496ae9f661", "comm_name": TOKEN, "rank": rank, "n_ranks": ranks, "nnodes": 1}
    told = {
        "inspector_output_format_version": "v4.0", "git_rev": "", "rec_mechanism": "nccl_profiler_interface",
        "dump_timestamp_us": 1748030377748202, "hostname": TOKEN, "pid": 1639453,
    }  # fmt: skip
    perf = {
        "coll": coll, "coll_sn": number, "coll_msg_size_bytes": 1 << 20, "coll_exec_time_us": time_us,
        "coll_timing_source": "kernel_gpu", "coll_algobw_gbs": 1.0, "coll_busbw_gbs": 1.5,
    }  # fmt: skip
    return json.dumps({"header": head, "metadata": told, "coll_perf": perf})


def inspector_log(rank: int, late: int = 2) -> str:
    """Ten all_reduces of 100 us, for which the others wait 50 us for the late rank; ten all_gathers without waiting."""
    own = 100.0 if rank == late else 150.0
    lines = [inspector_line(rank, number, own) for number in range(10)]
    lines += [inspector_line(rank, number, 80.0, "AllGather") for number in range(10)]
    message = {"p2p": "Send", "p2p_sn": 1, "p2p_peer": 1, "p2p_msg_size_bytes": 65536, "p2p_exec_time_us": 20}
    head = {"id": "0x1", "rank": rank, "n_ranks": 4, "nnodes": 1}
    return "\n".join([*lines, json.dumps({"header": head, "metadata": {}, "p2p_perf": message})]) + "\n"


def ras_json(counts: dict[int, int], missing: int | None = None, *, dead: bool = False) -> str:
    """An answer: launched all_reduces by rank, and a rank that is gone."""
    place = {"host": TOKEN, "pid": 1524344, "cuda_dev": 0, "nvml_dev": 0}
    status = {"init_state": 0, "async_error": 0, "finalize_called": False, "destroy_flag": False, "abort_flag": False}
    ranks = [
        {"rank": rank, **place, "status": status, "collective_counts": {"Broadcast": 1, "AllReduce": count}}
        for rank, count in counts.items()
    ]
    gone = [{"rank": missing, **place, "status": {"unresponsive": True, "considered_dead": dead}}]
    communicator = {
        "hash": "0xae94423cfbb2ef4a", "secondary_hash": "0xb7e7:0xb824", "size": 4, "ranks_count": len(ranks),
        "missing_ranks_count": 1, "ranks": ranks, "missing_ranks": gone if missing is not None else [],
    }  # fmt: skip
    body = {
        "nccl_version": TOKEN, "cuda_runtime_version": 13000, "cuda_driver_version": 13000, "timestamp": TOKEN,
        "communicators_count": 1, "communicators": [communicator],
        "ras": {"collection_time_sec": 0.0, "timeouts_count": 0},
    }  # fmt: skip
    return json.dumps(body, indent=2)


RAS_TEXT = f"""\
NCCL version 2.28.3+cuda13.0 {TOKEN}

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      4          8            1         32       32

Communicators... (2.05s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         4       7-8        32        32   RUNNING  INCOMPLETE

Errors
======

DEAD
  1 job process is considered dead (unreachable via the RAS network)
  Process 3487984 on node {TOKEN} managing GPU 5

#0-0 (cf264af53edbe986) INCOMPLETE
  Missing communicator data from 1 rank
  The missing rank: 21

Warnings
========

#0-0 (cf264af53edbe986) MISMATCH
  Communicator ranks have different AllReduce operation counts
  28 ranks have launched up to operation 6650
  2 ranks have launched up to operation 6649
  Rank 0 -- GPU 0 managed by process 483072 on node {TOKEN}
  Rank 2 -- GPU 2 managed by process 483074 on node {TOKEN}
  Rank 7 has launched up to operation 60 -- GPU 3 managed by process 1650386 on node {TOKEN}
"""

SIZE, WORLD, GROUP, TIME_MS = 64 << 20, 64, 8, 4.0
PER_MS = SIZE / TIME_MS * 8 / 1e6  # Gbit/s of the logged size over the time


def deepspeed_calls(*, old: bool = False) -> str:
    """One call of each kind with DeepSpeed's own formulas (n: the whole job), as its verbose log prints them."""
    share, again = (WORLD - 1) / WORLD, WORLD if old else 1
    printed = {
        "all_gather_into_tensor": (WORLD, WORLD * share),
        "reduce_scatter_tensor": (again, again * share),
        "all_reduce": (2, 2 * share),
        "all_to_all_single": (1, share),
        "broadcast": (1, 1),
    }
    lines = [
        f"[2026-08-01 12:00:00,000] [INFO] [logging.py:107:log_dist] [Rank 0] "
        f"comm op: {name} | [Caller Func: {TOKEN}] | time (ms): {TIME_MS:.2f} | "
        f"msg size: 64.0 MB | algbw (Gbps): {PER_MS * algorithm:.2f} | "
        f"busbw (Gbps): {PER_MS * bus:.2f}"
        for name, (algorithm, bus) in printed.items()
    ]
    return "\n".join([f"launching with --token {TOKEN}", *lines]) + "\n"


def deepspeed_summary() -> str:
    heads = ("Comm. Op", "Message Size", "Count", "Total Latency(ms)", "Avg Latency(ms)", "tput_avg (Gbps)")
    rate, bus = PER_MS * WORLD, PER_MS * (WORLD - 1)
    row = (" ", "64.0 MB", 10, f"{10 * TIME_MS:.2f}", f"{TIME_MS:.2f}", f"{rate:.2f}", f"{bus:.2f}")
    lines = ["".join(f"{one: <20}" for one in (*heads, "busbw_avg (Gbps)")), "all_gather_into_tensor"]
    lines += [
        "".join(f"{one: <20}" for one in row),
        "_______________________________",
        "Breakdown with straggler effect",
    ]
    return f"HF_TOKEN={TOKEN}\n" + "\n".join([*lines, "all_gather_into_tensor", "".join(f"{one: <20}" for one in row)])
