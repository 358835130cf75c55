"""How one signal is read off a scrape: the declaration of the catalogue, and the reading it gives."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

SignalKind = Literal["gauge", "counter", "pair", "info"]
Stage = Literal["queue", "kv_cache", "kernel", "communication", "batch", "config", "symptom"]
Aggregate = Literal["sum", "max", "first"]


class SampleLike(Protocol):
    """One line of an exposition: the name on the wire, with _total, _sum or _count."""

    @property
    def metric(self) -> str: ...
    @property
    def labels(self) -> Mapping[str, str]: ...
    @property
    def value(self) -> float: ...


Rows = list[tuple[Mapping[str, str], float]]
Index = Mapping[str, Rows]  # metric -> (labels, value), in the order of the scrape


def index(samples: Iterable[SampleLike]) -> Index:
    """Samples by name. NaN is dropped: it is how an exporter says that it has no value yet."""
    rows: dict[str, Rows] = defaultdict(list)
    for sample in samples:
        if not math.isnan(sample.value):
            rows[sample.metric].append((sample.labels, sample.value))
    return rows


@dataclass(frozen=True)
class Canonical:
    """A signal under the name that all engines share."""

    name: str
    stage: Stage
    kind: SignalKind
    unit: str
    words: str


@dataclass(frozen=True)
class Witness:
    """One place where an engine exports a signal; the fields are explained at the head of vllm.toml."""

    signal: Canonical
    metric: str = ""
    where: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    aggregate: Aggregate = "sum"
    sum: str = ""
    count: str = ""
    label: str = ""
    minus: float = 0.0
    times: str = ""
    share_of: str = ""
    plus: tuple[str, ...] = ()
    scale: float = 1.0
    since: str = ""
    until: str = ""
    lazy: bool = False
    late: bool = False
    flag: str = ""
    traps: tuple[str, ...] = ()

    @property
    def family(self) -> str:
        """The family that must be there for this witness to speak, without a histogram's suffix."""
        return (self.metric or self.sum).removesuffix("_sum").removesuffix("_count")

    @property
    def query(self) -> str:
        """The reading as an expression of Prometheus's query language, for people to follow it."""
        picked = ",".join(f'{name}=~"{"|".join(values)}"' for name, values in self.where.items())
        selector = f"{{{picked}}}" if picked else ""
        if self.signal.kind == "pair":
            parts = [self.sum_name, *(f"{name}_sum" for name in self.plus)]
            top = " + ".join(f"{part}{selector}" for part in parts)
            return f"({top}) / {self.count_name}{'' if self.count else selector}"
        if self.label:
            times = f" * {self.times}" if self.times else ""
            return (
                f"({self.label} - {self.minus:g}){times} of {self.metric}"
                if self.minus
                else (f"{self.label}{times} of {self.metric}")
            )
        return f"{self.metric}{selector}" + (f" / {self.share_of}" if self.share_of else "")

    @property
    def sum_name(self) -> str:
        return self.sum or f"{self.metric}_sum"

    @property
    def count_name(self) -> str:
        return self.count or f"{self.metric}_count"

    @property
    def counters(self) -> tuple[str, ...]:
        """Names on the wire of the cumulative series that this witness is made of."""
        if self.signal.kind == "counter":
            return (self.metric,)
        if self.signal.kind == "pair":
            return (self.sum_name, *(f"{name}_sum" for name in self.plus), self.count_name)
        return ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        return all(labels.get(name) in values for name, values in self.where.items())


@dataclass(frozen=True)
class Reading:
    """A signal as one scrape shows it, or the reason why it does not.

    `value` is in the signal's unit: of a gauge as it stands, of a counter since the engine's start, of a pair the mean
    since the start (`total` / `count`). None is never nought: `why` says what is missing, `flag` what would show it.
    `unborn`: the engine exports the series with its first event, which has not come.
    """

    signal: Canonical
    value: float | None = None
    total: float | None = None
    count: float | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    witness: Witness | None = None
    why: str = ""
    flag: str = ""
    unborn: bool = False

    @property
    def name(self) -> str:
        return self.signal.name

    @property
    def traps(self) -> tuple[str, ...]:
        return self.witness.traps if self.witness else ()


def read(witness: Witness, rows: Index) -> Reading | None:
    """What the scrape shows of this witness; None where its series are not there."""
    signal = witness.signal
    if signal.kind == "pair":
        return _pair(witness, rows)
    if signal.kind == "info" or witness.label:
        return _info(witness, rows)
    value = _combined(witness.metric, witness, rows)
    if value is None:
        return None
    if witness.share_of:
        whole = _combined(witness.share_of, witness, rows)
        if not whole:
            return None
        value /= whole
    value *= witness.scale
    return Reading(signal, value, total=value if signal.kind == "counter" else None, witness=witness)


def _pair(witness: Witness, rows: Index) -> Reading | None:
    sums = [_combined(name, witness, rows) for name in (witness.sum_name, *(f"{name}_sum" for name in witness.plus))]
    counted = rows.get(witness.count_name)
    if witness.count and counted:  # a counter of its own, with labels of its own
        count: float | None = sum(value for _, value in counted)
    else:
        count = _combined(witness.count_name, witness, rows)
    if count is None or any(part is None for part in sums):
        return None
    total = sum(part for part in sums if part is not None) * witness.scale
    mean = total / count if count > 0 else None
    return Reading(
        witness.signal, mean, total, count, witness=witness, why="" if count > 0 else "nothing was observed yet"
    )


def _info(witness: Witness, rows: Index) -> Reading | None:
    found = [labels for labels, value in rows.get(witness.metric, []) if value and witness.matches(labels)]
    if not found:
        return None
    if not witness.label:
        return Reading(witness.signal, 1.0, labels=found[0], witness=witness)
    numbers = [product(witness, labels) for labels in found]
    known = [number for number in numbers if number is not None]
    if len(known) < len(numbers):
        return None
    return Reading(witness.signal, _together(known, witness.aggregate) * witness.scale, witness=witness)


def product(witness: Witness, labels: Mapping[str, str]) -> float | None:
    """The number that a label of an info series holds; None if it holds none."""
    try:
        factor = float(labels[witness.times]) if witness.times else 1.0
        return (float(labels[witness.label]) - witness.minus) * factor
    except (KeyError, ValueError):
        return None


def _combined(metric: str, witness: Witness, rows: Index) -> float | None:
    values = [value for labels, value in rows.get(metric, []) if witness.matches(labels)]
    return _together(values, witness.aggregate) if values else None


def _together(values: list[float], aggregate: Aggregate) -> float:
    if aggregate == "max":
        return max(values)
    return values[0] if aggregate == "first" else sum(values)
