"""A few canonical signals read off a metrics page by looking at their lines alone, cheap enough for a live view."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.observe.exposition import ExpositionError, Reader
from harness.records.signals.catalogue import KINDS, Catalogue
from harness.records.signals.witness import Witness, index, read

# Signals that move only when requests are served. Time and CPU counters move by themselves, and SGLang's HTTP counters
# with every scrape, so that an idle engine is never quiet by those.
WORK = (
    "prompt_tokens",
    "output_tokens",
    "prefill_computed_tokens",
    "prefix_query_tokens",
    "prefix_hit_tokens",
    "step_tokens",
    "ttft",
    "e2e",
    "finished",
)


def read_live(kind: str, body: bytes, signals: Sequence[str]) -> dict[str, float]:
    """Values of `signals` on a page, each by its first witness; those that are not there are left out."""
    if kind not in KINDS:
        return {}
    catalogue = Catalogue.load(kind)
    witnesses = {name: catalogue.signal(name)[:1] for name in signals}
    names = {name for (witness,) in filter(None, witnesses.values()) for name in _names(witness)}
    try:
        samples, _ = Reader().samples(_only(body, names))
    except ExpositionError:
        return {}
    rows = index(samples)
    readings = {name: read(witness, rows) for name, found in witnesses.items() for witness in found}
    return {name: one.value for name, one in readings.items() if one is not None and one.value is not None}


def work_counters(kind: str, body: bytes) -> bytes:
    """The lines of all counters that only work moves: equal on two pages where nothing was counted in between."""
    if kind not in KINDS:
        return b""
    catalogue = Catalogue.load(kind)
    names = {name for signal in WORK for witness in catalogue.signal(signal) for name in witness.counters}
    return _only(body, names)


def _names(witness: Witness) -> Iterator[str]:
    yield from witness.counters or (witness.metric,)
    if witness.share_of:
        yield witness.share_of


def _only(body: bytes, names: set[str]) -> bytes:
    """The lines of these series."""
    starts = tuple(f"{name}{end}".encode() for name in names for end in "{ ")
    return b"".join(line + b"\n" for line in body.split(b"\n") if line.startswith(starts))
