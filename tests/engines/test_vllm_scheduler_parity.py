"""The scheduler against vLLM's own code: the same at every step, in every detail that can be seen."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from harness.engines.store import find_engine
from harness.records.errors import ServescopeError
from tests.engines.conftest import unavailable
from tests.native_core.vllm_cases import Replay, make_case, replay
from tests.native_core.vllm_golden import GOLDEN, condense, golden_cases

ENVIRONMENT = "vllm-0.32.0-cpu"
DRIVER = Path(__file__).with_name("vllm_scheduler_driver.py")
CASES = 40  # of each loop


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    """What vLLM did in the cases of both loops, in one process: its import takes longer than the cases."""
    try:
        python = find_engine(ENVIRONMENT).python
    except ServescopeError as error:
        unavailable(str(error))
    cases = [make_case(seed, asynchronous=asynchronous) for asynchronous in (False, True) for seed in range(CASES)]
    cases += golden_cases()
    done = subprocess.run([python, str(DRIVER)], input=json.dumps(cases), capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout[done.stdout.index('{"version"') :])
    assert found["version"].startswith("0.32.0")
    return {**found, "pairs": list(zip(cases, found["logs"], strict=True))}


@pytest.fixture(scope="module")
def logs(document: dict[str, Any]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    pairs: list[tuple[dict[str, Any], dict[str, Any]]] = document["pairs"]
    return pairs[: 2 * CASES]


@pytest.mark.engine
def test_the_golden_log_is_what_vllm_does(document: dict[str, Any]) -> None:
    """Made again, byte for byte."""
    assert condense(document, document["pairs"][2 * CASES :]) == GOLDEN.read_text()


@pytest.mark.engine
@pytest.mark.parametrize("asynchronous", [False, True], ids=["synchronous", "asynchronous"])
def test_every_step_equals_vllms(logs: list[tuple[dict[str, Any], dict[str, Any]]], asynchronous: bool) -> None:
    """Tokens per request in order, preempted set, running order, the whole free queue, hit counters; with aborts."""
    seen = [replay(case, log) for case, log in logs if case["async_scheduling"] is asynchronous]
    total = {name: sum(row[name] for row in seen) for name in seen[0]}
    # The cases must reach what they are meant to test.
    assert len(seen) == CASES
    assert total["steps"] > 2000
    assert total["preempted"] > 50
    assert total["aborted"] > 50
    assert total["hit_tokens"] > 3000
    print(f"{total}, vLLM {sum(log['seconds'] for _, log in logs):.1f} s of CPU for both loops")


@pytest.mark.engine
def test_another_releases_rules_are_told_apart(logs: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    """The comparison is not vacuous: with the free queue of 0.21.0 it fails at once."""

    def differs(case: dict[str, Any], log: dict[str, Any]) -> bool:
        ours = Replay(case)
        ours.scheduler.blocks.pool._unhashed_first = False
        return any(getattr(ours, operation)(expected) != expected for operation, expected in log["log"])

    assert sum(differs(case, log) for case, log in logs[:20]) > 10
