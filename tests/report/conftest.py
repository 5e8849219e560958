"""Sample reports, made from the structs: what renderers are tested on."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from whystall.analysis.counters import DeviceCounter
from whystall.analysis.memory_results import MemoryPeak
from whystall.analysis.results import (
    ClassCounts,
    Collective,
    Device,
    Host,
    HostCall,
    HostThread,
    IdleCause,
    InputWait,
    Kernel,
    KernelFamily,
    Lane,
    LaunchLinks,
    Ledger,
    Module,
    Operator,
    Phase,
    RankMeetings,
    ShortKernels,
    Step,
    Stream,
    Timeline,
    UnknownTime,
)
from whystall.analysis.work_results import (
    DeviceEfficiency,
    Efficiency,
    FusedKernel,
    FusibleChain,
    KernelChains,
    KernelOrigins,
    LeftOut,
    OriginShare,
    Roofline,
    RooflineCeiling,
    RooflinePoint,
    ShortChains,
    UncoveredWork,
)
from whystall.diagnosis.experiment import Experiment
from whystall.diagnosis.finding import (
    Abstention,
    Alternative,
    Blocking,
    CodeLocation,
    Evidence,
    EvidenceEvent,
    Finding,
    Gain,
    InStep,
    Plan,
    Rejected,
    Remedy,
    Scope,
    Verdict,
    Verification,
)
from whystall.report.schema import Dropped, Report, Source, SourceFile
from whystall.vocabulary.dimensions import Dimension

MS = 10**6

HOSTILE = (
    "</script><script>window.pwned=1</script>",
    '"><img src=x onerror="window.pwned=1">',
    "'-->]]><svg onload=window.pwned=1>",
    "\x1b[31mred\x1b]8;;http://evil.example\x07link\x1b]8;;\x07\x00\r\n",
    "[bold red]markup[/bold red][link=http://evil.example]x[/link]",
    "\u202egnp.exe\u2066rtl\u2069\ufeff\u2028\u2029",
    "a | b ` c ``` d \\| e <b>f</b> [x](javascript:alert(1)) ![y](http://evil.example/z.png)",
    'pie "quote" : 99\n    "injected" : 100 %%{init: {}}%% ; end',
    "{{ 7 * 7 }}{% for x in y %}",
    "void at::native::kernel<" + "std::tuple<float, " * 600 + "int" + ">" * 600 + ">(int, char const*)",
    "k" * 10_000,
    "@team #1 http://evil.example www.evil.example",
    "",
)

KERNELS = (
    ("void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x2_tn_align8>(cutlass::Params)", "compute", "gemm"),
    ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4, false, false, cutlass::bfloat16_t>, true, true>(Flash_fwd_params)", "compute", "attention"),
    ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "communication", "nccl"),
    ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<c10::BFloat16>)", "compute", "elementwise"),
    ("void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, c10::BFloat16, float>(float*, c10::BFloat16 const*, int)", "compute", "softmax"),
    ("triton_poi_fused_add_gelu_mul_7", "compute", None),
    ("Memcpy HtoD (Pageable -> Device)", "memory", "copy"),
)  # fmt: skip


def ledger(**parts: float) -> Ledger:
    return Ledger(**{name: round(value * MS) for name, value in parts.items()})


def step(index: int, start_ms: int, *, slow: bool = False) -> Step:
    parts = ledger(
        compute=61.2, communication=14.9, memory=1.31, idle_input=38.75 if slow else 8.75, idle_sync=21.4,
        idle_python=6.02, idle_dispatch=3.4, idle_launch=0.9, idle_dependency=1.1, idle_gap=1.22, idle_unknown=2.31,
    )  # fmt: skip
    window = parts.total_ns
    return Step(
        name=f"ProfilerStep#{index}", gpu_events=983, start_ns=start_ms * MS, window_ns=window, device_span_ns=window,
        host_ns=window + 3 * MS, busy_ns=window - parts.idle_ns, compute_ns=parts.compute, communication_ns=22 * MS,
        memory_ns=2 * MS, ledger=parts, outlier=slow,
    )  # fmt: skip


def summed(steps: list[Step]) -> Ledger:
    return Ledger(**{name: sum(s.ledger.parts()[name] for s in steps) for name in Ledger().parts()})


def device(
    rank: int = 0, *, kind: Any = "gpu", steps: list[Step] | None = None, name: str | None = "NVIDIA H100 80GB HBM3"
) -> Device:
    rows = [step(i, 100 + 125 * i, slow=i == 4) for i in range(6)] if steps is None else steps
    total = summed(rows)
    return Device(
        rank=rank, device=rank, kind=kind, name=name, gpu_events=5898, start_ns=100 * MS, window_ns=total.total_ns,
        busy_ns=total.total_ns - total.idle_ns, idle_ns=total.idle_ns, compute_ns=total.compute,
        communication_ns=132 * MS, memory_ns=12 * MS, compute_communication_overlap_ns=42 * MS,
        exposed_communication_ns=total.communication, exposed_memory_ns=total.memory, kernel_sum_ns=520 * MS,
        counts=ClassCounts(compute=5600, communication=90, memory=208), ledger=total,
        idle_cause=IdleCause(host_late_ns=220 * MS, queued_but_waiting_ns=13 * MS, launch_unknown_ns=6 * MS, gaps=412),
        idle_unknown=[UnknownTime(reason="509 device events have no launch call in the file", missing_signal="runtime_launch", idle_ns=13_860_000)],
        streams=[Stream(stream=7, events=5700, busy_ns=400 * MS), Stream(stream=23, events=90, busy_ns=132 * MS)],
        launch=LaunchLinks(linked=5389, unlinked=509),
        short_kernels=ShortKernels(threshold_ns=10_000, count=3000, total_ns=12 * MS),
        distinct_kernel_names=len(KERNELS), same_stream_overlaps=0, steps=rows, steps_from="ProfilerStep",
    )  # fmt: skip


def timeline(rank: int = 0, *, names: tuple[str, ...] = (), cpu: bool = False) -> Timeline:
    labels = list(names) or [name for name, _, _ in KERNELS]
    start, window = 350 * MS, step(2, 350).window_ns
    events = [(i * window // 300, window // (320 + i % 7 * 60), i % len(labels), i % 3) for i in range(300)]
    host = [(i * window // 80, window // 90, i % len(labels), 3 + i % 3) for i in range(80)]
    lanes = [
        Lane(label="stream 7", kind="stream", events=events),
        Lane(label="stream 23", kind="stream", events=events[::9], coalesced=40),
    ]
    thread = Lane(label="thread 4242 (training)", kind="thread", events=host)
    classes = ["compute", "communication", "memory", "operator", "runtime", "python"]
    return Timeline(
        rank=rank, device=rank, step="ProfilerStep#2", start_ns=start, window_ns=window, names=labels, classes=classes,
        lanes=[thread] if cpu else [*lanes, thread],
    )  # fmt: skip


def modules(rank: int = 0, layers: int = 6) -> list[Module]:
    def module(path: str, kind: str, ms: float) -> Module:
        forward = round(ms * MS)
        return Module(
            rank=rank, path=path, calls=6, forward_ns=forward, backward_ns=2 * forward, forward_self_ns=forward // 5,
            backward_self_ns=forward // 3, host_ns=forward, host_self_ns=forward // 9, class_=kind,
        )  # fmt: skip

    rows = [module("", "GPT", 20 * layers + 16), module("embed", "Embedding", 4), module("lm_head", "Linear", 10)]
    rows.append(module("layers", "ModuleList", 20 * layers))
    for i in range(layers):
        rows += [
            module(f"layers.{i}", "Block", 20), module(f"layers.{i}.attn", "Attention", 9),
            module(f"layers.{i}.attn.qkv", "Linear", 5), module(f"layers.{i}.mlp", "MLP", 10.5),
            module(f"layers.{i}.mlp.up", "Linear", 5), module(f"layers.{i}.mlp.down", "Linear", 5),
        ]  # fmt: skip
    return rows


def rows_of(rank: int, *, names: tuple[tuple[str, Any, str | None], ...] = KERNELS) -> dict[str, Any]:
    weights = [2 ** (len(names) - i) for i in range(len(names))]
    total = sum(weights)
    kernels = [
        Kernel(rank=rank, name=name, family=family, count=96 * (i + 1), total_ns=520 * MS * w // total, mean_ns=520 * MS * w // total // (96 * (i + 1)),
               min_ns=900, max_ns=4 * MS, share=w / total, class_=kind)
        for i, ((name, kind, family), w) in enumerate(zip(names, weights, strict=True))
    ]  # fmt: skip
    return {
        "kernels": kernels,
        "kernel_families": [
            KernelFamily(rank=rank, family=k.family, count=k.count, total_ns=k.total_ns, share=k.share, class_=k.class_)
            for k in kernels
        ],
        "operators": [
            Operator(rank=rank, name=name, calls=96, device_ns=90 * MS // (i + 1), device_self_ns=80 * MS // (i + 1), device_events=96,
                     host_ns=30 * MS // (i + 1), host_self_ns=9 * MS // (i + 1))
            for i, name in enumerate(["aten::mm", "aten::addmm", "aten::linear", "aten::_scaled_dot_product_flash_attention", "aten::add_", "c10d::allreduce_"])
        ],
        "modules": modules(rank),
        "phases": [
            Phase(rank=rank, device=rank, phase="forward", device_ns=150 * MS, device_events=2000, host_ns=160 * MS),
            Phase(rank=rank, device=rank, phase="backward", device_ns=300 * MS, device_events=3000, host_ns=190 * MS),
            Phase(rank=rank, device=rank, phase="optimizer", device_ns=70 * MS, device_events=898, host_ns=90 * MS),
        ],
        "communication": [
            Collective(rank=rank, device=rank, collective="all_reduce", group="default_pg", group_size=8, ranks=list(range(8)), dtype="BFloat16",
                       count=90, bytes=306_684_384, total_ns=132 * MS, min_ns=20_000, max_ns=9 * MS, overlap_ns=42 * MS, exposed_ns=90 * MS,
                       wait_ns=31 * MS, algbw=3.0e9, busbw=5.25e9),
            Collective(rank=rank, device=rank, collective="broadcast", group=None, group_size=None, ranks=None, dtype=None,
                       count=1, bytes=None, total_ns=20_000, min_ns=20_000, max_ns=20_000, overlap_ns=0, exposed_ns=20_000),
        ],
        "input": [InputWait(rank=rank, name="enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", count=6, total_ns=91 * MS, max_ns=40 * MS, exposed_ns=82 * MS)],
        "memory": [
            MemoryPeak(rank=rank, device_type="cuda", device=rank, events=5000, peak_allocated_bytes=62 * 2**30, peak_reserved_bytes=71 * 2**30,
                       allocated_start_bytes=11 * 2**30, allocated_end_bytes=11 * 2**30,
                       curve=[((100 + i) * MS, (11 + (i * 7919 % 997) * 51 // 997) * 2**30) for i in range(300)]),
        ],
        "timelines": [timeline(rank)],
    }  # fmt: skip


def host(rank: int = 0) -> Host:
    return Host(
        threads=[
            HostThread(rank=rank, pid=4242, tid=4242, name="python (training)", role="training", operator_self_ns=210 * MS, runtime_ns=190 * MS,
                       python_self_ns=120 * MS, annotation_self_ns=20 * MS, launches=4000),
            HostThread(rank=rank, pid=4242, tid=4300, name=None, role="backward", operator_self_ns=110 * MS, runtime_ns=90 * MS,
                       python_self_ns=0, annotation_self_ns=0, launches=1800),
        ],
        calls=[
            HostCall(rank=rank, name="cudaStreamSynchronize", kind="sync", count=12, total_ns=128 * MS, mean_ns=128 * MS // 12, max_ns=30 * MS),
            HostCall(rank=rank, name="cudaLaunchKernel", kind="launch", count=5389, total_ns=31 * MS, mean_ns=5752, max_ns=2 * MS),
        ],
    )  # fmt: skip


def source(ranks: list[int], **changes: Any) -> Source:
    full = Source(
        files=[SourceFile(path=f"rank{r}.trace.json.gz", rank=r, bytes=7_340_032, raw_bytes=104_857_600, events=412_345, truncated=False) for r in ranks],
        framework="pytorch 2.13.0", ranks=ranks, world_size=len(ranks), events=412_345 * len(ranks),
        dropped=[Dropped(reason="duration is negative", events=3, device_ns=0, rank=ranks[0])] if ranks else [],
        warnings=["509 of 5,898 device events have no launch call in the file: they ran before the recording began."],
        missing_signals=["cuda_sync_events"],
        signals={"cpu_ops": True, "cuda_runtime": True, "cuda_sync_events": False, "python_stacks": False, "memory_events": True},
    )  # fmt: skip
    return msgspec.structs.replace(full, **changes)


def efficiency() -> Efficiency:
    """A rating that knows no utilisation, and a roofline of three operators."""

    def point(name: str, bound: Any, intensity: float, rate: float, ms: int) -> RooflinePoint:
        return RooflinePoint(
            operator=name, dtype="bfloat16", precision="bf16", calls=96, device_ns=ms * MS, operations=round(rate * ms / 1000),
            bytes=round(rate * ms / 1000 / intensity), intensity=intensity, operations_per_s=rate, bytes_per_s=rate / intensity,
            attainable_per_s=min(989e12, intensity * 3.35e12), share=rate / min(989e12, intensity * 3.35e12), headroom_ns=ms * MS // 3, bound=bound,
        )  # fmt: skip

    points = [
        point("aten::mm", "compute", 660.0, 620e12, 90),
        point("aten::_scaled_dot_product_flash_attention", "memory", 139.0, 90e12, 22),
        point("aten::add_", "memory", 0.167, 350e9, 18),
    ]
    rating = DeviceEfficiency(
        rank=0, device=0, by_dtype=[], mfu=None, hfu=None, tensor_core_share=None, covered_share=0.7, peak="H100 SXM",
        peak_source="a data sheet", unknown_because=None,
        uncovered=[UncoveredWork(operator="my::secret", events=96, device_ns=30 * MS, because="whystall has no formula for it")],
        roofline=Roofline(
            memory_bytes_per_s=3.35e12, ceilings=[RooflineCeiling(precision="bf16", flops_per_s=989e12, ridge=295.2)], points=points,
            left_out=[LeftOut(reason="no operator with a known cost", device_ns=390 * MS)],
        ),
    )  # fmt: skip
    return Efficiency(devices=[rating])


def kernel_chains() -> list[KernelChains]:
    chain = FusibleChain(
        operators=["aten::pow", "aten::mean", "aten::add", "aten::rsqrt", "aten::mul"], calls=5, kernels=5, count=96, total_ns=30 * MS,
        gap_ns=2 * MS, bytes=4 * 2**30, fused_bytes=2**30, fused_bytes_keeping=2 * 2**30, fused_ns=4 * MS, fused_ns_keeping=8 * MS,
        start_ns=MS, unknown_because=None,
    )  # fmt: skip
    short = ShortChains(threshold_ns=10_000, at_least=8, count=3, kernels=90, busy_ns=MS, gap_ns=6 * MS, longest=40)
    return [KernelChains(rank=0, device=0, fusible=[chain], fusible_count=96, fusible_ns=30 * MS, short=short)]


def kernel_origins() -> list[KernelOrigins]:
    row = FusedKernel(
        name="triton_poi_fused_add_gelu_mul_7", origin="compiled", category="pointwise", operators=["add", "gelu", "mul"],
        region="Torch-Compiled Region: 0/0", modules=["layers.0.mlp"], function="train.py(31): step", launches=96, events=96,
        device_ns=8 * MS, unknown_because=None,
    )  # fmt: skip
    shares = [
        OriginShare(origin="compiled", events=96, device_ns=8 * MS),
        OriginShare(origin="operator", events=5293, device_ns=500 * MS),
        OriginShare(origin="none", events=509, device_ns=12 * MS),
    ]
    return [KernelOrigins(rank=0, device=0, shares=shares, fused=[row], fused_omitted=0)]


def device_counters() -> list[DeviceCounter]:
    def counter(name: str, unit: str | None, mean: float, busy: float | None, idle: float | None) -> DeviceCounter:
        return DeviceCounter(
            rank=0, device=None if busy is None else 0, name=name, unit=unit, samples=10_000, covered_ns=750 * MS, mean=mean, p5=mean / 2,
            p95=mean * 1.5, busy_mean=busy, idle_mean=idle,
        )  # fmt: skip

    return [
        counter("GPC Clock Frequency [MHz]", None, 1.755e9, 1.98e9, 1.4e9),
        counter("Tensor Active [Throughput %]", "%", 20.5, 32.25, 0.0),
        counter("SMs Active [Throughput %]", "%", 50.0, 79.0, 0.5),
        counter("SMs Active [Throughput %] (GPU 3)", "%", 12.0, None, None),
    ]


def report(**changes: Any) -> Report:
    full = Report(
        whystall="0.1.0",
        verdict=Verdict(
            summary="The GPU stands idle 37 % of a step: 17.7 % waits for the host in synchronisations, 7.2 % for input.",
            cause=None, gain=None, confidence=0.9,
        ),
        source=source([0]), devices=[device()], **rows_of(0), host=host(), efficiency=efficiency(), kernel_chains=kernel_chains(), kernel_origins=kernel_origins(),
        device_counters=device_counters(),
    )  # fmt: skip
    return msgspec.structs.replace(full, **changes)


def blocks(
    dimension: Dimension | None, collective: str | None, calls: float, transfer_ns: int, blocking_ns: int
) -> Blocking:
    return Blocking(
        dimension=dimension,
        collective=collective,
        group_size=8,
        calls_per_step=calls,
        transfer_ns=transfer_ns,
        blocking_ns=blocking_ns,
    )


def finding() -> Finding:
    return Finding(
        id="host.sync", title="loss.item() drains the queue every step", severity="major",
        scope=Scope(ranks=[0], steps=["ProfilerStep#2"]), attributed_ns_per_step=21_400_000,
        gain=Gain(floor=1.12, expected=1.22, ceiling=1.31, method="replay: remove edge"), confidence=0.86,
        evidence=[Evidence(what="blocking synchronisations per step", value=2, unit="calls",
                           events=[EvidenceEvent(rank=0, ts_ns=360 * MS, duration_ns=10 * MS, name="cudaStreamSynchronize")])],
        code=[CodeLocation(file="train.py", line=88, symbol="loss.item()")],
        rejected=[Rejected(id="input.synchronous-loader", because="input waits are 7 % of the step")], missing_signals=[],
        remedy=Remedy(text="Log the loss every 50 steps.", patch="- log(loss.item())\n+ if step % 50 == 0: log(loss.item())", risk="Coarser curves."),
        verify=Verification(command="whystall verify -- python train.py", expect="1.12x to 1.31x"),
        in_step=InStep(rank=0, device=0, step="ProfilerStep#2", window_ns=125 * MS, marks=[(10 * MS, 10 * MS), (60 * MS, 12 * MS)]),
        instead=[Alternative(
            id="host.launch-bound", title="The device waits for the host to launch many small kernels",
            gain=Gain(floor=1.05, expected=1.17, ceiling=1.24, method="replay: all at once"),
            code=[CodeLocation(file="average.py", line=9, symbol="update", share=0.9)],
            remedy=Remedy(text="Update all tensors in one call.", patch="torch._foreach_lerp_(a, b, 0.1)", risk=None),
        )],
    )  # fmt: skip


def gpu() -> Report:
    return report()


def diagnosed() -> Report:
    gain = Gain(floor=1.12, expected=1.22, ceiling=1.31, method="replay: remove edge")
    verdict = Verdict(
        summary="loss.item() drains the queue every step.",
        cause="host.sync",
        gain=gain,
        confidence=0.86,
        step_ns=130 * MS,
    )
    return report(
        verdict=verdict,
        findings=[finding(), second_finding(), *notes()],
        plan=Plan(causes=["host.sync", "input.synchronous-loader"], speedups=[1.22, 1.31]),
        abstained=[
            Abstention(id="compute.padding", missing_signals=["operator shapes"]),
            Abstention(id="communication.straggler", missing_signals=["traces of several ranks"]),
            Abstention(id="compute.low-tensor-core", missing_signals=["operator shapes"]),
        ],
        blocking=[
            blocks("data", None, 6.5, 9_400_000, 3_100_000),
            blocks("data", "all_reduce", 4.0, 8_000_000, 3_000_000),
            blocks(None, "broadcast", 1.0, 210_000, 0),
        ],
        fidelity=0.9968,
        noise=0.0042,
        experiments=[
            Experiment(
                name="input",
                change="every batch the first one again",
                step_ns=121 * MS,
                base_step_ns=130 * MS,
                speedup=1.0744,
                noise=0.004,
                tells="making or waiting for batches holds the step up; this speaks for input.synchronous-loader",
            ),
            Experiment(
                name="gc",
                change="garbage collection off",
                step_ns=None,
                base_step_ns=None,
                speedup=None,
                noise=None,
                tells="nothing: the command ended with exit code 1",
            ),
        ],
    )


def second_finding() -> Finding:
    return Finding(
        id="input.synchronous-loader", title="Batches are made on the training thread", severity="minor",
        scope=Scope(ranks=[0], steps=[]), attributed_ns_per_step=8_750_000,
        gain=Gain(floor=1.03, expected=1.07, ceiling=1.08, method="replay: batches made meanwhile"), confidence=0.9,
        evidence=[Evidence(what="making a batch, per step", value=8_750_000, unit="ns"), Evidence(what="of the step", value=0.0673, unit="share"),
                  Evidence(what="bytes in a batch", value=38_535_168, unit="bytes"), Evidence(what="copied at", value=11_200_000_000, unit="bytes/s")],
        code=[], rejected=[], missing_signals=["Python stacks"], could_be=["host.gc"],
        remedy=Remedy(text="Give the loader workers.", patch="DataLoader(..., num_workers=4)", risk=None),
        verify=None,
    )  # fmt: skip


def notes() -> list[Finding]:
    shared: dict[str, Any] = {
        "severity": "info", "scope": Scope(ranks=[0], steps=[]), "code": [], "rejected": [], "missing_signals": [],
        "remedy": None, "verify": None, "attributed_ns_per_step": 62 * MS, "confidence": 0.75,
        "gain": Gain(floor=1.0, expected=1.0076, ceiling=1.05, method="replay: without communication"),
    }  # fmt: skip
    return [
        Finding(
            id="communication.exposed",
            title="Communication takes 48 % of the step, 96 % of it hidden: leave it",
            evidence=[Evidence(what="communication per step", value=62 * MS, unit="ns")],
            **shared,
        ),
        Finding(
            id="compute.fusible",
            title="Kernels could be fused: it counts once host.sync is removed",
            evidence=[],
            **shared,
        ),
    ]


def cpu() -> Report:
    parts = ledger(compute=80, idle_python=12.5, idle_dispatch=6, idle_input=1.5)
    rows = rows_of(0) | {"kernels": [], "kernel_families": [], "communication": [], "timelines": [timeline(cpu=True)]}
    one = msgspec.structs.replace(step(0, 100), ledger=parts, window_ns=parts.total_ns, communication_ns=0)
    only = msgspec.structs.replace(
        device(kind="cpu", steps=[one], name=None), idle_cause=None, streams=[], idle_unknown=[]
    )
    verdict = Verdict(
        summary="The CPU computes 80 % of the step; Python takes 12.5 %.", cause=None, gain=None, confidence=1.0
    )
    clean_source = source([0], warnings=[], dropped=[], missing_signals=[])
    return report(
        verdict=verdict,
        devices=[only],
        source=clean_source,
        efficiency=Efficiency(),
        kernel_chains=[],
        kernel_origins=[],
        device_counters=[],
        **rows,
    )


def empty() -> Report:
    nothing: dict[str, Any] = {key: [] for key in rows_of(0)}
    verdict = Verdict(
        summary="No device activity was recorded, so there is no time to account for.",
        cause=None,
        gain=None,
        confidence=0.0,
    )
    lost = source(
        [], files=[], events=0, warnings=["empty.json holds no events."], signals={}, framework=None, world_size=None
    )
    return report(
        verdict=verdict,
        devices=[],
        host=Host(),
        source=lost,
        efficiency=Efficiency(),
        kernel_chains=[],
        kernel_origins=[],
        device_counters=[],
        **nothing,
    )


def many(ranks: int = 2) -> Report:
    per_rank = [rows_of(r) for r in range(ranks)]
    rows = {key: [row for one in per_rank for row in one[key]] for key in per_rank[0]}
    hosts = [host(r) for r in range(ranks)]
    both = Host(threads=[t for h in hosts for t in h.threads], calls=[c for h in hosts for c in h.calls])
    waits = [
        RankMeetings(
            rank=r, meetings=90, last=89 if r else 1, wait_ns=0 if r else 31 * MS, alone_ns=31 * MS if r else 0,
            clock_offset_ns=-r * 4_200_000, clock_drift=r * 2e-5, clock_uncertainty_ns=310.0,
        )
        for r in range(ranks)
    ]  # fmt: skip
    return report(
        devices=[device(r) for r in range(ranks)],
        host=both,
        source=source(list(range(ranks))),
        ranks=waits,
        device_counters=[],
        **rows,
    )


def hostile() -> Report:
    """Every string of a report replaced by something nasty."""
    nasty = tuple((name, ("compute", "communication", "memory")[i % 3], name) for i, name in enumerate(HOSTILE))
    raw = msgspec.to_builtins(
        report(
            **rows_of(0, names=nasty),
            findings=[finding(), *notes()],
            plan=Plan(causes=["a", "b"], speedups=[1.2, 1.3]),
            abstained=[Abstention(id="c", missing_signals=["d"])],
            fidelity=1.0,
            noise=0.01,
            experiments=[
                Experiment(name="a", change="b", step_ns=1, base_step_ns=2, speedup=2.0, noise=0.0, tells="c")
            ],
        )
    )
    closed = {"schema", "kind", "class", "phase", "role", "severity", "bound", "origin", "of"}
    counter = iter(range(10**9))

    def poison(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            if key == "signals":
                return dict.fromkeys(HOSTILE, True)
            return {k: poison(v, k) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [poison(v, key) for v in value]
        return HOSTILE[next(counter) % len(HOSTILE)] if isinstance(value, str) and key not in closed else value

    return msgspec.convert(poison(raw), Report)


def huge() -> Report:
    """64 ranks, 100,000 kernels with names of 5 KB, and everything else in proportion."""
    base = many(64)
    template = base.kernels[0]
    kernels = [
        msgspec.structs.replace(template, rank=i % 64, name=f"void k{i}<{'std::pair<' * 500}é>(x)".ljust(5000, "&"), total_ns=10**9 - i)
        for i in range(100_000)
    ]  # fmt: skip
    steps = [step(i, 125 * i) for i in range(3000)]
    devices = [msgspec.structs.replace(d, steps=steps) for d in base.devices]
    events = [(i * 1000, 900, i % 5000, i % 3) for i in range(20_000)]
    lanes = [Lane(label=f"stream {i}" * 50, kind="stream", events=events) for i in range(4)]
    wide = [
        msgspec.structs.replace(t, names=["<&>" * 700 + str(i) for i in range(5000)], lanes=lanes)
        for t in base.timelines
    ]
    modules_ = [m for r in range(64) for m in modules(r, 200)]
    lost = source(list(range(64)), warnings=["& lost " * 400] * 5000)
    return msgspec.structs.replace(
        base, kernels=kernels, devices=devices, timelines=wide, modules=modules_, source=lost
    )


SAMPLES = {"gpu": gpu, "diagnosed": diagnosed, "cpu": cpu, "empty": empty, "two-ranks": many, "hostile": hostile}


@pytest.fixture(params=SAMPLES, scope="session")
def named_sample(request: pytest.FixtureRequest) -> tuple[str, Report]:
    return request.param, SAMPLES[request.param]()


@pytest.fixture
def sample(named_sample: tuple[str, Report]) -> Report:
    return named_sample[1]


@pytest.fixture(scope="session")
def samples() -> dict[str, Report]:
    return {name: make() for name, make in SAMPLES.items()}


@pytest.fixture(scope="session")
def huge_report() -> Report:
    return huge()
