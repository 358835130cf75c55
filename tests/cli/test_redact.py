"""A redacted cell keeps what the oracle needs, and nothing that could be read."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa

from harness.cli.jobs.redact import redacted
from harness.cli.jobs.tokens import tokens_table
from harness.records.prefixes import common_tokens, encode_ids
from harness.records.tables import REQUESTS
from workloads.model import Workload
from workloads.registry import generate
from workloads.vocabulary import Vocabulary

VOCABULARY = Vocabulary(size=600, ids=tuple(range(10, 590)))


def made() -> Workload:
    params = {"full": 2, "partial": 2, "miss": 2, "groups": 1, "prefix_tokens": 16, "suffix_tokens": 4}
    return generate("prefix_hit", name="hits", seed=3, params=params, load=None, vocabulary=VOCABULARY)


def test_equal_prefixes_stay_equal_and_ids_change() -> None:
    plain = made()
    hidden = redacted(plain, VOCABULARY)
    assert hidden.segments != plain.segments
    for first, second in pairwise(plain.requests):
        shared = common_tokens(encode_ids(plain.prompt_ids(first)), encode_ids(plain.prompt_ids(second)))
        kept = common_tokens(encode_ids(hidden.prompt_ids(first)), encode_ids(hidden.prompt_ids(second)))
        assert kept == shared


def test_tokens_table_orders_by_sending_time_and_drops_ids_when_redacted() -> None:
    answers = pa.table(
        {
            "request_id": ["late", "early", "unsent"],
            "prompt_ids": pa.array([[1, 2, 3, 9], [1, 2, 3], [1]], pa.list_(pa.int32())),
            "output_ids": pa.array([[5], [9, 8], None], pa.list_(pa.int32())),
        }
    )
    requests = REQUESTS.empty_table().to_pydict()
    rows = [{"request_id": "late", "t_sent": 20}, {"request_id": "early", "t_sent": 10}, {"request_id": "unsent"}]
    requests = pa.Table.from_pylist(rows, schema=pa.schema([("request_id", pa.string()), ("t_sent", pa.int64())]))
    table = tokens_table(requests, answers, redact=False).to_pylist()
    assert [(row["request_id"], row["lcp_request_id"], row["lcp_tokens"]) for row in table] == [
        ("early", None, 0),
        ("late", "early", 4),  # three prompt tokens and the first of the answer
    ]
    hidden = tokens_table(requests, answers, redact=True).to_pylist()
    assert [row["prompt_ids"] for row in hidden] == [None, None]
    assert [row["output_ids"] for row in hidden] == [None, None]
    assert hidden[1]["lcp_tokens"] == 4
