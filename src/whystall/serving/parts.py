"""The parts of a request's time, in the order in which they occur, and the sources that split them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from whystall.serving.records import SGLANG

__all__ = ["TITLES", "Part", "residuals"]


class Part(StrEnum):
    """A part of the time from the intended send to the last token."""

    LATE_SEND = "late_send"
    CLIENT_GATE = "client_gate"
    HTTP = "http"
    FRONT = "front"
    HTTP_AND_FRONT = "http_and_front"
    BEFORE_FIRST_TOKEN = "before_first_token"  # noqa: S105 - a token of text
    FRONT_AND_STEP_WAIT = "front_and_step_wait"
    STEP_WAIT = "step_wait"
    QUEUE = "queue"
    PREFILL = "prefill"
    OWN_PREFILL = "own_prefill"
    OTHERS_PREFILL = "others_prefill"
    DECODE = "decode"
    ENGINE_GAP = "engine_gap"
    PREEMPTED = "preempted"
    RECOMPUTE = "recompute"
    GENERATION = "generation"
    AFTER_FIRST_TOKEN = "after_first_token"  # noqa: S105 - a token of text
    OUTPUT = "output"


TITLES: Final = {
    Part.LATE_SEND: "late send by the client",
    Part.CLIENT_GATE: "client's own limit of requests",
    Part.HTTP: "HTTP, both ways",
    Part.FRONT: "front: parse, render, tokenize",
    Part.HTTP_AND_FRONT: "HTTP and front",
    Part.BEFORE_FIRST_TOKEN: "until the first token",
    Part.FRONT_AND_STEP_WAIT: "front and wait for the running step",
    Part.STEP_WAIT: "wait for the running step",
    Part.QUEUE: "queue of the scheduler",
    Part.PREFILL: "prefill steps, own and others'",
    Part.OWN_PREFILL: "own prefill",
    Part.OTHERS_PREFILL: "prefill of other requests",
    Part.DECODE: "decode steps",
    Part.ENGINE_GAP: "engine between steps",
    Part.PREEMPTED: "preempted, waiting again",
    Part.RECOMPUTE: "recomputed after preemption",
    Part.GENERATION: "generation, all steps",
    Part.AFTER_FIRST_TOKEN: "after the first token",
    Part.OUTPUT: "output on its way to the client",
}

_STEPS: Final = "--enable-logging-iteration-details"
_SPANS: Final = "--otlp-traces-endpoint"
_VLLM: Final = {
    Part.HTTP_AND_FRONT: _SPANS,
    Part.BEFORE_FIRST_TOKEN: f"{_STEPS} and {_SPANS}",
    Part.FRONT_AND_STEP_WAIT: _STEPS,
    Part.PREFILL: _STEPS,
    Part.GENERATION: _STEPS,
    Part.AFTER_FIRST_TOKEN: _STEPS,
}
_EXPORT: Final = "--enable-metrics and --export-metrics-to-file"
_SGLANG: Final = {Part.BEFORE_FIRST_TOKEN: _EXPORT, Part.AFTER_FIRST_TOKEN: _EXPORT}


def residuals(server: str | None) -> Mapping[Part, str]:
    """Parts that the sources at hand do not split, with the flag of that server that records what splits them."""
    return _SGLANG if server == SGLANG else _VLLM
