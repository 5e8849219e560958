"""From the records of a served run to its ledgers: the facts that rules, replay and reports share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from whystall.serving.membership import Asked, Membership, Placed, reconstruct
from whystall.serving.prefix_cache import PrefixCache
from whystall.serving.records import SGLANG, Arrival, ClientRequest, Iterations, ServedRun, ServerRequest, Settings
from whystall.serving.request_ledger import Engine, RequestLedger, ledger_of
from whystall.serving.server_means import ServerMeans, server_means
from whystall.serving.step_ledger import StepLedger, alive_after, ledger_of_steps
from whystall.serving.step_model import Floats, StepModel, context_tokens, fit, prompt_pairs, usual_ns
from whystall.serving.timeline import Timeline, from_token_to_token, place_steps

__all__ = ["Analysis", "analyze_run"]

_MOST_MISMATCHED: Final = 0.02
"""Share of step lines that may stay unexplained before requests are not placed at all: then every ledger would be
built on steps that are not its own. All 20,741 steps of thirteen runs of vLLM 0.32 are explained."""
_CPU_SEQS: Final = 128
_CPU_TOKENS: Final = 2048
"""Defaults of ``vllm serve`` on the CPU platform, 0.32 (`engine/arg_utils.py`). On GPUs they depend on the memory."""
_OFTEN: Final = 3  # largest steps of equal size, which chance does not make
_KNOWN_STEPS: Final = 0.9
"""Share of steps that need a token's time before tokens say when each step ended. Chosen: neighbours then bound the
end of each other step, and nine of ten durations that the model is fitted to are measured."""
_PARTIAL: Final = (
    "the server scheduled asynchronously, and its log has only the blocked part of each step: the other part counts as "
    "engine between steps here, and the cost of a step is too small. A client's result with each token's time "
    "(vllm bench serve --save-detailed) shows when steps ended"
)
_BY_TOKENS: Final = (
    "the server scheduled asynchronously, and its log has only the blocked part of each step: a step lasts from one "
    "token to the next here, by the client's clock"
)
_FULL_CACHE: Final = 900  # permille of blocks; below it nothing is preempted


@dataclass(frozen=True, slots=True)
class Analysis:
    """A served run with its ledgers. ``placed``, ``spans`` and ``blocks`` stand beside the client's requests.

    ``usual_ns`` are the model's durations of all steps, ``means`` those of requests where no file names single ones.
    With ``is_partial`` the steps' durations are only the part in which an asynchronous scheduler was blocked.
    """

    run: ServedRun
    settings: Settings
    ledgers: tuple[RequestLedger, ...]
    membership: Membership | None = None
    placed: tuple[Placed | None, ...] = ()
    timeline: Timeline | None = None
    model: StepModel | None = None
    steps: StepLedger | None = None
    spans: tuple[ServerRequest | None, ...] = ()
    blocks: tuple[tuple[int, ...], ...] = ()
    usual_ns: Floats | None = None
    engine: Engine | None = None
    means: ServerMeans | None = None
    notes: tuple[str, ...] = ()
    is_partial: bool = False


def analyze_run(run: ServedRun) -> Analysis:
    """The ledgers of all requests and steps, as far as the sources go."""
    notes: list[str] = []
    settings = _with_observed(_with_defaults(run.settings), run, notes)
    requests = run.client.requests if run.client is not None else ()
    spans = _joined(requests, run.spans)
    steps = _usable(run, notes)
    membership, timeline, model, usual = None, None, None, None
    is_partial = False
    placed: tuple[Placed | None, ...] = (None,) * len(requests)
    blocks = _blocks(run, PrefixCache(settings.block_tokens))
    if steps is not None:
        membership, placed = _membership(run, steps, settings, blocks, notes)
        timeline = place_steps(steps.elapsed_ns, requests, placed) if any(placed) else None
        is_partial = bool(settings.async_scheduling)
        if is_partial and timeline is not None and timeline.known >= _KNOWN_STEPS:
            timeline = from_token_to_token(timeline, alive_after(len(steps), placed)[:-1] > 0)
            steps = replace(steps, elapsed_ns=timeline.end_ns - timeline.start_ns)
            run, is_partial = replace(run, iterations=steps), False
        if settings.async_scheduling:
            notes.append(_PARTIAL if is_partial else _BY_TOKENS)
        composition = _composition(steps, requests, placed)
        model = fit(steps, *composition)
        usual = None if model is None else usual_ns(model, steps, *composition)
    engine = Engine(steps, timeline, model, settings, placed) if steps is not None and timeline is not None else None
    ledgers = tuple(
        ledger_of(index, request, placed=one, span=span, engine=engine)
        for index, (request, one, span) in enumerate(zip(requests, placed, spans, strict=True))
    )
    return Analysis(
        run,
        settings,
        ledgers,
        membership,
        placed,
        timeline,
        model,
        None if steps is None else ledger_of_steps(steps, timeline, placed),
        spans,
        blocks,
        usual,
        engine,
        None if ledgers else server_means(run),
        tuple(notes),
        is_partial,
    )


def _composition(
    steps: Iterations, requests: Sequence[ClientRequest], placed: tuple[Placed | None, ...]
) -> tuple[Floats | None, Floats | None]:
    """Context tokens and prompt pairs of each step; ``None`` where requests are not placed."""
    if not any(placed):
        return None, None
    context = context_tokens(len(steps), [one.input_tokens for one in requests], placed)
    return context, prompt_pairs(len(steps), placed)


def _with_defaults(settings: Settings) -> Settings:
    """The settings, with the defaults of the platform where the log names it."""
    if settings.device != "cpu" or settings.server == SGLANG:
        return settings
    return replace(
        settings,
        max_num_seqs=settings.max_num_seqs or _CPU_SEQS,
        max_num_batched_tokens=settings.max_num_batched_tokens or _CPU_TOKENS,
    )


def _with_observed(settings: Settings, run: ServedRun, notes: list[str]) -> Settings:
    """The settings, with limits that the log shows: the requests of a step while others wait, and a full budget."""
    steps = run.iterations
    if steps is None:
        return settings
    running, tokens = steps.context_requests + steps.generation_requests, steps.context_tokens + steps.generation_tokens
    found: dict[str, int] = {}
    most = int(running.max())
    if settings.max_num_seqs is None and (most, True) in {(now, waiting > 0) for now, waiting in run.waiting}:
        found["max_num_seqs"] = most
    if settings.max_num_batched_tokens is None and int((tokens == tokens.max()).sum()) >= _OFTEN:
        found["max_num_batched_tokens"] = int(tokens.max())
    for name, value in found.items():
        notes.append(f"--{name.replace('_', '-')} is not in the log's settings: {value:,} is what its steps kept to")
    return replace(
        settings,
        max_num_seqs=found.get("max_num_seqs", settings.max_num_seqs),
        max_num_batched_tokens=found.get("max_num_batched_tokens", settings.max_num_batched_tokens),
    )


def _usable(run: ServedRun, notes: list[str]) -> Iterations | None:
    if run.iterations is None:
        return None
    if run.engines > 1:
        notes.append(
            f"the log is of {run.engines} engines, and a client does not know which one served a request: "
            "requests are not placed in steps"
        )
        return None
    return run.iterations


def _membership(
    run: ServedRun,
    steps: Iterations,
    settings: Settings,
    blocks: Sequence[tuple[int, ...]],
    notes: list[str],
) -> tuple[Membership | None, tuple[Placed | None, ...]]:
    """The membership, and the steps of each of the client's requests, in the client's order."""
    requests = run.client.requests if run.client is not None else ()
    if not requests:
        return None, ()
    order = _admission_order(requests)

    def played(more_tokens: int) -> Membership:
        asked = [
            Asked(requests[i].input_tokens + more_tokens, requests[i].output_tokens, blocks[i] if blocks else ())
            for i in order
        ]
        cache = PrefixCache(settings.block_tokens if settings.prefix_caching else None)
        budget, may_preempt = settings.max_num_batched_tokens, _may_preempt(run, steps)
        return reconstruct(steps, asked, budget=budget, may_preempt=may_preempt, cache=cache)

    found = played(0)
    template = _template_tokens(steps, requests)
    if found.mismatched > _MOST_MISMATCHED * found.steps and template:
        found = played(template)
        notes.append(f"the server's prompts have {template:,} tokens more than the client counts: a chat template's")
    if found.mismatched > _MOST_MISMATCHED * found.steps:
        notes.append(
            f"{found.mismatched:,} of {found.steps:,} step lines do not follow from the client's requests: other "
            "clients, other lengths of prompts, speculation, or another scheduler. Requests are not placed in steps"
        )
        return found, (None,) * len(requests)
    placed: list[Placed | None] = [None] * len(requests)
    for index, one in zip(order, found.placed, strict=True):
        placed[index] = one
    return found, tuple(placed)


def _template_tokens(steps: Iterations, requests: Sequence[ClientRequest]) -> int:
    """Tokens that each prompt has more at the server than at the client; 0 where it is no whole number."""
    more = int(steps.context_tokens.sum()) - sum(one.input_tokens for one in requests)
    return more // len(requests) if more > 0 and more % len(requests) == 0 else 0


def _admission_order(requests: Sequence[ClientRequest]) -> list[int]:
    """The places of requests in the order of their admission: by first token, by sending, by place in the file.

    A request without times, as in a file that was cut, follows the one before it in the file.
    """
    keys: list[tuple[int, int, int]] = []
    last = (0, 0)
    for index, one in enumerate(requests):
        if one.first_token_ns is not None and one.sent_ns is not None:
            last = (one.first_token_ns, one.sent_ns)
        keys.append((*last, index))
    return sorted(range(len(requests)), key=keys.__getitem__)


def _blocks(run: ServedRun, cache: PrefixCache) -> tuple[tuple[int, ...], ...]:
    """The full blocks of each request's prompt, where the arrivals are of the same requests."""
    if run.client is None or not _same(run.client.requests, run.client.positions, run.arrivals):
        return ()
    return tuple(tuple(cache.blocks(run.arrivals[place].block_ids)) for place in run.client.positions)


