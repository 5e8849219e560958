"""host.pageable-copy: copies from pageable memory that the step waits for fire it;
pinned, small and hidden ones do not.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final

import pytest
from tests.diagnosis.cases import found_in, told_of
from tests.diagnosis.jobs import A100, H100, V100, Job, is_worth

from whystall.diagnosis.rules.host.pageable_copy import pinned_bytes_per_s

BYTES: Final = 96_000_000
COMPUTE_NS: Final = 10_000_000
PAGEABLE: Final = "Memcpy HtoD (Pageable -> Device)"
PINNED: Final = "Memcpy HtoD (Pinned -> Device)"


def copying(
    name: str,
    lasts: int,
    *,
    size: int = BYTES,
    device: dict[str, Any] = A100,
    api: str = "cuda",
    call: str = "MemcpyAsync",
    stream: int = 7,
    compute_ns: int = COMPUTE_NS,
) -> Job:
    """Eight steps: a batch is copied, by a call that returns when it is done if memory is pageable, and computed on."""
    job = Job(device, api=api)
    for _ in job.steps(8):
        with job.inside("aten::to"), job.inside("aten::copy_"):
            begin = job.at
            runs = max(begin + 6_000, job.busy_until.get(stream, 0) + 1_000)
            call_lasts = runs + lasts - begin + 1_000 if name == PAGEABLE else 4_000
            job.built.launch(
                name,
                at=begin,
                call=f"{api}{call}",
                call_lasts=call_lasts,
                runs_at=runs,
                lasts=lasts,
                stream=stream,
                category="gpu_memcpy",
                bytes=size,
            )
            job.busy_until[stream] = runs + lasts
            job.at = begin + call_lasts
        job.operator("aten::mm", "gemm", compute_ns)
        job.wait()
    return job


@pytest.mark.parametrize(
    ("device", "api", "call", "bytes_per_s"),
    [  # 12 GB/s is half of PCIe 4 (reference: causes.md); each version of PCIe doubles it
        (V100, "cuda", "MemcpyAsync", 12e9),
        (A100, "cuda", "MemcpyAsync", 24e9),
        (A100, "cuda", "Memcpy", 24e9),
        (H100, "cuda", "MemcpyAsync", 50e9),
        (A100, "hip", "MemcpyWithStream", 24e9),
    ],
)
def test_a_copy_is_worth_what_pinned_memory_spares(
    device: dict[str, Any], api: str, call: str, bytes_per_s: float
) -> None:
    """At the least its own time at the speed of pinned memory stays; at best all of it is behind compute."""
    lasts = 2 * 12_000_000 * BYTES // 96_000_000  # 4 GB/s
    job = copying(PAGEABLE, lasts, device=device, api=api, call=call)
    finding = found_in(job.built)["host.pageable-copy"]
    is_worth(finding, job.step_ns / (job.step_ns - lasts + BYTES / bytes_per_s * 1e9))
    assert finding.gain is not None
    assert finding.gain.ceiling >= 0.99 * job.step_ns / (job.step_ns - lasts)


@pytest.mark.parametrize(
    ("name", "lasts", "size"),
    [
        (PINNED, 8_000_000, BYTES),  # slow for another reason
        (PAGEABLE, 100_000, BYTES // 100),  # one per cent
        ("Memcpy DtoH (Device -> Pageable)", 8_000_000, BYTES),  # the other way is a wait for the device
        ("Memcpy DtoD (Device -> Device)", 500_000, BYTES),
    ],
)
def test_pinned_small_and_other_copies_are_none(name: str, lasts: int, size: int) -> None:
    assert "host.pageable-copy" not in found_in(copying(name, lasts, size=size).built)


def test_copies_behind_compute_are_told_and_left() -> None:
    """Batches come on a stream of their own while the device still has work queued: nothing would be gained."""
    job = Job(A100)
    for _ in job.steps(8):
        job.operator("aten::mm", "gemm", COMPUTE_NS)
        begin = job.at
        job.built.launch(
            PAGEABLE,
            at=begin,
            call="cudaMemcpyAsync",
            call_lasts=8_010_000,
            runs_at=begin + 6_000,
            lasts=8_000_000,
            stream=20,
            category="gpu_memcpy",
            bytes=BYTES,
        )
        job.at += 8_010_000
        job.wait()
    told = told_of(job.built)["host.pageable-copy"]
    assert told.severity == "info"
    assert "leave it" in told.title


@pytest.mark.parametrize(("capability", "rate"), [((-7, 0), 12e9), ((7, 0), 12e9), ((9, 0), 50e9)])
def test_a_damaged_compute_capability_is_taken_for_an_old_device(capability: tuple[int, int], rate: float) -> None:
    devices = (SimpleNamespace(compute_capability=capability),)
    rank: Any = SimpleNamespace(trace=SimpleNamespace(metadata=SimpleNamespace(devices=devices)))
    assert pinned_bytes_per_s(rank) == rate


@pytest.mark.parametrize(("device", "peak"), [(V100, 16e9), (A100, 32e9), (H100, 64e9)])
def test_bytes_cross_the_link_at_its_peak_at_most(device: dict[str, Any], peak: float) -> None:
    """And not behind more compute than there is: 1 ms of it hides no 96 MB."""
    job = copying(PAGEABLE, 24_000_000, device=device, compute_ns=1_000_000)
    gain = found_in(job.built)["host.pageable-copy"].gain
    assert gain is not None
    crossing_ns = BYTES / peak * 1e9
    assert gain.ceiling <= job.step_ns / crossing_ns * 1.02
