"""Fifth stage: what the engine had to compute in a step: how many requests, how many tokens, how long contexts."""

from __future__ import annotations

import numpy as np

from harness.records.judgements import Evidence, Stage
from reports.triage.view import View, gauge, pair_mean, shown, stage, value


def look(view: View) -> Stage:
    evidence = [
        *pair_mean(view, "step_tokens"),
        *gauge(view, "running"),
        *gauge(view, "context_tokens"),
        *_prompts(view),
    ]
    words = []
    tokens = value(evidence, "step_tokens")
    if tokens is not None:
        most = view.cell.manifest.engine.max_batched_tokens
        words.append(f"{shown(tokens, 'tokens')} per step on average" + (f", {most:,} allowed" if most else ""))
    running = view.series("running")
    mean = running.time_mean(view.begin, view.end) if running is not None else None
    if mean is not None:
        words.append(f"{mean:.1f} requests ran together on average")
    longest = value(evidence, "prompt_tokens_longest")
    median = value(evidence, "prompt_tokens_median")
    if longest is not None and median is not None:
        words.append(f"prompts of {median:,.0f} tokens in the middle, {longest:,.0f} at most")
    return stage(view, "batch_shape", "; ".join(words), evidence, ("step_tokens", "running", "context_tokens"))


def _prompts(view: View) -> list[Evidence]:
    """Prompt lengths as the engine counted them, from the client's rows."""
    tokens = view.cell.ok["prompt_tokens"]
    tokens = tokens[np.isfinite(tokens)]
    if not len(tokens):
        return []
    note = f"{len(tokens)} measured requests"
    query = "requests.parquet: prompt_tokens"
    return [
        Evidence(signal="prompt_tokens_median", now=float(np.median(tokens)), unit="tokens", query=query, note=note),
        Evidence(signal="prompt_tokens_longest", now=float(tokens.max()), unit="tokens", query=query, note=note),
    ]
