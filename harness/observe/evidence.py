"""What the checks judge: the engine's signals over a short watch, and what it says about its configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

from harness.observe.exposition import Sample
from harness.records.manifest import EngineInfo
from harness.records.signals.catalogue import Catalogue, canonical
from harness.records.signals.witness import Reading


@dataclass(frozen=True)
class Page:
    """One scrape, parsed; `t` in s of the monotonic clock."""

    t: float
    samples: Sequence[Sample]


@dataclass(frozen=True)
class HostLoad:
    """This machine while we watched; only where the engine runs on it. `cpu` is the busy share of all cores, 0 to 1."""

    cpu: float
    cores: int
    gpu_names: tuple[str, ...]


@dataclass(frozen=True)
class Growth:
    """What a cumulative signal grew by in the window."""

    total: float
    count: float | None
    seconds: float

    @property
    def mean(self) -> float | None:
        return self.total / self.count if self.count else None


@dataclass(frozen=True)
class Evidence:
    """Pages in their order, at most those of a few seconds. Without a catalogue no signal is readable."""

    info: EngineInfo
    catalogue: Catalogue | None
    pages: Sequence[Page]
    no_pages: str = ""  # why there are none
    host: HostLoad | None = None
    why_no_host: str = ""
    flag_for_pages: str = ""
    settings: Mapping[str, object] = field(
        default_factory=dict
    )  # the resolved configuration, by the engine's own names

    @cached_property
    def _resolved(self) -> list[dict[str, Reading]]:
        if self.catalogue is None:
            return []
        return [self.catalogue.resolve(page.samples, self.info.version) for page in self.pages]

    @cached_property
    def _live(self) -> list[dict[str, Reading]]:
        """The same by witnesses that move while requests run."""
        if self.catalogue is None:
            return []
        return [self.catalogue.resolve(page.samples, self.info.version, live=True) for page in self.pages]

    @property
    def seconds(self) -> float:
        return self.pages[-1].t - self.pages[0].t if self.pages else 0.0

    def now(self, signal: str) -> Reading:
        """The newest page's reading. Its value is None where the engine does not show it, with the reason."""
        if not self._resolved:
            why = self.no_pages or "the metrics of this server are not known"
            return Reading(canonical()[signal], why=why, flag=self.flag_for_pages)
        return self._resolved[-1][signal]

    def gauge(self, signal: str) -> list[float]:
        """Every scraped value; empty where it is not shown."""
        values = [page[signal].value for page in self._resolved]
        return [value for value in values if value is not None]

    def grew(self, signal: str) -> Growth | None:
        """Growth over the window; None with fewer than two pages, without the signal, or over a restart.

        A series that the engine exports from its first event on counts from nought.
        """
        if len(self._resolved) < 2 or self.resets:
            return None
        first, last = self._live[0][signal], self._live[-1][signal]
        if last.total is None or (first.total is None and not first.unborn):
            return Growth(0.0, None, self.seconds) if last.unborn else None
        count = None if last.count is None else last.count - (first.count or 0.0)
        return Growth(last.total - (first.total or 0.0), count, self.seconds)

    @cached_property
    def resets(self) -> int:
        """Cumulative signals that fell from one page to the next: the engine began again."""
        fallen = 0
        for signal in canonical():
            totals = [page[signal].total for page in self._resolved]
            known = [total for total in totals if total is not None]
            fallen += any(later < earlier for earlier, later in pairwise(known))
        return fallen

    @property
    def idle(self) -> bool:
        """Whether nothing ran while we watched, as far as can be seen."""
        tokens = self.grew("output_tokens")
        return not any(self.gauge("running")) and (tokens is None or not tokens.total)
