"""A short form of what vLLM's scheduler did: one line an operation, kept in the repository and replayed everywhere.

    {"engine": …, "version": …, "package_sha256": of vllm/v1/core/**/*.py, "command": …}
    {"seed": …, "asynchronous": …, "config": {…}}               the case; its requests follow from the seed
    ["add", id]    ["abort", id, digest]
    ["schedule", [[id, tokens], …], [preempted ids], digest]    ["update", digest, [looked up, hit, and resumed ones]]

A digest is of the running list, the whole free queue from head to tail, and who emits a token.

`python -m tests.native_core.vllm_golden PYTHON` makes it again, with the interpreter of a vLLM environment.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.native_core.vllm_cases import CONFIG_FIELDS, Replay, make_case

GOLDEN = Path(__file__).parent / "golden" / "scheduler-vllm-0.32.0.jsonl"
COMMAND = "python -m tests.native_core.vllm_golden PYTHON"
# Loop → cases: small ones that reach every rule, each of them told from its neighbours by at least two.
SEEDS = {False: (4, 8, 28, 39, 47, 135, 203, 209, 210, 214), True: (4, 8, 28, 39, 47, 135, 203, 209, 214)}


def golden_cases() -> list[dict[str, Any]]:
    return [make_case(seed, asynchronous=loop) for loop, seeds in SEEDS.items() for seed in seeds]


def condense(document: dict[str, Any], logs: Iterable[tuple[dict[str, Any], dict[str, Any]]]) -> str:
    """The golden file's text from the driver's document and its (case, log) pairs."""
    head = {"engine": "vllm", "version": document["version"], "package_sha256": document["package_sha256"]}
    lines: list[Any] = [{**head, "command": COMMAND}]
    for case, log in logs:
        lines.append(case_line(case))
        lines += [operation_line(operation, seen) for operation, seen in log["log"]]
    return "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)


def case_line(case: dict[str, Any]) -> dict[str, Any]:
    config = {name: case[name] for name in (*CONFIG_FIELDS, "stops")}
    return {"seed": case["seed"], "asynchronous": case["async_scheduling"], "config": config}


def operation_line(operation: str, seen: Any) -> list[Any]:
    if operation == "add":
        return ["add", seen]
    state = {name: seen[name] for name in ("running", "queue", "emits") if name in seen}
    digest = hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()[:12]
    if operation == "abort":
        return ["abort", seen["id"], digest]
    if operation == "update":
        return ["update", digest, seen["counted"]]
    return ["schedule", seen["scheduled"], seen["preempted"], digest]


def read_golden() -> tuple[dict[str, Any], list[tuple[dict[str, Any], list[list[Any]]]]]:
    """The header, and each case with its operations."""
    header, *lines = [json.loads(line) for line in GOLDEN.read_text().splitlines()]
    cases: list[tuple[dict[str, Any], list[list[Any]]]] = []
    for line in lines:
        if isinstance(line, dict):
            case = make_case(line["seed"], asynchronous=line["asynchronous"])
            assert case_line(case) == line, "the random numbers of this Python make another case"
            cases.append((case, []))
        else:
            cases[-1][1].append(line)
    return header, cases


def first_difference(case: dict[str, Any], operations: list[list[Any]]) -> str | None:
    """Replay a case; where our scheduler first does something else, or None."""
    ours = Replay(case)
    for at, expected in enumerate(operations):
        operation = expected[0]
        argument: Any = expected[1] if operation == "add" else {"id": expected[1]}
        found = operation_line(operation, getattr(ours, operation)(argument))
        if found != expected:
            return f"case {case['seed']}, operation {at}: {found} where vLLM has {expected}"
    ours.scheduler.check()
    return None


def main(python: str) -> None:
    cases = golden_cases()
    driver = Path(__file__).parents[1] / "engines" / "vllm_scheduler_driver.py"
    done = subprocess.run([python, str(driver)], input=json.dumps(cases), stdout=subprocess.PIPE, text=True, check=True)
    document = json.loads(done.stdout[done.stdout.index('{"version"') :])
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_text(condense(document, zip(cases, document["logs"], strict=True)))


if __name__ == "__main__":
    main(sys.argv[1])
