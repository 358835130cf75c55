"""Azure's LLM inference traces of 2023: CSV with TIMESTAMP, ContextTokens, GeneratedTokens; lengths, no contents."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from workloads.model import WorkloadError

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


@dataclass(frozen=True, slots=True)
class LengthRow:
    arrival_s: float  # seconds since the first row
    input_tokens: int
    output_tokens: int


def read_azure(path: Path) -> list[LengthRow]:
    """The rows in file order. WorkloadError names the line of what is wrong."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        raise WorkloadError(f"{path} does not exist; name a CSV of the Azure LLM inference traces") from None
    except (OSError, UnicodeDecodeError) as error:
        raise WorkloadError(f"{path} cannot be read: {error}") from None
    lines = csv.reader(text.splitlines())
    if tuple(next(lines, ())) != COLUMNS:
        raise WorkloadError(f"{path}:1: the header is not {','.join(COLUMNS)}; is this an Azure LLM trace?")
    rows: list[LengthRow] = []
    start: float | None = None
    for number, cells in enumerate(lines, start=2):
        try:
            stamp, context, generated = cells
            at = _seconds(stamp)
            start = at if start is None else start
            rows.append(LengthRow(at - start, int(context), int(generated)))
        except ValueError as error:
            raise WorkloadError(f"{path}:{number}: {error}; expected {','.join(COLUMNS)}") from None
    return rows


def _seconds(stamp: str) -> float:
    """The stamps have seven fractional digits, one more than datetime keeps."""
    whole, _, fraction = stamp.partition(".")
    parsed = datetime.strptime(whole, "%Y-%m-%d %H:%M:%S")
    return (parsed - datetime(2023, 1, 1)).total_seconds() + (float(f"0.{fraction}") if fraction else 0.0)
