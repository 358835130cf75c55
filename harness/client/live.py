"""What a worker shows while it runs. Estimates from a few requests, cheap enough to make beside the load; the rows,
counted exactly afterwards, are what reports use.
"""

from __future__ import annotations

import os
from collections import deque

from harness.client.job import Progress
from harness.client.outcome import decode_event
from harness.client.record import RawRecord, payload
from harness.client.sse import SseSplitter
from harness.client.tokens import ANSWER
from harness.engines.protocol import Engine

_SAMPLED = 8  # requests looked at per line
_KEPT = 256  # newest samples of which the medians are taken


class Live:
    """Takes finished records, gives Progress."""

    def __init__(self, worker: int, planned: int, engine: Engine) -> None:
        self._worker = worker
        self._planned = planned
        self._engine = engine
        self._done = 0
        self._failed = 0
        self._events = 0
        self._waiting: deque[RawRecord] = deque(maxlen=_SAMPLED)
        self._ttft_ns: deque[int] = deque(maxlen=_KEPT)
        self._tpot_ns: deque[float] = deque(maxlen=_KEPT)

    def add(self, record: RawRecord) -> None:
        if record.phase == "warmup":
            return
        self._done += 1
        self._events += sum(data.count(b"data:") for _, _, data in record.reads)
        if record.end == "complete" and 200 <= record.http_status < 300:
            self._waiting.append(record)
        else:
            self._failed += 1

    def line(self, t: int, in_flight: int, phase: str) -> Progress:
        while self._waiting:
            self._sample(self._waiting.popleft())
        return Progress(
            worker=self._worker,
            t=t,
            planned=self._planned,
            done=self._done,
            in_flight=in_flight,
            failed=self._failed,
            output_tokens=self._events,
            ttft_p50_ms=_median_ms(self._ttft_ns),
            tpot_p50_ms=_median_ms(self._tpot_ns),
            phase=phase,  # type: ignore[arg-type]
        )

    def _sample(self, record: RawRecord) -> None:
        """Decode up to the first token, and count the rest by their `data:`."""
        splitter = SseSplitter()
        for t, kernel, piece in payload(record.head, record.body_at, record.reads):
            for event in splitter.feed(t, kernel, piece):
                delta = decode_event(self._engine, event.data)
                if delta.kind in ANSWER and (delta.text or delta.token_ids or delta.n_tokens):
                    self._ttft_ns.append(t - record.t_sent)
                    after = sum(data.count(b"data:") for at, _, data in record.reads if at > t)
                    if after > 1:
                        self._tpot_ns.append((record.reads[-1][0] - t) / after)
                    return


def _median_ms(samples: deque[int] | deque[float]) -> float | None:
    if not samples:
        return None
    ordered = sorted(samples)
    return float(ordered[len(ordered) // 2]) / 1e6


class LineWriter:
    """Lines on a pipe that must never delay the load: a line that does not fit at once is dropped."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._was_blocking = os.get_blocking(fd)
        os.set_blocking(fd, False)
        self._broken = False

    def write(self, progress: Progress) -> None:
        if self._broken:
            return
        try:
            os.write(self._fd, progress.model_dump_json().encode() + b"\n")
        except BlockingIOError:
            return
        except OSError:  # nobody reads any more; the rows still count
            self._broken = True

    def close(self) -> None:
        if not self._broken:
            os.set_blocking(self._fd, self._was_blocking)
