"""Where each canonical signal stands in an engine's metrics, and how it is read from them.

Names are those of vLLM 0.32, SGLang 0.5.23 and the native core; sample names as on the wire. What an engine exports
only under a flag says so, so that a report can name the flag.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Reading:
    """One signal of one engine.

    kind: gauge; counter; pair (a histogram's _sum and _count). where: label -> values that are taken; label sets that
    remain are added up, or for `largest` the highest one stands. scale turns the exported unit into `unit`.
    lazy: the engine exports the series only once it has moved, so a scrape without it means zero.
    share_of: a second gauge that this one is divided by. plus: a second histogram whose sum is added.
    """

    kind: Literal["gauge", "counter", "pair"]
    metric: str
    unit: str = "1"
    where: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    largest: bool = False
    scale: float = 1.0
    lazy: bool = False
    share_of: str = ""
    plus: str = ""
    note: str = ""
    flag: str = ""

    @property
    def query(self) -> str:
        labels = ",".join(f'{name}=~"{"|".join(values)}"' for name, values in self.where.items())
        selector = f"{{{labels}}}" if labels else ""
        if self.kind == "pair":
            more = f" + {self.plus}_sum" if self.plus else ""
            return f"({self.metric}_sum{selector}{more}) / {self.metric}_count{selector}"
        whole = f"{self.metric}{selector}"
        return f"{whole} / {self.share_of}" if self.share_of else whole


def _gauge(metric: str, unit: str = "1", **more: object) -> Reading:
    return Reading("gauge", metric, unit, **more)  # type: ignore[arg-type]


def _counter(metric: str, unit: str = "tokens", **more: object) -> Reading:
    return Reading("counter", metric, unit, **more)  # type: ignore[arg-type]


def _pair(metric: str, unit: str = "s", **more: object) -> Reading:
    return Reading("pair", metric, unit, **more)  # type: ignore[arg-type]


_FREE = "blocks that nobody refers to count as free, reusable or not"
_FINISHED = ("stop", "length", "repetition")

VLLM: dict[str, Reading] = {
    "queue_depth": _gauge("vllm:num_requests_waiting", "requests"),
    "queue_deferred": _gauge("vllm:num_requests_waiting_by_reason", "requests", where={"reason": ("deferred",)}),
    "running": _gauge("vllm:num_requests_running", "requests"),
    "queue_time": _pair("vllm:request_queue_time_seconds"),
    "rejections": _counter("vllm:admission_rejections_total", "requests", lazy=True),
    "kv_usage": _gauge("vllm:kv_cache_usage_perc", largest=True, note=_FREE),
    "prefix_query_tokens": _counter("vllm:prefix_cache_queries_total"),
    "prefix_hit_tokens": _counter("vllm:prefix_cache_hits_total"),
    "prompt_tokens": _counter("vllm:prompt_tokens_total"),
    "prefill_computed_tokens": _counter("vllm:prompt_tokens_by_source_total", where={"source": ("local_compute",)}),
    "output_tokens": _counter("vllm:generation_tokens_total"),
    "preemptions": _counter("vllm:num_preemptions_total", "preemptions"),
    "step_tokens": _pair("vllm:iteration_tokens_total", "tokens"),
    "prefill_time": _pair("vllm:request_prefill_time_seconds"),
    "decode_time": _pair("vllm:request_decode_time_seconds"),
    "ttft": _pair("vllm:time_to_first_token_seconds"),
    "itl": _pair("vllm:inter_token_latency_seconds"),
    "e2e": _pair("vllm:e2e_request_latency_seconds"),
    "finished": _counter("vllm:request_success_total", "requests", where={"finished_reason": _FINISHED}),
    "drafted_tokens": _counter("vllm:spec_decode_num_draft_tokens_total", flag="a speculative configuration"),
    "accepted_tokens": _counter("vllm:spec_decode_num_accepted_tokens_total", flag="a speculative configuration"),
    "kv_transfer_time": _pair("vllm:nixl_xfer_time_seconds", flag="the NIXL connector"),
    "kv_transfer_failures": _counter("vllm:nixl_num_failed_transfers_total", "transfers", flag="the NIXL connector"),
    "engine_cpu": _counter("process_cpu_seconds_total", "s", note="the API server's process only"),
}
_HITS = ("device_hit", "host_hit", "storage_hit")
SGLANG: dict[str, Reading] = {
    "queue_depth": _gauge("sglang:num_queue_reqs", "requests"),
    "running": _gauge("sglang:num_running_reqs", "requests"),
    "queue_time": _pair("sglang:queue_time_seconds"),
    "kv_usage": _gauge("sglang:token_usage", largest=True, note=_FREE),
    "kv_evictable": _gauge("sglang:kv_evictable_tokens", share_of="sglang:max_total_num_tokens"),
    "prefix_query_tokens": _counter(
        "sglang:prefill_effective_tokens_total", where={"mode": ("input", *_HITS)}
    ),
    "prefix_hit_tokens": _counter("sglang:prefill_effective_tokens_total", where={"mode": _HITS}),
    "prompt_tokens": _counter("sglang:prompt_tokens_total"),
    "prefill_computed_tokens": _counter("sglang:realtime_tokens_total", where={"mode": ("prefill_compute",)}),
    "output_tokens": _counter("sglang:generation_tokens_total"),
    "preemptions": _counter("sglang:num_retracted_requests_total", "retractions", lazy=True),
    "evicted_tokens": _counter("sglang:evicted_tokens_total", lazy=True),
    "host_time": _counter(
        "sglang:scheduler_stage_seconds_total",
        "s",
        where={"category": ("recv_requests", "process_input_requests", "get_next_batch_to_run", "process_queue",
                            "process_batch_result", "other")},
        note="the scheduler's own stages, the forward pass left out",
    ),
    "context_tokens": _gauge("sglang:decode_sum_seq_lens", "tokens"),
    "prefill_time": _pair(
        "sglang:per_stage_req_latency_seconds", where={"stage": ("prefill_forward",)}, note="per forward pass"
    ),
    "ttft": _pair("sglang:time_to_first_token_seconds"),
    "itl": _pair("sglang:inter_token_latency_seconds"),
    "e2e": _pair("sglang:e2e_request_latency_seconds"),
    "finished": _counter("sglang:num_requests_total", "requests"),
    "engine_cpu": _counter("sglang:scheduler_process_cpu_seconds_total", "s", note="the scheduler's process only"),
    "collective_wait": _pair("sglang:dp_attention_sync_wait_seconds", note="data-parallel attention only"),
}  # fmt: skip
NATIVE: dict[str, Reading] = {
    "queue_depth": _gauge("native:num_requests_waiting", "requests"),
    "running": _gauge("native:num_requests_running", "requests"),
    "queue_time": _pair("native:queue_seconds"),
    "rejections": _counter("native:request_rejections_total", "requests", lazy=True),
    "kv_usage": _gauge("native:kv_usage_ratio"),
    "kv_evictable": _gauge("native:kv_evictable_ratio"),
    "prefix_query_tokens": _counter("native:prefix_query_tokens_total"),
    "prefix_hit_tokens": _counter("native:prefix_hit_tokens_total"),
    "prompt_tokens": _counter("native:prompt_tokens_total"),
    "prefill_computed_tokens": _counter("native:prefill_computed_tokens_total"),
    "output_tokens": _counter("native:generation_tokens_total"),
    "preemptions": _counter("native:preemptions_total", "preemptions"),
    "evicted_tokens": _counter("native:evicted_tokens_total"),
    "step_time": _pair("native:step_seconds"),
    "step_tokens": _pair("native:step_prefill_tokens", "tokens", plus="native:step_decode_tokens"),
    "context_tokens": _gauge("native:step_context_tokens", "tokens"),
    "prefill_time": _pair("native:prefill_seconds"),
    "decode_time": _pair("native:decode_seconds"),
    "ttft": _pair("native:ttft_seconds"),
    "itl": _pair("native:inter_token_seconds"),
    "e2e": _pair("native:e2e_seconds"),
    "host_time": _counter("native:host_seconds_total", "s"),
    "finished": _counter("native:requests_finished_total", "requests", where={"reason": ("stop", "length")}),
    "engine_cpu": _counter("process_cpu_seconds_total", "s"),
}

READINGS: Mapping[str, Mapping[str, Reading]] = {"vllm": VLLM, "sglang": SGLANG, "native": NATIVE}
