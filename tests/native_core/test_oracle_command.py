"""`predict` from the command's function: workloads, traces, and one line for each thing that is wrong."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from harness.cli.predict import predict_command
from harness.records.errors import UsageError
from native_core.oracle.replay import ReplayError
from native_core.profiles import ProfileError
from workloads.file import write_workload
from workloads.model import Load, Request, Workload, WorkloadError

IDS = [[1, 2, 3], [1, 2, 4], [1, 2, 3], [9]]


def trace(folder: Path) -> Path:
    path = folder / "trace.jsonl.gz"
    rows = [
        {"timestamp": at, "input_length": 512 * len(ids) - 12, "output_length": 1, "hash_ids": ids}
        for at, ids in enumerate(IDS)
    ]
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    return path


def workload(folder: Path, **load: Any) -> Path:
    path = folder / "workload.jsonl.gz"
    segments = {"head": tuple(range(1, 41)), "a": (90, 91), "b": (95, 96)}
    rows = tuple(Request(name, name, 0, ("head", name[0]), 3) for name in ("a0", "b0", "a1"))
    entry = Load("closed", {"in_flight": load.get("in_flight", 1)})
    write_workload(Workload("three", "test", 1, {}, entry, segments, rows), path)
    return path


def ask(source: Path, capsys: pytest.CaptureFixture[str], **more: Any) -> Any:
    """The JSON document, after the text was printed too."""
    arguments: dict[str, Any] = {"profile": None, "kv_tokens": None, "block_size": None, **more}
    assert predict_command(source, **arguments, as_json=False) == 0
    assert len(capsys.readouterr().out) > 200
    assert predict_command(source, **arguments, as_json=True) == 0
    return json.loads(capsys.readouterr().out)


def test_a_workload_in_turn_is_exact(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """42 tokens three times: 0, then 32 of 40 shared, then 32 of 42, at blocks of 16."""
    found = ask(workload(tmp_path), capsys)
    assert found["exact"] is True
    assert found["total"]["cached"] == {"low": 64, "high": 64}
    assert found["ceiling"] == 40 + 42
    assert {loss["cause"]: loss["tokens"]["low"] for loss in found["losses"]} == {
        "last-token rule": 1,
        "page rounding": 17,
        "order": 0,
        "capacity": 0,
    }


def test_block_size_and_capacity_are_the_engines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = ask(workload(tmp_path), capsys, block_size=4, kv_tokens="48", profile="vllm-0.28.0")
    assert (found["profile"], found["block_size"], found["kv_tokens"]) == ("vllm-0.28.0", 4, 48)
    assert found["total"]["cached"]["high"] == 80


def test_an_interval_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = workload(tmp_path, in_flight=3)
    assert ask(path, capsys)["exact"] is False
    predict_command(path, profile=None, kv_tokens="inf", block_size=None, as_json=False)
    printed = capsys.readouterr().out
    assert "who comes first is not known" in printed
    assert "surely between 0 and 64" in printed


def test_a_trace_is_replayed_at_its_own_block(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = ask(trace(tmp_path), capsys)
    infinite = found["replay"][0]
    assert (found["block_size"], infinite["kv_tokens"]) == (512, None)
    assert (infinite["blocks"], infinite["hit_blocks"]) == (10, 5)
    assert found["full_blocks"]["hit_blocks"] == 4  # the last block is never full here
    small = ask(trace(tmp_path), capsys, kv_tokens="1_024", block_size=16)
    assert [row["kv_tokens"] for row in small["replay"]] == [1024, None]
    assert small["replay"][0]["hit_blocks"] < small["replay"][1]["hit_blocks"]


def test_wrong_questions(tmp_path: Path) -> None:
    known: dict[str, Any] = {"profile": None, "kv_tokens": None, "block_size": None, "as_json": False}
    path = workload(tmp_path)
    for given in ("many", "0", "-5", "1e6"):
        with pytest.raises(UsageError, match="is no number of tokens"):
            predict_command(path, **{**known, "kv_tokens": given})
    with pytest.raises(UsageError, match="is no block"):
        predict_command(path, **{**known, "block_size": 0})
    with pytest.raises(ProfileError, match="no scheduling rules are known"):
        predict_command(path, **{**known, "profile": "vllm-9.9"})
    with pytest.raises(UsageError, match="would refuse a0"):
        predict_command(path, **{**known, "kv_tokens": "32"})
    with pytest.raises(UsageError, match="leave --profile out"):
        predict_command(trace(tmp_path), **{**known, "profile": "vllm-0.32.0"})
    with pytest.raises(ReplayError, match="does not divide"):
        predict_command(trace(tmp_path), **{**known, "block_size": 48})
    with pytest.raises(WorkloadError, match="does not exist"):
        predict_command(tmp_path / "missing", **known)
