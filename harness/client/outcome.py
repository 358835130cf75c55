"""From a raw record to rows: what was answered, when, with how many tokens, and how it ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import orjson

from harness.client.http_head import parse_head
from harness.client.record import RawRecord, events, payload
from harness.client.sse import Event
from harness.client.tokens import ANSWER, ImpossibleCount, count, merge_usage
from harness.engines.protocol import Delta, Engine, Usage

Status = Literal["ok", "error", "timeout", "cancelled", "refused"]
SECRET_START = 6  # characters of a key that are its own; vendors' prefixes are shorter
EXCERPT = 300  # bytes of an error body that are kept
_STORED = (*ANSWER, "role", "usage")
_OVERLOADED = (429, 503)

_ENDS: dict[str, tuple[Status, str]] = {
    "cut": ("error", "cut"),
    "reset": ("error", "reset"),
    "connect": ("error", "connect"),
    "connect_refused": ("refused", "connect"),
    "malformed": ("error", "malformed"),
    "timeout_connect": ("timeout", "connect"),
    "timeout_first_token": ("timeout", "first_token"),
    "timeout_between_tokens": ("timeout", "between_tokens"),
    "timeout_total": ("timeout", "total"),
    "cancelled": ("cancelled", "cancelled"),
    "dependency": ("cancelled", "dependency"),
}


@dataclass(slots=True)
class Chunk:
    """One row of chunks.parquet, without its request; t_kernel 0 is none."""

    seq: int
    t_arrival: int
    t_kernel: int
    n_tokens: int | None
    kind: str
    size: int
    source: str | None


@dataclass(slots=True)
class Outcome:
    """What one request came to. Times are monotonic ns, None where the thing did not happen."""

    status: Status
    error_kind: str | None = None
    error: str | None = None
    t_first_byte: int | None = None
    t_first_token: int | None = None
    t_first_content: int | None = None
    t_last_token: int | None = None
    usage: Usage = field(default_factory=Usage)
    output_tokens: int | None = None
    token_source: str | None = None
    finish_reason: str | None = None
    engine_request_id: str | None = None
    server_queue_ns: int | None = None
    server_preemptions: int | None = None
    output_ids: tuple[int, ...] | None = None
    text: str = ""
    chunks: list[Chunk] = field(default_factory=list)


def decode_outcome(
    record: RawRecord,
    engine: Engine,
    *,
    secrets: Sequence[str] = (),
    count_text: Callable[[str], int] | None = None,
) -> Outcome:
    """Decode a record. Never raises for what a server sent; `secrets` are struck out of every error text."""
    outcome = _judge(record, engine, count_text)
    if outcome.error is not None:
        for secret in secrets:
            outcome.error = _without(secret, outcome.error)
        outcome.error = " ".join(outcome.error.split())
    return outcome


def _without(secret: str, text: str) -> str:
    """The text without the secret, nor the beginning of one that an excerpt was cut in."""
    for size in range(len(secret), min(SECRET_START, len(secret)) - 1, -1):
        if size:
            text = text.replace(secret[:size], "***")
    return text


def _judge(record: RawRecord, engine: Engine, count_text: Callable[[str], int] | None) -> Outcome:
    first_byte = next((t for t, _, _ in payload(record.head, record.body_at, record.reads)), None)
    if record.http_status and not 200 <= record.http_status < 300:
        outcome = _http_error(record)
        outcome.t_first_byte = first_byte
        return outcome
    found, tail = events(record)
    complete = record.end == "complete"
    if complete and tail is not None:
        # The body ended by its framing but the last blank line is missing: the event is whole if it decodes.
        last = record.reads[-1]
        found.append(Event(tail, last[0], last[1], len(tail)))
    deltas = [decode_event(engine, event.data) for event in found]
    outcome = _timeline(found, deltas, complete, count_text)
    outcome.t_first_byte = first_byte
    if not complete:
        status, kind = _ENDS[record.end]
        outcome.status, outcome.error_kind, outcome.error = status, kind, record.detail
    elif outcome.status == "ok":
        _judge_stream(record, found, deltas, outcome)
    return outcome


def decode_event(engine: Engine, data: bytes) -> Delta:
    """The adapter's reading of one event. A fault in an adapter must cost one row, not the run."""
    try:
        return engine.decode(data)
    except Exception as error:
        return Delta("error", error=f"the {engine.kind} adapter could not read an event: {type(error).__name__}")


