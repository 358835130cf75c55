"""Scrapes of one engine's /metrics during a cell: fetched on time, kept as they came, parsed when the load is over.

Parsing a page takes longer than fetching it, and a parser that runs beside a client on two cores is load of its own.
"""

from __future__ import annotations

import asyncio
import threading
import time
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from urllib.parse import urlsplit

import httpx
import pyarrow as pa

from harness.observe.exposition import ExpositionError, Reader, is_exposition
from harness.observe.live_signals import read_live, work_counters
from harness.records.tables import SERVER

TIMEOUT_S = 5.0
SETTLE_EVERY_S = 0.25
MAX_BYTES = 64 << 20
NO_PAGE = (404, 405, 501)  # the server has no metrics page: a fact about it, and no failure of a scrape


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
    """Scrapes `url` every `interval_s` seconds on a thread. A failure is counted with its reason and never raised.

    Reasons are names of errors and status codes: the text of an exception may quote a header.
    """

    def __init__(self, url: str, *, kind: str, headers: Mapping[str, str], interval_s: float) -> None:
        self.url = url
        self.kind = kind
        self.interval_s = interval_s
        self.reasons: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()  # what was wrong with pages that could be read in part; set by `table`
        self.no_page = ""  # why there is nothing to scrape; empty while there may be
        self._client = httpx.AsyncClient(headers=dict(headers), timeout=TIMEOUT_S, trust_env=False)
        self._scrapes: list[Scrape] = []
        # One request at a time, so that scrapes are in order, on an event loop of its own, for the sake of its timeout:
        # that of a blocking client is for one read, and a server that drips, in its headers even, would hold it.
        self._runner = asyncio.Runner()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="scrape")
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def errors(self) -> int:
        return sum(self.reasons.values())

    def start(self) -> None:
        """A server that has already answered that it has no metrics page is left in peace."""
        if self._thread is None and not self.no_page:
            self._thread = threading.Thread(target=self._loop, name="scraper", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Ends the scraping; what was scraped stays. A second call does nothing."""
        if self._stop.is_set():
            return
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self._worker.submit(self._close).result()
        self._worker.shutdown()

    def snapshot(self) -> bool:
        """Scrape now; whether it succeeded."""
        return self._worker.submit(self._snapshot).result()

    def settle(self, limit_s: float) -> bool:
        """Scrape until two pages in a row agree on all that only work moves; whether they did within `limit_s`.

        An engine may count its last tokens a moment after it sent them. False without waiting where nothing can be
        said: no metrics page, or two pages in a row without any such counter.
        """
        deadline = time.monotonic() + limit_s
        before: bytes | None = None
        while not self.no_page:
            now = work_counters(self.kind, self._scrapes[-1].body) if self.snapshot() else None
            if now is not None and now == before:
                return bool(now)
            before = now
            if time.monotonic() >= deadline:
                return False
            time.sleep(SETTLE_EVERY_S)
        return False

    def latest(self, signals: Sequence[str]) -> dict[str, float]:
        """The named canonical signals in the newest page, those that it shows; lines are scanned, nothing is parsed."""
        return read_live(self.kind, self._scrapes[-1].body, signals) if self._scrapes else {}

    def table(self) -> pa.Table:
        """Everything scraped, as server.parquet holds it: the engine's namespace and process_*, without _created."""
        target = urlsplit(self.url).netloc.rpartition("@")[2]  # a URL may carry a password
        reader = Reader((f"{self.kind}:", "process_"))
        self.faults.clear()
        columns: dict[str, list[object]] = {name: [] for name in SERVER.names}
        for scrape in self._scrapes:
            for metric, labels, value in self._rows(reader, scrape):
                row = (scrape.t_start, scrape.t_end, target, self.kind, metric, labels, value)
                for name, cell in zip(SERVER.names, row, strict=True):
                    columns[name].append(cell)
        return pa.table(columns, schema=SERVER)

    def _rows(self, reader: Reader, scrape: Scrape) -> list[tuple[str, str, float]]:
        try:
            rows, faults = reader.rows(scrape.body)
        except ExpositionError:  # junk, and one sample that was cut
            self.faults["the page holds no whole sample"] += 1
            return []
        if str(faults):
            self.faults[str(faults)] += 1
        return [row for row in rows if not row[0].endswith("_created")]

    def _snapshot(self) -> bool:
        t_start = time.monotonic_ns()
        try:
            status, body = self._runner.run(self._fetch())
        except TimeoutError:
            return self._failed(f"over {TIMEOUT_S:g} s")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return self._failed(type(error).__name__)
        t_end = time.monotonic_ns()
        path = urlsplit(self.url).path
        if status in NO_PAGE and not self._scrapes:
            self.no_page = f"no {path}: HTTP {status}"
            return False
        if status != 200:
            return self._failed(f"HTTP {status}")
        if body is None:
            return self._failed(f"over {MAX_BYTES >> 20} MiB")
        if not is_exposition(body):  # a proxy's or a front end's page, which looks like an answer
            if not self._scrapes:
                self.no_page = f"no {path}: what it answers is no exposition text"
            return self._failed("no exposition text")
        self.no_page = ""
        self._scrapes.append(Scrape(t_start, t_end, zlib.compress(body, 1)))
        return True

    def _failed(self, reason: str) -> bool:
        self.reasons[reason] += 1
        return False

    async def _fetch(self) -> tuple[int, bytes | None]:
        """(status, body); no body if it is too large. TimeoutError if it does not end in time."""
        pieces, size = [], 0
        async with asyncio.timeout(TIMEOUT_S), self._client.stream("GET", self.url) as response:
            async for piece in response.aiter_bytes():
                pieces.append(piece)
                size += len(piece)
                if size > MAX_BYTES:
                    return response.status_code, None
            return response.status_code, b"".join(pieces)

    def _close(self) -> None:
        self._runner.run(self._client.aclose())
        self._runner.close()

    def _loop(self) -> None:
        """On an absolute schedule; a scrape that takes longer than the interval skips the instants it covered."""
        due = time.monotonic()
        while not self._stop.is_set():
            self.snapshot()
            due += self.interval_s * max(1, -(-(time.monotonic() - due) // self.interval_s))
            self._stop.wait(max(due - time.monotonic(), 0.0))
