"""Command line of the server, and the settings it resolves to."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from native_core.scheduler_queues import Policy
from native_core.server.start_errors import UsageError
from native_core.weights import LlamaConfig

DEFAULT_PROFILE = "vllm-0.32.0"
DEFAULT_KV_BYTES = 1 << 30  # size of the KV pool where --kv-tokens is not given
FLOAT32 = 4


@dataclass(frozen=True)
class Options:
    """As typed; None is "not given"."""

    model: Path
    name: str
    host: str
    port: int
    profile: str
    block_size: int
    kv_tokens: int | None
    max_model_len: int | None
    max_num_seqs: int
    max_batched_tokens: int
    threads: int
    prefix_caching: bool
    policy: Policy
    long_prefill_threshold: int
    max_waiting: int | None
    log_steps: bool


@dataclass(frozen=True)
class Settings:
    """What the options resolve to with the model at hand. `kv_tokens` are those that requests can occupy."""

    options: Options
    max_model_len: int
    num_blocks: int  # with block 0, which is never used, as in vLLM

    @property
    def kv_tokens(self) -> int:
        return (self.num_blocks - 1) * self.options.block_size


class OneLineParser(argparse.ArgumentParser):
    """Errors without the usage text in front of them, which hides them."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"native core: {message}; see {self.prog} --help\n")


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is below 1")
    return value


def _count_or_zero(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{value} is below 0")
    return value


def _port(text: str) -> int:
    value = int(text)
    if not 0 <= value <= 65535:
        raise argparse.ArgumentTypeError(f"{value} is no port: 0 (any free one) to 65535")
    return value


def usable_cores() -> int:
    """Cores that this process may run on, container limits by affinity included."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def default_threads() -> int:
    """All cores but one, which HTTP and clients need.

    Threads of a matrix product wait for one another by spinning: with as many threads as cores, one busy process beside
    them made a decode step 10 times slower (38 to 388 ms, SmolLM2-135M on two cores).
    """
    return max(1, usable_cores() - 1)


def parser() -> argparse.ArgumentParser:
    build = OneLineParser(
        prog="python -m native_core", description="Serve a Llama-family model with the native core, OpenAI-compatible."
    )
    add = build.add_argument
    add("--model", type=Path, required=True, metavar="DIR", help="Hugging Face directory of the model")
    add("--served-model-name", metavar="NAME", help="name in requests; default: the directory's")
    add("--host", default="127.0.0.1")
    add("--port", type=_port, default=8000, help="0 takes any free port, which the ready line names")
    add("--profile", default=DEFAULT_PROFILE, help="engine and release whose scheduling rules to follow")
    add("--block-size", type=_count, default=16, help="tokens per KV block")
    add("--kv-tokens", type=_count, metavar="N", help="tokens the KV pool holds, rounded up to blocks; default: 1 GiB")
    add("--max-model-len", type=_count, metavar="N", help="longest prompt + answer; default: the model's context")
    add("--max-num-seqs", type=_count, default=128, metavar="N", help="most requests running at once")
    add("--max-batched-tokens", type=_count, default=2048, metavar="N", help="most tokens computed in one step")
    add("--threads", type=_count, default=default_threads(), metavar="N", help="of matrix products; default: cores - 1")
    add("--no-prefix-caching", action="store_true", help="compute every prompt in full")
    add("--policy", choices=("fcfs", "priority"), default="fcfs")
    add("--long-prefill-threshold", type=_count_or_zero, default=0, metavar="N", help="cap on a prefill chunk; 0: none")
    add("--max-waiting", type=_count, metavar="N", help="refuse requests with 503 beyond this queue; default: no limit")
    add("--log-steps", action="store_true", help="one line per engine step on standard output")
    return build


def parse_options(argv: Sequence[str] | None = None) -> Options:
    """Exits with status 2 and one line for arguments that make no sense, as argparse does."""
    arguments = parser().parse_args(argv)
    return Options(
        model=arguments.model,
        name=arguments.served_model_name or arguments.model.resolve().name,
        host=arguments.host,
        port=arguments.port,
        profile=arguments.profile,
        block_size=arguments.block_size,
        kv_tokens=arguments.kv_tokens,
        max_model_len=arguments.max_model_len,
        max_num_seqs=arguments.max_num_seqs,
        max_batched_tokens=arguments.max_batched_tokens,
        threads=arguments.threads,
        prefix_caching=not arguments.no_prefix_caching,
        policy=arguments.policy,
        long_prefill_threshold=arguments.long_prefill_threshold,
        max_waiting=arguments.max_waiting,
        log_steps=arguments.log_steps,
    )


def resolve(options: Options, model: LlamaConfig) -> Settings:
    """Sizes that depend on the model. UsageError for a pool that cannot hold one request."""
    context = model.context
    length = options.max_model_len or context
    if length > context:
        raise UsageError(
            f"--max-model-len {length} is beyond the model's context of {context}", mend=f"at most {context}"
        )
    tokens = options.kv_tokens or default_kv_tokens(model, length, options.max_num_seqs)
    blocks = -(-tokens // options.block_size)
    if blocks * options.block_size < length:
        raise UsageError(
            f"a pool of {tokens} tokens cannot hold one request of --max-model-len {length}",
            mend=f"raise --kv-tokens to {length} or lower --max-model-len",
        )
    return Settings(options=options, max_model_len=length, num_blocks=blocks + 1)


def default_kv_tokens(model: LlamaConfig, length: int, max_num_seqs: int) -> int:
    """Tokens whose K and V fill DEFAULT_KV_BYTES, no fewer than one request, no more than can be used at once."""
    per_token = 2 * model.layers * model.kv_heads * model.head_dim * FLOAT32
    return max(length, min(DEFAULT_KV_BYTES // per_token, length * max_num_seqs))
