"""Prometheus exposition text as samples; whatever a server sends, it ends here as rows or as one typed error.

`# TYPE` lines are left aside on purpose: a parser that follows them renames counters, and engines declare wrong types
(a histogram called `…_total`, gauges with `le` labels). Names stay as they are on the wire.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

from harness.records.errors import InfrastructureError

# Name, labels, value, then what OpenMetrics and older texts may add: a timestamp, an exemplar. Label values are quoted
# and may hold braces, spaces and anything that Unicode calls a line end, so that lines are cut at line feeds alone.
_LINE = re.compile(
    rb"([A-Za-z_:][A-Za-z0-9_:]*)"
    rb'[ \t]*(\{(?:[^"{}]|"(?:[^"\\]|\\.)*")*\})?'
    rb"[ \t]+([^\s_]+)(?:[ \t]+-?[0-9.]+)?[ \t]*(?:#[ \t].*)?\r?"
)
Key = tuple[bytes, bytes]  # name and labels as they are written


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
        return json.dumps(dict(sorted(self.labels.items())), separators=(",", ":"), ensure_ascii=False)


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


@dataclass
class Reader:
    """Reads the pages of one server. Labels are parsed once a series, however often the series is scraped.

    `prefixes`: which names are read, all of them for none.
    """

    prefixes: tuple[str, ...] = ()
    _labels: dict[bytes, Mapping[str, str] | None] = field(default_factory=dict)
    _json: dict[bytes, str] = field(default_factory=dict)

    def samples(self, body: bytes) -> tuple[list[Sample], Faults]:
        """Samples in the order of the page. ExpositionError if it holds text, but not one sample."""
        values, faults = self._values(body)
        return [Sample(name.decode(), self._labels[labels] or {}, v) for (name, labels), v in values], faults

    def rows(self, body: bytes) -> tuple[list[tuple[str, str, float]], Faults]:
        """As `samples`, each as (metric, labels as JSON, value)."""
        values, faults = self._values(body)
        return [(name.decode(), self._as_json(labels), value) for (name, labels), value in values], faults

    def _values(self, body: bytes) -> tuple[list[tuple[Key, float]], Faults]:
        faults = Faults()
        found = list(_lines(body, faults))
        if not found and faults.lines:
            raise ExpositionError(
                f"the metrics page is no exposition text, it has a line {faults.first!r}", mend="check the URL"
            )
        wanted = tuple(prefix.encode() for prefix in self.prefixes)
        kept = [(key, value) for key, value in found if not wanted or key[0].startswith(wanted)]
        self._learn([key[1] for key, _ in kept])
        values: dict[Key, float] = {}
        for key, value in kept:
            if self._labels[key[1]] is None:
                faults.lines += 1
                faults.first = faults.first or _short(b" ".join(key))
                continue
            faults.twice += key in values
            values[key] = value
        return list(values.items()), faults

    def _learn(self, texts: Sequence[bytes]) -> None:
        """Parses the label sets not seen before, all in one go; one by one only if one of them is malformed."""
        new = [text for text in dict.fromkeys(texts) if text not in self._labels]
        together = _parsed(new)
        for place, text in enumerate(new):
            one = [together[place]] if together is not None else _parsed([text])
            self._labels[text] = one[0] if one else None

    def _as_json(self, labels: bytes) -> str:
        if labels not in self._json:
            self._json[labels] = Sample("", self._labels[labels] or {}, 0.0).labels_json
        return self._json[labels]


def parse(body: bytes) -> list[Sample]:
    """Every sample of a page, in its order, of series given twice the last.

    A page that was cut loses its unfinished line, and lines that are no samples are passed over; ExpositionError if
    none is one. For many pages of one server a `Reader` is cheaper, and says what it passed over.
    """
    return Reader().samples(body)[0]


def _lines(body: bytes, faults: Faults) -> Iterator[tuple[Key, float]]:
    lines = body.split(b"\n")
    # Every line ends with a line feed; only the end mark of OpenMetrics may go without.
    last = lines.pop()
    faults.cut = bool(last.strip()) and not last.startswith(b"#")
    for line in lines:
        if not line or line.startswith(b"#") or line.isspace():
            continue
        match = _LINE.fullmatch(line) or _LINE.fullmatch(line.strip())
        try:
            if match is not None:
                yield (match[1], match[2] or b""), float(match[3])
                continue
        except ValueError:
            pass
        if line.lstrip().startswith(b"#"):
            continue
        faults.lines += 1
        faults.first = faults.first or _short(line)


def _parsed(texts: Sequence[bytes]) -> list[Mapping[str, str]] | None:
    """Label sets by prometheus_client's parser, which knows the escapes; None if one of them is malformed."""
    lines = "".join(f"x{text.decode('utf-8', 'replace')} 0\n" for text in texts)
    try:
        found = [s.labels for family in text_string_to_metric_families(lines) for s in family.samples]
    except (ValueError, IndexError, KeyError, AttributeError):
        return None
    return list(found) if len(found) == len(texts) else None


def _short(line: bytes) -> str:
    return line[:60].decode("utf-8", "replace").strip()