def _timeline(
    found: list[Event], deltas: list[Delta], complete: bool, count_text: Callable[[str], int] | None
) -> Outcome:
    """Times and counts of a stream, whole or not; status ok unless the counts are impossible or an error came in it."""
    outcome = Outcome("ok")
    try:
        usage = merge_usage(deltas)
        counted = count(deltas, usage, whole=complete, count_text=count_text)
    except ImpossibleCount as error:
        usage = Usage()
        counted = count([_without_counts(delta) for delta in deltas], usage, whole=False)
        outcome.status, outcome.error_kind, outcome.error = "error", "malformed", str(error)
    outcome.usage = usage
    outcome.output_tokens, outcome.token_source = counted.output_tokens, counted.row_source
    ids: list[int] = []
    for seq, (event, delta) in enumerate(zip(found, deltas, strict=True)):
        number = counted.per_event[seq]
        # A token without text (half a character, the end token) is content that is not to be seen yet.
        kind = "content" if number and delta.kind in ("other", "role") else delta.kind
        if kind in _STORED:
            source = counted.event_source if kind in ANSWER else None
            outcome.chunks.append(Chunk(seq, event.t_arrival, event.t_kernel, number, kind, event.size, source))
        if number or (number is None and delta.text):
            _mark(outcome, kind, event.t_arrival)
        ids.extend(delta.token_ids or ())
        _gather(outcome, delta)
    if counted.event_source == "ids":
        outcome.output_ids = tuple(ids)
    elif complete and outcome.output_tokens == 0:
        outcome.output_ids = ()
    outcome.text = "".join(delta.text for delta in deltas if delta.kind in ANSWER)
    _stream_error(outcome, found, deltas)
    return outcome


def _mark(outcome: Outcome, kind: str, t: int) -> None:
    """An event with a token, or, where the count is unknown, with text."""
    if outcome.t_first_token is None:
        outcome.t_first_token = t
    if outcome.t_first_content is None and kind != "reasoning":
        outcome.t_first_content = t
    outcome.t_last_token = t


def _gather(outcome: Outcome, delta: Delta) -> None:
    outcome.finish_reason = delta.finish_reason or outcome.finish_reason
    outcome.engine_request_id = outcome.engine_request_id or delta.engine_request_id
    if delta.queue_s is not None and 0 <= delta.queue_s < 1e9:
        outcome.server_queue_ns = round(delta.queue_s * 1e9)
    if delta.preemptions is not None and 0 <= delta.preemptions < 2**31:
        outcome.server_preemptions = delta.preemptions


def _stream_error(outcome: Outcome, found: list[Event], deltas: list[Delta]) -> None:
    """An error object inside the stream, or an event that is no JSON: the first one decides."""
    for event, delta in zip(found, deltas, strict=True):
        if delta.kind == "error":
            outcome.status = "error"
            outcome.error_kind = "stream_error" if _is_object(event.data) else "malformed"
            outcome.error = (delta.error or "an event without a reason")[:EXCERPT]
            return


def _judge_stream(record: RawRecord, found: list[Event], deltas: list[Delta], outcome: Outcome) -> None:
    """A body that is whole by its framing must also be a whole answer: a finish reason, or [DONE]."""
    if not found:
        outcome.status, outcome.error_kind = "error", "malformed"
        kind = parse_head(record.head[:-4].split(b"\r\n\r\n")[-1]).headers.get("content-type", "no content type")
        outcome.error = f"no event in the answer ({kind}): {_excerpt(record)}"
        if not any(read[2] for read in payload(record.head, record.body_at, record.reads)):
            outcome.error_kind, outcome.error = "cut", "the answer is empty"
    elif outcome.finish_reason is None and not any(delta.kind == "done" for delta in deltas):
        outcome.status, outcome.error_kind = "error", "cut"
        outcome.error = "the stream ended without a finish reason or [DONE]"


def _http_error(record: RawRecord) -> Outcome:
    head = parse_head(record.head[:-4].split(b"\r\n\r\n")[-1])
    excerpt = _excerpt(record)
    error = f"HTTP {record.http_status}: {excerpt}" if excerpt else f"HTTP {record.http_status}"
    if record.http_status in _OVERLOADED:
        after = head.headers.get("retry-after")
        note = f" (Retry-After: {after[:40]})" if after else ""
        return Outcome("refused", f"http_{record.http_status}", error + note)
    if record.end in ("cancelled", "timeout_total", "timeout_first_token", "timeout_between_tokens"):
        status, kind = _ENDS[record.end]
        return Outcome(status, kind, f"{record.detail}; {error}")
    return Outcome("error", "http", error)


def _excerpt(record: RawRecord) -> str:
    body = bytearray()
    for _, _, piece in payload(record.head, record.body_at, record.reads):
        body += piece
        if len(body) >= EXCERPT:
            break
    return " ".join(bytes(body[:EXCERPT]).decode("utf-8", "replace").split())


def _is_object(data: bytes) -> bool:
    try:
        return isinstance(orjson.loads(data), dict)
    except orjson.JSONDecodeError:
        return False


def _without_counts(delta: Delta) -> Delta:
    return Delta(delta.kind, text=delta.text, finish_reason=delta.finish_reason)
