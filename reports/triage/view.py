"""What every stage of the ladder looks at, and the small steps that all of them take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.records.judgements import Evidence, Stage, StageName
from reports.cell import Cell
from reports.metrics import Measured
from reports.series import Series, Signals


@dataclass(frozen=True)
class View:
    """One cell, its signals and its metrics; `begin` and `end` of the measured run in seconds since the cell's zero."""

    cell: Cell
    signals: Signals
    measured: dict[str, Measured]
    begin: float
    end: float

    def series(self, signal: str) -> Series | None:
        found = self.signals.get(signal)
        return found if found is not None and len(found.t) else None


def gauge(view: View, signal: str, unit: str | None = None) -> list[Evidence]:
    """Mean and peak of a gauge over the measured run; nothing where it was not seen."""
    series = view.series(signal)
    if series is None:
        return []
    peak, mean = series.maximum(view.begin, view.end), series.time_mean(view.begin, view.end)
    if peak is None or mean is None:
        return []
    unit = series.unit if unit is None else unit
    note = f"mean {shown(mean, unit)} over {len(series.inside(view.begin, view.end))} scrapes"
    return [Evidence(signal=signal, now=peak, unit=unit, query=series.query, note=f"peak; {note}")]


def growth(view: View, signal: str) -> list[Evidence]:
    """What a counter grew by in the measured run."""
    series = view.series(signal)
    if series is None:
        return []
    grown = series.growth(view.begin, view.end)
    return [
        Evidence(
            signal=signal,
            now=grown,
            unit=series.unit,
            query=series.query,
            note="growth in the measured run, even between scrapes",
        )
    ]


def pair_mean(view: View, signal: str) -> list[Evidence]:
    """Mean observation of a histogram in the measured run."""
    series = view.series(signal)
    if series is None:
        return []
    mean, number = series.mean_of_pair(view.begin, view.end), series.count_growth(view.begin, view.end)
    if mean is None:
        return []
    return [
        Evidence(
            signal=signal, now=mean, unit=series.unit, query=series.query, note=f"mean of {number:,.0f} observations"
        )
    ]


def value(evidence: Sequence[Evidence], signal: str) -> float | None:
    """The figure of a signal among the evidence."""
    for item in evidence:
        if item.signal == signal and isinstance(item.now, (int, float)):
            return float(item.now)
    return None


def stage(view: View, name: StageName, headline: str, evidence: list[Evidence], wanted: Sequence[str]) -> Stage:
    """`seen` with what was seen, or `not_observable` with the reason. `wanted`: signals that would show more."""
    missing = [view.signals.absent(signal) for signal in wanted if view.series(signal) is None]
    more = [
        f"{absent.signal}: {absent.why}" + (f"; {absent.flag} would show it" if absent.flag else "")
        for absent in missing
    ]
    if not evidence:
        first = missing[0].why if missing else "nothing was recorded"
        return Stage(stage=name, state="not_observable", headline=f"not observable: {first}", to_see_more=more)
    return Stage(stage=name, state="seen", headline=headline, evidence=evidence, to_see_more=more)


def shown(number: float, unit: str) -> str:
    """A figure in its unit, as the headlines say it."""
    if unit == "s":
        return f"{number:.2f} s" if number >= 1 else f"{number * 1e3:.3g} ms"
    if unit == "1":
        return f"{number:.0%}" if number >= 0.1 or number == 0 else f"{number:.1%}"
    figure = f"{number:,.0f}" if number >= 100 or number == round(number) else f"{number:,.1f}"
    return f"{figure} {unit}".strip()
