"""The forward pass: against a naive one in float64, and the same whatever chunks, tables and company a prompt has."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from harness.models.store import get_model
from native_core import attention_plan
from native_core.engine import Engine, EngineConfig
from native_core.executor import SamplingParams, Work
from native_core.llama import Llama, rms_norm
from native_core.numpy_executor import NumpyExecutor
from native_core.parallel import Team
from native_core.request import Request
from tests.native_core.checkpoints import CONFIG, naive_logits, random_tensors, save

GREEDY = SamplingParams()
BLOCKS, BLOCK = 24, 4
TEAM = Team(2)


@pytest.fixture(scope="module")
def tiny() -> Path:
    return get_model("tiny").path


@pytest.fixture(scope="module")
def llama(tiny: Path) -> Llama:
    return Llama(tiny, TEAM)


def fresh(model: Llama, blocks: int = BLOCKS, block_size: int = BLOCK) -> Llama:
    """An empty pool full of NaN: reading a slot that the sequence has not written shows in every logit."""
    model.allocate(blocks, block_size)
    assert model.pool is not None
    model.pool.keys.fill(np.nan)
    model.pool.values.fill(np.nan)
    return model


def prefill(model: Llama, ids: Sequence[int]) -> NDArray[np.float32]:
    """Logits of the last token, all of it in one step over blocks 0, 1, 2, …"""
    table = list(range(-(-len(ids) // BLOCK)))
    logits, _ = model.forward([Work("whole", ids, 0, table, GREEDY)], [0])
    return np.asarray(logits[0])


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"num_key_value_heads": 6},
        {"num_key_value_heads": 1, "tie_word_embeddings": True},
        {"head_dim": 16, "rope_theta": 500_000.0},
    ],
    ids=["three queries a key", "one query a key", "one key for all, tied", "wide heads"],
)
def test_logits_equal_a_naive_llama_in_float64(tmp_path: Path, change: dict[str, Any]) -> None:
    config = {**CONFIG, **change}
    tensors = random_tensors(config)
    model = fresh(Llama(save(tmp_path, config, tensors), TEAM))
    ids = np.random.default_rng(1).integers(0, config["vocab_size"], 19).tolist()
    expected = naive_logits(config, tensors, ids)
    assert expected.std() > 0.3
    for count in (1, 2, 19):
        np.testing.assert_allclose(prefill(fresh(model), ids[:count]), expected[count - 1], rtol=0, atol=2e-5)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_chunks_tables_and_company_give_the_same_logits(llama: Llama, data: st.DataObject) -> None:
    """One to three prompts, cut at random, their chunks computed in mixed steps, their blocks anywhere in the pool."""
    fresh(llama)
    prompts = data.draw(st.lists(st.lists(st.integers(0, 511), min_size=1, max_size=30), min_size=1, max_size=3))
    expected = [prefill(fresh(llama), prompt) for prompt in prompts]
    fresh(llama)
    places = data.draw(st.permutations(range(BLOCKS)))
    tables = [places[8 * i : 8 * i + -(-len(prompt) // BLOCK)] for i, prompt in enumerate(prompts)]
    done = [0] * len(prompts)
    last: dict[int, NDArray[np.float32]] = {}
    while len(last) < len(prompts):
        pending = [i for i in range(len(prompts)) if i not in last]
        chosen = data.draw(st.lists(st.sampled_from(pending), min_size=1, unique=True))
        counts = [data.draw(st.integers(1, len(prompts[i]) - done[i])) for i in chosen]
        work = [
            Work(str(i), prompts[i][done[i] : done[i] + count], done[i], tables[i], GREEDY)
            for i, count in zip(chosen, counts, strict=True)
        ]
        logits, _ = llama.forward(work, list(range(len(work))))
        for row, (i, count) in enumerate(zip(chosen, counts, strict=True)):
            done[i] += count
            if done[i] == len(prompts[i]):
                last[i] = logits[row]
    for i, wanted in enumerate(expected):
        np.testing.assert_allclose(last[i], wanted, rtol=0, atol=2e-5)


@settings(max_examples=20, deadline=None)
@given(shared=st.integers(1, 6), rest=st.lists(st.integers(0, 511), min_size=1, max_size=8), data=st.data())
def test_a_prefix_that_another_prompt_computed_serves_as_well(
    llama: Llama, shared: int, rest: list[int], data: st.DataObject
) -> None:
    prefix = data.draw(st.lists(st.integers(0, 511), min_size=shared * BLOCK, max_size=shared * BLOCK))
    expected = prefill(fresh(llama), [*prefix, *rest])
    fresh(llama)
    places = data.draw(st.permutations(range(BLOCKS)))
    first, second = places[:shared], places[shared : shared + 2]
    llama.forward([Work("first", [*prefix, 7], 0, [*first, places[-1]], GREEDY)], [0])
    logits, _ = llama.forward([Work("second", rest, len(prefix), [*first, *second], GREEDY)], [0])
    np.testing.assert_allclose(logits[0], expected, rtol=0, atol=2e-5)


def test_only_wanted_rows_come_back_in_the_order_asked_for(llama: Llama) -> None:
    fresh(llama)
    prompts = [[5, 6, 7], [8], [9, 10]]
    work = [Work(str(i), ids, 0, [i], GREEDY) for i, ids in enumerate(prompts)]
    both, _ = llama.forward(work, [2, 0])
    assert both.shape == (2, 512)
    np.testing.assert_allclose(both[0], prefill(fresh(llama), prompts[2]), rtol=0, atol=2e-5)
    np.testing.assert_allclose(both[1], prefill(fresh(llama), prompts[0]), rtol=0, atol=2e-5)
    none, _ = llama.forward([Work("chunk", [1, 2], 0, [5], None)], [])
    assert none.shape == (0, 512)


def test_a_long_prefill_is_computed_in_tiles_without_a_seam(llama: Llama, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = np.random.default_rng(2).integers(0, 512, 90).tolist()
    expected = prefill(fresh(llama), ids)
    for rows in (1, 7, 89):
        monkeypatch.setattr(attention_plan, "QUERY_TILE", rows)
        np.testing.assert_allclose(prefill(fresh(llama), ids), expected, rtol=0, atol=2e-5)


def test_rms_norm_of_a_vector_by_hand() -> None:
    # mean of squares of (3, 4) is 12.5; with eps 3.5 the root is 4
    found = rms_norm(np.array([[3.0, 4.0]], np.float32), np.array([2.0, 1.0], np.float32), 3.5)
    np.testing.assert_allclose(found, [[1.5, 1.0]], rtol=1e-6)


def test_extreme_gates_neither_warn_nor_poison(tmp_path: Path) -> None:
    """exp(-gate) overflows for gates below -88; silu is 0 there."""
    tensors = random_tensors(CONFIG)
    for name in list(tensors):
        if "gate_proj" in name:
            tensors[name] = tensors[name] * np.float32(1000)
    ids = [1, 2, 3, 4, 5]
    model = fresh(Llama(save(tmp_path, CONFIG, tensors), TEAM))
    with np.errstate(all="raise", under="ignore"):
        found = prefill(model, ids)
    np.testing.assert_allclose(found, naive_logits(CONFIG, tensors, ids)[-1], rtol=1e-4, atol=1e-4)


def answers(model: Path, prompts: Sequence[Sequence[int]], **settings: Any) -> tuple[list[list[int]], Engine]:
    config = EngineConfig(**{"num_blocks": 200, "block_size": 4, "max_model_len": 400, **settings})
    engine = Engine(config, NumpyExecutor(model, threads=1))
    requests = [Request(str(i), prompt, 12, ignore_eos=True) for i, prompt in enumerate(prompts)]
    for request in requests:
        engine.add(request)
    while engine.has_work:
        engine.step()
        engine.scheduler.check()
    return [request.output_ids for request in requests], engine


def test_greedy_answers_do_not_depend_on_how_the_engine_schedules(tiny: Path) -> None:
    """Cache on and off, chunks, batch sizes, preemption, two steps in flight: all the same ids."""
    rng = np.random.default_rng(3)
    common = rng.integers(3, 512, 30).tolist()
    prompts = [[*common[: rng.integers(1, 30)], *rng.integers(3, 512, rng.integers(1, 20)).tolist()] for _ in range(8)]
    expected, plain = answers(tiny, prompts, prefix_caching=False, max_num_seqs=1)
    assert plain.stats().prefix_hit_tokens == 0
    assert len({tuple(ids) for ids in expected}) > 4
    for change in (
        {"prefix_caching": True, "max_num_seqs": 3},
        {"max_batched_tokens": 7},
        {"max_batched_tokens": 16, "block_size": 1},
        {"num_blocks": 25, "watermark": 0.0},
        {"async_scheduling": True, "max_batched_tokens": 20},
    ):
        found, engine = answers(tiny, prompts, **change)
        assert found == expected, change
        if change.get("num_blocks"):
            assert engine.stats().preemptions > 0
        if change.get("prefix_caching"):
            assert engine.stats().prefix_hit_tokens > 0