def _same(requests: Sequence[ClientRequest], places: Sequence[int], arrivals: Sequence[Arrival]) -> bool:
    return (
        bool(places)
        and places[-1] < len(arrivals)
        and all(
            request.input_tokens == arrivals[place].input_tokens
            for request, place in zip(requests, places, strict=True)
        )
    )


def _may_preempt(run: ServedRun, steps: Iterations) -> bool:
    """Whether requests were preempted: by the counter, or else if the cache was ever nearly full."""
    counted = run.counted("num_preemptions")
    return counted > 0 if counted is not None else bool(np.max(steps.kv_permille) >= _FULL_CACHE)


def _joined(requests: Sequence[ClientRequest], spans: Sequence[ServerRequest]) -> tuple[ServerRequest | None, ...]:
    """The span of each request. Ids end in the client's number (`cmpl-<prefix><i>-0`), or are the client's own.

    Spans of other clients may have the same numbers: the prefix that joins most requests is the client's.
    """
    if not spans:
        return (None,) * len(requests)
    by_prefix: dict[str, dict[str, ServerRequest]] = {}
    for span in spans:
        prefix, _, number = _without_choice(span.key).rpartition("-")
        by_prefix.setdefault(prefix, {})[number] = span
        by_prefix.setdefault("", {})[_without_choice(span.key)] = span
    by_order = _in_order(requests, spans)
    if by_order is not None:
        return by_order
    keys = [request.key or "" for request in requests]
    best = max(
        by_prefix.values(),
        key=lambda one: sum(_fits(one.get(key), request) for key, request in zip(keys, requests, strict=True)),
    )
    found = (best.get(key) for key in keys)
    return tuple(span if _fits(span, request) else None for span, request in zip(found, requests, strict=True))


def _in_order(
    requests: Sequence[ClientRequest], spans: Sequence[ServerRequest]
) -> tuple[ServerRequest | None, ...] | None:
    """The span of each request where ids say nothing (SGLang): both in their order, if all sizes agree."""
    if len(requests) != len(spans) or not all(span.key.startswith(f"{SGLANG}:") for span in spans):
        return None
    if any(request.sent_ns is None for request in requests):
        return None
    places = sorted(range(len(requests)), key=lambda place: (requests[place].sent_ns or 0, place))
    pairs = dict(zip(places, sorted(spans, key=lambda span: span.arrived_ns), strict=True))
    if not all(_fits(span, requests[place]) for place, span in pairs.items()):
        return None
    return tuple(pairs[place] for place in range(len(requests)))


def _without_choice(key: str) -> str:
    """The id without the number of the choice at its end."""
    body, _, choice = key.rpartition("-")
    return body if choice == "0" and body else key


def _fits(span: ServerRequest | None, request: ClientRequest) -> bool:
    """Whether a span is that of a request by their sizes: the server may count a template's tokens, too."""
    if span is None:
        return False
    return span.input_tokens >= request.input_tokens and span.output_tokens == request.output_tokens
