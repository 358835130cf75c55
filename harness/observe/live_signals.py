"""A few canonical signals read off a metrics page by looking at their lines alone, cheap enough for a live view."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from harness.observe.exposition import ExpositionError, Reader
from harness.records.signals.catalogue import KINDS, Catalogue
from harness.records.signals.witness import Witness

# Counters that move though nobody is served: clocks, CPU seconds, what counts scrapes and polls, timers of functions.
# Of a histogram of seconds its _count is looked at, which moves with what is observed.
_BY_THEMSELVES = re.compile(
    rb"(?:_seconds|_time)_total$|_seconds_sum$|:(?:process|http|get_loads|func_latency)_|idle|cpu_"
)
_COUNTED = (b"_total", b"_count", b"_sum")


def read_live(kind: str, body: bytes, signals: Sequence[str]) -> dict[str, float]:
    """Values of `signals` on a page, each by the first witness that is there; those without one are left out.

    The page is cut down to the lines that are looked for, so that the parser has little to do.
    """
    if kind not in KINDS:
        return {}
    catalogue = Catalogue.load(kind)
    names = {name for signal in signals for witness in catalogue.signal(signal) for name in _names(witness)}
    try:
        samples, _ = Reader().samples(_only(body, names))
    except ExpositionError:
        return {}
    readings = catalogue.resolve(samples, live=True)
    return {name: value for name in signals if (value := readings[name].value) is not None}


def work_counters(kind: str, body: bytes) -> bytes:
    """The lines of all the engine's counters that only work moves, of those that the catalogue does not know too.

    Equal on two pages where nothing was counted in between; empty for a page without any, and for an unknown kind.
    """
    if kind not in KINDS:
        return b""
    namespace = Catalogue.load(kind).namespace.encode()
    return b"".join(line + b"\n" for line in body.split(b"\n") if line.startswith(namespace) and _moved_by_work(line))


def _moved_by_work(line: bytes) -> bool:
    name = line.partition(b"{")[0].partition(b" ")[0]
    return name.endswith(_COUNTED) and _BY_THEMSELVES.search(name) is None


def _names(witness: Witness) -> Iterator[str]:
    yield from witness.counters or (witness.metric,)
    if witness.share_of:
        yield witness.share_of


def _only(body: bytes, names: set[str]) -> bytes:
    """The lines of these series."""
    starts = tuple(f"{name}{end}".encode() for name in names for end in "{ ")
    return b"".join(line + b"\n" for line in body.split(b"\n") if line.startswith(starts))
