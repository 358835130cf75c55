"""tokens.parquet: what was said, in the form from which every cache expectation can be computed again."""

from __future__ import annotations

import pyarrow as pa

from harness.cli.jobs.redact import pseudonyms
from harness.records.prefixes import longest_prefixes
from harness.records.tables import TOKENS


def tokens_table(requests: pa.Table, answers: pa.Table, *, redact: bool) -> pa.Table:
    """One row per request in sending order, with the longest prefix shared with anything sent before.

    `answers` has request_id, prompt_ids, output_ids. Redacted tables have pseudonyms in place of the ids.
    """
    sent = {
        name: at
        for name, at in zip(requests["request_id"].to_pylist(), requests["t_sent"].to_pylist(), strict=True)
        if at is not None
    }
    rows = [row for row in answers.to_pylist() if row["request_id"] in sent and row["prompt_ids"] is not None]
    rows.sort(key=lambda row: (sent[row["request_id"]], row["request_id"]))
    shared = longest_prefixes((row["request_id"], row["prompt_ids"], row["output_ids"] or ()) for row in rows)
    prompts = [row["prompt_ids"] for row in rows]
    outputs = [row["output_ids"] for row in rows]
    if redact:
        hidden = pseudonyms([[*prompt, *(output or ())] for prompt, output in zip(prompts, outputs, strict=True)])
        outputs = [
            None if output is None else ids[len(prompt) :].tolist()
            for prompt, output, ids in zip(prompts, outputs, hidden, strict=True)
        ]
        prompts = [ids[: len(prompt)].tolist() for prompt, ids in zip(prompts, hidden, strict=True)]
    return pa.table(
        {
            "request_id": [row["request_id"] for row in rows],
            "prompt_ids": prompts,
            "output_ids": outputs,
            "lcp_request_id": [owner for owner, _ in shared],
            "lcp_tokens": [count for _, count in shared],
        }
    ).cast(TOKENS)
