"""Start-up facts that engines only print: kernels, backends, pool sizes. Patterns are per kind; a miss is left out."""

from __future__ import annotations

import re
from pathlib import Path

HEAD_BYTES = 1_000_000  # a start-up log is a few hundred lines; what comes later is traffic

PATTERNS: dict[str, dict[str, str]] = {
    "vllm": {
        "attention_backend": r"Using (?:AttentionBackendEnum\.)?([\w.]+) (?:attention )?backend",
        "dtype": r"dtype=(?:torch\.)?(\w+)",
        "kv_layout": r"Using (\w+) KV cache layout",
        "kernels": r"Final IR op priority after setting platform defaults: (.*)",
        "kv_cache_tokens": r"KV cache size: ([\d,]+) tokens",
        "max_concurrency": r"Maximum concurrency for [\d,]+ tokens per request: ([\d.]+)x",
        "omp_threads": r"local_rank=0, core ids=\[([\d, ]*)\]",
        "enforce_eager": r"enforce_eager=(\w+)",
        "load_seconds": r"Loading weights took ([\d.]+) seconds",
    },
    "sglang": {
        "attention_fallback": r"will fallback to (\w+) backend",
        "dtype": r"KV Cache is allocated\. dtype: (?:torch\.)?(\w+)",
        "kv_cache_tokens": r"max_total_num_tokens=(\d+)",
        "chunked_prefill_size": r"chunked_prefill_size=(\d+)",
        "max_prefill_tokens": r"max_prefill_tokens=(\d+)",
        "max_running_requests": r"max_running_requests=(\d+)",
        "context_len": r"context_len=(\d+)",
    },
    "native": {
        "ready": r"native core ready on (.*)",
    },
}


def log_facts(kind: str, log: Path | None) -> dict[str, str]:
    """Facts named as in PATTERNS, from the first HEAD_BYTES of the engine's log; empty without one."""
    if log is None or not log.is_file():
        return {}
    with log.open("rb") as stream:
        text = stream.read(HEAD_BYTES).decode("utf-8", "replace")
    found = {name: re.search(pattern, text) for name, pattern in PATTERNS.get(kind, {}).items()}
    return {name: match.group(1).strip() for name, match in found.items() if match}
