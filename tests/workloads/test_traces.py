"""Readers of public traces: what they take, and one line for each thing they refuse."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from workloads.model import WorkloadError
from workloads.traces.azure import read_azure
from workloads.traces.mooncake import looks_like_mooncake, read_mooncake

ROW = {"timestamp": 27482, "input_length": 1030, "output_length": 52, "hash_ids": [46, 47, 2353]}


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return path


def test_a_row_becomes_a_request(tmp_path: Path) -> None:
    (request,) = read_mooncake(write(tmp_path / "trace.jsonl", ROW))
    assert (request.arrival_s, request.input_tokens, request.output_tokens) == (27.482, 1030, 52)
    assert request.block_ids == (46, 47, 2353)


def test_gzip_is_seen_by_its_first_bytes_not_by_its_name(tmp_path: Path) -> None:
    packed = tmp_path / "trace.jsonl"
    packed.write_bytes(gzip.compress(json.dumps(ROW).encode()))
    assert looks_like_mooncake(packed)
    assert read_mooncake(packed) == read_mooncake(write(tmp_path / "plain.jsonl", ROW))


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({**ROW, "hash_ids": [46, 47]}, "2 hash_ids for 1030 tokens"),
        ({**ROW, "hash_ids": [46, 47, 46]}, "given twice"),
        ({**ROW, "hash_ids": "46"}, "must be a list"),
        ({**ROW, "hash_ids": [46, 47, True]}, "must be a list"),
        ({**ROW, "input_length": 0, "hash_ids": []}, "at least one"),
        ({**ROW, "input_length": 1030.5}, "whole numbers"),
        ({**ROW, "timestamp": -1}, "not negative"),
        ({key: value for key, value in ROW.items() if key != "hash_ids"}, "'hash_ids' is missing"),
        ("[1, 2]", "no JSON object"),
        ('{"timestamp": 1, "input_len', "cut off"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, row: object, words: str) -> None:
    path = write(tmp_path / "trace.jsonl", ROW, row)
    with pytest.raises(WorkloadError, match=words) as caught:
        read_mooncake(path)
    assert f"{path}:2:" in str(caught.value)


def test_files_that_are_no_trace(tmp_path: Path) -> None:
    missing = tmp_path / "missing.jsonl"
    assert not looks_like_mooncake(missing)
    with pytest.raises(WorkloadError, match="does not exist"):
        read_mooncake(missing)
    empty = write(tmp_path / "empty.jsonl")
    with pytest.raises(WorkloadError, match="holds no request"):
        read_mooncake(empty)
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(gzip.compress(json.dumps(ROW).encode() * 50)[:40])
    assert not looks_like_mooncake(cut)
    with pytest.raises(WorkloadError, match="cut off"):
        read_mooncake(cut)
    assert not looks_like_mooncake(write(tmp_path / "other.jsonl", {"schema": 1}))


def test_azure_rows_count_seconds_from_the_first(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:16:47.6805901,396,109"
    )
    first, second = read_azure(path)
    assert (first.arrival_s, first.input_tokens, first.output_tokens) == (0.0, 374, 44)
    assert second.arrival_s == pytest.approx(61.0000001, abs=1e-8)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b\n", "the header is not"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6,374\n", r":2: .*expected"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,374,3\n", ":2: "),
    ],
)
def test_an_azure_file_that_is_wrong(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "azure.csv"
    path.write_text(text)
    with pytest.raises(WorkloadError, match=words):
        read_azure(path)
    with pytest.raises(WorkloadError, match="does not exist"):
        read_azure(tmp_path / "missing.csv")
