"""What is being served: everything about model and settings that routes read. Fixed once the server is ready."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from native_core.server.options import Settings
from native_core.tokenizer import Tokenizer


def package_version() -> str:
    try:
        return version("servescope")
    except PackageNotFoundError:  # run from a tree that is not installed
        return "0+unknown"


@dataclass(frozen=True, slots=True)
class Served:
    settings: Settings
    tokenizer: Tokenizer
    vocab_size: int
    dtype: str  # of the computation
    eos_token_ids: frozenset[int]
    sampling_defaults: Mapping[str, Any]
    weights_sha256: str
    version: str = field(default_factory=package_version)
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def name(self) -> str:
        return self.settings.options.name

    def resolved(self) -> dict[str, Any]:
        """Every setting that changes behaviour, as it was resolved: no host, port or path."""
        options = self.settings.options
        return {
            "version": self.version,
            "profile": options.profile,
            "policy": options.policy,
            "block_size": options.block_size,
            "num_blocks": self.settings.num_blocks,
            "kv_tokens": self.settings.kv_tokens,
            "max_model_len": self.settings.max_model_len,
            "max_num_seqs": options.max_num_seqs,
            "max_batched_tokens": options.max_batched_tokens,
            "long_prefill_threshold": options.long_prefill_threshold,
            "max_waiting": options.max_waiting,
            "prefix_caching": options.prefix_caching,
            "threads": options.threads,
            "dtype": self.dtype,
            "vocab_size": self.vocab_size,
            "eos_token_ids": sorted(self.eos_token_ids),
            "sampling_defaults": dict(self.sampling_defaults),
            "model": self.name,
            "weights_sha256": self.weights_sha256,
        }

    @property
    def fingerprint(self) -> str:
        """Equal for two servers whose answers and timings may be compared: same settings, weights and release."""
        text = json.dumps(self.resolved(), sort_keys=True)
        return f"native-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
