"""Mooncake's traces: JSON Lines, plain or gzip, one request a line, its prompt named in blocks of 512 tokens.

{"timestamp": ms, "input_length": n, "output_length": m, "hash_ids": [id of each started block of the prompt]}

Equal ids mean equal tokens from the prompt's start to that block's end. The ids say nothing about answers.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workloads.model import WorkloadError

BLOCK = 512  # tokens that one id stands for
_KEYS = ("timestamp", "input_length", "output_length", "hash_ids")


@dataclass(frozen=True, slots=True)
class TraceRequest:
    arrival_s: float
    input_tokens: int
    output_tokens: int
    block_ids: tuple[int, ...]  # one for each started block of BLOCK tokens


def looks_like_mooncake(path: Path) -> bool:
    """Whether the first line is one of this format; False for a file that cannot be read."""
    try:
        with _open(path) as stream:
            first = json.loads(stream.readline())
    except (OSError, EOFError, zlib.error, ValueError):
        return False
    return isinstance(first, dict) and "hash_ids" in first


def read_mooncake(path: Path) -> list[TraceRequest]:
    """The requests in file order, every line checked. WorkloadError names the first line that is wrong."""
    try:
        with _open(path) as stream:
            lines = stream.read().decode().splitlines()
    except FileNotFoundError:
        raise WorkloadError(f"{path} does not exist; name a Mooncake trace (.jsonl or .jsonl.gz)") from None
    except (gzip.BadGzipFile, zlib.error, EOFError, UnicodeDecodeError) as error:
        raise WorkloadError(f"{path} is no trace, or was cut off: {error}") from None
    except OSError as error:
        raise WorkloadError(f"{path} cannot be read: {error.strerror}") from None
    if not lines:
        raise WorkloadError(f"{path} holds no request; is it the trace you mean?")
    return [_request(line, f"{path}:{number}") for number, line in enumerate(lines, start=1)]


def _open(path: Path) -> Any:
    with open(path, "rb") as stream:
        packed = stream.read(2) == b"\x1f\x8b"
    return gzip.open(path, "rb") if packed else open(path, "rb")


def _request(line: str, where: str) -> TraceRequest:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise WorkloadError(f"{where}: no JSON object: {error}; the file may be cut off") from None
    if not isinstance(row, dict):
        raise WorkloadError(f"{where}: no JSON object; a trace has one request a line")
    timestamp, tokens, output, ids = (_field(row, key, where) for key in _KEYS)
    numbers = (timestamp, tokens, output)
    if not all(isinstance(n, int | float) and not isinstance(n, bool) and 0 <= n < 2**53 for n in numbers):
        raise WorkloadError(f"{where}: timestamp and lengths must be numbers that are not negative")
    if not all(isinstance(n, int) for n in (tokens, output)) or not tokens:
        raise WorkloadError(f"{where}: lengths are whole numbers of tokens, and a prompt has at least one")
    if not isinstance(ids, list) or not all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
        raise WorkloadError(f"{where}: hash_ids must be a list of whole numbers")
    if len(ids) != -(-tokens // BLOCK):
        raise WorkloadError(
            f"{where}: {len(ids)} hash_ids for {tokens} tokens; one for each started block of {BLOCK} is needed"
        )
    if len(set(ids)) != len(ids):
        raise WorkloadError(f"{where}: an id is given twice; ids name whole prefixes, which grow from block to block")
    return TraceRequest(timestamp / 1000.0, tokens, output, tuple(ids))


def _field(row: Mapping[str, Any], key: str, where: str) -> Any:
    if key not in row:
        raise WorkloadError(f"{where}: {key!r} is missing; is this a Mooncake trace?")
    return row[key]
