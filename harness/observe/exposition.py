"""Prometheus exposition text as samples; whatever a server sends, it ends here as rows or as one typed error.

`# TYPE` lines are left aside on purpose: a parser that follows them renames counters, and engines declare wrong types
(a histogram called `…_total`, gauges with `le` labels). Names stay as they are on the wire.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from harness.records.errors import InfrastructureError

# Name, labels, value, then what OpenMetrics and older texts may add: a timestamp, an exemplar. Label values are quoted
# and may hold braces, spaces and anything that Unicode calls a line end, so that lines are cut at line feeds alone.
_LINE = re.compile(
    rb"([A-Za-z_:][A-Za-z0-9_:]*)"
    rb'[ \t]*(\{(?:[^"{}]|"(?:[^"\\]|\\.)*")*\})?'
    rb"[ \t]+([^\s_]+)(?:[ \t]+-?[0-9.]+)?[ \t]*(?:#[ \t].*)?\r?"
)
_LABEL = re.compile(rb'[ \t]*([A-Za-z_][A-Za-z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"[ \t]*(,|\Z)')
_ESCAPE = re.compile(r'\\([\\n"])')
_JSON = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, sort_keys=True)
_NAME_START = re.compile(rb"[A-Za-z_:]")


class ExpositionError(InfrastructureError):
    """A body that is no exposition text."""


@dataclass(frozen=True)
class Sample:
    metric: str  # name on the wire: with _total, _bucket, _sum or _count
    labels: Mapping[str, str]
    value: float

    @property
    def labels_json(self) -> str:
        """JSON object with sorted keys, as server.parquet keeps labels."""
        return _as_json(self.labels)


@dataclass
class Faults:
    """What was wrong with a body that could be read in part; empty as text where nothing was."""

    cut: bool = False  # the body ends inside a line, which is dropped: its value may be cut too
    lines: int = 0  # lines that are no samples, dropped
    twice: int = 0  # series that were given more than once; the last value stands
    first: str = ""  # the first dropped line, shortened

    def __str__(self) -> str:
        said = ["the page ends inside a line"] if self.cut else []
        said += [f"{self.lines} lines are no samples"] if self.lines else []
        said += [f"{self.twice} series are given twice"] if self.twice else []
        return ", ".join(said)


@dataclass(frozen=True, eq=False)  # a series is its place in a reader's memory: looked up by what is written
class _Series:
    metric: str
    labels: Mapping[str, str]

    @cached_property
    def labels_json(self) -> str:
        return _as_json(self.labels)


_UNWANTED = _Series("", {})


@dataclass
class Reader:
    """Reads the pages of one server. What stands before a value is parsed once, however often it is scraped.

    Nearly all lines of a page were on the page before it, up to their value. So the text before the last space is
    looked up first, and only what is new goes through the grammar: exact, since a text that was learnt is all of a
    name and its labels, and a line with a timestamp or an exemplar has another one.

    `prefixes`: which names are read, all of them for none.
    """

    prefixes: tuple[str, ...] = ()
    _known: dict[bytes, _Series] = field(default_factory=dict, repr=False)

    def samples(self, body: bytes) -> tuple[list[Sample], Faults]:
        """Samples in the order of the page. ExpositionError if it holds text, but not one sample."""
        values, faults = self._values(body)
        return [Sample(series.metric, series.labels, value) for series, value in values.items()], faults

    def rows(self, body: bytes) -> tuple[list[tuple[str, str, float]], Faults]:
        """As `samples`, each as (metric, labels as JSON, value)."""
        values, faults = self._values(body)
        return [(series.metric, series.labels_json, value) for series, value in values.items()], faults

    def _values(self, body: bytes) -> tuple[dict[_Series, float], Faults]:
        faults, values, known = Faults(), dict[_Series, float](), self._known
        lines = body.split(b"\n")
        # Every line ends with a line feed; only the end mark of OpenMetrics may go without.
        last = lines.pop().strip()
        faults.cut = bool(last) and not last.startswith(b"#")
        any_sample = False
        for line in lines:
            before, _, number = line.rpartition(b" ")
            series = known.get(before)
            try:
                value = float(number) if series is not None else 0.0
            except ValueError:
                series = None
            if series is None:
                if not line or line.startswith(b"#"):
                    continue
                found = self._new(line, faults)
                if found is None:
                    continue
                series, value = found
            any_sample = True
            if series is not _UNWANTED:
                faults.twice += series in values
                values[series] = value
        if not any_sample and (faults.lines or (faults.cut and not _NAME_START.match(last))):
            raise ExpositionError(
                f"the metrics page is no exposition text, it has a line {faults.first or _short(last)!r}",
                mend="check the URL",
            )
        return values, faults

    def _new(self, line: bytes, faults: Faults) -> tuple[_Series, float] | None:
        """A line by the grammar; None, and counted, if it is no sample. Comments and blank lines are none and no fault.

        Its series is learnt under what is written before the value.
        """
        match = _LINE.fullmatch(line) or _LINE.fullmatch(line.strip())
        if match is not None:
            written = match.string[: match.end(2) if match[2] else match.end(1)]
            series = self._known.get(written) or self._parsed(match[1].decode(), match[2] or b"")
            try:
                value = float(match[3])
            except ValueError:
                series = None
            if series is not None:
                self._known[written] = series
                return series, value
        if line.strip() and not line.lstrip().startswith(b"#"):
            faults.lines += 1
            faults.first = faults.first or _short(line)
        return None

    def _parsed(self, metric: str, written: bytes) -> _Series | None:
        labels = _labels(written)
        if labels is None:
            return None
        return _Series(metric, labels) if not self.prefixes or metric.startswith(self.prefixes) else _UNWANTED


def parse(body: bytes) -> list[Sample]:
    """Every sample of a page, in its order, of series given twice the last.

    A page that was cut loses its unfinished line, and lines that are no samples are passed over; ExpositionError if
    none is one. For many pages of one server a `Reader` is cheaper, and says what it passed over.
    """
    return Reader().samples(body)[0]


def is_exposition(body: bytes) -> bool:
    """Whether a body has a sample, or nothing but comments. Reads no further than the first sample."""
    junk = False
    for line in body.split(b"\n"):
        text = line.strip()
        if not text or text.startswith(b"#"):
            continue
        if Reader()._new(line, Faults()) is not None:
            return True
        junk = True
    return not junk


def _labels(written: bytes) -> dict[str, str] | None:
    """Labels in braces, their escapes undone; None if they are malformed or one is given twice."""
    inner, labels, at = written[1:-1].strip(), dict[str, str](), 0
    while at < len(inner):
        match = _LABEL.match(inner, at)
        if match is None:
            return None
        name, value = match[1].decode(), match[2].decode("utf-8", "replace")
        if name in labels:
            return None
        labels[name] = _ESCAPE.sub(_unescaped, value) if "\\" in value else value
        at = match.end()
    return labels


def _unescaped(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]


def _as_json(labels: Mapping[str, str]) -> str:
    return _JSON.encode(labels)


def _short(line: bytes) -> str:
    return line[:60].decode("utf-8", "replace").strip()
