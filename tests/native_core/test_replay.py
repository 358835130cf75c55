"""The trace replay against a cache that knows single blocks only, and against the figures published for the traces."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from native_core.oracle.fragmentation import last_block_waste, waste_while_decoding
from native_core.oracle.replay import HitRates, ReplayError, Rule, SpanCache, replay
from workloads.traces.azure import read_azure
from workloads.traces.mooncake import TraceRequest, read_mooncake

TRACES = Path(__file__).resolve().parents[3] / "shared" / "data" / "traces"
CAPACITIES = (None, 10_000, 100_000, 1_000_000, 3_000_000, 10_000_000, 50_000_000)
needs_traces = pytest.mark.skipif(not TRACES.is_dir(), reason="needs the public traces in ../shared/data/traces")


@dataclass(frozen=True)
class Prompt:
    input_tokens: int
    block_ids: Sequence[int]


def one_by_one(
    prompts: Sequence[Prompt], trace_block: int, size: int, kv_tokens: int | None, rule: Rule
) -> tuple[int, int]:
    """(hit blocks, hit tokens) with a list of single blocks, least recent first: slow, and obviously LRU."""
    recent: list[tuple[int, int]] = []
    hit_blocks = hit_tokens = 0
    for prompt in prompts:
        length = prompt.input_tokens
        asked = math.ceil(length / size) if rule == "started" else length // size
        names = [(prompt.block_ids[at * size // trace_block], at * size % trace_block) for at in range(asked)]
        found = 0
        while found < len(names) and names[found] in recent:
            found += 1
        if rule == "full":
            found = min(found, (length - 1) // size)
        hit_blocks += found
        hit_tokens += min(found * size, length)
        for name in reversed(names):
            if name in recent:
                recent.remove(name)
            recent.append(name)
        if kv_tokens is not None:
            del recent[: max(0, len(recent) - kv_tokens // size)]
    return hit_blocks, hit_tokens


@st.composite
def traces(draw: st.DrawFn) -> list[Prompt]:
    """Prompts of a small forest of prefixes: an id stands for one place in it, and for one content."""
    known: list[tuple[tuple[int, ...], int]] = []  # ids, tokens; tokens of an id's block are fixed once drawn
    prompts = []
    for _ in range(draw(st.integers(1, 12))):
        ids: tuple[int, ...] = ()
        whole = [entry for entry in known if entry[1] % 8 == 0]
        if bool(whole) and draw(st.booleans()):
            parent = draw(st.sampled_from(whole))[0]
            ids = parent[: draw(st.integers(1, len(parent)))]
        if bool(known) and draw(st.booleans()):
            ids, tokens = draw(st.sampled_from(known))
            prompts.append(Prompt(tokens, ids))
            continue
        fresh = draw(st.integers(1, 4))
        start = 100 * len(known)
        ids += tuple(range(start, start + fresh))
        tokens = 8 * len(ids) - draw(st.integers(0, 7))
        known.append((ids, tokens))
        prompts.append(Prompt(tokens, ids))
    return prompts


@given(
    traces(),
    st.sampled_from([1, 2, 4, 8]),
    st.one_of(st.none(), st.integers(8, 120)),
    st.sampled_from(["started", "full"]),
)
def test_spans_are_an_lru_of_single_blocks(prompts: list[Prompt], size: int, kv: int | None, rule: Rule) -> None:
    rates = replay(prompts, trace_block=8, block_size=size, kv_tokens=kv, rule=rule)
    assert (rates.hit_blocks, rates.hit_tokens) == one_by_one(prompts, 8, size, kv, rule)


def test_a_span_loses_its_end_first() -> None:
    cache = SpanCache(6)
    cache.touch([1], [4])
    cache.touch([2], [4])
    assert cache.hits([1], [4]) == 2
    assert cache.hits([2], [4]) == 4
    assert cache.blocks == 6


def test_settings_that_cannot_be_replayed_are_refused() -> None:
    with pytest.raises(ReplayError, match="does not divide"):
        replay([], trace_block=512, block_size=48)
    with pytest.raises(ReplayError, match="holds no block"):
        replay([], trace_block=512, kv_tokens=100)


def rounded(rates: HitRates) -> tuple[str, str, str]:
    return f"{rates.by_block:.5f}", f"{rates.by_token:.5f}", f"{rates.by_request:.5f}"


WHOLE = {
    "conversation_trace.jsonl.gz": (
        "0.36641 0.04170 0.04189 0.05328 0.13608 0.28518 0.36350",
        "0.37362 0.04254 0.04273 0.05432 0.13873 0.29078 0.37065",
        "0.40938 0.15921 0.15934 0.17022 0.23969 0.35579 0.40778",
    ),
    "synthetic_trace.jsonl.gz": (
        "0.63960 0.00177 0.01682 0.14236 0.30935 0.56663 0.63960",
        "0.65124 0.00181 0.01715 0.14507 0.31509 0.57699 0.65124",
        "0.43152 0.00241 0.01252 0.10285 0.21790 0.38450 0.43152",
    ),
}


@needs_traces
@pytest.mark.parametrize("name", WHOLE)
def test_whole_traces_against_an_independent_computation(name: str) -> None:
    """By block, by token and by request, at seven capacities."""
    rows = read_mooncake(TRACES / "mooncake" / name)
    found = [rounded(replay(rows, trace_block=512, kv_tokens=tokens)) for tokens in CAPACITIES]
    assert tuple(" ".join(column) for column in zip(*found, strict=True)) == WHOLE[name]


@needs_traces
@pytest.mark.parametrize(
    ("name", "blocks", "tokens", "rows"),
    [
        ("conversation_trace.head.jsonl", ".23165 .04044 .12421 .22471", ".23563", 1168),
        ("synthetic_trace.head.jsonl", ".20177 .02725 .07762 .19639", ".20689", 1291),
    ],
)
def test_head_slices(name: str, blocks: str, tokens: str, rows: int) -> None:
    requests = read_mooncake(TRACES / "mooncake" / name)
    rates = [replay(requests, trace_block=512, kv_tokens=kv) for kv in (None, 1_000_000, 3_000_000, 10_000_000)]
    assert len(requests) == rows
    assert " ".join(f"{rate.by_block:.5f}"[1:] for rate in rates) == blocks
    assert f"{rates[0].by_token:.5f}"[1:] == tokens


@needs_traces
def test_the_papers_figures_within_four_points() -> None:
    """Mooncake (FAST'25): cache ratios of table 2, and figure 9 at 3 M tokens as a share of the maximum."""
    published = {"conversation_trace.jsonl.gz": (0.40, 0.41), "synthetic_trace.jsonl.gz": (0.66, 0.46)}
    for name, (maximum, at_3m) in published.items():
        rows = read_mooncake(TRACES / "mooncake" / name)
        infinite, small = (replay(rows, trace_block=512, kv_tokens=kv) for kv in (None, 3_000_000))
        nearest = min((infinite.by_block, infinite.by_token, infinite.by_request), key=lambda r: abs(r - maximum))
        assert abs(nearest - maximum) <= 0.04
        assert abs(small.by_block / infinite.by_block - at_3m) <= 0.04


@needs_traces
def test_the_engines_rule_counts_full_blocks() -> None:
    shares = {
        name: replay(read_mooncake(TRACES / "mooncake" / name), trace_block=512, rule="full").by_block for name in WHOLE
    }
    assert {name: f"{share:.3f}" for name, share in shares.items()} == dict(zip(WHOLE, ("0.382", "0.659"), strict=True))


@needs_traces
def test_structure_of_the_mooncake_traces() -> None:
    facts = {
        "conversation_trace.jsonl.gz": (12035.06, 342.62, 182_790, 288_500, 126_195, 3536.999),
        "synthetic_trace.jsonl.gz": (15325.48, 149.12, 43_924, 121_877, 191_378, 1022.025),
    }
    for name, expected in facts.items():
        rows = read_mooncake(TRACES / "mooncake" / name)
        ids = [block for row in rows for block in row.block_ids]
        assert expected == (
            round(sum(row.input_tokens for row in rows) / len(rows), 2),
            round(sum(row.output_tokens for row in rows) / len(rows), 2),
            len(set(ids)),
            len(ids),
            max(row.input_tokens for row in rows),
            rows[-1].arrival_s,
        )


@needs_traces
def test_waste_in_the_last_block() -> None:
    """Per cent: over all requests at blocks 16 … 256, the mean per request, and while decoding at 16 and 32."""
    expected = {
        "conv": (".54 1.12 2.21 4.38 8.02", "1.02 2.09 3.86 7.03 11.74", ".607 1.245"),
        "code": (".37 .73 1.51 3.04 6.09", "1.57 2.91 5.35 9.02 15.01", ".351 .720"),
    }
    for service, (aggregate, per_request, decoding) in expected.items():
        rows = read_azure(TRACES / "azure2023" / f"AzureLLMInferenceTrace_{service}.csv")
        lengths = [row.input_tokens + row.output_tokens for row in rows]
        waste = [last_block_waste(lengths, block) for block in (16, 32, 64, 128, 256)]
        assert " ".join(percent(one.aggregate, 2) for one in waste) == aggregate
        assert " ".join(percent(one.per_request, 2) for one in waste) == per_request
        pairs = [(row.input_tokens, row.output_tokens) for row in rows]
        assert " ".join(percent(waste_while_decoding(pairs, block), 3) for block in (16, 32)) == decoding


def percent(share: float, digits: int) -> str:
    return f"{100 * share:.{digits}f}".removeprefix("0")


@needs_traces
def test_waste_in_mooncakes_blocks() -> None:
    for name, expected in zip(WHOLE, ("2.01", "1.64"), strict=True):
        rows = read_mooncake(TRACES / "mooncake" / name)
        lengths = [row.input_tokens + row.output_tokens for row in rows]
        assert percent(last_block_waste(lengths, 512).aggregate, 2) == expected


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 60)), min_size=1, max_size=8), st.integers(1, 20))
def test_waste_while_decoding_is_the_sum_over_steps(requests: list[tuple[int, int]], block: int) -> None:
    held = slots = 0
    for prompt, output in requests:
        for length in range(prompt + 1, prompt + output + 1):
            held += length
            slots += math.ceil(length / block) * block
    assert waste_while_decoding(requests, block) == pytest.approx((slots - held) / slots)


