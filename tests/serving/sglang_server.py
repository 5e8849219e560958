"""Files of a SGLang server as it writes them, from the tests' own server: the truth is the engine's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tests.serving.server import WALL_NS, Call, Engine

STAMP = "[2026-11-28 11:52:43"
ARGS = (
    "server_args=ServerArgs(model_path='/secret/model', api_key='sk-secret', page_size=1, chunked_prefill_size=8192, "
    "max_running_requests=None, disable_radix_cache=False, disable_cuda_graph=False, disable_overlap_schedule=False, "
    "device='cuda', speculative_algorithm=None)"
)


def server_log(engine: Engine, *, every: int = 4, ranks: Sequence[str] = (" TP0",), stats: bool = True) -> str:
    """The log: each step with a prompt is a prefill batch, every fourth decode has a line, each request one."""
    lines = [f"{STAMP}] {ARGS}"]
    limits = (
        f"chunked_prefill_size={engine.budget}, max_prefill_tokens=16384, max_running_requests={engine.max_num_seqs}"
    )
    lines.append(f"{STAMP}{ranks[0]}] max_total_num_tokens=9999, {limits}, context_len=2048, available_gpu_mem=3.21 GB")
    for number, step in enumerate(engine.steps):
        usage = f"token usage: {min(step.used / max(engine.blocks - 1, 1), 9.99):.2f}"
        waiting = waiting_in(engine, number)
        at = f"{STAMP}{ranks[number % len(ranks)]}]"
        if step.context:
            lines.append(
                f"{at} Prefill batch, #new-seq: {step.context}, #new-token: {step.context_tokens}, #cached-token: 0, "
                f"{usage}, #running-req: {step.generating}, #queue-req: {waiting}, #pending-token: 0, "
                "cuda graph: False, input throughput (token/s): 60.36"
            )
        elif number % every == 0:
            lines.append(
                f"{at} Decode batch, #running-req: {step.generating}, #token: 99, {usage}, cuda graph: True, "
                f"gen throughput (token/s): 5.41, #queue-req: {waiting}"
            )
    full = "KV cache pool is full. Retract requests. #retracted_reqs: 1, #new_token_ratio: 0.9998 -> 1.0000"
    lines += [f"{STAMP}{ranks[0]}] {full}"] * engine.preemptions
    for call in engine.calls if stats else ():
        forward = call.token_at[-1] - engine.out - engine.steps[call.first_step].begin
        lines.append(
            f"{STAMP}{ranks[0]}] Req Time Stats(rid=secret-rid, input len={call.prompt}, output len={call.output}, "
            f"type=unified): queue_duration={call.queued / 1e6:.2f}ms, forward_duration={forward / 1e6:.2f}ms, "
            "start_time=123.456"
        )
    return "\n".join(lines) + "\n"


def waiting_in(engine: Engine, number: int) -> int:
    """Requests that wait while a step runs."""
    step = engine.steps[number]
    return sum(one.seen <= step.begin and one.first_step > number for one in engine.calls)


def request_metrics(engine: Engine) -> str:
    """The file of ``--export-metrics-to-file``, one line for each request."""
    return "".join(json.dumps(_record(engine, one)) + "\n" for one in engine.calls)


def _record(engine: Engine, one: Call) -> dict[str, object]:
    begin = engine.steps[one.first_step].begin
    came, first, last = one.sent + one.front // 2, one.token_at[0] - engine.out, one.token_at[-1] - engine.out
    decode = (last - first) / 1e9
    record: dict[str, object] = {
        "request_parameters": json.dumps({"text": "the secret prompt", "rid": "secret-rid"}),
        "id": "secret-rid",
        "finish_reason": {"type": "length", "length": one.output},
        "prompt_tokens": one.prompt,
        "completion_tokens": one.output,
        "cached_tokens": 0,
        "e2e_latency": (last - came) / 1e9,
        "request_received_ts": (WALL_NS + came) / 1e9,
        "forward_entry_time": (WALL_NS + begin) / 1e9,
        "prefill_finished_time": (WALL_NS + first) / 1e9,
        "queue_time": one.queued / 1e9,
        "inference_time": (last - begin) / 1e9,
    }
    if decode > 0:
        record["decode_throughput"] = one.output / decode
    return record


def metrics(engine: Engine, *, done: bool = True, ranks: Sequence[int] = (0,), engines: Sequence[int] = ()) -> str:
    """``/metrics`` before or after the load; each rank counts the same requests, and each engine its own."""
    scale = 1 if done else 0
    calls = engine.calls
    came = [one.sent + one.front // 2 for one in calls]
    counted = {
        "queue_time_seconds_sum": sum(one.queued for one in calls) / 1e9,
        "queue_time_seconds_count": len(calls),
        "num_retracted_requests_total": engine.preemptions,
        "num_running_reqs": 3,
        'per_stage_req_latency_seconds_sum{stage="prefill_forward",': sum(
            one.token_at[0] - engine.out - engine.steps[one.first_step].begin for one in calls
        )
        / 1e9,
        'per_stage_req_latency_seconds_count{stage="prefill_forward",': len(calls),
        'per_stage_req_latency_seconds_sum{stage="request_process",': 77.0,
        'scheduler_stage_seconds_total{category="run_batch",': 3.0,
        'scheduler_stage_seconds_total{category="idle",': 1.0,
        'scheduler_stage_seconds_total{category="secret/../x",': 9.0,
        'forward_execution_seconds_total{category="decode",': 2.5,
    }
    lines = ["# HELP sglang:x y", "# TYPE sglang:x counter", "process_start_time_seconds 5.0"]
    numbers: Sequence[int | None] = engines or (None,)
    for engine_number in numbers:
        for rank in ranks:
            labels = f'engine_type="unified",model_name="/secret/model",pp_rank="0",tp_rank="{rank}"'
            labels += "" if engine_number is None else f',dp_rank="{engine_number}"'
            for key, value in counted.items():
                name = key if "{" in key else key + "{"
                lines.append(f"sglang:{name}{labels}}} {value * scale / max(len(engines), 1)}")
    whole = {
        "e2e_request_latency_seconds_sum": sum(
            one.token_at[-1] - engine.out - at for one, at in zip(calls, came, strict=True)
        )
        / 1e9,
        "e2e_request_latency_seconds_count": len(calls),
        "time_to_first_token_seconds_sum": sum(
            one.token_at[0] - engine.out - at for one, at in zip(calls, came, strict=True)
        )
        / 1e9,
        "time_to_first_token_seconds_count": len(calls),
        "time_to_first_token_seconds_bucket": 5,
        "prompt_tokens_total": sum(one.prompt for one in calls),
        "generation_tokens_total": sum(one.output for one in calls),
        "num_requests_total": len(calls),
    }
    for key, value in whole.items():
        lines.append(f'sglang:{key}{{is_streaming="true",model_name="/secret/model"}} {value * scale}')
    lines += ['sglang:page_size{model_name="x"} 1.0', 'sglang:num_pages{model_name="x"} 9999.0']
    return "\n".join(lines) + "\n"


def write(engine: Engine, folder: Path, *, client: bool = False) -> Path:
    """The files of a run, under names that say nothing."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "a").write_text(server_log(engine))
    (folder / "b").write_text(request_metrics(engine))
    (folder / "c").write_text(metrics(engine, done=False))
    (folder / "d").write_text(metrics(engine))
    if client:
        (folder / "e").write_text(engine.bench())
    return folder
