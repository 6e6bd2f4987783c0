"""An engine's load out of its Prometheus metrics: vLLM's, SGLang's and TensorRT-LLM's names.

What a name is missing for is unknown, which is not 0: engines leave out what they do not measure.
"""

from __future__ import annotations

import re
from typing import TypeAlias

from msgspec import Struct

_WAITING = frozenset(("vllm:num_requests_waiting", "sglang:num_queue_reqs", "trtllm_num_requests_waiting"))
_RUNNING = frozenset(("vllm:num_requests_running", "sglang:num_running_reqs", "trtllm_num_requests_running"))
_KV_USAGE = frozenset(
    (
        "vllm:kv_cache_usage_perc",
        "vllm:gpu_cache_usage_perc",  # before 0.10
        "sglang:token_usage",
        "trtllm_kv_cache_utilization",
    )
)
_TRITON_REQUESTS = "nv_trt_llm_request_metrics"
_TRITON_BLOCKS = "nv_trt_llm_kv_cache_block_metrics"
_NAMES = _WAITING | _RUNNING | _KV_USAGE | {_TRITON_REQUESTS, _TRITON_BLOCKS}
_RANK_LABELS = ("engine", "dp_rank")

_PREFIXES = ("vllm:", "sglang:", "trtllm_", "nv_trt_llm_")
_LINE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?\s+(\S+)")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')

Samples: TypeAlias = list[tuple[str, dict[str, str], float]]


class EngineLoad(Struct, frozen=True):
    """Of an engine or one of its ranks. None: it does not say."""

    waiting_requests: int | None = None
    running_requests: int | None = None
    kv_usage: float | None = None  # 0 to 1


def load_of(samples: Samples, rank: int | None = None) -> EngineLoad:
    """Requests are sums over an engine's series, of KV usage the highest counts.

    With a `rank`, series that name another are passed over.
    """
    waiting: list[float] = []
    running: list[float] = []
    usage: list[float] = []
    for name, labels, value in samples:
        if rank is not None and any(labels.get(key, str(rank)) != str(rank) for key in _RANK_LABELS):
            continue
        if name in _WAITING or (name == _TRITON_REQUESTS and labels.get("request_type") == "waiting"):
            waiting.append(value)
        elif name in _RUNNING or (name == _TRITON_REQUESTS and labels.get("request_type") == "scheduled"):
            running.append(value)
        elif name in _KV_USAGE or (name == _TRITON_BLOCKS and labels.get("kv_cache_block_type") == "fraction"):
            usage.append(value)
    return EngineLoad(
        int(sum(waiting)) if waiting else None,
        int(sum(running)) if running else None,
        min(max(usage), 1.0) if usage else None,
    )


def load_samples(text: str) -> Samples:
    """Of what the engine exposes, the series that tell its load: (name, labels, value)."""
    samples: Samples = []
    for line in text.splitlines():
        if not line.startswith(_PREFIXES):
            continue
        match = _LINE.match(line)
        if match is None or match[1] not in _NAMES:
            continue
        try:
            value = float(match[3])
        except ValueError:
            continue
        if 0.0 <= value < 1e15:  # neither NaN nor nonsense
            samples.append((match[1], dict(_LABEL.findall(match[2] or "")), value))
    return samples
