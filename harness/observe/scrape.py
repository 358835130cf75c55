"""Scrapes of one engine's /metrics during a cell: fetched on time, kept as they came, parsed when the load is over.

Parsing a page takes longer than fetching it, and a parser that runs beside a client on two cores is load of its own.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import httpx
import pyarrow as pa

from harness.observe.exposition import ExpositionError, parse
from harness.observe.live_signals import read_live
from harness.records.tables import SERVER

TIMEOUT_S = 5.0
SETTLE_EVERY_S = 0.25
MAX_BYTES = 64 << 20


@dataclass(frozen=True)
class Scrape:
    """One page: monotonic ns of request and response, and the body, compressed."""

    t_start: int
    t_end: int
    packed: bytes

    @property
    def body(self) -> bytes:
        return zlib.decompress(self.packed)


class Scraper:
    """Scrapes `url` every `interval_s` seconds on a thread. A failure is counted with its reason and never raised."""

    def __init__(self, url: str, *, kind: str, headers: Mapping[str, str], interval_s: float) -> None:
        self.url = url
        self.kind = kind
        self.interval_s = interval_s
        self.reasons: Counter[str] = Counter()
        self._client = httpx.Client(headers=dict(headers), timeout=TIMEOUT_S, trust_env=False)
        self._scrapes: list[Scrape] = []
        self._lock = threading.Lock()  # one request at a time, so that scrapes are in order
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def errors(self) -> int:
        return sum(self.reasons.values())

    def start(self) -> None:
        self._thread = threading.Thread(target=self._loop, name="scraper", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self._client.close()

    def snapshot(self) -> bool:
        """Scrape now; whether it succeeded."""
        with self._lock:
            t_start = time.monotonic_ns()
            try:
                response = self._client.get(self.url)
                body = response.content
            except httpx.HTTPError as error:
                self.reasons[type(error).__name__] += 1
                return False
            t_end = time.monotonic_ns()
            if response.status_code != 200:
                self.reasons[f"HTTP {response.status_code}"] += 1
                return False
            if len(body) > MAX_BYTES:
                self.reasons[f"a page of {len(body) >> 20} MB"] += 1
                return False
            self._scrapes.append(Scrape(t_start, t_end, zlib.compress(body, 1)))
            return True

    def settle(self, limit_s: float) -> bool:
        """Scrape until two pages in a row agree on every counter of the engine; whether they did within `limit_s`.

        An engine may count its last tokens a moment after it sent them.
        """
        deadline = time.monotonic() + limit_s
        before: dict[tuple[str, str], float] | None = None
        while True:
            now = self._counters() if self.snapshot() else None
            if now is not None and now == before:
                return True
            before = now
            if time.monotonic() >= deadline:
                return False
            time.sleep(SETTLE_EVERY_S)

    def latest(self, signals: Sequence[str]) -> dict[str, float]:
        """The named canonical signals in the newest page, those that it shows; lines are scanned, nothing is parsed."""
        return read_live(self.kind, self._scrapes[-1].body, signals) if self._scrapes else {}

    def table(self) -> pa.Table:
        """Everything scraped, as server.parquet holds it: the engine's namespace and process_*, without _created."""
        target = urlsplit(self.url).netloc
        columns: dict[str, list[object]] = {name: [] for name in SERVER.names}
        for scrape in self._scrapes:
            for metric, labels, value in self._rows(scrape):
                row = (scrape.t_start, scrape.t_end, target, self.kind, metric, labels, value)
                for name, cell in zip(SERVER.names, row, strict=True):
                    columns[name].append(cell)
        return pa.table(columns, schema=SERVER)

    def _rows(self, scrape: Scrape) -> Iterator[tuple[str, str, float]]:
        try:
            samples = parse(scrape.body)
        except ExpositionError:
            self.reasons["no exposition text"] += 1
            return
        for sample in samples:
            if sample.metric.startswith((f"{self.kind}:", "process_")) and not sample.metric.endswith("_created"):
                yield sample.metric, sample.labels_json, sample.value

    def _counters(self) -> dict[tuple[str, str], float]:
        """Series that only grow while requests are served; time spent idle and CPU seconds grow by themselves."""
        return {
            (metric, labels): value
            for metric, labels, value in self._rows(self._scrapes[-1])
            if metric.endswith(("tokens_total", "_count", "requests_total")) and metric.startswith(f"{self.kind}:")
        }

    def _loop(self) -> None:
        """On an absolute schedule; a scrape that takes longer than the interval skips the instants it covered."""
        due = time.monotonic()
        while not self._stop.is_set():
            self.snapshot()
            due += self.interval_s * max(1, -(-(time.monotonic() - due) // self.interval_s))
            self._stop.wait(max(due - time.monotonic(), 0.0))
