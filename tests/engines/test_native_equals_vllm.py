"""The native core's model against vLLM's in float32: the same ids from the same text, the same greedy answers."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.engines.store import find_engine
from harness.records.errors import ServescopeError
from native_core.engine import Engine, EngineConfig
from native_core.executor import Sampled, SamplingParams
from native_core.numpy_executor import NumpyExecutor
from native_core.request import Request
from native_core.tokenizer import Tokenizer
from tests.engines.conftest import model_dir, unavailable

ENVIRONMENT = "vllm-0.32.0-cpu"
DRIVER = Path(__file__).with_name("vllm_greedy_driver.py")
TOKENS = 32  # of each answer
TIE = 1e-3  # logits nearer than this may swap: the two engines sum in different orders
BLOCK = 16
STORY = (
    "The lighthouse keeper counted the ships each evening. On the third of March 1887 there were fourteen of them, "
    "and the last one, a grey barque with patched sails, did not answer his lamp. He wrote it down all the same. "
)
TEXTS = (
    "Hello",
    "The capital of France is",
    "1, 2, 3, 5, 8, 13,",
    "def fibonacci(n):\n    ",
    "Water boils at 100 degrees because",
    "Une phrase en français, avec des accents : l'été dernier,",
    "日本の首都は",
    "<|im_start|>user\nName three colours.<|im_end|>\n<|im_start|>assistant\n",
    "SELECT name, count(*) FROM orders WHERE total > 250\n  GROUP BY",
    '{"city": "Lisbon", "population": 545000, "rivers": [',
    "Q: What is 17 + 25?\nA:",
    "   Leading blanks,\t a tab and\n\n\n  several lines \U0001f40c",
    "Once upon a time, " * 12,
    STORY,
    STORY + "In the morning",
    STORY + "His daughter asked",
    STORY * 3,
    STORY * 3 + "Years later a diver found",
    "\n".join(f"{number} squared is {number * number}." for number in range(40)),
    STORY * 8 + "Summarise the story in one sentence.",
)


@pytest.fixture(scope="module")
def model() -> Path:
    return model_dir().path


@pytest.fixture(scope="module")
def answers(model: Path) -> list[dict[str, Any]]:
    """Prompt and output ids of each text, from one run of vLLM."""
    try:
        python = find_engine(ENVIRONMENT).python
    except ServescopeError as error:
        unavailable(str(error))
    job = json.dumps({"model": str(model), "texts": TEXTS, "tokens": TOKENS})
    done = subprocess.run([python, str(DRIVER)], input=job, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    document = json.loads(done.stdout[done.stdout.index('{"version"') :])
    assert document["version"].startswith("0.32.0")
    rows: list[dict[str, Any]] = document["answers"]
    assert [len(row["output"]) for row in rows] == [TOKENS] * len(TEXTS)
    return rows


@pytest.fixture(scope="module")
def executor(model: Path) -> NumpyExecutor:
    return NumpyExecutor(model, threads=2)


def generate(engine: Engine, prompts: Sequence[Sequence[int]], counts: Sequence[int]) -> list[list[Sampled]]:
    """Greedy answers to prompts that are in the engine at once, each with its two best logits."""
    greedy = SamplingParams(logprobs=2)
    for index, (prompt, count) in enumerate(zip(prompts, counts, strict=True)):
        engine.add(Request(str(index), prompt, count, greedy, ignore_eos=True))
    told: list[list[Sampled]] = [[] for _ in prompts]
    while engine.has_work:
        for output in engine.step():
            told[int(output.request_id)] += [output.token] if output.token else []
    return told


def gap(token: Sampled) -> float:
    (_, best), (_, second) = token.top
    return best - second


@pytest.mark.engine
def test_the_tokenizer_gives_vllms_ids(model: Path, answers: list[dict[str, Any]]) -> None:
    tokenizer = Tokenizer(model)
    assert [tokenizer.encode(text) for text in TEXTS] == [row["prompt"] for row in answers]


@pytest.mark.engine
@pytest.mark.parametrize("caching", [True, False], ids=["prefix cache", "no prefix cache"])
def test_greedy_tokens_equal_vllms(executor: NumpyExecutor, answers: list[dict[str, Any]], caching: bool) -> None:
    """All of them, except where the two best logits are nearer than TIE. After such a tie vLLM's token is taken as
    given and the rest of the answer is compared again."""
    config = EngineConfig(
        num_blocks=600, block_size=BLOCK, max_num_seqs=8, max_batched_tokens=256, prefix_caching=caching
    )
    engine = Engine(config, executor)
    ties, compared = 0, 0
    pending = [(row["prompt"], row["output"]) for row in answers]
    while pending:
        told = generate(engine, [prompt for prompt, _ in pending], [len(wanted) for _, wanted in pending])
        again = []
        for (prompt, wanted), tokens in zip(pending, told, strict=True):
            ids = [token.token_id for token in tokens]
            assert len(ids) == len(wanted)
            same = next((at for at, pair in enumerate(zip(ids, wanted, strict=True)) if pair[0] != pair[1]), len(ids))
            compared += same
            if same == len(ids):
                continue
            assert gap(tokens[same]) < TIE, f"after {prompt[-8:]}: token {same} is {ids[same]}, vLLM's {wanted[same]}"
            assert tokens[same].top[1][0] == wanted[same]
            ties += 1
            if same + 1 < len(wanted):
                again.append(([*prompt, *wanted[: same + 1]], wanted[same + 1 :]))
        pending = again
    assert compared + ties == TOKENS * len(TEXTS)
    hits = engine.stats().prefix_hit_tokens
    assert (hits > 0) == caching
    print(f"{compared} tokens equal, {ties} ties, {hits} cached tokens")
