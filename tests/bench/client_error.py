"""How wrong is the client? Drives the truth server and compares every event with the moment at which it was sent.

    python -m tests.bench.client_error [--streams 400] [--requests 1600] [--tokens 64] [--gap 0.02] [--first 0.1]

Not part of the test run: its figures depend on what else the machine does. Prints one JSON object; times in ms.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from harness.client.job import ClientJob
from workloads.file import write_workload
from workloads.model import Load, Request, Workload


def workload(requests: int, tokens: int, streams: int) -> Workload:
    rows = tuple(Request(f"r{i:05d}", f"s{i:05d}", 0, (f"p{i}",), tokens) for i in range(requests))
    segments = {f"p{i}": (1000 + i, 5, 6, 7, 8, 9, 10, 11) for i in range(requests)}
    return Workload("bench", "bench", 1, {}, Load("closed", {"in_flight": float(streams)}), segments, rows)


def summary(values: np.ndarray) -> dict[str, float]:
    names = {"mean": values.mean(), "p50": np.percentile(values, 50), "p99": np.percentile(values, 99)}
    return {name: round(float(value) / 1e6, 3) for name, value in (*names.items(), ("max", values.max()))}


def measure(options: argparse.Namespace, out: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "harness.client.truth_server"]
    command += ["--first", str(options.first), "--gap", str(options.gap)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        file = out / "workload.jsonl.gz"
        write_workload(workload(options.requests, options.tokens, options.streams), file)
        job = ClientJob(engine_kind="openai", base_url=url, model="truth", workload_file=str(file), out_dir=str(out))
        (out / "job.json").write_text(job.model_dump_json())
        began = time.monotonic()
        worker = subprocess.Popen(
            [sys.executable, "-m", "harness.client.worker", str(out / "job.json")],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        _, code, used = os.wait4(worker.pid, 0)
        wall = time.monotonic() - began
        if code:
            raise SystemExit(f"the worker ended with {code}")
        with urllib.request.urlopen(f"{url}/truth") as answer:
            truth = json.load(answer)
    finally:
        server.terminate()
        server.wait()
    result = json.loads((out / "worker-0.json").read_text())
    figures = compare(out, truth)
    figures |= {
        "client_cpu_s": round(used.ru_utime + used.ru_stime, 2),
        "client_wall_s": round(wall, 2),
        "client_rss_mb": round(used.ru_maxrss / 1024, 1),
        "info": result["info"],
    }
    return figures


def compare(out: Path, truth: dict[str, Any]) -> dict[str, Any]:
    rows = pq.read_table(out / "requests-0.parquet").to_pylist()
    chunks = pq.read_table(out / "chunks-0.parquet").to_pandas()
    chunks = chunks[chunks["kind"] == "content"].sort_values(["request_id", "seq"])
    arrivals = dict(iter(chunks.groupby("request_id", observed=True)))
    ttft, ttft_error, gap, event, kernel, lost = [], [], [], [], [], 0
    for row in rows:
        if row["status"] != "ok":
            lost += 1
            continue
        _, sent = truth[row["engine_request_id"].removeprefix("truth-")]
        stamps = np.array(sent)
        seen = arrivals[row["request_id"]]
        at = seen["t_arrival"].to_numpy()
        lost += len(at) != len(stamps)
        ttft.append(row["t_first_token"] - row["t_sent"])
        ttft_error.append(row["t_first_token"] - sent[0])
        gap.append(np.abs(np.diff(at) - np.diff(stamps)))
        event.append(at - stamps)
        known = seen.dropna(subset=["t_kernel"])
        kernel.append((known["t_arrival"] - known["t_kernel"]).to_numpy(dtype=float))
    return {
        "requests": len(rows),
        "not_ok_or_lost": int(lost),
        "events": int(sum(len(part) for part in event)),
        "mean_ttft_reported": round(float(np.mean(ttft)) / 1e6, 3),
        "ttft_error": summary(np.array(ttft_error)),
        "chunk_gap_error": summary(np.concatenate(gap)),
        "event_error": summary(np.concatenate(event)),
        "kernel_to_read": summary(np.concatenate(kernel)),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--streams", type=int, default=400)
    parser.add_argument("--requests", type=int, default=1600)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--first", type=float, default=0.1)
    parser.add_argument("--gap", type=float, default=0.02)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        print(json.dumps(measure(options, Path(directory)), indent=1))


if __name__ == "__main__":
    main()
