"""Scheduling rules that changed between releases of vLLM, as data. A release that is not listed is refused.

Grades: code-parity = compared step by step with that release's own scheduler; read = the same source text at these
places, not run. The differences were found by running the releases side by side; between two listed releases with
equal rows nothing is claimed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


class ProfileError(ValueError):
    """A profile that is not in the table, or a setting that its release does not have."""


@dataclass(frozen=True, slots=True)
class Profile:
    """What one release does. The rule numbers are those of the scheduler's and the pool's docstrings."""

    name: str
    # V13: where a freed block goes that no look-up can find. "always": to the head of the free queue, so that it is
    # reused first; "if caching": so only while prefix caching is on; "never": to the tail, like all others.
    unhashed_first: Literal["always", "if caching", "never"]
    # Hit counters: True counts a look-up each time the head of the queue is tried, False once, at its admission.
    counts_retries: bool
    # V19: the cap on long prefills also holds for a request that is alone in the engine.
    caps_lone_request: bool
    # V17: the release can keep a share of the pool free at admission.
    has_watermark: bool
    grade: Literal["code-parity", "read"]


_ROWS = (
    # name, unhashed_first, counts_retries, caps_lone_request, has_watermark, grade
    Profile("vllm-0.21.0", "never", True, True, False, "code-parity"),
    Profile("vllm-0.24.0", "always", True, True, True, "code-parity"),
    Profile("vllm-0.25.1", "always", True, True, True, "read"),
    Profile("vllm-0.26.0", "always", True, True, True, "read"),
    Profile("vllm-0.27.1", "if caching", False, True, True, "code-parity"),
    Profile("vllm-0.28.0", "always", False, True, True, "code-parity"),
    Profile("vllm-0.30.0", "always", False, True, True, "read"),
    Profile("vllm-0.31.0", "always", False, False, True, "code-parity"),
    Profile("vllm-0.32.0", "always", False, False, True, "code-parity"),
)

PROFILES: dict[str, Profile] = {row.name: row for row in _ROWS}


def find_profile(name: str) -> Profile:
    """The row of a release, e.g. "vllm-0.32.0". ProfileError names those that exist."""
    if name not in PROFILES:
        raise ProfileError(f"no scheduling rules are known for {name!r}; known are {', '.join(PROFILES)}")
    return PROFILES[name]
