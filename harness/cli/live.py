"""What a person sees while a run goes on: one live line on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from harness.client.job import Progress

PLAIN_EVERY_S = 5.0


@dataclass
class LiveState:
    """The newest figures of one cell: client progress summed over workers, engine signals as last scraped."""

    workers: dict[int, Progress] = field(default_factory=dict)
    signals: Mapping[str, float] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)

    @property
    def failed(self) -> int:
        """Requests that ended without an answer so far."""
        return sum(part.failed for part in self.workers.values())

    def summary(self) -> dict[str, str]:
        """Column name to text; `-` where a figure is not known yet."""
        parts = list(self.workers.values())
        tokens = sum(part.output_tokens for part in parts)
        elapsed = max(time.monotonic() - self.started, 1e-9)
        hits, queries = self.signals.get("prefix_hit_tokens"), self.signals.get("prefix_query_tokens")
        usage = self.signals.get("kv_usage")
        return {
            "done": f"{sum(p.done for p in parts)}/{sum(p.planned for p in parts)}",
            "in flight": str(sum(p.in_flight for p in parts)),
            "failed": str(self.failed),
            "tok/s": f"{tokens / elapsed:.0f}",
            "TTFT": _milliseconds([p.ttft_p50_ms for p in parts]),
            "TPOT": _milliseconds([p.tpot_p50_ms for p in parts]),
            "KV": "-" if usage is None else f"{usage:.0%}",
            "hits": f"{hits / queries:.0%}" if hits is not None and queries else "-",
            "elapsed": f"{elapsed:.0f} s",
        }


def _milliseconds(values: list[float | None]) -> str:
    """The largest of the workers' medians: the one worth looking at."""
    known = [value for value in values if value is not None]
    return f"{max(known):.0f} ms" if known else "-"


class LiveView:
    """Progress of a whole run. Notes stay on the screen; the figures of the running cell replace each other."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.state = LiveState()
        self._live: Live | None = None
        self._label = ""
        self._printed = 0.0

    def note(self, text: str) -> None:
        self.console.print(Text(text))

    def begin(self, label: str) -> None:
        self._label, self.state, self._printed = label, LiveState(), time.monotonic()
        if self.console.is_terminal:
            self._live = Live(self._table(), console=self.console, refresh_per_second=4, transient=True)
            self._live.start()
        else:
            self.note(f"{label}: started")

    def progress(self, progress: Progress) -> None:
        self.state.workers[progress.worker] = progress
        self._show()

    def signals(self, values: Mapping[str, float]) -> None:
        self.state.signals = values
        self._show()

    def end(self, outcome: str) -> None:
        if self._live:
            self._live.stop()
            self._live = None
        figures = self.state.summary()
        self.note(f"{self._label}: {outcome}, {figures['done']} requests in {figures['elapsed']}")

    def _show(self) -> None:
        if self._live:
            self._live.update(self._table())
        elif time.monotonic() - self._printed >= PLAIN_EVERY_S:
            self._printed = time.monotonic()
            self.note(f"{self._label}: " + ", ".join(f"{name} {text}" for name, text in self.state.summary().items()))

    def _table(self) -> Table:
        table = Table.grid(padding=(0, 2))
        figures = self.state.summary()
        table.add_row(Text(self._label, style="bold"), *(Text(name, style="dim") for name in figures))
        table.add_row("", *figures.values())
        return table
