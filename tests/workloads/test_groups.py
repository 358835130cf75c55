"""Client processes must not wait for each other's answers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.workloads.sharing import WORDS
from workloads.groups import session_groups
from workloads.registry import FAMILIES, generate


@pytest.mark.parametrize("family", FAMILIES)
def test_no_after_leaves_its_group(family: str) -> None:
    workload = generate(family, name="w", seed=1, params={}, load=None, vocabulary=WORDS)
    groups = session_groups(workload)
    session = {request.request_id: request.session_id for request in workload.requests}
    for request in workload.requests:
        for earlier in request.after:
            assert groups[session[earlier]] == groups[request.session_id]


@pytest.mark.parametrize(
    ("family", "params", "count"),
    [
        ("multi_turn", {"sessions": 5}, 1),
        ("multi_turn", {"sessions": 5, "plant_first": False}, 5),
        ("multi_turn", {"sessions": 5, "system_tokens": 0}, 5),
        ("prefix_hit", {"groups": 3}, 3),
        ("long_prompt", {"requests": 16}, 16),
    ],
)
def test_groups_are_as_small_as_they_can_be(family: str, params: dict[str, Any], count: int) -> None:
    workload = generate(family, name="w", seed=1, params=params, load=None, vocabulary=WORDS)
    assert list(dict.fromkeys(session_groups(workload).values())) == list(range(count))
