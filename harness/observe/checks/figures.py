"""Checks out of figures: the sentences and the numbers that go with them."""

from __future__ import annotations

from harness.observe.evidence import Evidence
from harness.observe.look_report import Check, Figure
from harness.records.signals.witness import Reading


def missing(name: str, reading: Reading) -> Check:
    """The check that cannot be made, with the engine's reason and the flag that would help.

    A series that is there and has no observation yet is observable: there was nothing to observe.
    """
    if reading.witness is not None:
        return Check(id=name, state="info", says=f"{reading.signal.words}: {reading.why}")
    return Check(id=name, state="not observable", says=reading.why, flag=reading.flag)


def now(name: str, value: float, unit: str) -> Figure:
    return Figure(name=name, value=value, unit=unit, scope="now")


def window(name: str, value: float, unit: str) -> Figure:
    return Figure(name=name, value=value, unit=unit, scope="window")


def lifetime(name: str, value: float, unit: str) -> Figure:
    return Figure(name=name, value=value, unit=unit, scope="lifetime")


def mean(evidence: Evidence, signal: str, label: str) -> tuple[str, list[Figure]]:
    """The mean of a pair in words, window and lifetime apart: "queue time 3 ms now (40), 12 ms since start (900)".

    Empty where nothing was ever observed.
    """
    reading, grown = evidence.now(signal), evidence.grew(signal)
    unit = reading.signal.unit
    parts: list[str] = []
    figures: list[Figure] = []
    if grown is not None and grown.mean is not None and grown.count:
        parts.append(f"{quantity(grown.mean, unit)} in window (n={grown.count:.0f})")
        figures.append(window(signal, grown.mean, unit))
    if reading.value is not None:
        parts.append(f"{quantity(reading.value, unit)} since start (n={reading.count or 0:.0f})")
        figures.append(lifetime(signal, reading.value, unit))
    return (f"{label} {', '.join(parts)}" if parts else ""), figures


def quantity(value: float, unit: str) -> str:
    """A figure with its unit, in as many digits as an eye wants."""
    if unit == "s":
        return seconds(value)
    if unit == "1":
        return f"{value:.1%}"
    return f"{value:,.0f} {unit}" if abs(value) >= 100 else f"{value:.3g} {unit}"


def seconds(value: float) -> str:
    if abs(value) < 1e-3:
        return f"{value * 1e6:.0f} µs"
    return f"{value * 1e3:.3g} ms" if abs(value) < 1 else f"{value:.3g} s"


def tokens(value: float) -> str:
    return f"{value:,.0f}"
