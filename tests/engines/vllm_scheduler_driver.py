"""Runs vLLM's own Scheduler or AsyncScheduler on cases and prints what it did, step by step, as JSON.

Run with the interpreter of a vLLM environment: `python vllm_scheduler_driver.py < cases.json > logs.json`. Needs no
weights, no tokenizer and no worker; imports nothing of this repository. The sampled token is a function of a
request's group and position, so that requests of one group go on sharing blocks while they decode.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import Any

BLOCK = 16
STOP_TOKEN = 999


def token(group: int, position: int) -> int:
    if (group * 7 + position) % 23 == 0:
        return STOP_TOKEN
    return (group * 7919 + position * 31 + 5) % 997


def make_scheduler(case: dict[str, Any], folder: str) -> Any:
    import torch
    from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    longest = case["max_model_len"]
    scheduler = SchedulerConfig(
        max_num_seqs=case["max_num_seqs"],
        max_num_batched_tokens=case["max_batched_tokens"],
        max_model_len=longest,
        is_encoder_decoder=False,
        enable_chunked_prefill=True,
        policy=case["policy"],
        long_prefill_token_threshold=case["long_prefill_threshold"],
        async_scheduling=case["async_scheduling"],
        scheduler_reserve_full_isl=case["reserve_full_prompt"],
        watermark=case["watermark"],
    )
    cache = CacheConfig(block_size=BLOCK, enable_prefix_caching=case["prefix_caching"])
    config = VllmConfig(
        model_config=ModelConfig(
            model=folder, skip_tokenizer_init=True, dtype="float32", max_model_len=longest, seed=0
        ),
        scheduler_config=scheduler,
        cache_config=cache,
        device_config=DeviceConfig("cpu"),
    )
    cache.num_gpu_blocks = case["num_blocks"]
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
    blocks = KVCacheConfig(
        num_blocks=case["num_blocks"], kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
    )
    kind = AsyncScheduler if case["async_scheduling"] else Scheduler
    return kind(
        vllm_config=config,
        kv_cache_config=blocks,
        log_stats=True,
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK,
    )


def make_request(row: dict[str, Any], hasher: Any, *, stops: bool) -> Any:
    from vllm.sampling_params import SamplingParams
    from vllm.v1.request import Request

    return Request(
        request_id=row["id"],
        prompt_token_ids=row["prompt"],
        sampling_params=SamplingParams(
            max_tokens=row["max_tokens"], ignore_eos=True, stop_token_ids=[STOP_TOKEN] if stops else []
        ),
        pooling_params=None,
        block_hasher=hasher,
        priority=row["priority"],
        arrival_time=row["arrival"],
        cache_salt=row["salt"],
    )


class Run:
    """One case from its first arrival to its last token. `log` is a list of [operation, what was seen after it]."""

    def __init__(self, case: dict[str, Any], scheduler: Any, hasher: Any) -> None:
        self.case, self.scheduler, self.hasher = case, scheduler, hasher
        self.groups = {row["id"]: row["group"] for row in case["requests"]}
        self.log: list[list[Any]] = []
        self.counted = [0, 0, 0, 0]
        self.seconds = 0.0
        self.in_flight: deque[tuple[Any, set[str]]] = deque()

    def state(self) -> dict[str, Any]:
        pool = self.scheduler.kv_cache_manager.block_pool
        return {
            "running": [request.request_id for request in self.scheduler.running],
            "queue": [block.block_id for block in pool.free_block_queue.get_all_free_blocks()],
        }

    def schedule(self) -> int:
        before = time.process_time()
        plan = self.scheduler.schedule()
        self.seconds += time.process_time() - before
        counts = plan.num_scheduled_tokens
        emits = {name for name in counts if not self.scheduler.requests[name].is_prefill_chunk}
        self.in_flight.append((plan, emits))
        seen = {
            "scheduled": [[name, count] for name, count in counts.items()],
            "preempted": sorted(plan.preempted_req_ids or ()),
            "emits": sorted(emits),
            **self.state(),
        }
        self.log.append(["schedule", seen])
        return len(counts)

    def update(self) -> None:
        from vllm.v1.outputs import ModelRunnerOutput

        plan, emits = self.in_flight.popleft()
        names = list(plan.num_scheduled_tokens)
        sampled: list[list[int]] = []
        for name in names:
            request = self.scheduler.requests.get(name)
            position = request.num_tokens if request is not None else 0
            sampled.append([token(self.groups[name], position)] if name in emits else [])
        result = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: at for at, name in enumerate(names)},
            sampled_token_ids=sampled,
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        )
        before = time.process_time()
        outputs = self.scheduler.update_from_output(plan, result)
        self.seconds += time.process_time() - before
        for output in outputs.values():
            stats = output.scheduler_stats and output.scheduler_stats.prefix_cache_stats
            if stats:
                new = (stats.queries, stats.hits, stats.preempted_queries, stats.preempted_hits)
                self.counted = [old + more for old, more in zip(self.counted, new, strict=True)]
        self.log.append(["update", {**self.state(), "counted": list(self.counted)}])

    def tick(self, now: int) -> None:
        from vllm.v1.request import RequestStatus

        for row in self.case["requests"]:
            if row["at"] == now:
                self.scheduler.add_request(make_request(row, self.hasher, stops=self.case["stops"]))
                self.log.append(["add", row["id"]])
        for row in self.case["requests"]:
            if row["abort_at"] == now:
                self.scheduler.finish_requests(row["id"], RequestStatus.FINISHED_ABORTED)
                self.log.append(["abort", {"id": row["id"], **self.state()}])
        scheduled = self.schedule() if self.scheduler.has_requests() else 0
        depth = 2 if self.case["async_scheduling"] else 1
        if self.in_flight and (len(self.in_flight) == depth or not scheduled):
            self.update()

    def all(self) -> dict[str, Any]:
        last = max(row["at"] for row in self.case["requests"])
        now = 0
        while now <= last or self.scheduler.get_num_unfinished_requests() or self.in_flight:
            self.tick(now)
            now += 1
            if now > 5000:
                raise SystemExit(f"case {self.case['seed']} does not end")
        return {"seed": self.case["seed"], "log": self.log, "counted": self.counted, "seconds": self.seconds}


def package_sha256(folder: Path) -> str:
    """Of the engine's scheduling and cache code: file names and contents, in the order of the names."""
    digest = hashlib.sha256()
    for path in sorted((folder / "v1" / "core").rglob("*.py")):
        digest.update(f"{path.relative_to(folder).as_posix()}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def main() -> None:
    os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["VLLM_NO_USAGE_STATS"] = "1"
    import vllm
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash

    init_none_hash(sha256)
    hasher = get_request_block_hasher(BLOCK, sha256)
    shape = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 32000,
        "max_position_embeddings": 32768,
        "torch_dtype": "float32",
    }
    cases = json.load(sys.stdin)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(shape))
        logs = [Run(case, make_scheduler(case, folder), hasher).all() for case in cases]
    package = package_sha256(Path(vllm.__file__).parent)
    json.dump({"version": vllm.__version__, "package_sha256": package, "logs": logs}, sys.stdout)


if __name__ == "__main__":
    main()
