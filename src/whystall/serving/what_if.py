"""The answer to "how would the same load run with other settings?", or the sentence that says why there is none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from whystall.diagnosis.units import duration
from whystall.serving.engine import MOST_EVENTS
from whystall.serving.folder import read_run
from whystall.serving.predictions import Prediction, Replayer, SelfCheck
from whystall.serving.records import SGLANG
from whystall.serving.replay import fits
from whystall.serving.run_analysis import Analysis, analyze_run
from whystall.serving.server import Server, changed_server
from whystall.trace.files import Limits

__all__ = ["SCHEMA", "Answer", "answer", "ask", "changed_server"]

SCHEMA: Final = "whystall.serving-what-if/1"
"""The name of the answer's form as JSON."""
_BEYOND: Final = 1.5
"""Times the largest recorded step from which on a cost is called extrapolated. Chosen: the model is a line, and up to
half as far again it bends little (attention, padding)."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The prediction beside the replay of the same run; without a ``prediction`` the headline says why.

    A metric that the replay misses in its own run is not in the prediction.
    """

    headline: str
    change: str
    sources: tuple[str, ...]
    requests: int
    check: SelfCheck | None
    prediction: Prediction | None
    notes: tuple[str, ...]


def ask(paths: list[Path], changes: Mapping[str, int | bool], limits: Limits | None = None) -> Answer:
    """The answer for the files of a run. Raises `InputError` where none of them is of a kind that is read."""
    return answer(analyze_run(read_run(paths, limits)), changes)


def answer(analysis: Analysis, changes: Mapping[str, int | bool]) -> Answer:
    """The answer for a run; ``changes`` are settings by their flag."""
    change = " ".join(_flag(name, value) for name, value in changes.items())
    replayer = Replayer(analysis) if any(analysis.placed) else None
    check = None if replayer is None else replayer.check
    prediction = None
    if replayer is None or check is None:
        headline = _without_replay(analysis)
    elif not check.is_trusted:
        headline = _too_far_off(check)
    else:
        server = changed_server(replayer.server, changes)
        headline = _refusal(replayer, server, change)
        found = None if headline else replayer.predict(change, server=server)
        if found is not None:
            prediction = check.trusted_part(found)
            headline = _headline(prediction, check)
    run = analysis.run
    notes = (
        *run.notes,
        *analysis.notes,
        *(() if replayer is None or prediction is None else _notes(replayer, analysis, changes, prediction)),
    )
    return Answer(
        headline or f"No answer: the replay with {change} is too long (more than {MOST_EVENTS:,} events).",
        change,
        run.sources,
        len(analysis.ledgers),
        check,
        prediction,
        notes,
    )


def _flag(name: str, value: int | bool) -> str:
    if isinstance(value, bool):
        return name if value else name.replace("--", "--no-", 1)
    return f"{name} {value}"


def _without_replay(analysis: Analysis) -> str:
    """The reason why nothing can be replayed: the first that holds."""
    run, engines = analysis.run, analysis.run.engines
    reasons = (
        (
            analysis.settings.server == SGLANG,
            (
                "the replay has vLLM's scheduler and needs each step, and SGLang's log has every prefill and few of "
                "the decodes"
            ),
        ),
        (engines > 1, f"the log is of {engines} engines, and the replay has one"),
        (
            run.iterations is None,
            (
                "the replay takes the cost of a step from the server's log, and no line of a step is here. Start the "
                "server with --enable-logging-iteration-details, and repeat the load"
            ),
        ),
        (
            run.client is None,
            "no file names single requests; put the result of the load's client beside these files",
        ),
        (
            analysis.is_partial,
            (
                "the server scheduled asynchronously, and its log has only the blocked part of each step. A client's "
                "result with each token's time (vllm bench serve --save-detailed) gives the rest, or a recording with "
                "--no-async-scheduling"
            ),
        ),
        (not any(analysis.placed), "the steps in the log do not follow from the requests of the client"),
        (True, "the run has too few steps, too many requests or events, or no times of sending for a replay"),
    )
    return f"No answer: {next(reason for holds, reason in reasons if holds)}."


def _too_far_off(check: SelfCheck) -> str:
    e2e = check.metric("e2e", 50)
    return (
        f"No answer: the replay of the run as it was is {check.error:.0%} off ({duration(e2e.after_ns)} for the median "
        f"request, measured {duration(e2e.before_ns)}), too far to say something about another setting."
    )


def _refusal(replayer: Replayer, server: Server, change: str) -> str:
    """The reason why this change has no answer, or nothing."""
    if server == replayer.server:
        return f"No change: this run already had {change}."
    if server.prefix_caching and not replayer.server.prefix_caching and not any(replayer.block_ids):
        return (
            "No answer: nothing says which prompts begin alike. The file of the intended arrivals has it, if it names "
            "blocks of tokens (hash_ids)."
        )
    seqs, tokens = server.max_num_seqs, server.max_num_batched_tokens
    if seqs is not None and tokens is not None and tokens < seqs:
        return f"No answer: vLLM does not start with --max-num-batched-tokens {tokens:,} below --max-num-seqs {seqs:,}."
    if not fits(replayer.loads, server):
        return f"No answer: with {change} a request of this load never gets all blocks that it needs."
    return ""


def _headline(prediction: Prediction, check: SelfCheck) -> str:
    e2e, measured = prediction.metric("e2e", 50), check.metric("e2e", 50).before_ns
    return (
        f"With {prediction.change} the replay predicts {duration(e2e.after_ns)} ({duration(e2e.low_ns)} to "
        f"{duration(e2e.high_ns)}) for the median request, against {duration(e2e.before_ns)} without the change "
        f"(measured: {duration(measured)})."
    )


def _notes(
    replayer: Replayer, analysis: Analysis, changes: Mapping[str, int | bool], prediction: Prediction
) -> Iterator[str]:
    """The limits of an answer."""
    if analysis.settings.async_scheduling:
        yield "the server scheduled asynchronously, and the replay does not: it is late by up to a step"
    client = analysis.run.client
    if client is not None and client.max_concurrency:
        if replayer.server.max_concurrency is None:
            yield (
                f"the client kept to {client.max_concurrency:,} requests at a time, and its recorded waits do not "
                "explain when it sent them: the replay keeps the recorded times, which another setting would move"
            )
        elif "--max-concurrency" not in changes:
            yield f"the replay keeps the client's limit of {client.max_concurrency:,} requests at a time"
    if "--max-concurrency" in changes:
        yield "these times begin when the client sends a request: they contain no wait in the client"
    if "--num-gpu-blocks-override" in changes:
        yield "the replay does not check whether the device has memory for these blocks"
    yield from _beyond(analysis, prediction)


def _beyond(analysis: Analysis, prediction: Prediction) -> Iterator[str]:
    """Steps that are larger than any of the recording: their cost is a guess by the line through the others."""
    steps = analysis.run.iterations
    if steps is None:
        return
    sequences = int((steps.context_requests + steps.generation_requests).max())
    tokens = int((steps.context_tokens + steps.generation_tokens).max())
    if prediction.most_sequences > _BEYOND * sequences:
        yield (
            f"the replay has steps of up to {prediction.most_sequences:,} requests, the recording has at most "
            f"{sequences:,}: the cost of larger steps is extrapolated"
        )
    if prediction.most_tokens > _BEYOND * tokens:
        yield (
            f"the replay has steps of up to {prediction.most_tokens:,} tokens, the recording has at most {tokens:,}: "
            "the cost of larger steps is extrapolated"
        )
