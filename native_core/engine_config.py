"""What an engine is told before its first step, and what it says about itself at any time."""

from __future__ import annotations

from dataclasses import dataclass, field

from native_core.profiles import ProfileError, find_profile
from native_core.scheduler_queues import Policy


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Settings under vLLM's meanings. ValueError for values that make no engine, ProfileError for unknown releases."""

    num_blocks: int  # with the null block 0, which holds nothing (V11): requests share num_blocks - 1
    block_size: int = 16  # tokens a block
    max_num_seqs: int = 128  # most requests running at once
    max_batched_tokens: int = 2048  # token budget of a step (V19)
    max_model_len: int = 4096  # prompt + output of one request, in tokens
    policy: Policy = "fcfs"
    prefix_caching: bool = True
    long_prefill_threshold: int = 0  # most tokens of one request in a step; 0: no cap (V19)
    watermark: float = 0.0  # share of the pool kept free at admissions while something runs (V17)
    reserve_full_prompt: bool = True  # admit only what fits whole, though it is computed in chunks (V16)
    profile: str = "vllm-0.32.0"
    eos_token_ids: frozenset[int] = frozenset()
    max_waiting: int | None = None  # requests that may wait before further ones are refused; None: no limit
    async_scheduling: bool = False  # two steps in flight: the next is scheduled before a step's tokens are known (V25)
    # vLLM leaves blocks findable that a request, preempted later in the same step, was about to fill: under the
    # priority policy another request can then hit blocks that nobody computed. True takes them back, so that answers
    # stay right; False does as vLLM does, for an oracle that computes nothing.
    forget_uncomputed: bool = True

    def __post_init__(self) -> None:
        for name in ("num_blocks", "block_size", "max_num_seqs", "max_batched_tokens", "max_model_len"):
            least = 2 if name in ("num_blocks", "max_model_len") else 1
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least {least}")
        if self.long_prefill_threshold < 0 or (self.max_waiting is not None and self.max_waiting < 0):
            raise ValueError("long_prefill_threshold and max_waiting must not be negative")
        if not 0.0 <= self.watermark < 1.0:
            raise ValueError(f"watermark is {self.watermark}; it is a share of the pool, from 0 to below 1")
        if self.policy not in ("fcfs", "priority"):
            raise ValueError(f"policy is {self.policy!r}; it is fcfs or priority")
        if not find_profile(self.profile).has_watermark and self.watermark:
            raise ProfileError(f"{self.profile} has no watermark; leave it at 0")


@dataclass(slots=True)
class Counters:
    """Totals since the start; they only grow. In tokens unless said otherwise."""

    steps: int = 0  # steps in which something was computed
    prompt_tokens: int = 0  # of requests, at their first admission
    prefill_computed_tokens: int = 0  # work of prefills: prompts without their hits, and what preemptions made redone
    output_tokens: int = 0
    prefix_query_tokens: int = 0  # as the profile's release counts them
    prefix_hit_tokens: int = 0
    preempted_query_tokens: int = 0  # the same at re-admissions after a preemption, which vLLM keeps apart
    preempted_hit_tokens: int = 0
    preemptions: int = 0  # times
    evicted_tokens: int = 0  # cached, and lost because their block was used for something else
    finished: dict[str, int] = field(default_factory=lambda: {"stop": 0, "length": 0, "abort": 0})  # requests
    queue_seconds_sum: float = 0.0  # arrival to first admission
    queue_seconds_count: int = 0


@dataclass(slots=True)
class EngineStats(Counters):
    """A snapshot between two steps: totals, state, and the last step. used + evictable + free = total, in blocks."""

    waiting: int = 0
    running: int = 0
    block_size: int = 0
    blocks_total: int = 0
    blocks_used: int = 0  # owned by requests
    blocks_evictable: int = 0  # cached, owned by nobody: reusable, and free in vLLM's own usage figure (V14)
    blocks_free: int = 0  # owned by nobody, without content worth keeping
    last_prefill_tokens: int = 0  # the last_ figures are 0 if the last call of step() computed nothing
    last_decode_tokens: int = 0
    last_batch: int = 0  # requests
    last_context_tokens: int = 0  # tokens attended to, summed over the batch
    last_seconds: float = 0.0
