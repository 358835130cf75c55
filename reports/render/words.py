"""Numbers as people read them, the same in every output."""

from __future__ import annotations

from collections.abc import Sequence

from reports.intervals import Estimate

SCALE = {"s": (1e3, "ms"), "1": (100.0, "%")}
UNSUPPORTED = "*"
FOOTNOTE = (
    "[low, high] is a 95 % interval within this run: it says how well the run is known, not what another would give. "
    "* has none: the sample is too small to bound it."
)


def unit_of(unit: str) -> str:
    """The unit in which a metric is shown."""
    return SCALE.get(unit, (1.0, unit))[1]


def figure(value: float, unit: str) -> str:
    """Three significant digits, thousands grouped: 23.4, 1,230, 0.0312."""
    value *= SCALE.get(unit, (1.0, unit))[0]
    size = abs(float(f"{value:.3g}"))  # rounded first: 99.97 is shown as 100, not as 100.0
    if size >= 100 or value == 0:
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 1 else f"{value:.3g}"


def estimate(found: Estimate | None, unit: str) -> str:
    """23.4 [21.0, 26.3]; 31.0* where the sample cannot bound it; - where there is nothing."""
    if found is None:
        return "-"
    value = figure(found.value, unit)
    if found.interval is not None:
        return f"{value} [{figure(found.interval[0], unit)}, {figure(found.interval[1], unit)}]"
    return value if found.method.startswith(("ratio", "count", "total", "time-", "highest")) else value + UNSUPPORTED


def repeats(values: Sequence[float], unit: str) -> str:
    """Several runs: their median and their range."""
    ordered = sorted(values)
    middle = ordered[len(ordered) // 2] if len(ordered) % 2 else sum(ordered[len(ordered) // 2 - 1 :][:2]) / 2
    return f"{figure(middle, unit)} ({figure(ordered[0], unit)} to {figure(ordered[-1], unit)})"


def plain(text: str) -> str:
    """One line without control characters: names come from files and servers that anybody may have written."""
    return "".join(letter if letter.isprintable() else " " for letter in text)
