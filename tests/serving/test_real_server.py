"""``whystall serve run`` on a real vLLM: healthy, and with a fault each, whose cause must stand first.

`make serving-test` runs them: two minutes on two cores. A tiny random model is built from its configuration; nothing is
fetched, and the servers listen on loopback alone.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

VLLM = Path(__file__).parents[2] / ".venv-serving" / "bin" / "vllm"
pytestmark = pytest.mark.skipif(
    os.environ.get("WHYSTALL_REAL_SERVER") != "1" or not VLLM.is_file(),
    reason="`make serving-test` starts real servers",
)

MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 384,
    "intermediate_size": 1024,
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "vocab_size": 1000,
    "max_position_embeddings": 2048,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
SLOW = """\
import time
from vllm.v1.sample.logits_processor import LogitsProcessor

class SlowProcessor(LogitsProcessor):
    def __init__(self, vllm_config, device, is_pin_memory): pass
    def is_argmax_invariant(self): return False
    def update_state(self, batch_update): pass
    def apply(self, logits):
        time.sleep(0.012)
        return logits
"""
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
START_S = 150.0


@dataclass(frozen=True)
class Case:
    """A server's flags, a load (requests, prompt and output tokens, requests a second), and the cause to find first."""

    name: str
    flags: Sequence[str]
    load: tuple[int, int, int, float]
    cause: str | None


CASES = (
    Case("healthy", (), (30, 60, 20, 6.0), None),
    Case("few-places", ("--max-num-seqs", "1"), (40, 60, 20, 20.0), "sched.max-num-seqs"),
    Case(
        "small-cache",
        ("--max-model-len", "512", "--block-size", "32", "--num-gpu-blocks-override", "20"),
        (40, 60, 100, 20.0),
        "kv.pressure",
    ),
    Case("small-budget", ("--max-num-batched-tokens", "32"), (12, 640, 10, 2.0), "sched.budget-small"),
    Case("slow-processor", ("--logits-processors", "slow:SlowProcessor"), (24, 60, 20, 5.0), "host.logits-processor"),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_cause_stands_first(tmp_path: Path, case: Case) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(MODEL))
    (tmp_path / "slow.py").write_text(SLOW)
    port = _free_port()
    served = [str(VLLM), "serve", "./model", "--skip-tokenizer-init", "--load-format", "dummy", "--dtype", "bfloat16"]
    served += ["--enforce-eager", "--max-model-len", "2048", "--host", "127.0.0.1", "--port", str(port)]
    served += ["--served-model-name", "tiny", *case.flags]
    environment = os.environ | ENVIRONMENT | {"PYTHONPATH": str(tmp_path)}
    out, err = tmp_path / "out.txt", tmp_path / "err.txt"
    with out.open("wb") as output, err.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "whystall", "serve", "run", "-o", "run", "--", *served],
            cwd=tmp_path,
            env=environment,
            stdout=output,
            stderr=errors,
            start_new_session=True,
        )
        try:
            _until_it_serves(process, port, tmp_path / "run" / "serve-metrics-before.txt")
            _send(port, *case.load)
            time.sleep(2.2)  # spans leave the server once a second, and /metrics is read as often
            os.killpg(process.pid, signal.SIGINT)
            code = process.wait(60)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    said = err.read_text("utf-8", "replace")
    requests = case.load[0]

    assert code == 0
    assert b"Iteration(" not in out.read_bytes()
    assert b"GET /metrics" not in out.read_bytes()
    assert f"{requests} of {requests} requests are placed" in said
    with_spans = _report(tmp_path / "run")
    assert _first(with_spans) == case.cause
    assert with_spans["headline"] in " ".join(said.split())
    assert with_spans["requests"] == requests
    assert with_spans["placement"]["mismatched_steps"] == 0
    (tmp_path / "run" / "serve-spans.jsonl").unlink()
    without = _report(tmp_path / "run")
    assert _first(without) == case.cause
    assert without["server_means"]["requests"] == requests
    mean_ns = sum(one["total_ns"] for one in with_spans["ledgers"]) / requests
    assert without["server_means"]["total_ns"] == pytest.approx(mean_ns, rel=0.02)
    shutil.rmtree(tmp_path / "run")


def _report(folder: Path) -> dict[str, Any]:
    words = [sys.executable, "-m", "whystall", "serve", "report", str(folder), "--json"]
    found = json.loads(subprocess.run(words, capture_output=True, check=True).stdout)
    assert isinstance(found, dict)
    return found


def _first(report: dict[str, Any]) -> str | None:
    return report["findings"][0]["cause"]["id"] if report["findings"] else None


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _until_it_serves(process: subprocess.Popen[bytes], port: int, reading: Path) -> None:
    end = time.monotonic() + START_S
    while not reading.exists():
        assert process.poll() is None, "the server did not start"
        assert time.monotonic() < end, f"no /metrics on port {port}"
        time.sleep(0.1)


def _send(port: int, requests: int, prompt: int, output: int, rate: float) -> None:
    """Sends the load at its rate, each request on a thread of its own, and waits for all answers."""
    draw = random.Random(1)  # noqa: S311 - tokens of a prompt
    prompts = [[draw.randrange(5, 999) for _ in range(prompt)] for _ in range(requests)]
    status: list[int] = []

    def ask(tokens: list[int]) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        body = {"model": "tiny", "prompt": tokens, "max_tokens": output, "ignore_eos": True, "temperature": 0}
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        answer.read()
        connection.close()
        status.append(answer.status)

    threads = []
    begin = time.monotonic()
    for number, tokens in enumerate(prompts):
        time.sleep(max(0.0, begin + number / rate - time.monotonic()))
        threads.append(threading.Thread(target=ask, args=(tokens,)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    assert status == [200] * requests