def test_rates_of_an_empty_trace_are_nothing() -> None:
    assert rounded(replay(list[TraceRequest](), trace_block=512)) == ("0.00000", "0.00000", "0.00000")


def prefix_tree(prompts: list[list[int]]) -> tuple[list[Prompt], int]:
    """Prompts with an id for each prefix, and the sum of the lengths of all edges of their radix tree."""
    names: dict[tuple[int, ...], int] = {}
    named = [
        Prompt(len(p), [names.setdefault(tuple(p[: end + 1]), len(names)) for end in range(len(p))]) for p in prompts
    ]
    return named, len(names)


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), min_size=1, max_size=10), st.randoms())
def test_depth_first_order_is_optimal_with_a_cache_of_one_request(prompts: list[list[int]], order: Random) -> None:
    """1 - Σ edges / Σ prompts, which an infinite cache reaches in any order and no order exceeds (theorem 3.1 of
    SGLang's paper, NeurIPS 2024)."""
    longest = max(map(len, prompts))
    in_order, edges = prefix_tree(sorted(prompts))
    shuffled = in_order[:]
    order.shuffle(shuffled)
    total = sum(map(len, prompts))
    assert replay(in_order, trace_block=1, kv_tokens=longest).hit_tokens == total - edges
    assert replay(shuffled, trace_block=1).hit_tokens == total - edges
    assert replay(shuffled, trace_block=1, kv_tokens=longest).hit_tokens <= total - edges
