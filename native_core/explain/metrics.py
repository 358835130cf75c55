"""One stream, and what six tools call its TTFT, TPOT and ITL.

The stream is made up; the figures are computed from it by each tool's own rule, as its source had it in mid-2026
(read, not run). Times in seconds from the moment at which the request was sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise

from native_core.explain.explanation import Explanation
from native_core.explain.svg import COLOURS, Drawing


@dataclass(frozen=True)
class Chunk:
    """One event of the stream."""

    at: float
    kind: str  # role | reasoning | content
    tokens: int


# A role event without a token, one reasoning token, then content, some of it several tokens an event.
STREAM = (
    Chunk(0.05, "role", 0),
    Chunk(0.40, "reasoning", 1),
    Chunk(0.50, "content", 3),
    Chunk(0.62, "content", 1),
    Chunk(0.80, "content", 2),
)


@dataclass(frozen=True)
class Reading:
    """Seconds; the mean where a tool keeps several values. None: the tool has no such figure."""

    tool: str
    ttft: float
    tpot: float | None
    itl: float | None
    differs: str


def readings(stream: Sequence[Chunk] = STREAM) -> list[Reading]:
    """Every tool's figures of a stream with at least two token-bearing events, one of them content."""
    bearing = [chunk for chunk in stream if chunk.tokens]
    content = [chunk for chunk in stream if chunk.kind == "content" and chunk.tokens]
    tokens = sum(chunk.tokens for chunk in bearing)
    first, last = bearing[0].at, bearing[-1].at
    gaps = _gaps(bearing)
    return [
        Reading(
            "servescope",
            first,
            (last - first) / (tokens - 1),
            _token_weighted(bearing),
            "TTFT at the first event with a token of any kind; a gap is shared among the tokens that end it",
        ),
        Reading(
            "vllm bench serve",
            stream[0].at,
            (last - stream[0].at) / (tokens - 1),
            _mean(_gaps(stream)),
            "TTFT at the first event of the stream, with a token or not; one ITL sample an event",
        ),
        Reading(
            "sglang bench_serving",
            first,
            (last - first) / (tokens - 1),
            _mean(gaps),
            "TTFT at the first text or reasoning; one ITL sample an event, however many tokens it carries",
        ),
        Reading(
            "guidellm",
            first,
            last / tokens,
            (last - first) / (tokens - 1),
            "its TPOT starts when the request is sent, so it contains TTFT; keeps no times of single events",
        ),
        Reading(
            "aiperf",
            first,
            None,
            (last - first) / (tokens - bearing[0].tokens),
            "one ITL a request, without the tokens of the first event; what it lists as TPOT is that ITL",
        ),
        Reading(
            "inference-perf",
            content[0].at,
            (content[-1].at - content[0].at) / (sum(chunk.tokens for chunk in content) - 1),
            _mean(_zero_gaps(content)),
            "TTFT at the first content, so reasoning makes it late; tokens of one event are zero apart",
        ),
    ]


def _gaps(chunks: Sequence[Chunk]) -> list[float]:
    return [later.at - earlier.at for earlier, later in pairwise(chunks)]


def _token_weighted(chunks: Sequence[Chunk]) -> float:
    """Each gap is shared among the tokens of the later event; the mean over tokens."""
    return sum(_gaps(chunks)) / sum(chunk.tokens for chunk in chunks[1:])


def _zero_gaps(chunks: Sequence[Chunk]) -> list[float]:
    """One sample a token: those of one event arrive at once."""
    times = [chunk.at for chunk in chunks for _ in range(chunk.tokens)]
    return [later - earlier for earlier, later in pairwise(times)]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def explain() -> Explanation:
    found = readings()
    record = {
        "stream": [asdict(chunk) for chunk in STREAM],
        "readings": [asdict(reading) for reading in found],
        "grade": "read",
    }
    return Explanation("One stream, six answers", _text(found), record, _svg(found))


def _text(found: Sequence[Reading]) -> str:
    lines = ["One stream, sent at 0:"]
    lines += [f"  {chunk.at:.2f} s  {chunk.kind:9}  {_tokens(chunk.tokens)}" for chunk in STREAM]
    lines += ["", "and what tools make of it, in ms (their rules as read in their sources, not run):"]
    lines.append(f"  {'tool':21} {'TTFT':>6} {'TPOT':>6} {'ITL':>6}")
    for reading in found:
        tpot, itl = (_ms(value) for value in (reading.tpot, reading.itl))
        lines.append(f"  {reading.tool:21} {_ms(reading.ttft):>6} {tpot:>6} {itl:>6}")
    lines.append("")
    lines += [f"  {reading.tool}: {reading.differs}" for reading in found]
    lines += [
        "",
        "Figures of two tools that share a name are not the same figure. servescope also states TTFT to the first",
        "content, TTFT from the intended time of sending, and the gaps between events (ICL), each under its own name.",
    ]
    return "\n".join(lines)


def _tokens(count: int) -> str:
    return "no token" if not count else "1 token" if count == 1 else f"{count} tokens"


def _ms(seconds: float | None) -> str:
    return "–" if seconds is None else f"{1000 * seconds:.0f}"


def _svg(found: Sequence[Reading]) -> str:
    drawing = Drawing("One stream, six answers")
    left, scale, y = 160.0, 700.0, 30.0
    drawing.text(10, y, "events")
    drawing.line(left, y, left + STREAM[-1].at * scale, y)
    kinds = ["role", "reasoning", "content"]
    for chunk in STREAM:
        x, fill = left + chunk.at * scale, COLOURS[kinds.index(chunk.kind)]
        drawing.box(x - 4, y - 8, 8, 16, fill, f"{chunk.at:.2f} s: {chunk.kind}, {_tokens(chunk.tokens)}")
        drawing.text(x, y - 12, f"{chunk.kind} {chunk.tokens}", size=10, anchor="middle")
    for reading in found:
        y += 28
        drawing.text(10, y + 4, reading.tool)
        drawing.box(left, y - 6, reading.ttft * scale, 12, COLOURS[0], "TTFT")
        words = f"TTFT {_ms(reading.ttft)}, TPOT {_ms(reading.tpot)}, ITL {_ms(reading.itl)} ms"
        drawing.text(left + STREAM[-1].at * scale + 10, y + 4, words)
    return drawing.document()
