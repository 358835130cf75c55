"""A real server of the native core on a free port, inside the test's process so that its engine can be looked at."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from native_core.executor import Executor, StepResult, Work
from native_core.server.launch import Instance, bind
from native_core.server.options import parse_options


@dataclass
class Under:
    """The server under test."""

    instance: Instance
    client: httpx.Client
    model: str

    def complete(self, **body: Any) -> httpx.Response:
        return self.client.post("/v1/completions", json={"model": self.model, "temperature": 0, **body})

    def chat(self, **body: Any) -> httpx.Response:
        return self.client.post("/v1/chat/completions", json={"model": self.model, "temperature": 0, **body})

    def events(self, path: str = "/v1/completions", **body: Any) -> list[dict[str, Any]]:
        """Every event of a stream, without [DONE], which must be the last."""
        body = {"model": self.model, "temperature": 0, "stream": True, **body}
        with self.client.stream("POST", path, json=body) as response:
            assert response.status_code == 200, response.read()
            lines = [line for line in response.iter_lines() if line]
        assert lines[-1] == "data: [DONE]"
        return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]

    def metrics(self) -> dict[str, float]:
        """Samples of /metrics by name, with their labels as they are printed."""
        text = self.client.get("/metrics").text
        rows = [line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#")]
        return {name: float(value) for name, value in rows}

    def wait_for(self, name: str, value: float, within_s: float = 5.0) -> None:
        """Until a metric has a value; AssertionError says what it had instead."""
        end = time.monotonic() + within_s
        while (now := self.metrics()[name]) != value:
            assert time.monotonic() < end, f"{name} is {now}, not {value}, after {within_s} s"
            time.sleep(0.01)


class Paced:
    """Another executor, slowed to a step per `pace_s`, so that a test can act while an answer grows."""

    def __init__(self, inner: Executor, pace_s: float) -> None:
        self._inner = inner
        self._pace_s = pace_s

    def allocate(self, num_blocks: int, block_size: int) -> None:
        self._inner.allocate(num_blocks, block_size)

    def execute(self, work: Sequence[Work]) -> StepResult:
        time.sleep(self._pace_s)
        return self._inner.execute(work)

    def now(self) -> float:
        return self._inner.now()


@contextlib.contextmanager
def serving(model: Path, *flags: str, make_executor: Callable[[Path, int], Executor] | None = None) -> Iterator[Under]:
    options = parse_options(["--model", str(model), "--port", "0", "--threads", "1", *flags])
    sock = bind("127.0.0.1", 0)
    instance = Instance(options, make_executor)
    thread = threading.Thread(target=lambda: asyncio.run(instance.serve(sock)), daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    try:
        with httpx.Client(base_url=url, timeout=20) as client:
            _wait(client, thread)
            yield Under(instance, client, options.name)
    finally:
        instance.stop()
        thread.join(10)
        assert not thread.is_alive(), "the server did not stop"


def _wait(client: httpx.Client, thread: threading.Thread) -> None:
    end = time.monotonic() + 20
    while True:
        try:
            client.get("/health").raise_for_status()
            return
        except httpx.HTTPError:
            assert thread.is_alive(), "the server ended while starting"
            assert time.monotonic() < end, "the server did not start"
            time.sleep(0.02)
