"""A redacted cell keeps what the oracle needs, and nothing that could be read."""

from __future__ import annotations

from itertools import combinations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from harness.cli.jobs.redact import pseudonyms, redacted
from harness.cli.jobs.tokens import tokens_table
from harness.records.prefixes import common_tokens, encode_ids
from workloads.model import AnswerOf, Load, Request, Workload
from workloads.registry import generate
from workloads.vocabulary import Vocabulary

VOCABULARY = Vocabulary(size=600, ids=tuple(range(10, 590)))


def made() -> Workload:
    params = {"full": 2, "partial": 2, "miss": 2, "groups": 1, "prefix_tokens": 16, "suffix_tokens": 4}
    return generate("prefix_hit", name="hits", seed=3, params=params, load=None, vocabulary=VOCABULARY)


def shared(left: list[int] | tuple[int, ...], right: list[int] | tuple[int, ...]) -> int:
    return common_tokens(encode_ids(left), encode_ids(right))


@given(st.lists(st.lists(st.integers(0, 2), max_size=6), max_size=8))
def test_pseudonyms_keep_prefixes_and_nothing_else(sequences: list[list[int]]) -> None:
    hidden = [ids.tolist() for ids in pseudonyms(sequences)]
    assert [len(ids) for ids in hidden] == [len(ids) for ids in sequences]
    for (a, hidden_a), (b, hidden_b) in combinations(zip(sequences, hidden, strict=True), 2):
        same = shared(a, b)
        assert shared(hidden_a, hidden_b) == same
        # Past the common prefix no number is met again, so that equal tokens cannot be told from different ones.
        assert not set(hidden_a[same:]) & set(hidden_b[same:])
    for ids in hidden:
        assert len(set(ids)) == len(ids)


def test_prompts_of_a_workload_share_what_they_shared() -> None:
    plain = made()
    hidden = redacted(plain)
    assert [request.request_id for request in hidden.requests] == [request.request_id for request in plain.requests]
    for first, second in combinations(range(len(plain.requests)), 2):
        before = shared(*(plain.prompt_ids(plain.requests[place]) for place in (first, second)))
        assert shared(*(hidden.prompt_ids(hidden.requests[place]) for place in (first, second))) == before
    assert not set(plain.segments.values()) & set(hidden.segments.values())


def test_an_answer_of_run_time_stays_one() -> None:
    """What follows the same answer may be shared; what follows another one is not, even if it reads the same."""
    prompts = {"a": ("p",), "b": ("p", AnswerOf("a"), "q"), "c": ("p", AnswerOf("a"), "q"), "d": ("p", "q")}
    rows = tuple(Request(name, "s", turn, parts, 1) for turn, (name, parts) in enumerate(prompts.items()))
    hidden = redacted(Workload("w", "w", 1, {}, Load("closed", {"in_flight": 1}), {"p": (1, 2), "q": (3,)}, rows))
    assert hidden.requests[1].prompt[1] == AnswerOf("a")
    a, b, c, d = (hidden.prompt_ids(request, {"a": (7, 7)}) for request in hidden.requests)
    assert b == c
    assert a == b[:2] == d[:2]
    assert b[4:] != d[2:]


def test_tokens_table_orders_by_sending_time_and_hides_ids_when_redacted() -> None:
    answers = pa.table(
        {
            "request_id": ["late", "early", "unsent"],
            "prompt_ids": pa.array([[1, 2, 3, 9], [1, 2, 3], [1]], pa.list_(pa.int32())),
            "output_ids": pa.array([None, [9, 8], None], pa.list_(pa.int32())),
        }
    )
    rows = [{"request_id": "late", "t_sent": 20}, {"request_id": "early", "t_sent": 10}, {"request_id": "unsent"}]
    requests = pa.Table.from_pylist(rows, schema=pa.schema([("request_id", pa.string()), ("t_sent", pa.int64())]))
    table = tokens_table(requests, answers, redact=False).to_pylist()
    assert [(row["request_id"], row["lcp_request_id"], row["lcp_tokens"]) for row in table] == [
        ("early", None, 0),
        ("late", "early", 4),  # three prompt tokens and the first of the answer
    ]
    early, late = tokens_table(requests, answers, redact=True).to_pylist()
    assert (len(early["prompt_ids"]), len(early["output_ids"])) == (3, 2)
    assert late["output_ids"] is None
    assert late["lcp_tokens"] == 4 == shared(early["prompt_ids"] + early["output_ids"], late["prompt_ids"])
