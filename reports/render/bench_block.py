"""The block that `vllm bench serve` prints, with its names and its definitions, so that old figures can be compared.

Its definitions differ from ours: TTFT ends with the first event of the answer, tokens in it or not; E2E ends with the
last such event; TPOT = (E2E - TTFT) / (tokens - 1); one ITL sample per event whatever it holds; percentiles are
interpolated; failed requests count nowhere but in their own line.
"""

from __future__ import annotations

import numpy as np

from reports.cell import FAILED, Cell, Floats

WIDTH = 50
NOTE = "as vllm bench serve defines them; our own figures stand above"


def bench_block(cell: Cell) -> str:
    """The block for one cell; empty where no measured request was answered."""
    span = cell.span
    if span is None or not len(cell.ok) or span[1] <= span[0]:
        return ""
    ok, seconds = cell.ok, span[1] - span[0]
    given, made = ok.sum("prompt_tokens"), ok.sum("output_tokens")
    ttft, e2e, gaps, tokens = _timeline(cell)
    lines = [f"{' Serving Benchmark Result ':=^{WIDTH}}"]
    lines += [_count("Successful requests:", len(ok))]
    lines += [_count("Failed requests:", int(np.isin(cell.measured["status"], FAILED).sum()))]
    if cell.in_flight is not None:
        lines += [_count("Maximum request concurrency:", cell.in_flight)]
    rate = _configured_rate(cell)
    if rate is not None:
        lines += [_value("Request rate configured (RPS):", rate)]
    lines += [_value("Benchmark duration (s):", seconds)]
    lines += [_count("Total input tokens:", given), _count("Total generated tokens:", made)]
    lines += [_value("Request throughput (req/s):", len(ok) / seconds)]
    lines += [_value("Output token throughput (tok/s):", made / seconds)]
    lines += [_value("Peak output token throughput (tok/s):", _peak_events(cell))]
    lines += [_value("Peak concurrent requests:", _peak_requests(cell, e2e))]
    lines += [_value("Total token throughput (tok/s):", (given + made) / seconds)]
    tpot = (e2e - ttft)[tokens > 1] / (tokens[tokens > 1] - 1.0)
    lines += _section("Time to First Token", "TTFT", ttft)
    lines += _section("Time per Output Token (excl. 1st token)", "TPOT", tpot)
    lines += _section("Inter-token Latency", "ITL", gaps)
    return "\n".join([*lines, "=" * WIDTH])


def _count(name: str, number: int) -> str:
    return f"{name:<40} {number:<10}"


def _value(name: str, number: float) -> str:
    return f"{name:<40} {number:<10.2f}"


def _section(title: str, name: str, values: Floats) -> list[str]:
    """Mean, median and P99 in ms; zero without values, as there."""
    ms = values[np.isfinite(values)] * 1e3
    ms = ms if len(ms) else np.zeros(1)
    return [
        f"{title:-^{WIDTH}}",
        _value(f"Mean {name} (ms):", float(ms.mean())),
        _value(f"Median {name} (ms):", float(np.median(ms))),
        _value(f"P99 {name} (ms):", float(np.percentile(ms, 99))),
    ]


def _events(cell: Cell) -> tuple[Floats, np.typing.NDArray[np.int64]]:
    """(arrival, request) of the events of ok measured answers, usage left out."""
    chunks = cell.chunks
    use = cell.ok_mask[chunks["row"]] & (chunks["kind"] != "usage")
    return chunks["t_arrival"][use], chunks["row"][use]


def _timeline(cell: Cell) -> tuple[Floats, Floats, Floats, Floats]:
    """TTFT, E2E, all gaps, and tokens per request, in seconds, by its definitions."""
    at, row = _events(cell)
    ok = np.flatnonzero(cell.ok_mask)
    sent, tokens = cell.requests["t_sent"][ok], np.nan_to_num(cell.requests["output_tokens"][ok])
    first, last = np.full(len(cell.requests), np.nan), np.full(len(cell.requests), np.nan)
    last[row] = at  # events of a request come in order, so the last one stays
    first[row[::-1]] = at[::-1]
    gaps = np.diff(at)[np.diff(row) == 0]
    return first[ok] - sent, last[ok] - sent, gaps, tokens


def _peak_events(cell: Cell) -> float:
    """Most events in a second, counted from the first send."""
    at, _ = _events(cell)
    start = float(np.nanmin(cell.ok["t_sent"]))
    return float(np.bincount((at - start).astype(np.int64)).max()) if len(at) else 0.0


def _peak_requests(cell: Cell, e2e: Floats) -> float:
    """Most requests that touched the same second."""
    start = cell.ok["t_sent"] - np.nanmin(cell.ok["t_sent"])
    end = start + np.nan_to_num(e2e)
    number = np.zeros(int(end.max()) + 2)
    for first, last in zip(start.astype(np.int64), end.astype(np.int64), strict=True):
        number[first : last + 1] += 1
    return float(number.max())


def _configured_rate(cell: Cell) -> float | None:
    load = cell.manifest.workload.load
    params = load.get("params")
    rate = load.get("rate", params.get("rate") if isinstance(params, dict) else None)
    return float(rate) if rate is not None else None
