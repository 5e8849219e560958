"""A tiny server of vLLM's rules, written on its own for the tests: one loop over tokens, everything counted by hand.

It knows the truth that the tools must find: which request was in which step, when it came to the scheduler, how long it
queued. Its files are those that a user has.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

MS = 1_000_000
BLOCK_HASH = 16
WALL_NS = 1_795_868_899 * 10**9


@dataclass
class Call:
    """A request: when its client wants to send it and does, in nanoseconds, and its sizes."""

    due: int
    prompt: int
    output: int
    ids: list[int] = field(default_factory=list)
    late: int = 0
    gate: int = 0
    front: int = 2 * MS
    # the truth
    arrived: int = 0
    seen: int = 0
    first_step: int = -1
    queued: int = 0
    step_wait: int = 0
    steps: dict[int, int] = field(default_factory=dict)
    token_at: list[int] = field(default_factory=list)
    computed: int = 0
    goal: int = 0
    blocks: int = 0
    preemptions: int = 0
    hits: int = 0

    @property
    def sent(self) -> int:
        return self.due + self.late + self.gate


@dataclass
class Step:
    begin: int
    end: int
    context: int = 0
    context_tokens: int = 0
    generating: int = 0
    generated: int = 0
    used: int = 0


@dataclass
class Engine:
    """The engine and its settings; a step lasts ``cost(prompt tokens, sequences, step number)`` nanoseconds."""

    max_num_seqs: int = 64
    budget: int = 2048
    blocks: int = 10_000
    block: int = 32
    caching: bool = False
    remembers: bool = True
    gap: int = MS // 2
    out: int = MS // 2
    cost: Callable[[int, int, int], int] = lambda prompt, rows, step: 4 * MS + prompt * MS // 8 + rows * MS // 10
    steps: list[Step] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    waiting: list[Call] = field(default_factory=list)
    running: list[Call] = field(default_factory=list)
    free: int = 0
    preemptions: int = 0
    cached: set[tuple[int, ...]] = field(default_factory=set)

    def serve(self, calls: Sequence[Call]) -> Engine:
        """Serves all requests, step by step."""
        self.calls = list(calls)
        self.free = self.blocks - 1
        for one in self.calls:
            one.arrived = one.sent + one.front
            one.goal = one.prompt
        coming = sorted(self.calls, key=lambda one: one.arrived)
        clock = 0
        while coming or self.waiting or self.running:
            if not self.waiting and not self.running:
                clock = max(clock, coming[0].arrived)
            while coming and coming[0].arrived <= clock:
                self.waiting.append(coming.pop(0))
                self.waiting[-1].seen = clock
            plan, budget, lost = self.go_on()
            if not lost:
                plan += self.admit(budget, clock)
            step = Step(clock, 0)
            prompt = sum(tokens for one, tokens in plan if not one.token_at or tokens > 1)
            clock += self.cost(prompt, len(plan), len(self.steps))
            step.end = clock
            for one, tokens in plan:
                self.emit(one, tokens, step)
            step.used = self.blocks - 1 - self.free
            self.steps.append(step)
            clock += self.gap
        return self

    def go_on(self) -> tuple[list[tuple[Call, int]], int, bool]:
        """Running requests with their tokens, what is left of the budget, and whether one was thrown out."""
        budget, plan, lost, at = self.budget, [], False, 0
        while at < len(self.running) and budget:
            one = self.running[at]
            tokens = min(one.goal - one.computed, budget)
            want = -(-(one.computed + tokens) // self.block) - one.blocks
            while want > self.free and one in self.running:
                self.throw_out(self.running.pop())
                lost = True
            if one not in self.running:
                break
            self.free -= want
            one.blocks += want
            plan.append((one, tokens))
            budget -= tokens
            at += 1
        return plan, budget, lost

    def throw_out(self, victim: Call) -> None:
        self.free += victim.blocks
        victim.blocks = victim.computed = 0
        victim.preemptions += 1
        self.preemptions += 1
        self.waiting.insert(0, victim)

    def admit(self, budget: int, clock: int) -> list[tuple[Call, int]]:
        """Waiting requests that may run from now on, with their tokens."""
        plan = []
        while self.waiting and budget and len(self.running) < self.max_num_seqs:
            one = self.waiting[0]
            if -(-one.goal // self.block) > self.free:
                break
            hit = self.hit(one) if self.caching and not one.computed else 0
            tokens = min(one.goal - hit, budget)
            one.computed = hit
            if one.first_step < 0:
                one.hits, one.first_step = hit, len(self.steps)
                one.queued, one.step_wait = clock - one.seen, one.seen - one.arrived
            one.blocks = -(-(hit + tokens) // self.block)
            self.free -= one.blocks
            self.running.append(self.waiting.pop(0))
            plan.append((one, tokens))
            budget -= tokens
            if self.caching and self.remembers:
                self.remember(one, hit + tokens)
        return plan

    def emit(self, one: Call, tokens: int, step: Step) -> None:
        """Counts a request's tokens of a step, and lets it emit one where its prompt is complete."""
        if one.token_at:
            step.generating += 1
            step.generated += tokens
        else:
            step.context += 1
            step.context_tokens += tokens
        one.steps[len(self.steps)] = tokens
        one.computed += tokens
        if one.computed < one.goal:
            return
        one.goal += 1
        one.token_at.append(step.end + self.out)
        if len(one.token_at) >= one.output:
            self.free += one.blocks
            one.blocks = 0
            self.running.remove(one)

    def keys(self, one: Call) -> list[tuple[int, ...]]:
        each = self.block // BLOCK_HASH
        return [tuple(one.ids[: (n + 1) * each]) for n in range(min(len(one.ids), one.prompt // BLOCK_HASH) // each)]

    def hit(self, one: Call) -> int:
        hits = 0
        for key in self.keys(one)[: (one.prompt - 1) // self.block]:
            if key not in self.cached:
                break
            hits += self.block
        return hits

    def remember(self, one: Call, computed: int) -> None:
        self.cached.update(self.keys(one)[: min(computed, one.prompt) // self.block])

    # files

    def log(self, extra: str = "") -> str:
        caching = self.caching
        head = (
            "(APIServer pid=1) INFO 11-28 11:51:54 [api_utils.py:286] non-default args: {'model': '/secret/model', "
            f"'api_key': ['sk-secret'], 'max_num_seqs': {self.max_num_seqs}, 'block_size': {self.block}, "
            f"'max_num_batched_tokens': {self.budget}, 'num_gpu_blocks_override': {self.blocks}{extra}}}\n"
            "(EngineCore pid=2) INFO 11-28 11:52:13 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: "
            f"model='/secret/model', speculative_config=None, device_config=cpu, enforce_eager=True, "
            f"enable_prefix_caching={caching}\n"
        )
        usable = self.blocks - 1
        return head + "".join(
            f"(APIServer pid=1) INFO 11-28 11:52:43 [loggers.py:199] Engine 000: Iteration({number + 7}): "
            f"{one.context} context requests, {one.context_tokens} context tokens, {one.generating} generation "
            f"requests, {one.generated} generation tokens, iteration elapsed time: {(one.end - one.begin) / MS:.2f} "
            f"ms, CPU KV cache usage: {100 * one.used / usable:.1f}%\n"
            for number, one in enumerate(self.steps)
        )

    def bench(self, **more: object) -> str:
        last = [[(b - a) / 1e9 for a, b in zip(one.token_at, one.token_at[1:], strict=False)] for one in self.calls]
        body = {
            "date": "20261128-115302",
            "backend": "openai",
            "model_id": "/secret/model",
            "num_prompts": len(self.calls),
            "max_concurrency": None,
            "total_input_tokens": sum(one.prompt for one in self.calls),
            "input_lens": [one.prompt for one in self.calls],
            "output_lens": [one.output for one in self.calls],
            "ttfts": [(one.token_at[0] - one.sent) / 1e9 for one in self.calls],
            "itls": last,
            "latencies": [(one.token_at[-1] - one.sent) / 1e9 for one in self.calls],
            "start_times": [one.sent / 1e9 for one in self.calls],
            "queue_times": [one.gate / 1e9 for one in self.calls],
            "generated_texts": ["the secret text"] * len(self.calls),
            "errors": [""] * len(self.calls),
        }
        return json.dumps(body | more)

    def arrivals(self) -> str:
        first = min(one.due for one in self.calls)
        return "".join(
            json.dumps(
                {
                    "timestamp": (one.due - first) / 1e9,
                    "input_length": one.prompt,
                    "output_length": one.output,
                    "hash_ids": one.ids,
                }
            )
            + "\n"
            for one in self.calls
        )

    def spans(self) -> str:
        rows = []
        for number, one in enumerate(self.calls):
            begin = self.steps[one.first_step].begin
            first, last = one.token_at[0] - self.out, one.token_at[-1] - self.out
            values = {
                "e2e": last + self.out // 2 - (one.sent + one.front // 2),
                "time_to_first_token": first - one.sent,
                "time_in_queue": one.queued,
                "time_in_model_prefill": first - begin,
                "time_in_model_decode": last - first,
                "time_in_model_inference": last - begin,
            }
            attributes = [
                {"key": f"gen_ai.latency.{key}", "value": {"doubleValue": value / 1e9}} for key, value in values.items()
            ]
            attributes += [
                {"key": "gen_ai.usage.prompt_tokens", "value": {"intValue": str(one.prompt)}},
                {"key": "gen_ai.usage.completion_tokens", "value": {"intValue": str(one.output)}},
                {"key": "gen_ai.request.id", "value": {"stringValue": f"cmpl-secret-{number}-0"}},
                {"key": "gen_ai.prompt", "value": {"stringValue": "the secret prompt"}},
            ]
            came = str(WALL_NS + one.sent + one.front // 2)
            rows.append({"traceId": "x", "name": "llm_request", "startTimeUnixNano": came, "attributes": attributes})
        return "".join(json.dumps(row) + "\n" for row in rows)

    def metrics(self, *, done: bool = True, cpu: float = 1.0, more: str = "", engines: Sequence[int] = ()) -> str:
        scale = 1 if done else 0
        calls = self.calls
        hits = sum(one.hits for one in calls)
        began = {id(one): self.steps[one.first_step].begin for one in calls}
        times = {
            "e2e_request_latency": [one.token_at[-1] - self.out // 2 - (one.sent + one.front // 2) for one in calls],
            "request_prefill_time": [one.token_at[0] - self.out - began[id(one)] for one in calls],
            "request_decode_time": [one.token_at[-1] - one.token_at[0] for one in calls],
        }
        counted = {
            "num_preemptions_total": self.preemptions,
            "prefix_cache_hits_total": hits,
            "prefix_cache_queries_total": sum(one.prompt for one in calls),
            "time_to_first_token_seconds_sum": sum(one.token_at[0] - one.sent for one in calls) / 1e9,
            "time_to_first_token_seconds_count": len(calls),
            "request_queue_time_seconds_sum": sum(one.queued for one in calls) / 1e9,
            "request_queue_time_seconds_count": len(calls),
            "prompt_tokens_total": sum(one.prompt for one in calls),
            "generation_tokens_total": sum(one.output for one in calls),
        }
        for key, spent in times.items():
            counted |= {f"{key}_seconds_sum": sum(spent) / 1e9, f"{key}_seconds_count": len(calls)}
        lines = ["# HELP vllm:x y", "# TYPE vllm:x counter", "process_start_time_seconds 5.0"]
        lines.append(f"process_cpu_seconds_total {1 + cpu * scale}")
        lines += [
            f'vllm:{key}{{engine="0",model_name="/secret/model"}} {value * scale}' for key, value in counted.items()
        ]
        for number, count in enumerate(engines or [len(calls)]):
            lines.append(f'vllm:request_success_total{{engine="{number}",model_name="m"}} {count * scale}')
        lines.append(
            f'vllm:cache_config_info{{block_size="{self.block}",num_gpu_blocks="{self.blocks}",'
            f'enable_prefix_caching="{self.caching}"}} 1.0'
        )
        return "\n".join(lines) + "\n" + (more if done else "")

    def write(self, folder: Path, *, spans: bool = False, extra: str = "", **more: object) -> Path:
        """The files of the run: names say nothing, and some are packed."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "a").write_bytes(gzip.compress(self.log(extra).encode()))
        (folder / "b").write_text(self.bench(**more))
        (folder / "c").write_text(self.arrivals())
        (folder / "d").write_bytes(gzip.compress(self.metrics(done=False).encode()))
        (folder / "e").write_text(self.metrics())
        if spans:
            (folder / "f").write_text(self.spans())
        return folder


def steady(count: int = 60, *, gap: int = 60 * MS, prompt: int = 96, output: int = 20) -> list[Call]:
    """Requests at even distances; sizes differ from one to the next."""
    return [
        Call(number * gap, prompt + number % 7 * 8, output + number % 5 * 4, ids=[number * 1000 + k for k in range(20)])
        for number in range(count)
    ]
