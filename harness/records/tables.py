"""The Parquet tables of a cell. Column names and types are a contract; readers refuse a foreign schema.

Times (`t_*`) are int64 nanoseconds of this host's monotonic clock, null where the thing did not happen;
`manifest.json` holds the anchor that turns them into wall-clock time. Counts are int32.
"""

from __future__ import annotations

import pyarrow as pa

SCHEMA_VERSION = 1

_TEXT = pa.dictionary(pa.int32(), pa.string())
_T = pa.int64()
_N = pa.int32()


def _schema(*fields: tuple[str, pa.DataType]) -> pa.Schema:
    return pa.schema([pa.field(name, kind) for name, kind in fields], metadata={"servescope": str(SCHEMA_VERSION)})


REQUESTS = _schema(
    ("request_id", pa.string()),
    ("session_id", _TEXT),
    ("turn", _N),
    ("family", _TEXT),
    ("cache_class", _TEXT),  # full | partial | miss | none
    ("phase", _TEXT),  # warmup | measure | drain
    ("worker", _N),
    ("t_intended", _T),  # when the schedule wanted it sent; for a closed loop, t_sent
    ("t_sent", _T),  # just before the first byte of the request is written
    ("t_first_byte", _T),  # first byte of the response body
    ("t_first_token", _T),  # first event with >= 1 output token of any kind
    ("t_first_content", _T),  # first token a user sees (not reasoning)
    ("t_last_token", _T),
    ("t_done", _T),  # response complete, or the moment of failure
    ("prompt_tokens", _N),
    ("output_tokens", _N),
    ("cached_tokens", _N),
    ("reasoning_tokens", _N),
    ("max_tokens", _N),
    ("token_source", _TEXT),  # usage | ids | text
    ("shared_tokens", _N),
    ("priority", _N),
    ("adapter", _TEXT),
    ("finish_reason", _TEXT),
    ("status", _TEXT),  # ok | error | timeout | cancelled | refused
    ("error_kind", _TEXT),
    ("error", pa.string()),
    ("http_status", _N),
    ("engine_request_id", pa.string()),
    ("server_queue_ns", _T),
    ("server_preemptions", _N),
)

CHUNKS = _schema(
    ("request_id", _TEXT),
    ("seq", _N),
    ("t_arrival", _T),  # user space, stamped before any parsing
    ("t_kernel", _T),  # kernel receive stamp moved to the monotonic clock; null where the socket gives none
    ("n_tokens", _N),
    ("kind", _TEXT),  # content | reasoning | tool | role | usage
    ("bytes", _N),
    ("source", _TEXT),  # ids | usage | event | text: how n_tokens is known
)

TOKENS = _schema(
    ("request_id", pa.string()),
    ("prompt_ids", pa.list_(pa.int32())),  # pseudonyms when redacted: equal where prompts are equal up to there
    ("output_ids", pa.list_(pa.int32())),  # likewise; null when not returned
    (
        "lcp_request_id",
        _TEXT,
    ),  # the earlier request (by t_sent) whose prompt + answer shares most with this prompt
    ("lcp_tokens", _N),
)

SERVER = _schema(
    ("t_start", _T),  # scrape sent
    ("t_end", _T),  # scrape received
    ("target", _TEXT),
    ("engine", _TEXT),
    ("metric", _TEXT),
    ("labels", _TEXT),  # JSON object, keys sorted
    ("value", pa.float64()),  # counters stay counters
)

HOST = _schema(
    ("t", _T),
    ("scope", _TEXT),  # host | client | engine
    ("metric", _TEXT),
    ("labels", _TEXT),  # JSON object, keys sorted
    ("value", pa.float64()),
)

TABLES: dict[str, pa.Schema] = {
    "requests": REQUESTS,
    "chunks": CHUNKS,
    "tokens": TOKENS,
    "server": SERVER,
    "host": HOST,
}
