"""The radix tree against SGLang's own tree core: the same after every operation, in every detail that can be seen."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from harness.engines.store import find_engine
from harness.records.errors import ServescopeError
from native_core.eviction import POLICIES
from tests.engines.conftest import unavailable
from tests.native_core.radix_cases import make_case
from tests.native_core.radix_replay import replay
from tests.native_core.test_radix_golden import GOLDEN

ENVIRONMENT = "sglang-0.5.23-cpu"
DRIVER = Path(__file__).with_name("sglang_tree_driver.py")
CASES = 64  # two of each page size (1, 4, 16, 64) and policy, and as many again of lru
OPERATIONS = 200


def drive(cases: list[dict[str, Any]]) -> str:
    """What SGLang's tree did on these cases, as the text that the golden log holds."""
    try:
        python = find_engine(ENVIRONMENT).python
    except ServescopeError as error:
        unavailable(str(error))
    text = "".join(json.dumps(case) + "\n" for case in cases)
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([python, str(DRIVER)], input=text, capture_output=True, text=True, timeout=120, env=environ)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.engine
def test_every_operation_equals_sglangs() -> None:
    """Match length, insert length, duplicates, slots of the path, slots evicted in order, evictable and protected."""
    header, *lines = drive([make_case(seed, operations=OPERATIONS) for seed in range(CASES)]).splitlines()
    assert json.loads(header)["version"] == "0.5.23"
    seen: Counter[tuple[str, int | str]] = Counter()
    for case in map(json.loads, lines):
        for name, count in replay(case, check_every=20).items():
            seen.update({(name, case["page"]): count, (name, case["policy"]): count})
    # The cases must reach what they are meant to test, at each page size and for each policy.
    for kind in (1, 4, 16, 64, *POLICIES):
        assert seen["operations", kind] >= 8 * OPERATIONS, kind
        assert seen["splits", kind] > 100, kind
        assert seen["evicted", kind] > 5000, kind
        assert seen["hits", kind] > 5000, kind
    print({name: sum(seen[name, page] for page in (1, 4, 16, 64)) for name in ("operations", "splits", "evicted")})


@pytest.mark.engine
def test_the_golden_log_is_what_the_engine_says() -> None:
    cases = [json.loads(line) for line in GOLDEN.read_text().splitlines()[1:]]
    for case in cases:
        del case["log"]
    assert drive(cases) == GOLDEN.read_text()
